"""The order of an epoch, also by weights and classes: by properties over any sizes, seeds and windows, and by value."""

import json
import runpy
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.draws import make_key, uniform
from gpuload.order.epoch import EpochOrder
from gpuload.order.sampling import Sampling

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass
class Case:
    """sampling: None, each sample comes once."""

    sizes: Any
    seed: int = 0
    epoch: int = 0
    window: int = 3
    sampling: Sampling | None = None

    def order(self, **changes: Any) -> EpochOrder:
        case = replace(self, **changes)
        make = EpochOrder if case.sampling is None else case.sampling.order
        return make(np.array(case.sizes), seed=case.seed, epoch=case.epoch, window=case.window)

    @property
    def total(self) -> int:
        return int(sum(self.sizes))


@st.composite
def cases(draw: Any, *kinds: str) -> Case:
    kind = draw(st.sampled_from(kinds or ("once", "weights", "groups", "chosen")))
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any))
    case = Case(sizes, draw(st.integers(0, 2**62)), draw(st.integers(0, 1000)), draw(st.integers(1, 15)))
    values = st.sampled_from([0.0, 1e-9, 0.5, 1.0, 7.0, 1e6]) if kind == "weights" else st.integers(0, 4)
    found = np.array(draw(st.lists(values, min_size=case.total, max_size=case.total).filter(any)))
    draws = draw(st.integers(1, 200))
    if kind == "weights":
        case.sampling = Sampling(draws, weights=found)
    elif kind != "once":
        groups = np.unique(found, return_inverse=True)[1].astype(np.int32)
        fewest = int(np.bincount(groups).min()) * (int(groups.max()) + 1)
        draws = draws if kind == "groups" else min(draws, fewest)
        case.sampling = Sampling(draws, groups=groups, replacement=kind == "groups")
    return case


@given(cases("once"))
def test_an_epoch_is_a_permutation_of_the_samples(case: Case) -> None:
    assert len(case.order()) == case.total
    assert sorted(case.order()[:].tolist()) == list(range(case.total))
    assert case.order().repeats(0, case.total) is None


@given(cases(), st.data())
def test_any_slice_is_the_slice_of_the_whole(case: Case, data: st.DataObject) -> None:
    order, again = case.order(), case.order()
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    repeats, some = order.repeats(0, len(order)), again.repeats(start, stop)
    assert some is repeats is None or some.tolist() == repeats[start:stop].tolist()  # type: ignore[union-attr, index]
    assert again[start:stop].tolist() == order[:].tolist()[start:stop]


@given(cases())
def test_samples_come_from_the_shards_of_their_window(case: Case) -> None:
    """Each shard is whole in one window; where each sample comes once, so are its samples."""
    order, ends, seen = case.order(), np.cumsum(case.sizes), []
    for number, (start, stop) in enumerate(zip(order.window_starts[:-1], order.window_starts[1:], strict=True)):
        shards, samples = order.window_shards(number).tolist(), order[start:stop].tolist()
        assert 1 <= len(shards) <= case.window
        assert set(np.searchsorted(ends, samples, side="right").tolist()) <= set(shards)
        assert case.sampling is not None or len(samples) == sum(case.sizes[shard] for shard in shards)
        seen += shards
    assert len(seen) == len(set(seen))
    assert len(order.window_starts) <= -(-np.count_nonzero(case.sizes) // case.window) + 1
    assert case.sampling is not None or sorted(seen) == np.flatnonzero(case.sizes).tolist()
    assert order.window_shards(len(order.window_starts) - 1).tolist() == []


@given(cases("once"), st.booleans())
def test_after_the_shards_of_a_pass_come_those_of_the_next(case: Case, shuffle: bool) -> None:
    """Where downloads look ahead."""
    options: Any = {"seed": case.seed, "window": case.window, "shuffle": shuffle}
    order, after = (
        EpochOrder(np.array(case.sizes), epoch=number, **options) for number in (case.epoch, case.epoch + 1)
    )
    windows = range(len(order.window_starts) - 1)
    shards, following = ([one.window_shards(number).tolist() for number in windows] for one in (order, after))
    for number in windows:
        assert order.upcoming(number).tolist() == [*chain(*shards[number:], *following)]
        assert order.following(number).tolist() == [*chain(*shards[number + 1 : number + 2])]


def test_two_windows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may extend from one into the next, and neither is computed again; more would be memory."""
    order = Case([10] * 9).order()
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


@given(cases("weights", "groups", "chosen"))
def test_each_sample_comes_as_often_as_its_weight_or_class_says(case: Case) -> None:
    order, sampling, counts = case.order(), case.sampling, np.bincount(case.order()[:], minlength=case.total)
    assert sampling is not None and len(order) == counts.sum() == sampling.draws
    if sampling.weights is not None:
        exact = sampling.weights / sampling.weights.sum() * sampling.draws
        assert (np.abs(counts - exact) < 1 + 1e-6).all() and not counts[sampling.weights == 0].any()
        return
    assert np.ptp(np.bincount(sampling.groups, counts)) <= 1  # type: ignore[arg-type]
    each = [counts[sampling.groups == number] for number in np.unique(sampling.groups)]
    assert all(np.ptp(one) <= 1 for one in each) and (sampling.replacement or counts.max() == 1)


@given(cases("weights", "groups"))
def test_repeats_tell_the_draws_of_a_sample_apart(case: Case) -> None:
    order = case.order()
    pairs = list(zip(order[:].tolist(), order.repeats(0, len(order)).tolist(), strict=True))  # type: ignore[union-attr]
    counts = Counter(sample for sample, _ in pairs)
    assert sorted(pairs) == sorted((sample, number) for sample, count in counts.items() for number in range(count))


@pytest.mark.parametrize("total", [1, 2, 70, 300, 598, 599])
def test_without_replacement_those_with_the_smallest_waits_are_chosen(total: int) -> None:
    weights = np.arange(600.0)
    waits = -np.log1p(-uniform(make_key(4, 3, 6, 2), np.arange(1, 600))) / weights[1:]
    order = Case([100] * 6, 4, 3, 2, Sampling(total, weights=weights, replacement=False)).order()
    assert sorted(order[:].tolist()) == sorted((1 + np.argsort(waits)[:total]).tolist())


@settings(max_examples=20)
@given(st.integers(1, (1 << 31) - 1), st.integers(1, 50))
def test_units_sum_to_the_draws(total: int, count: int) -> None:
    weights = np.geomspace(1e-12, 1, count)
    # Another number of units gives other orders; all of them are to fit into int64.
    assert int(Sampling(total, weights=weights).units[1].sum()) == total << 32
