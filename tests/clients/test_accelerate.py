"""Accelerate: updates at the same batches as with a DataLoader that it prepares, and states in its checkpoints."""

from pathlib import Path

from accelerate import Accelerator
from small import BATCHES, load


def test_the_loader_that_is_iterated_is_asked(packed: Path) -> None:
    """Also where one loop runs within another, and after one that was left."""
    accelerator = Accelerator(cpu=True)
    train, val = load(packed), load(packed, 48, shuffle=False, drop_last=False)
    assert accelerator.prepare(train) is train
    state, seen = accelerator.gradient_state, []
    for number, _ in enumerate(train, start=1):
        if number == 2:
            seen += [(state.end_of_dataloader, state.remainder) for _ in val]
        if number == BATCHES:
            assert state.end_of_dataloader
        elif number > 2:
            assert state.active_dataloader is train and not state.end_of_dataloader
    assert seen == [(False, 48), (False, 48), (True, 1)]
    for _ in train:
        break
    assert state.active_dataloader is None


def test_its_checkpoints_hold_the_position(packed: Path, undisturbed: list[list[str]], tmp_path: Path) -> None:
    """In place of `skip_first_batches`, which makes a DataLoader of the loader's data set."""
    accelerator = Accelerator(cpu=True)
    stopped, resumed = load(packed, fields=("key",)), load(packed, fields=("key",))
    accelerator.register_for_checkpointing(stopped)
    list(stopped)
    for _ in zip(range(5), stopped, strict=False):
        pass
    accelerator.save_state(str(tmp_path))
    accelerator._custom_objects = []
    accelerator.register_for_checkpointing(resumed)
    accelerator.load_state(str(tmp_path))
    assert [keys for _ in range(2) for (keys,) in resumed] == undisturbed[BATCHES + 5 :]
