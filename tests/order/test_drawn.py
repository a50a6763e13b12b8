"""Orders by weights and classes: how often each sample comes, by properties, by statistics and by value."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import WeightedRandomSampler

from gpuload.draws import make_key, uniform
from gpuload.order.epoch import EpochOrder
from gpuload.order.sampling import Sampling

shards = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any).map(lambda sizes: np.array(sizes, np.int64))
seeds, windows, draws = st.integers(0, 2**62), st.integers(1, 9), st.integers(1, 200)


@st.composite
def weighted(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    sizes = draw(shards)
    weight = st.sampled_from([0.0, 1e-9, 0.5, 1.0, 7.0, 1e6])
    values = draw(st.lists(weight, min_size=int(sizes.sum()), max_size=int(sizes.sum())).filter(any))
    return sizes, np.array(values)


@st.composite
def grouped(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    sizes = draw(shards)
    numbers = draw(st.lists(st.integers(0, 4), min_size=int(sizes.sum()), max_size=int(sizes.sum())))
    return sizes, np.unique(numbers, return_inverse=True)[1].astype(np.int32)


def make_weighted(data: Any, total: int, seed: int = 0, epoch: int = 0, window: int = 3) -> EpochOrder:
    sizes, weights = data
    return Sampling(total, weights=weights).order(sizes, seed=seed, epoch=epoch, window=window)


def make_balanced(data: Any, total: int, seed: int = 0, epoch: int = 0, window: int = 3) -> EpochOrder:
    sizes, numbers = data
    return Sampling(total, groups=numbers).order(sizes, seed=seed, epoch=epoch, window=window)


@given(weighted(), draws, seeds, st.integers(0, 1000), windows)
def test_each_sample_comes_as_often_as_its_weight_says(
    data: Any, total: int, seed: int, epoch: int, window: int
) -> None:
    order = make_weighted(data, total, seed, epoch, window)
    counts = np.bincount(order[:], minlength=len(data[1]))
    assert len(order) == counts.sum() == total
    exact = data[1] / data[1].sum() * total
    assert (np.abs(counts - exact) < 1 + 1e-6).all()
    assert not counts[data[1] == 0].any()


@given(grouped(), draws, seeds, st.integers(0, 1000), windows)
def test_each_class_comes_equally_often(data: Any, total: int, seed: int, epoch: int, window: int) -> None:
    order = make_balanced(data, total, seed, epoch, window)
    counts = np.bincount(order[:], minlength=len(data[1]))
    of_class = np.bincount(data[1], counts)
    assert len(order) == counts.sum() == total
    assert of_class.max() - of_class.min() <= 1
    for number, times in enumerate(of_class):
        each = counts[data[1] == number]
        assert each.max() - each.min() <= 1 and each.sum() == times


@given(weighted(), draws, seeds, windows, st.data())
def test_any_slice_is_the_slice_of_the_whole(data: Any, total: int, seed: int, window: int, cut: st.DataObject) -> None:
    order = make_weighted(data, total, seed, window=window)
    whole, repeats = order[:].tolist(), order.repeats(0, total).tolist()
    start = cut.draw(st.integers(0, total))
    stop = cut.draw(st.integers(start, total))
    again = make_weighted(data, total, seed, window=window)
    assert again.repeats(start, stop).tolist() == repeats[start:stop]
    assert again[start:stop].tolist() == whole[start:stop]


@given(weighted(), draws, windows)
def test_repeats_tell_the_draws_of_a_sample_apart(data: Any, total: int, window: int) -> None:
    order = make_weighted(data, total, window=window)
    pairs = list(zip(order[:].tolist(), order.repeats(0, total).tolist(), strict=True))
    counts = Counter(sample for sample, _ in pairs)
    assert sorted(pairs) == sorted((sample, number) for sample, count in counts.items() for number in range(count))


@given(weighted(), draws, windows)
def test_samples_come_from_the_shards_of_their_window(data: Any, total: int, window: int) -> None:
    order = make_weighted(data, total, window=window)
    bounds = np.concatenate([[0], np.cumsum(data[0])])
    assert len(order.window_starts) <= -(-np.count_nonzero(data[0]) // window) + 1
    for number, (start, stop) in enumerate(zip(order.window_starts[:-1], order.window_starts[1:], strict=True)):
        found = np.searchsorted(bounds, order[start:stop], side="right") - 1
        assert set(found.tolist()) <= set(order.window_shards(number).tolist())


@given(grouped(), st.integers(1, 40), seeds, windows)
def test_without_replacement_no_sample_comes_twice(data: Any, total: int, seed: int, window: int) -> None:
    sizes, numbers = data
    total = min(total, int(np.bincount(numbers).min()) * (int(numbers.max()) + 1))
    order = Sampling(total, groups=numbers, replacement=False).order(sizes, seed=seed, epoch=0, window=window)
    found = order[:].tolist()
    assert len(set(found)) == len(found) == len(order) == total
    of_class = np.bincount(numbers[found], minlength=numbers.max() + 1)
    assert of_class.max() - of_class.min() <= 1
    assert order.repeats(0, total) is None


@pytest.mark.parametrize("total", [1, 2, 70, 300, 598, 599])
def test_without_replacement_those_with_the_smallest_waits_are_chosen(total: int) -> None:
    sizes, weights = np.full(6, 100), np.arange(600.0)
    waits = -np.log1p(-uniform(make_key(4, 3, 6, 2), np.arange(1, 600))) / weights[1:]
    order = Sampling(total, weights=weights, replacement=False).order(sizes, seed=4, epoch=3, window=2)
    assert sorted(order[:].tolist()) == sorted((1 + np.argsort(waits)[:total]).tolist())


def test_over_many_passes_counts_are_those_of_the_weights() -> None:
    """Chi-square of homogeneity with torch's WeightedRandomSampler, which draws each sample independently."""
    weights = np.array([0.1, 0.2, 0.3, 1.0, 1.0, 2.5, 0.7, 4.0, 0.0, 0.2])
    sizes, passes = np.array([4, 3, 3]), 600
    mine = sum(
        np.bincount(make_weighted((sizes, weights), 10, epoch=epoch)[:], minlength=10) for epoch in range(passes)
    )
    torch.manual_seed(0)
    theirs = np.bincount(list(WeightedRandomSampler(weights.tolist(), 10 * passes)), minlength=10)
    assert chi_square(np.asarray(mine), theirs) < 21.7  # 1 % of 8 degrees of freedom, had both been independent draws
    exact = weights / weights.sum() * 10 * passes
    assert (np.abs(mine - exact) < 4 * np.sqrt(passes / 4)).all()  # a count differs from its mean by less than one


def chi_square(one: np.ndarray, two: np.ndarray) -> float:
    """Of homogeneity of two rows of counts with equal sums."""
    mean = (one + two) / 2
    return float((((one - mean) ** 2 + (two - mean) ** 2)[mean > 0] / mean[mean > 0]).sum())


@settings(max_examples=20)
@given(st.integers(1, (1 << 31) - 1), st.integers(1, 50))
def test_units_sum_to_the_draws(total: int, count: int) -> None:
    weights = np.geomspace(1e-12, 1, count)
    # Another number of units gives other orders; all of them are to fit into int64.
    assert int(Sampling(total, weights=weights).units[1].sum()) == total << 32


def test_other_classes_get_one_more_in_each_pass() -> None:
    groups = np.arange(40, dtype=np.int32) % 4
    orders = [Sampling(41, groups=groups).order(np.array([40]), seed=0, epoch=epoch, window=1) for epoch in range(9)]
    assert {int(np.bincount(groups[order[:]]).argmax()) for order in orders} == {0, 1, 2, 3}
