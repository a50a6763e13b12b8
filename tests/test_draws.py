"""Random numbers: compared with the published generator, and checked for common mistakes with seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload import ArgumentError, draws
from gpuload.draws import choose, each_key, make_key, permutation, random_bits, uniform


def test_random_bits_are_splitmix64() -> None:
    # The first outputs of Vigna's splitmix64.c for the state 1234567, as Rosetta Code and other ports list them.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert random_bits(1234567, np.arange(3)).tolist() == expected


def test_keys_of_swapped_and_summed_words_differ() -> None:
    # `seed + epoch`, which several loaders use, makes (1, 0) and (0, 1) the same epoch.
    keys = {make_key(*words) for words in [(0, 1), (1, 0), (0, 1, 0), (0, 0, 1), (1,), (0,), (-1,), (2**40, 0)]}
    assert len(keys) == 8


def test_each_repeat_of_a_sample_has_a_key_of_its_own() -> None:
    key = make_key(3, 4)
    assert each_key(key, None) == each_key(key, np.zeros(3, np.int64)) == key
    keys = np.asarray(each_key(key, np.array([0, 1, 2, 0, 1]))).tolist()
    others = random_bits(make_key(key, draws.REPEAT), np.array([1, 2])).tolist()
    assert keys == [key, *others, key, others[0]]


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


WORDS = "SHARDS SAMPLES AUGMENT MIXTURE TRANSFORM BATCH DRAWN REPEAT SHARE FUNCTION CAPTION"


def test_the_table_is_as_it_always_was() -> None:
    """Another number here gives other batches for the same seed: it belongs in the changelog."""
    assert [getattr(draws, word) for word in WORDS.split()] == [*range(11)]
    assert (draws.SHUFFLE, draws.SPLIT, draws.MEASURE) == (1, 2, 3)
    samples = np.array([0, 5])
    transform = draws.BATCH_TRANSFORM_DRAWS.part("", 3 * draws.EACH_BATCH_TRANSFORM, draws.EACH_BATCH_TRANSFORM)
    assert draws.BATCH_DRAWS.counters(samples, transform.number(7)).tolist() == [775, 5 * 16384 + 775]
    assert draws.TRANSFORM_DRAWS.counters(samples, 6).tolist() == [6, 5 * 4096 + 6]
    ranges = [getattr(draws, f"{name}_DRAWS") for name in ("CROP", "TRANSFORM", "BATCH", "BATCH_TRANSFORM", "CHOICE")]
    assert [(one.first, one.count) for one in ranges] == [(0, 64), (0, 4096), (0, 16384), (0, 8192), (0, 256)]
    assert draws.EACH_CHOICE == 8


@given(st.integers(0, 100), st.integers(1, 100), st.integers(-3, 120), st.integers(1, 120), st.integers(-3, 130))
def test_a_range_gives_nobody_the_numbers_of_another(first: int, count: int, start: int, size: int, k: int) -> None:
    whole = draws.DrawRange("all", first, count)
    if start < 0 or start + size > count:
        message = rf"mine: needs draw numbers up to {start + size - 1}, expected 0..{count - 1} of all"
        with pytest.raises(ArgumentError, match=message):
            whole.part("mine", start, size)
        return
    part = whole.part("mine", start, size)
    if 0 <= k < size:
        assert part.number(k) == first + start + k
        assert part.of(lambda number: np.array([number]))(k).tolist() == [first + start + k]
        assert part.counters(np.array([3]), k).tolist() == [3 * size + first + start + k]
    else:
        with pytest.raises(ArgumentError, match=rf"mine: asks for draw number {k}, expected 0..{size - 1}. Use fewer"):
            part.number(k)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        (None, [0, 0, 0, 1, 2, 2]),  # equal ones
        ((1, 2, 1), [0, 0, 1, 1, 1, 2]),
        ((0, 1, 0), [1, 1, 1, 1, 1, 1]),  # what has no share is never chosen
    ],
)
def test_choices_follow_their_shares(shares: tuple[float, ...] | None, expected: list[int]) -> None:
    below_1 = float(np.nextafter(1, 0))
    drawn = np.array([0, 0.24, 0.3, 0.5, 0.7, below_1])
    assert choose(drawn, 3, shares).tolist() == expected
