"""Accelerate: updates at the same batches as with a DataLoader that it prepares, and states in its checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from small import BATCHES, EPOCHS, load
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def updates(make: Callable[[], Any]) -> tuple[list[bool], int]:
    """Whether each batch of three epochs ended with an update, in steps of 4 batches; and the labels gathered."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Linear(3 * 8 * 8, 3)
    net, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), make())
    updated, gathered = [], 0
    for _ in range(EPOCHS):
        for images, labels in loader:
            with accelerator.accumulate(net):
                accelerator.backward(F.cross_entropy(net(images.flatten(1)), labels))
                optimizer.step()
                optimizer.zero_grad()
            updated.append(accelerator.sync_gradients)
            gathered += len(accelerator.gather_for_metrics(labels))
    assert not accelerator.gradient_state.end_of_dataloader
    return updated, gathered


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_last_batch_of_an_epoch_updates(packed: Path, drop_last: bool) -> None:
    own = DataLoader(TensorDataset(torch.zeros(97, 3, 8, 8), torch.arange(97) % 3), 8, drop_last=drop_last)
    expected = updates(lambda: own)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    assert updates(lambda: load(packed, drop_last=drop_last)) == expected
    assert sum(expected[0]) == 9 if drop_last else 12
    assert expected[1] == EPOCHS * (96 if drop_last else 97)


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
