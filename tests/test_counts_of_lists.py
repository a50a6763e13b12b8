"""Lists that lie one after another, against Python's own lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuload.lists import bounds_of, owners_of, places_of, spread, starts_of


@given(st.lists(st.integers(0, 5), max_size=8), st.sampled_from(["int32", "int64"]))
def test_values_know_their_list_and_place(lengths: list[int], dtype: str) -> None:
    counts = np.array(lengths, dtype)
    values = [(number, place) for number, length in enumerate(lengths) for place in range(length)]
    assert owners_of(counts).tolist() == [number for number, _ in values]
    assert places_of(counts).tolist() == [place for _, place in values]
    bounds = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    assert bounds_of(counts).tolist() == bounds
    assert starts_of(counts).tolist() == bounds[:-1]
    assert bounds_of(counts).dtype == starts_of(counts).dtype == places_of(counts).dtype == np.int64


def test_numbers_are_counted_on_from_each_start() -> None:
    assert spread(np.array([5, 0, 8]), np.array([2, 0, 1])).tolist() == [5, 6, 8]
