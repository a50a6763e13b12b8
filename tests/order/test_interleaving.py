"""Which data set each position of a mixture draws from, where batches are stratified."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload
from gpuload.order.interleaving import Stratified

weights = st.lists(st.integers(1, 20), min_size=1, max_size=5)


def make(parts: list[int]) -> Stratified:
    return Stratified(tuple(part / sum(parts) for part in parts))


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
def test_any_batch_holds_the_shares(parts: list[int], start: int, batch: int) -> None:
    counts = np.bincount(make(parts).sources(start, start + batch), minlength=len(parts))
    exact = np.array(parts) / sum(parts) * batch
    assert (np.abs(counts - exact) < (1 if len(parts) < 3 else 2)).all()


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((1 - 1e-5, 1e-5), r"mix: shares .*, expected each at least 1/10000. Raise the smallest weight"),
        (
            (0.38196601, 0.23606797, 0.14589803, 0.23606799),
            r"mix\(batches='stratified'\): the shares .* have no common denominator below 2\^31. Use weights that are",
        ),
    ],
)
def test_shares_that_cannot_be_stratified_are_refused(shares: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        Stratified(shares)
