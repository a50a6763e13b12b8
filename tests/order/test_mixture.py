"""What a mixture is, and which data set each of its positions draws from."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gpuload
from gpuload.order.stream import ShuffledBlocks, Stratified

BLOCK = 4096  # positions, as the guide promises
weights = st.lists(st.integers(1, 20), min_size=1, max_size=5)


@pytest.fixture
def halves(packed: Path) -> tuple[gpuload.Dataset, gpuload.Dataset]:
    dataset = gpuload.Dataset(packed)
    return dataset.subset(range(40)), dataset.subset(range(40, 97))


def test_weights_become_shares(halves: Any) -> None:
    mixture = gpuload.mix([(halves[0], 3), (halves[1], 1)])
    assert (mixture.shares, mixture.batches, len(mixture)) == ((0.75, 0.25), "shuffled", 97)
    assert mixture.classes == ("ant", "bee", "cat") and mixture.folder == " + ".join(str(one.folder) for one in halves)
    assert gpuload.mix([(halves[0], 0.3), (halves[1], 0.1)]).shares == pytest.approx((0.75, 0.25))


def test_a_fingerprint_is_of_sets_shares_and_batches(halves: Any) -> None:
    first, second = halves
    kinds = [gpuload.mix([(first, 1), (second, weight)]) for weight in (1, 2)]
    kinds += [gpuload.mix([(second, 1), (first, 1)]), gpuload.mix([(first, 1), (first, 1)])]
    kinds.append(gpuload.mix([(first, 1), (second, 1)], batches="stratified"))
    found = [kind.fingerprint for kind in kinds]
    assert len(set(found)) == len(found) and gpuload.mix([(first, 5), (second, 5)]).fingerprint == found[0]
    # States of runs hold it: [fingerprints, shares], and `batches` where it is not "shuffled".
    for mixture, more in ((kinds[0], []), (kinds[-1], ["stratified"])):
        content = json.dumps([[first.fingerprint, second.fingerprint], [0.5, 0.5], *more])
        assert mixture.fingerprint == hashlib.sha256(content.encode()).hexdigest()[:16]


def shuffled(shares: tuple[float, ...]) -> ShuffledBlocks:
    return ShuffledBlocks(shares, 0)


def make_shares(parts: list[int]) -> tuple[float, ...]:
    return tuple(part / sum(parts) for part in parts)


def make(parts: list[int]) -> Stratified:
    return Stratified(make_shares(parts))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.7, 0.25, 0.05), [2867, 1024, 205]),
        ((1 / 3, 1 / 3, 1 / 3), [1366, 1365, 1365]),
        ((2048.5 / BLOCK, 1023.75 / BLOCK, 1023.75 / BLOCK), [2048, 1024, 1024]),
        ((1.0,), [BLOCK]),
        ((0.0003, 0.9997), [1, 4095]),
    ],
)
def test_shares_of_a_block_are_whole_numbers(shares: tuple[float, ...], expected: list[int]) -> None:
    assert shuffled(shares).drawn(BLOCK).tolist() == expected


def test_golden_blocks() -> None:
    """A change here breaks every state_dict of a mixture that people have saved."""
    order = ShuffledBlocks((0.5, 0.3, 0.2), 7)
    assert order.sources(4090, 4106).tolist() == [2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 2, 0]
    assert order.drawn(4100).tolist() == [2052, 1229, 819]
    assert Stratified((0.5, 0.3, 0.2)).sources(95, 110).tolist() == [1, 0, 2, 0, 1, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1]


lengths = st.sampled_from([1, BLOCK - 1, BLOCK, 3 * BLOCK + 77]) | st.integers(1, 300)


@given(weights, st.booleans(), lengths | st.integers(0, 10**12) | st.just(0), lengths, lengths)
def test_any_part_is_part_of_the_whole(parts: list[int], blocks: bool, start: int, one: int, two: int) -> None:
    """And what was drawn before it is known without going there."""
    order, middle = ShuffledBlocks(make_shares(parts), 7) if blocks else make(parts), start + one
    whole, first, second = (
        order.sources(*at) for at in ((start, middle + two), (start, middle), (middle, middle + two))
    )
    assert whole.tolist() == [*first.tolist(), *second.tolist()]
    drawn = np.bincount(first, minlength=len(parts))
    assert (order.drawn(start) + drawn).tolist() == order.drawn(middle).tolist()
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
    ("make", "shares", "message"),
    [
        (Stratified, (1 - 1e-5, 1e-5), r"mix\(batches='stratified'\): shares .*expected each at least 1/10000"),
        (Stratified, (0.38196601, 0.23606797, 0.14589803, 0.23606799), r"a common denominator of at most 2\^31"),
        (Stratified, (1 / 2032, 1 / 485, 1 - 1 / 2032 - 1 / 485), r"a common denominator of at most 2\^31"),
        (Stratified, (1 / 119, 1 / 2001, 1 - 1 / 119 - 1 / 2001), ""),
        (Stratified, (1 - 1 / 10_000, 1 / 10_000), ""),
        (shuffled, (1 - 0.4 / BLOCK, 0.4 / BLOCK), "each at least 1/4096. Raise the sm"),
        (shuffled, (1 - 1 / BLOCK, 1 / BLOCK), ""),
    ],
)
def test_the_smallest_shares(make: Any, shares: Any, message: str) -> None:
    if message:
        with pytest.raises(gpuload.ArgumentError, match=message):
            make(shares)
        return
    count = 2001 * 119
    assert (np.abs(make(shares).drawn(count) - np.array(shares) * count) < 1).all()
