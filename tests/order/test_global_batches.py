"""Batches of an epoch and the parts of the ranks: nothing twice, nothing missing, as even as can be."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuload.order.stream import Epochs


@given(
    st.integers(1, 300),
    st.integers(1, 20),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 1000),
    st.integers(0, 300),
    st.booleans(),
)
@example(33, 16, 2, False, 0, 0, False)
@example(33, 16, 2, True, 0, 0, False)
@example(1, 4, 8, False, 0, 0, False)
@example(9, 1, 8, False, 0, 0, False)
@example(12, 2, 2, False, 5, 19, False)
def test_ranks_keep_step_from_any_position(
    samples: int, batch: int, world: int, drop_last: bool, begin: int, done: int, exact: bool
) -> None:
    """Also where a state is further than this epoch is long. No rank gets an empty part, unless it asks for that."""
    step, left = batch * world, max(0, samples - done)
    ranks = [Epochs(samples, step, "exact" if exact else drop_last, rank, world) for rank in range(world)]
    drop_last = drop_last and not exact
    position = ranks[0].start(2)._replace(begin=begin, samples=done)
    found = [[*one.parts(position), *one.empty_parts(position)] for one in ranks]
    stops = [part.stop for part in found[0]]
    assert len(stops) == (left // step if drop_last else -(-left // step))
    assert all([part.stop for part in parts] == stops for parts in found)
    covered: list[int] = []
    for start, stop, parts in zip([begin + done, *stops], stops, zip(*found, strict=True), strict=False):
        sizes = [part.samples for part in parts]
        assert max(sizes) <= batch and max(sizes) - min(sizes) <= 1 and (exact or min(sizes))
        repeated = [one.padding(start, stop) for one in ranks]
        assert repeated == [int(not exact and rank >= stop - start) for rank in range(world)]
        assert not any(repeated) or batch == 1 or left < world
        for part, is_repeated in zip(parts, repeated, strict=True):
            assert start <= part.first <= part.last <= stop
            covered += [] if is_repeated else range(part.first, part.last)
    taken = left - left % step if drop_last else left
    assert sorted(covered) == list(range(begin + done, begin + done + taken))
    assert all(stop == begin + done + number * step for number, stop in enumerate(stops[:-2], start=1))


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
