"""A loader warns of shards that are sorted by class where a window misses classes, and of no set that is mixed."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode
from PIL import Image

import gpuload
from gpuload.order.epoch import EpochOrder
from gpuload.order.sorted_shards import is_sorted_by_class

SHARD = 40

PackLabels = Callable[..., gpuload.Dataset]


@pytest.fixture
def pack_labels(tmp_path: Path) -> PackLabels:
    """Packs a sample for each label, in this order, 40 in a shard."""
    image = encode(Image.new("RGB", (8, 8)))

    def pack(labels: Sequence[float], field: str = "label") -> gpuload.Dataset:
        samples = ({"image": image, field: label} for label in labels)
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        gpuload.pack(samples, out, shuffle=False, maxcount=SHARD, workers=1, check="header", progress=False)
        return gpuload.Dataset(out / "train")

    return pack


def is_sorted(dataset: gpuload.Dataset, window: int, seed: int = 0) -> bool:
    return is_sorted_by_class(dataset, gpuload.Shuffle(window=window), seed)


def _labels(shares: Sequence[float], samples: int) -> list[int]:
    chance = np.random.default_rng(0)
    return chance.choice(len(shares), samples, p=np.array(shares) / sum(shares)).tolist()


@pytest.mark.parametrize(
    ("shares", "too_small"),
    [
        ([1] * 10, (1, 8, 12)),
        ([1, 1], (1, 2)),
        ([0.98, 0.02], (8, 12)),  # a rare class, in one shard of 16
        ([1 / rank for rank in range(1, 301)], (8, 12)),  # a long tail, of which a window lacks most classes
        ([1] * 300, (8, 12)),  # two samples of each
    ],
    ids=["ten", "two", "rare", "long-tail", "many"],
)
def test_sorted_shards_are_told_from_those_of_a_drawn_order(
    pack_labels: PackLabels, shares: list[float], too_small: tuple[int, ...]
) -> None:
    labels = _labels(shares, 16 * SHARD)
    mixed, in_classes = pack_labels(labels), pack_labels(sorted(labels))
    for window in (1, 2, 8, 12):
        assert not is_sorted(mixed, window)
    for window in too_small:
        assert is_sorted(in_classes, window)
    assert not is_sorted(in_classes, 16)  # all shards at a time


def test_classes_that_lie_in_many_shards_are_mixed_by_a_wide_window(pack_labels: PackLabels) -> None:
    """Two classes of eight shards each: windows of eight hold both of them, windows of two often only one."""
    dataset = pack_labels([0] * 8 * SHARD + [1] * 8 * SHARD)
    assert is_sorted(dataset, 2) and not is_sorted(dataset, 8)


def test_shards_sorted_within_themselves_are_mixed(pack_labels: PackLabels) -> None:
    labels = np.repeat([0, 1, 2, 3, 4], SHARD // 5).tolist() * 12
    assert not is_sorted(pack_labels(labels), 1)


def test_classes_of_one_sample_tell_nothing(pack_labels: PackLabels) -> None:
    alone = list(range(12 * SHARD))
    assert not is_sorted(pack_labels(alone), 2)
    assert not is_sorted(pack_labels([0] * SHARD + alone[SHARD:]), 1)


def test_one_class_regression_and_a_subset_of_one_class_are_mixed(pack_labels: PackLabels) -> None:
    assert not is_sorted(pack_labels([3] * 10 * SHARD), 2)
    assert not is_sorted(pack_labels([number / 7 for number in range(10 * SHARD)], "target"), 2)
    sorted_set = pack_labels(np.repeat(np.arange(12), SHARD).tolist())
    assert is_sorted(sorted_set, 2)
    assert is_sorted(sorted_set.subset(range(0, 12 * SHARD, 3)), 2)
    first_two_shards = sorted_set.subset(range(2 * SHARD))
    assert is_sorted(first_two_shards, 1) and not is_sorted(first_two_shards, 2)
    of_every_shard = pack_labels(list(range(SHARD)) * 12)
    one_class = [number for number in range(12 * SHARD) if number % SHARD == 7]
    assert not is_sorted(of_every_shard.subset(one_class), 1)


def test_few_shards_are_looked_at(pack_labels: PackLabels, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = pack_labels(_labels([1] * 10, 40 * SHARD))
    seen: set[int] = set()
    rows = gpuload.Dataset.rows
    monkeypatch.setattr(gpuload.Dataset, "rows", lambda data, shard: seen.add(shard) or rows(data, shard))
    for window, looked_at in ((1, 8), (2, 8), (8, 16), (40, 0)):
        seen.clear()
        is_sorted(dataset, window, seed=5)
        order = EpochOrder(dataset.shard_sizes, seed=5, epoch=0, window=window)
        assert seen == {*order.upcoming(0)[:looked_at].tolist()}  # which are read first in any case


def test_the_loader_warns_once_on_the_first_rank(pack_labels: PackLabels) -> None:
    in_classes = pack_labels(np.repeat(np.arange(12), SHARD).tolist())
    mixed = pack_labels(_labels([1] * 12, 12 * SHARD))

    def construct(data: gpuload.Dataset | gpuload.Mixture, shuffle: gpuload.Shuffle | bool, **options: Any) -> None:
        gpuload.DaliIterator(data, 24, augment=gpuload.Augment(8), device="cpu", shuffle=shuffle, **options).close()

    two = gpuload.Shuffle(window=2)
    ends = ".*Pack the set again without --no-shuffle, or raise window.*info"
    for shuffle, says in (
        (two, "sorted by class, so that 2 of them, which are mixed at a time" + ends),
        (gpuload.Shuffle(window=6), "sorted by class, so that 6 of them"),
        (gpuload.Shuffle(window=1, lanes=2), "sorted by class, so that 2 of them"),
    ):
        with pytest.warns(UserWarning, match=says) as warned:
            construct(in_classes, shuffle)
        assert len(warned) == 1 and warned[0].filename == __file__
    mixture = gpuload.mix([(in_classes, 1), (mixed, 1)])
    with pytest.warns(UserWarning, match=str(in_classes.folder)) as warned:
        construct(mixture, two, steps_per_epoch=2)
    assert len(warned) == 1
    with pytest.warns(UserWarning, match="sorted by class"):
        construct(in_classes, two, sampling=gpuload.Balance("label"))  # draws of each window are of its own classes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        construct(mixed, two, sampling=gpuload.Weights(np.linspace(0, 1, len(mixed))))
        construct(in_classes, two, rank=1, world_size=2)
        construct(in_classes, gpuload.Shuffle(window=12))
        construct(in_classes, False)
        construct(mixed, gpuload.Shuffle(window=1))
