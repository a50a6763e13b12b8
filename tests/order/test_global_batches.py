"""Batches of an epoch and the parts of the ranks: nothing twice, nothing missing, as even as can be."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuload.order.global_batches import Epochs, count_batches, rank_part
from gpuload.order.position import Position


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


@given(
    st.integers(1, 300), st.integers(1, 20), st.integers(1, 9), st.booleans(), st.integers(0, 1000), st.integers(0, 300)
)
@example(12, 2, 2, False, 5, 19)
def test_ranks_keep_step_from_any_position(
    samples: int, batch: int, world: int, drop_last: bool, begin: int, done: int
) -> None:
    """Also where a rank gets nothing of the last batch, and where a state is further than this epoch is long."""
    step, left = batch * world, max(0, samples - done)
    position = Position(2, begin, done)
    covered: list[int] = []
    for rank in range(world):
        epochs = Epochs(samples, step, drop_last, rank, world)
        parts, empty = list(epochs.parts(position)), epochs.empty_part(position)
        assert len(parts) + (empty is not None) == count_batches(left, step, drop_last)
        end = begin + samples
        assert all(
            stop == min(begin + done + number * step, end) for number, (_, _, stop, _) in enumerate(parts, start=1)
        )
        assert all(first < last for first, last, *_ in parts)
        assert empty is None or (empty[0] == empty[1] and empty[2] == end)
        covered += [row for first, last, *_ in parts for row in range(first, last)]
    taken = left - left % step if drop_last else left
    assert sorted(covered) == list(range(begin + done, begin + done + taken))


def test_epochs_follow_one_another() -> None:
    epochs = Epochs(12, 4, True, 0, 1)
    assert epochs.batches == 3 and epochs.start(5) == Position(5, 60, 0)
    assert epochs.following(Position(5, 60, 8)) == Position(6, 72, 0)
    assert epochs.following(Position(5, 60, 20)) == Position(6, 80, 0)  # resumed with smaller batches: no sample again
