"""Batches of an epoch and the parts of the ranks: nothing twice, nothing missing, as even as can be."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuload.order.epoch import ALL, Share
from gpuload.order.stream import Epochs


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


@pytest.mark.parametrize(
    ("samples", "batch", "world", "parts", "padding"),
    [
        (33, 16, 2, [((0, 16), (16, 32)), ((32, 33), (33, 34))], (0, 1)),
        (9, 8, 2, [((0, 5), (5, 10))], (0, 1)),
        (3, 8, 8, [tuple((rank, rank + 1) for rank in range(8))], (0, 0, 0, 1, 1, 1, 1, 1)),
        (97, 8, 4, [tuple((start, start + 8) for start in range(step, step + 32, 8)) for step in (0, 32, 64)], None),
        (8, 4, 2, [((0, 4), (4, 8))], (0, 0)),
    ],
)
def test_even_parts_extend_into_the_next_epoch(
    samples: int, batch: int, world: int, parts: list[Any], padding: tuple[int, ...] | None
) -> None:
    ranks = [Epochs(samples, batch * world, "even", rank, world) for rank in range(world)]
    found = list(zip(*([(p.first, p.last) for p in one.parts(one.start(0))] for one in ranks), strict=True))
    if padding is None:
        parts, padding = [*parts, tuple((96 + rank, 97 + rank) for rank in range(4))], (0, 1, 1, 1)
    assert found == parts
    start = (len(parts) - 1) * batch * world
    assert tuple(one.padding(start, samples) for one in ranks) == padding
    for one in ranks:
        ends = [one.is_last(one.start(0)._replace(samples=done)) for done in (start, samples)]
        assert ends == [False, True]
