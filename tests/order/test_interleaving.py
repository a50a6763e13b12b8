"""Which data set each position of a mixture draws from, where batches are stratified."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gpuload
from gpuload.order.stream import ShuffledBlocks, Stratified

BLOCK = 4096  # positions, as the guide promises
weights = st.lists(st.integers(1, 20), min_size=1, max_size=5)


def make(parts: list[int]) -> Stratified:
    return Stratified(tuple(part / sum(parts) for part in parts))


@pytest.mark.parametrize("start", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77])
def test_blocks_know_what_was_drawn_before(start: int) -> None:
    order = ShuffledBlocks((0.5, 0.3, 0.2), 7)
    before = np.bincount(order.sources(0, start), minlength=3) if start else np.zeros(3)
    assert order.drawn(start).tolist() == before.tolist()
    whole = order.sources(0, 5 * BLOCK).tolist()
    assert order.sources(start, start + BLOCK).tolist() == whole[start : start + BLOCK]
    assert whole[:BLOCK] != whole[BLOCK : 2 * BLOCK]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.7, 0.25, 0.05), [2867, 1024, 205]),
        ((1 / 3, 1 / 3, 1 / 3), [1366, 1365, 1365]),
        ((2048.5 / BLOCK, 1023.75 / BLOCK, 1023.75 / BLOCK), [2048, 1024, 1024]),
        ((1.0,), [BLOCK]),
    ],
)
def test_shares_of_a_block_are_whole_numbers(shares: tuple[float, ...], expected: list[int]) -> None:
    assert ShuffledBlocks(shares, 0).drawn(BLOCK).tolist() == expected


def test_golden_blocks() -> None:
    """A change here breaks every state_dict of a mixture that people have saved."""
    order = ShuffledBlocks((0.5, 0.3, 0.2), 7)
    assert order.sources(4090, 4106).tolist() == [2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 2, 0]
    assert order.drawn(4100).tolist() == [2052, 1229, 819]
    assert Stratified((0.5, 0.3, 0.2)).sources(95, 110).tolist() == [1, 0, 2, 0, 1, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1]


@given(weights, st.integers(0, 10**12), st.integers(0, 300), st.integers(0, 300))
def test_any_part_is_part_of_the_whole(parts: list[int], start: int, one: int, two: int) -> None:
    whole = make(parts).sources(start, start + one + two).tolist()
    first, second = make(parts).sources(start, start + one), make(parts).sources(start + one, start + one + two)
    assert first.tolist() + second.tolist() == whole


@given(weights, st.integers(0, 10**12), st.integers(0, 300))
def test_what_was_drawn_before_is_known_without_going_there(parts: list[int], start: int, count: int) -> None:
    order = make(parts)
    drawn = np.bincount(order.sources(start, start + count), minlength=len(parts))
    assert (order.drawn(start) + drawn).tolist() == order.drawn(start + count).tolist()
    assert order.drawn(0).tolist() == [0] * len(parts)


@given(weights, st.integers(0, 10**9), st.integers(1, 5))
def test_shares_are_exact_where_they_are_whole(parts: list[int], start: int, times: int) -> None:
    batch = sum(parts) // np.gcd.reduce(parts) * times
    counts = np.bincount(make(parts).sources(start, start + batch), minlength=len(parts))
    assert counts.tolist() == [batch * part // sum(parts) for part in parts]


@given(weights, st.integers(0, 10**9), st.integers(1, 400))
@example([4, 4, 9, 1], 222, 348)
def test_any_batch_holds_the_shares(parts: list[int], start: int, batch: int) -> None:
    """Each data set divides what those before it left, and rounds: so errors add up, by less than 1 for each."""
    counts = np.bincount(make(parts).sources(start, start + batch), minlength=len(parts))
    exact = np.array(parts) / sum(parts) * batch
    assert (np.abs(counts - exact) < max(1, len(parts) - 1)).all()


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((1 - 1e-5, 1e-5), r"stratified.*expected each at least 1/10000"),
        (
            (0.38196601, 0.23606797, 0.14589803, 0.23606799),
            r"mix\(batches='stratified'\): shares .*a common denominator of at most 2\^31",
        ),
    ],
)
def test_shares_that_cannot_be_stratified_are_refused(shares: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        Stratified(shares)


def test_shares_have_a_common_denominator_up_to_2_to_the_31() -> None:
    assert Stratified((1 / 119, 1 / 2001, 1 - 1 / 119 - 1 / 2001)).drawn(2001 * 119)[:2].tolist() == [2001, 119]
    with pytest.raises(gpuload.ArgumentError, match="common denominator of at most 2.31"):
        Stratified((1 / 2032, 1 / 485, 1 - 1 / 2032 - 1 / 485))
    Stratified((1 - 1 / 10_000, 1 / 10_000))
    ShuffledBlocks((1 - 1 / BLOCK, 1 / BLOCK), 0)
    with pytest.raises(
        gpuload.ArgumentError, match=r"mix: shares .*, expected each at least 1/4096. Raise the smallest"
    ):
        ShuffledBlocks((1 - 0.4 / BLOCK, 0.4 / BLOCK), 0)
