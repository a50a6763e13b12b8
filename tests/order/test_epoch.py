"""The order of an epoch, by properties over any sizes, seeds, windows and ranks, and by value."""

import json
import runpy
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuload.order.epoch import EpochOrder

GOLDEN = Path(__file__).parents[1] / "golden"

shard_sizes = st.lists(st.integers(1, 9), min_size=1, max_size=12).map(lambda sizes: np.array(sizes, np.int64))
seeds = st.integers(0, 2**63)


def make(sizes: np.ndarray, seed: int = 0, epoch: int = 0, window: int = 3, shuffle: bool = True) -> EpochOrder:
    return EpochOrder(sizes, seed=seed, epoch=epoch, window=window, shuffle=shuffle)


@given(shard_sizes, seeds, st.integers(0, 1000), st.integers(1, 15))
def test_an_epoch_is_a_permutation_of_the_samples(sizes: np.ndarray, seed: int, epoch: int, window: int) -> None:
    order = make(sizes, seed, epoch, window)
    assert len(order) == sizes.sum()
    assert sorted(order[:].tolist()) == list(range(sizes.sum()))


@given(shard_sizes, seeds, st.integers(1, 15), st.data())
def test_any_slice_is_the_slice_of_the_whole(sizes: np.ndarray, seed: int, window: int, data: st.DataObject) -> None:
    whole = make(sizes, seed, 0, window)[:].tolist()
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert make(sizes, seed, 0, window)[start:stop].tolist() == whole[start:stop]


@given(shard_sizes, seeds, st.integers(0, 9), st.integers(1, 15), st.booleans())
def test_after_the_shards_of_a_pass_come_those_of_the_next(
    sizes: np.ndarray, seed: int, epoch: int, window: int, shuffle: bool
) -> None:
    """Where downloads look ahead."""
    order, after = (make(sizes, seed, number, window, shuffle) for number in (epoch, epoch + 1))
    windows = range(-(-len(sizes) // window))
    shards, following = ([one.window_shards(number).tolist() for number in windows] for one in (order, after))
    for number in windows:
        assert order.upcoming(number).tolist() == [*chain(*shards[number:], *following)]
        assert order.following(number).tolist() == [*chain(*shards[number + 1 : number + 2])]


@given(shard_sizes, seeds, st.integers(0, 50), st.integers(0, 50))
def test_seed_and_epoch_each_change_the_order(sizes: np.ndarray, seed: int, first: int, second: int) -> None:
    assume(first != second and sizes.sum() >= 16)  # 16! orders: a chance meeting is out of the question
    assert make(sizes, seed, first)[:].tolist() != make(sizes, seed, second)[:].tolist()
    assert make(sizes, seed + 1, first)[:].tolist() != make(sizes, seed, first + 1)[:].tolist()


@given(shard_sizes, seeds, st.integers(1, 15))
def test_a_window_holds_whole_shards_and_no_others(sizes: np.ndarray, seed: int, window: int) -> None:
    order = make(sizes, seed, 0, window)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    seen: list[int] = []
    for number in range(len(order.window_starts) - 1):
        shards = order.window_shards(number).tolist()
        assert 1 <= len(shards) <= window
        expected = sorted(s for shard in shards for s in range(starts[shard], starts[shard + 1]))
        assert sorted(order[order.window_starts[number] : order.window_starts[number + 1]].tolist()) == expected
        seen += shards
    assert sorted(seen) == list(range(len(sizes)))
    assert order.window_shards(len(order.window_starts) - 1).tolist() == []


def test_samples_land_anywhere_in_the_epoch() -> None:
    """Over many epochs each sample's mean place is the middle: no shard or row is favoured."""
    places = np.empty((400, 60))
    for epoch in range(400):
        places[epoch, make(np.full(6, 10), 7, epoch, window=2)[:]] = np.arange(60)
    # The mean of 400 places spread over 0..59 is 29.5 with a standard error of 0.87; 60 samples, so allow 4.5 of them.
    assert np.abs(places.mean(axis=0) - 29.5).max() < 4.5 * 0.87


def test_two_windows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may extend from one into the next, and neither is computed again; more would be memory."""
    order = make(np.full(9, 10), window=3)
    computed: list[int] = []
    (lane,) = order._lanes
    compute = lane._compute
    monkeypatch.setattr(lane, "_compute", lambda window: computed.append(window) or compute(window))  # type: ignore[func-returns-value]
    for start in range(0, 80, 8):
        assert len(order[start : start + 8]) == 8
        order[max(0, start - 8) : start]
        assert len(lane._computed) <= 2
    assert computed == [0, 1, 2]


@pytest.mark.parametrize(
    ("file", "made_by", "count"),
    [("order.json", "orders", 5), ("laned_order.json", "laned_orders", 4), ("drawn_order.json", "drawn_orders", 3)],
)
def test_golden_orders(file: str, made_by: str, count: int) -> None:
    """A change here breaks every state_dict that people have saved: see tests/golden/regenerate_order.py."""
    golden = json.loads((GOLDEN / file).read_text())
    assert len(golden) == count
    assert runpy.run_path(str(GOLDEN / "regenerate_order.py"))[made_by]() == golden
