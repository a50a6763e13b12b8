"""Loops of other programs: what they ask of a loader, what they count, and what their checkpoints hold."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from small import BATCHES, load

import gpuload

# imagenet's main.py, of pytorch/examples


@pytest.mark.parametrize(("samples", "world", "batch_size"), [(97, 2, 16), (33, 2, 16), (3, 4, 8), (96, 3, 8)])
def test_imagenets_validation_has_all_samples(packed: Path, samples: int, world: int, batch_size: int) -> None:
    """It evaluates "the rest" again on every rank where len(val_loader.sampler) * world_size < len(val_loader.dataset),
    and divides by the samples of a batch."""
    data = gpuload.Dataset(packed).subset(range(samples))
    for rank in range(world):
        val_loader = load(data, batch_size, shuffle=False, rank=rank, world_size=world)  # type: ignore[arg-type]
        assert len(val_loader.sampler) == -(-samples // world) >= len(val_loader.dataset) / world
        sizes = [len(labels) for _, labels in val_loader]
        assert min(sizes) > 0 and len(sizes) == len(val_loader)
    assert len(load(packed, 8).sampler) == 96


# torchdata


@pytest.mark.parametrize("batches", [0, 5, BATCHES])
def test_a_torchdata_node_saves_and_restores_it(packed: Path, undisturbed: Any, batches: int) -> None:
    nodes = importlib.import_module("torchdata.nodes")

    def make() -> Any:
        return nodes.Loader(nodes.IterableWrapper(load(packed, fields=("key",))))

    loader, fresh = make(), make()
    iterator: Iterator[Any] = iter(loader)
    first = [keys for _, (keys,) in zip(range(batches), iterator, strict=False)]
    fresh.load_state_dict(loader.state_dict())
    end = BATCHES if batches < BATCHES else 2 * BATCHES  # it does not hand out an empty rest
    assert first + [keys for (keys,) in fresh] == undisturbed[:end]


# Hugging Face's


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_a_dict_of_fields_gives_dicts(packed: Path, output: Any) -> None:
    """The names are the batch's alone: transforms of batches, marks and previews know the fields by their own."""
    mixers = [gpuload.batchwise.MixUp()]
    options: Any = {"output": output, "batch_transforms": mixers, "on_corrupt": "mark"}
    plain = load(packed, **options)
    named = load(packed, fields={"pixel_values": "image", "labels": "label"}, **options)
    batch, expected = next(iter(named)), next(iter(plain))
    assert list(batch) == ["pixel_values", "labels", "corrupt"]
    assert all((one == other).all() for one, other in zip(batch.values(), expected, strict=True))
    for given in ((batch, expected), (None, None)):
        ours, theirs = (one.preview(4, batch=own) for one, own in zip((named, plain), given, strict=True))
        assert ours.tobytes() == theirs.tobytes()
    for wrong in ({}, {"x": 1}, {1: "image"}):
        with pytest.raises(gpuload.ArgumentError, match="or a dict of them by other names"):
            load(packed, fields=wrong)


# timm's train.py


def test_mixup_ends_where_timm_says_so(packed: Path) -> None:
    """timm's train.py: `if loader.mixup_enabled: loader.mixup_enabled = False` from --mixup-off-epoch on."""
    mixers = [gpuload.batchwise.RandomMixer([gpuload.batchwise.MixUp(), gpuload.batchwise.CutMix()])]
    plain, train = load(packed), load(packed, batch_transforms=mixers)
    assert train.mixup_enabled and not plain.mixup_enabled
    mixed, shown = next(iter(train)), train.preview(4).tobytes()
    train.mixup_enabled = False
    assert not train.mixup_enabled and train.preview(4).tobytes() != shown
    plain.set_epoch(1)
    images, labels = next(iter(plain))
    assert all(map(torch.equal, next(iter(train)), (images, F.one_hot(labels, 3).float())))
    train.mixup_enabled = True
    train.set_epoch(0)
    assert all(map(torch.equal, next(iter(train)), mixed))
    with pytest.raises(gpuload.ArgumentError, match=r"mixup_enabled='off'\): expected True or False"):
        train.mixup_enabled = "off"  # type: ignore[assignment]


# Accelerate


def test_the_loader_that_is_iterated_is_asked(packed: Path) -> None:
    """Also where one loop runs within another, and after one that was left."""
    accelerator = Accelerator(cpu=True)
    train, val = load(packed), load(packed, 48, shuffle=False, drop_last=False)
    assert accelerator.prepare(train) is train
    assert (train.end_of_dataloader, train.remainder, train.padding) == (False, -1, 0)
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
