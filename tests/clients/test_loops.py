"""Loops of other programs: what they ask of a loader, and what they count."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
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


# timm's train.py


def test_mixup_ends_where_timm_says_so(packed: Path) -> None:
    """timm's train.py: `if loader.mixup_enabled: loader.mixup_enabled = False` from --mixup-off-epoch on."""
    mixers = [gpuload.batchwise.RandomChoice([gpuload.batchwise.MixUp(), gpuload.batchwise.CutMix()])]
    plain, train = load(packed), load(packed, batch_transforms=mixers)
    assert train.mixup_enabled and not plain.mixup_enabled
    mixed = next(iter(train))
    assert (mixed[1].max(dim=1).values < 1).any()
    shown = train.preview(4).tobytes()
    train.mixup_enabled = False
    assert not train.mixup_enabled and train.preview(4).tobytes() != shown
    expected = next(iter(plain)), next(iter(plain))
    images, labels = next(iter(train))
    assert torch.equal(images, expected[1][0])
    assert torch.equal(labels, F.one_hot(expected[1][1], 3).float())
    train.mixup_enabled = True
    train.set_epoch(0)
    assert all(map(torch.equal, next(iter(train)), mixed))
    with pytest.raises(gpuload.ArgumentError, match=r"mixup_enabled='off'\): expected True or False"):
        train.mixup_enabled = "off"  # type: ignore[assignment]


# Keras, with torch as its backend


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return importlib.import_module("keras")


@pytest.mark.filterwarnings("ignore")
def test_fit_takes_every_batch_once(packed: Path, keras: Any) -> None:
    assert os.environ["KERAS_BACKEND"] == keras.backend.backend()
    net = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    train, val = load(packed), load(packed, shuffle=False, augment=gpuload.Augment(8, crop="center"))
    steps = []
    done = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: steps.append(step))
    batches = (batch for _ in range(2) for batch in train)  # one generator for all epochs
    net.fit(batches, epochs=2, steps_per_epoch=len(train), callbacks=[done], verbose=0)
    assert steps == [*range(BATCHES)] * 2
    assert train.state_dict()["epoch"] in (1, 2)
    found = net.evaluate(iter(val), steps=len(val), return_dict=True, verbose=0)
    right = total = 0
    for images, labels in val:
        right += int((net(images).argmax(1) == labels).sum())
        total += len(labels)
    assert total == 97 and found["accuracy"] == pytest.approx(right / 97)
