"""One contract for every way in which samples are drawn and divided: ranks, resuming, leaving and epochs change nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from loaders import load
from painted import pack_painted

import gpuload
from gpuload import Augment, transforms
from gpuload.batchwise import CenterHole, CutMix, MixUp, RandomMixer
from gpuload.transforms import Function

STEP = 12  # samples of a global batch, which 1, 2, 3 and 4 ranks divide
WEIGHTS = np.arange(97) % 5 / 4.0
Row = tuple[int, str]  # a sample, and what its other fields hold


class Way(NamedTuple):
    """data: what a loader is given, made of a packed set. options: of the loader. is_once: an epoch holds each sample
    exactly once. worlds: numbers of ranks. is_sorted: ranks divide a global batch in an order of their own."""

    options: dict[str, Any]
    data: Callable[[Path], Any] = str
    is_once: bool = False
    worlds: tuple[int, ...] = (2, 3)
    is_sorted: bool = False


def part(packed: Path) -> gpuload.Dataset:
    return gpuload.Dataset(packed).subset(range(3, 97, 2))


def tiled(packed: Path) -> gpuload.Dataset:
    return gpuload.Dataset(packed).subset(range(0, 97, 5)).tiles(40, overlap=8)


def mixed(packed: Path, **options: Any) -> Any:
    return gpuload.mix([(str(packed), 0.5), (part(packed), 0.25), (str(packed), 0.25)], **options)


def speckle(sample: Any, rng: np.random.Generator) -> Any:
    return sample["image"] ^ rng.integers(0, 256, sample["image"].shape, np.uint8)


WARPED = gpuload.Augment(
    12,
    crop=gpuload.RandomCrop((4, 6), pad_if_needed=True),
    dtype="uint8",
    transforms=[transforms.RandomRotation(20), transforms.RandomPerspective()],
)
NOISY = Augment(12, dtype="uint8", transforms=[Function(speckle)])
MIXED = [RandomMixer([MixUp(1.0), CutMix()], p=[0.3, 0.7]), CenterHole(4)]  # of which each batch mixes its own samples
MOVES = Augment(
    48, gpuload.RandomResizedCrop((0.4, 1.0)), dtype="uint8", vertical_flip=0.3, transforms=[transforms.RandAugment(2)]
)
FIELDS = (
    *("index", "mask", gpuload.Boxes(), gpuload.Target("angle", negate_on_flip=True), "key", "dataset"),
    gpuload.Captions("caption", lines=True, dropout=0.3),
)
TWO, LANES = {"shuffle": gpuload.Shuffle(window=2)}, {"shuffle": gpuload.Shuffle(window=1, lanes=4)}
ALL = {"drop_last": False}
SIZES = gpuload.Buckets([(12, 12), (8, 16), (16, 8)])
BUCKETS = {"augment": gpuload.Augment(SIZES, crop="cover", dtype="uint8")}
WAYS = {
    "shuffled": Way({"drop_last": False}, is_once=True),
    "dropped": Way({}),
    "dali": Way({"drop_last": False, "decoder": "dali"}, is_once=True),
    "both": Way({"drop_last": False, "decoder": gpuload.Both(cpu=0.4), "augment": WARPED}, part, True, (2, 4)),
    "a function": Way({"decoder": "dali", "augment": NOISY}),
    "a function of both": Way({"decoder": "both", "augment": NOISY, "drop_last": False}, part, True),
    "a function before the crop": Way({"augment": replace(NOISY, transforms=[Function(speckle, before_crop=True)])}),
    "a function of repeats": Way({"sampling": gpuload.Weights(WEIGHTS), "augment": NOISY}),
    "a function of a mixture": Way({"augment": NOISY, "steps_per_epoch": 5}, mixed),
    "fields that move": Way({"augment": MOVES, "fields": FIELDS, "drop_last": False, "decoder": "native"}, worlds=(2,)),
    "fields that move, dali": Way({"augment": MOVES, "fields": FIELDS, "decoder": "dali"}, mixed),
    "sizes by epoch": Way({"augment": {0: Augment(12), 1: Augment(20), 2: Augment(16)}, "drop_last": False}),
    "sizes by epoch and steps": Way({"augment": {0: Augment(12), 2: Augment((8, 20))}, "steps_per_epoch": 5}),
    "batch transforms": Way({"batch_transforms": MIXED, "fields": ("index", "image", "label", "middle")}, worlds=(1,)),
    "stored": Way({"shuffle": False}, is_once=True, worlds=(2, 3, 4)),
    "subset": Way({**ALL, **TWO}, part, is_once=True, worlds=(2, 4)),
    "tiles": Way({**ALL, **TWO}, tiled),
    "repeated tiles": Way({"sampling": gpuload.Weights("label"), "augment": WARPED}, tiled),
    "even": Way({"shuffle": False, "drop_last": "even"}, part, is_once=True),
    "steps": Way({"steps_per_epoch": 5, **TWO}),
    "lanes": Way({**ALL, **LANES}, is_once=True, worlds=(2, 4), is_sorted=True),
    "dropped lanes": Way(LANES, worlds=(2, 4), is_sorted=True),
    "lanes of a subset": Way({**ALL, "shuffle": gpuload.Shuffle(window=2, lanes=2)}, part, True, (2,), True),
    "lanes and steps": Way({**LANES, "steps_per_epoch": 5}, worlds=(2, 4), is_sorted=True),
    "mixture": Way({"shuffle": gpuload.Shuffle(window=3)}, mixed),
    "stratified": Way({"drop_last": False}, partial(mixed, batches="stratified")),
    "mixture and steps": Way({"steps_per_epoch": 5}, mixed),
    "balance": Way({"sampling": gpuload.Balance("label"), "drop_last": False}),
    "weights": Way({"sampling": gpuload.Weights(WEIGHTS), "drop_last": False}),
    "longer": Way({"sampling": gpuload.Weights(WEIGHTS, num_samples=200)}),
    "chosen": Way({"sampling": gpuload.Weights(WEIGHTS, replacement=False, num_samples=50), "drop_last": False}),
    "chosen of classes": Way({"sampling": gpuload.Balance("label", replacement=False, num_samples=60)}),
    "weights of a subset": Way({"sampling": gpuload.Weights(WEIGHTS[3::2]), "drop_last": False}, part),
    "weights of a mixture": Way({"sampling": gpuload.Weights(np.tile(WEIGHTS, 3)[:241]), "steps_per_epoch": 4}, mixed),
    "repeated": Way({"sampling": gpuload.Repeated(3), **TWO}, is_sorted=True),
    "repeated, all": Way({"sampling": gpuload.Repeated(2), "drop_last": False}, part, worlds=(2, 4), is_sorted=True),
    "buckets": Way({**BUCKETS, **TWO}),
    "buckets and steps": Way({**BUCKETS, "steps_per_epoch": 5}),
    "whole buckets": Way({**BUCKETS, "drop_last": False}, is_once=True),
    "buckets of a mixture": Way(BUCKETS, mixed),
    "buckets of a subset": Way(BUCKETS, part),
    "buckets of weights": Way({**BUCKETS, "sampling": gpuload.Weights(WEIGHTS)}),
}


def make(way: Way, packed: Path, ranks: int) -> list[gpuload.DaliIterator]:
    data = way.data(packed)
    places = [(rank, ranks) for rank in range(ranks)]
    usual = {"decoder": "native", "augment": gpuload.Augment(12, dtype="uint8"), "fields": ("index", "image")}
    return [load(data, STEP // ranks, **{**usual, **way.options}, rank=rank, world_size=size) for rank, size in places]


def held(values: Any, row: int) -> str:
    """A row of a field, without the padding of boxes."""
    if isinstance(values, tuple):
        return str(values.boxes[row, : values.counts[row]].tolist())
    return values[row] if isinstance(values, list) else values[row].numpy().tobytes().hex()


def epoch_of(loaders: list[gpuload.DaliIterator], steps: int | None = None) -> list[list[Row]]:
    """The global batches of an epoch, or of `steps` of it: all ranks are in step, and none gets an empty batch."""
    found = []
    for number, parts in enumerate(zip(*loaders, strict=True), start=1):
        assert all(len(index) for index, *_ in parts)
        assert len({first.shape[1:] for _, first, *_ in parts}) == 1
        states = [json.dumps(loader.state_dict()) for loader in loaders]
        assert len(set(states)) == 1 and len(states[0]) < 1000
        found.append(
            [
                (sample, "".join(held(values, row) for values in fields))
                for (index, *fields), loader in zip(parts, loaders, strict=True)
                for row, sample in enumerate(index.tolist()[: len(index) - loader.padding])
            ]
        )
        if number == steps:
            break
    return found


def same(way: Way, found: list[list[Row]], expected: list[list[Row]]) -> bool:
    """The same samples, in the same order over all ranks. Where each rank is to have a sample of a short last batch,
    the one before it may have given some up."""

    def rows(batch: list[Row]) -> list[Row]:
        return sorted(batch) if way.is_sorted else batch

    parts = list(zip(found[:-2], expected[:-2], strict=False))
    parts.append((list(chain(*found[-2:])), list(chain(*expected[-2:]))))
    return len(found) == len(expected) and all(rows(one) == rows(other) for one, other in parts)


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_painted(tmp_path_factory.mktemp("painted"), count=97, side=60)


@pytest.mark.parametrize("name", WAYS)
def test_ranks_resuming_and_leaving_change_nothing(packed: Path, painted: Path, name: str) -> None:
    way = WAYS[name]
    packed = painted if "fields" in way.options else packed
    alone = make(way, packed, 1)
    epochs = [epoch_of(alone) for _ in range(3)]
    assert all(len(epoch) == len(alone[0]) for epoch in epochs)
    if name not in ("stored", "even"):
        assert epochs[0] != epochs[1]
    if way.is_once:
        data = way.data(packed)
        expected = range(97) if isinstance(data, str) else range(3, 97, 2)
        assert [sorted(sample for batch in epoch for sample, _ in batch) for epoch in epochs] == [list(expected)] * 3

    worlds = {ranks: make(way, packed, ranks) for ranks in way.worlds}
    for ranks, loaders in worlds.items():
        assert {len(loader) for loader in loaders} == {len(alone[0])}
        expected_padding = [int(name == "even" and rank == ranks - 1) for rank in range(ranks)]
        for epoch in epochs[:2]:
            assert same(way, epoch_of(loaders), epoch)
            assert "buckets" in name or [loader.padding for loader in loaders] == expected_padding

    stopped, resumed = worlds[way.worlds[0]], make(way, packed, way.worlds[-1])
    for loader in stopped:
        loader.set_epoch(1)
    head = epoch_of(stopped, steps=2)
    for loader in resumed:
        loader.load_state_dict(stopped[0].state_dict())
        loader.set_epoch(1)  # as training loops do: it does not go back to the epoch's start
    assert same(way, head + epoch_of(resumed), epochs[1])
    assert same(way, epoch_of(resumed), epochs[2])
    assert same(way, epoch_of(stopped), epochs[2])  # which was left early
    for loader in stopped:
        loader.set_epoch(0)
    if "steps_per_epoch" not in way.options:
        assert same(way, epoch_of(stopped), epochs[0])
