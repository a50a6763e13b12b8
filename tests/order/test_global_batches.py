"""Batches of an epoch and the parts of the ranks: nothing twice, nothing missing, as even as can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.order.global_batches import count_batches, rank_part


@given(st.integers(0, 500), st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_ranks_share_each_batch_without_overlap(samples: int, batch: int, world: int, drop_last: bool) -> None:
    step = batch * world
    steps = count_batches(samples, step, drop_last)
    covered: list[int] = []
    for number in range(steps):
        start, stop = number * step, min((number + 1) * step, samples)
        parts = [rank_part(start, stop, rank, world) for rank in range(world)]
        assert max(b - a for a, b in parts) <= batch
        assert max(b - a for a, b in parts) - min(b - a for a, b in parts) <= 1
        covered += [position for a, b in parts for position in range(a, b)]
    assert covered == list(range(samples - samples % step if drop_last else samples))


@pytest.mark.parametrize(
    ("samples", "batch", "drop_last", "expected"),
    [(7, 2, True, 3), (7, 2, False, 4), (6, 2, True, 3), (6, 2, False, 3), (1, 2, True, 0), (1, 2, False, 1)],
)
def test_count_batches(samples: int, batch: int, drop_last: bool, expected: int) -> None:
    assert count_batches(samples, batch, drop_last) == expected
