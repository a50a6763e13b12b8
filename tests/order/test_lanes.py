"""Orders in lanes; batches of an epoch and the parts of the ranks, by lanes or without: nothing twice, nothing missing, as
even as can be."""

import weakref
from contextlib import nullcontext
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from loaders import load
from streams import seen, stream_of

import gpuload
from gpuload import ArgumentError, Shuffle
from gpuload.machine.ranks import Ranks
from gpuload.order.epoch import ALL, EpochOrder, Share
from gpuload.order.plan import OrderArguments, plan_order
from gpuload.order.stream import Epochs


class Case(NamedTuple):
    sizes: list[int]
    lanes: int
    seed: int = 3
    epoch: int = 0
    window: int = 2

    def order(self) -> EpochOrder:
        return EpochOrder(np.array(self.sizes), seed=self.seed, epoch=self.epoch, window=self.window, lanes=self.lanes)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(0, 9), min_size=2, max_size=14).filter(lambda s: np.count_nonzero(s) > 1))
    lanes = draw(st.integers(2, np.count_nonzero(sizes)))
    return Case(sizes, lanes, draw(st.integers(0, 2**63)), draw(st.integers(0, 99)), draw(st.integers(1, 4)))


@given(cases())
def test_each_sample_comes_once_and_lanes_share_few_shards(case: Case) -> None:
    """In an order of the shards that the seed decides, each lane has the next part."""
    order, total = case.order()[:], sum(case.sizes)
    assert sorted(order.tolist()) == list(range(total))
    shards, turns = np.searchsorted(np.cumsum(case.sizes), order, side="right"), np.arange(total) + case.epoch * total
    each = [set(shards[turns % case.lanes == lane].tolist()) for lane in range(case.lanes)]
    assert sum(map(len, each)) < np.count_nonzero(case.sizes) + case.lanes


@settings(max_examples=50)
@given(cases(), st.data())
def test_some_lanes_are_served_alone(case: Case, data: st.DataObject) -> None:
    """Their samples in the order of all, each part of them, and the shards that are needed for it."""
    first = data.draw(st.integers(0, case.lanes - 1))
    share = Share(first, data.draw(st.integers(first + 1, case.lanes)), case.lanes)
    order, total = case.order(), sum(case.sizes)
    begin = case.epoch * total
    turns = [(begin + place) % case.lanes for place in range(total)]
    expected = [s for s, lane in zip(order[:].tolist(), turns, strict=True) if first <= lane < share.stop]
    view = order.serving(share)
    assert view is order.serving(share) and len(view) == len(expected)
    start = data.draw(st.integers(0, len(view)))
    stop = data.draw(st.integers(start, len(view)))
    assert view[start:stop].tolist() == expected[start:stop]
    assert [share.before(begin + place) - share.before(begin) for place in range(total + 1)] == [
        sum(first <= lane < share.stop for lane in turns[:place]) for place in range(total + 1)
    ]
    shard_of = np.searchsorted(np.cumsum(case.sizes), expected, side="right")
    bounds = view.window_starts.tolist()
    assert bounds[0] == 0 and bounds[-1] == len(view) and bounds == sorted(set(bounds))
    for number, (begin, end) in enumerate(pairwise(bounds)):
        here, following = view.window_shards(number), view.following(number)
        assert set(shard_of[begin:end]) <= set(here.tolist())
        assert len(here) <= case.window * (share.stop - share.first) >= len(following)
        rest = view.upcoming(number).tolist()
        assert set(shard_of[begin:]) <= set(rest) and set(here.tolist()) <= set(rest)
        assert set(view.window_shards(number + 1)) <= {*here.tolist(), *following.tolist()}
    end = len(bounds) - 1  # where a rank without samples of the last batch reads
    assert len(view.window_shards(end)) == len(view.following(end)) == 0 < len(view.upcoming(end))
    assert view[len(view) : len(view)].tolist() == []
    stream, start = stream_of(case.sizes, lanes=case.lanes, seed=case.seed), data.draw(st.integers(0, 200))
    whole = seen(stream, start, start + 2 * total)
    own = [row for place, row in enumerate(whole, start) if first <= place % case.lanes < share.stop]
    assert seen(stream, start, start + 2 * total, share) == own


@pytest.mark.parametrize("lanes", [1, 4])
def test_an_order_is_freed_at_once(lanes: int) -> None:
    """Without waiting for the garbage collector, so that memory does not grow from epoch to epoch."""
    order = Case([5] * 8, lanes).order()
    assert len(order[0:20]) == 20
    assert lanes == 1 or len(order.serving(Share(0, 2, 4))[0:20]) == 20
    gone = weakref.ref(order)
    del order
    assert gone() is None


@pytest.mark.parametrize(
    ("lanes", "ranks", "batch_size", "expected", "node"),
    [
        (1, Ranks(1, 4), 8, ALL, 1),
        (4, Ranks(0, 1), 7, ALL, 4),
        (4, Ranks(1, 2), 8, Share(2, 4, 4), 2),
        (4, Ranks(2, 4, 0, 2), 1, Share(2, 3, 4), 2),
        (4, Ranks(3, 4, 3, 4), 5, Share(3, 4, 4), 4),
        (4, Ranks(0, 3), 8, None, 4),
        (2, Ranks(0, 4), 8, None, 2),
        (4, Ranks(0, 2), 5, None, 4),
    ],
)
def test_the_lanes_of_a_rank(
    packed: Path, lanes: int, ranks: Ranks, batch_size: int, expected: Share | None, node: int
) -> None:
    """None: those that cannot have lanes of their own are told."""
    message = rf"lanes={lanes}\): {ranks.world_size} ranks with batch_size={batch_size} cannot have"
    with pytest.warns(UserWarning, match=message) if expected is None else nullcontext():
        plan = plan_order(OrderArguments(gpuload.Dataset(packed), ranks, Shuffle(lanes=lanes), 0, True), batch_size)
    assert plan.epochs.share == (expected or ALL) and plan.node_lanes == node


def test_lanes_are_of_shards_with_samples(packed: Path) -> None:
    few = gpuload.Dataset(packed).subset([0, 1, 10, 11, 20, 30, 40])
    with pytest.raises(ArgumentError, match=r"lanes=6\): .* a shard of samples for each lane; .* has 5 that"):
        load(few, 2, shuffle=Shuffle(lanes=6))
    load(few, 2, shuffle=Shuffle(lanes=5)).close()
    mixture = gpuload.mix([(packed, 1), (packed, 1)])
    for data, sampling in ((mixture, None), (packed, gpuload.Balance("label"))):
        with pytest.raises(ArgumentError, match=r"lanes=2\): expected a single data set without sampling="):
            load(data, shuffle=Shuffle(lanes=2), sampling=sampling)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="3 ranks with batch_size=8 cannot have lanes of their own") as warned:
        assert load(packed, rank=0, world_size=3, shuffle=Shuffle(lanes=4)).state_dict()["lanes"] == 4
    assert warned[0].filename.endswith("loaders.py")


def test_a_rank_reads_the_shards_of_its_lanes_alone(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[set[int]] = []
    mapped = gpuload.read.shards.MappedShard.__init__

    def watched(shard: Any, dataset: Any, number: int, *rest: Any) -> None:
        opened[-1].add(number)
        mapped(shard, dataset, number, *rest)

    monkeypatch.setattr(gpuload.read.shards.MappedShard, "__init__", watched)
    for rank in range(4):
        opened.append(set())
        loader = load(packed, 8, rank=rank, world_size=4, drop_last=False, shuffle=gpuload.Shuffle(window=1, lanes=4))
        read = {int(sample) // 10 for _ in range(3) for index, *_ in loader for sample in index}
        loader.close()
        assert read <= opened[-1]
    assert all(len(shards) <= 4 for shards in opened)  # 2.5, and parts of two
    assert set.union(*opened) == set(range(10))


# The batches of an epoch


@settings(max_examples=200)
@given(
    st.integers(1, 300),
    st.integers(1, 3) | st.integers(1, 20),
    st.integers(1, 9),
    st.integers(0, 3),
    st.sampled_from([True, False, "exact"]),
    st.integers(0, 1000),
    st.integers(0, 300),
)
@example(33, 16, 2, 0, False, 0, 0)
@example(33, 16, 2, 0, True, 0, 0)
@example(1, 4, 8, 0, False, 0, 0)
@example(9, 1, 8, 0, False, 0, 0)
@example(12, 2, 2, 0, False, 5, 19)
def test_ranks_keep_step_from_any_position(
    samples: int, times: int, world: int, lanes: int, drop_last: Any, begin: int, done: int
) -> None:
    """Also where a state is further than this epoch is long. No rank gets an empty part, unless it asks for that.

    lanes: of each rank; 0, ranks divide each batch of all lanes. times: samples of each of them in a batch.
    """
    lanes = lanes if world > 1 else 0
    batch, samples, exact = times * max(1, lanes), max(samples, world * lanes), drop_last == "exact"
    step, left = batch * world, max(0, samples - done)
    shares = [Share(rank * lanes, (rank + 1) * lanes, world * lanes) if lanes else ALL for rank in range(world)]
    ranks = [Epochs(samples, step, drop_last, rank, world, share) for rank, share in enumerate(shares)]
    position = ranks[0].start(2)._replace(begin=begin, samples=done)
    found = [[*one.parts(position), *one.empty_parts(position)] for one in ranks]
    stops = [part.stop for part in found[0]]
    assert len(stops) == (left // step if drop_last is True else -(-left // step))
    assert all([part.stop for part in parts] == stops for parts in found)
    assert all(stop == begin + done + number * step for number, stop in enumerate(stops[:-2], start=1))
    assert not stops or stops[-1] == begin + done + (left - left % step if drop_last is True else left)
    for start, stop, parts in zip([begin + done, *stops], stops, zip(*found, strict=True), strict=False):
        rows = [
            [at for at in range(p.first, p.last) if p.share.first <= at % p.share.lanes < p.share.stop] for p in parts
        ]
        assert [part.samples for part in parts] == list(map(len, rows))
        assert exact or all(rows)
        repeated = [one.padding(start, stop) for one in ranks]
        assert lanes or repeated == [int(not exact and rank >= stop - start) for rank in range(world)]
        for rank in np.flatnonzero(repeated):
            assert not exact and len(rows[rank]) == 1 and parts[rank].share == shares[rank]
            assert begin <= parts[rank].first < start if lanes else start <= parts[rank].first < stop
            rows[rank] = []
        assert all(rows) or times == 1 or left < world * max(1, lanes)
        assert sorted(chain(*rows)) == list(range(start, stop))
        sizes = list(map(len, rows))
        assert max(sizes) <= batch and max(sizes) - min(sizes) <= max(1, lanes)
        assert stop - start < step or set(sizes) == {batch}


@given(st.integers(1, 120), st.integers(1, 17), st.integers(1, 9))
@example(33, 16, 2)
@example(3, 8, 8)
def test_even_parts_extend_into_the_next_epoch(samples: int, batch: int, world: int) -> None:
    """All ranks get equally many, and what is beyond the end of the epoch is padding."""
    ranks, step = [Epochs(samples, batch * world, "even", rank, world) for rank in range(world)], batch * world
    found = list(zip(*(one.parts(one.start(0)) for one in ranks), strict=True))
    assert len(found) == -(-samples // step)
    for start, parts in zip(range(0, samples, step), found, strict=True):
        stop = min(start + step, samples)
        each = -(-(stop - start) // world)
        assert [(p.first - start, p.last - start, p.stop) for p in parts] == [
            (rank * each, (rank + 1) * each, stop) for rank in range(world)
        ]
        beyond = [sum(at >= stop for at in range(p.first, p.last)) for p in parts]
        assert [one.padding(start, stop) for one in ranks] == beyond
        assert {one.is_last(one.start(0)._replace(samples=stop)) for one in ranks} == {stop == samples}
