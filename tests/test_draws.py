"""Random numbers: compared with the published generator, and checked for common mistakes with seeds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuload.draws import make_key, permutation, random_bits, uniform


def test_random_bits_are_splitmix64() -> None:
    # The first outputs of Vigna's splitmix64.c for the state 1234567, as Rosetta Code and other ports list them.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert random_bits(1234567, np.arange(3)).tolist() == expected


def test_keys_of_swapped_and_summed_words_differ() -> None:
    # `seed + epoch`, which several loaders use, makes (1, 0) and (0, 1) the same epoch.
    keys = {make_key(*words) for words in [(0, 1), (1, 0), (0, 1, 0), (0, 0, 1), (1,), (0,), (-1,), (2**40, 0)]}
    assert len(keys) == 8


def test_uniform_fills_its_interval_evenly() -> None:
    values = uniform(make_key(3, 4), np.arange(100_000))
    assert values.min() >= 0 and values.max() < 1
    counts, _ = np.histogram(values, 100, (0, 1))
    # chi-square with 99 degrees of freedom: 99 on average, above 160 once in 10,000 keys
    assert (((counts - 1000) ** 2) / 1000).sum() < 160


@given(st.integers(0, 2**64 - 1), st.integers(0, 200))
def test_permutation_holds_each_number_once(key: int, count: int) -> None:
    assert sorted(permutation(key, count).tolist()) == list(range(count))


def test_all_orders_of_four_are_equally_likely() -> None:
    orders = [tuple(permutation(make_key(0, n), 4).tolist()) for n in range(12_000)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert (((counts - 500) ** 2) / 500).sum() < 60  # chi-square, 23 degrees of freedom: above 60 once in 30,000
