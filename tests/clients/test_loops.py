"""Loops of programs that are no packages, written anew: what they ask of a loader, and what they count."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small import BATCHES, load

import gpuload

# imagenet's main.py, of pytorch/examples


@pytest.mark.parametrize(("samples", "world", "batch_size"), [(97, 2, 16), (33, 2, 16), (3, 4, 8), (96, 3, 8)])
def test_imagenets_validation_sees_that_every_rank_has_its_samples(
    packed: Path, samples: int, world: int, batch_size: int
) -> None:
    """It evaluates "the rest" again on every rank where len(val_loader.sampler) * world_size < len(val_loader.dataset),
    and divides by the samples of a batch."""
    data = gpuload.Dataset(packed).subset(range(samples))
    for rank in range(world):
        val_loader = load(data, batch_size, shuffle=False, rank=rank, world_size=world)  # type: ignore[arg-type]
        assert len(val_loader.sampler) == -(-samples // world)
        assert not len(val_loader.sampler) * world < len(val_loader.dataset)
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
    assert named.preview(4, batch=batch).tobytes() == plain.preview(4, batch=expected).tobytes()
    assert named.preview(4).tobytes() == plain.preview(4).tobytes()
    for wrong in ({}, {"x": 1}, {1: "image"}):
        with pytest.raises(gpuload.ArgumentError, match="or a dict of them by other names"):
            load(packed, fields=wrong)
    with pytest.raises(gpuload.ArgumentError, match="two have the same name"):
        load(packed, fields={"corrupt": "image"}, on_corrupt="mark")
