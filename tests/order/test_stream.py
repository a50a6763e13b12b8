"""Subsets, filters, virtual epochs and mixtures: which samples come, how often, and after any stop; what a mixture is,
and which data set each of its positions draws from."""

import hashlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from loaders import drain, load
from streams import seen, stream_of

import gpuload
from gpuload.order.turns import ShuffledBlocks, Stratified

BLOCK = 4096  # positions in which a mixture's shares are exact, as the guide promises
shards = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3)


@settings(max_examples=80)
@given(
    shards,
    st.sampled_from(["shuffled", "stratified"]),
    st.integers(0, 2**62),
    st.integers(0, 10**12) | st.integers(0, 9000) | st.sampled_from([0, BLOCK - 100, 3 * BLOCK]),
    st.integers(0, 300),
    st.integers(0, 300),
)
def test_any_part_is_part_of_the_whole(shards: Any, batches: str, seed: int, start: int, one: int, two: int) -> None:
    """And how often each data set was drawn before it is known without going there."""
    whole, *parts = (
        seen(stream_of(*shards, seed=seed, batches=batches), *part)
        for part in ((start, start + one + two), (start, start + one), (start + one, start + one + two))
    )
    assert whole == [*parts[0], *parts[1]]


@settings(max_examples=30)
@given(shards, st.integers(0, 2**62))
def test_every_data_set_is_gone_through_pass_after_pass(shards: Any, seed: int) -> None:
    rows = seen(stream_of(*shards, seed=seed), 0, 700)
    for source, total in enumerate(map(sum, shards)):
        mine = [(epoch, sample) for where, epoch, sample in rows if where == source]
        for epoch in range(len(mine) // total):
            whole = mine[epoch * total : (epoch + 1) * total]
            assert sorted(whole) == [(epoch, sample) for sample in range(total)]


def test_a_subset_is_a_data_set_of_its_own(packed: Path) -> None:
    whole = gpuload.Dataset(packed)
    part = whole.subset([90, 3, 17, 18, 40])
    assert len(part) == 5
    assert part.labels.tolist() == whole.labels[[3, 17, 18, 40, 90]].tolist()
    assert part.fingerprint not in (whole.fingerprint, whole.subset([3, 17, 18, 41, 90]).fingerprint)
    assert repr(part) == f"Dataset('{packed}': 5 of 97 samples in 10 shards)"
    assert len(whole) == 97 and len(whole.labels) == 97
    nested = part.subset([False, True, False, False, True])
    assert [sample for sample, _ in drain([load(nested, 1, shuffle=False)])] == [17, 90]
    epochs = [[sample for sample, _ in drain([load(part, 2, drop_last=False, seed=s)])] for s in range(8)]
    assert all(sorted(epoch) == [3, 17, 18, 40, 90] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_a_sample_is_cropped_alike_in_a_subset(packed: Path) -> None:
    whole = dict(drain([load(packed, drop_last=False)]))
    part = drain([load(gpuload.Dataset(packed).subset(range(0, 97, 7)), 4, drop_last=False)])
    assert len(part) == 14 and all(whole[sample] == pixels for sample, pixels in part)


def test_filter_by_any_column(packed: Path) -> None:
    dataset = gpuload.Dataset(packed)
    bees = dataset.filter(pc.field("label") == dataset.classes.index("bee"))
    assert len(bees) == (dataset.labels == 1).sum() and set(bees.labels.tolist()) == {1}
    wide = bees.filter(pc.field("width") > pc.field("height"))
    rows = [row for shard in range(10) for row in dataset.rows(shard).to_pylist()]
    expected = [n for n, row in enumerate(rows) if row["label"] == 1 and row["width"] > row["height"]]
    assert 0 < len(expected) < len(bees)
    assert [sample for sample, _ in drain([load(wide, 4, shuffle=False)])] == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.subset([]), r"Dataset.subset\(samples\): no sample of .*train is selected. Loosen the filter"),
        (lambda d: d.subset([1, 97]), r"expected numbers in 0..96, found 97$"),
        (lambda d: d.subset([1, 1]), "1 is repeated. Give each number once"),
        (lambda d: d.subset([True]), r"the mask has shape \(1,\), expected \(97,\)"),
        (lambda d: d.filter(pc.field("label") > 99), "no sample of .*train is selected"),
        (lambda d: d.filter(pc.field("colour") == 1), r"Dataset.filter\(expression\): .*colour.*The columns are key,"),
        (lambda d: load(gpuload.mix([(d, 1), (d, 1e-5)])), "expected each at least 1/4096. Raise the smallest weight"),
    ],
)
def test_impossible_parts_are_refused(packed: Path, change: Any, message: str) -> None:
    with pytest.raises(gpuload.ArgumentError, match=message):
        change(gpuload.Dataset(packed))


def test_sets_of_other_classes_are_not_mixed(packed: Path) -> None:
    other = gpuload.Dataset(packed)
    other.manifest = replace(other.manifest, classes=("ant", "cat", "bee"))
    message = r"has other classes than .* \(\('ant', 'cat', 'bee'\) and \('ant', 'bee', 'cat'\)\).*Pack them with the same class"
    with pytest.raises(gpuload.ArgumentError, match=message):
        gpuload.mix([(packed, 1), (other, 1)])


def test_a_virtual_epoch_resumed_with_smaller_batches_repeats_nothing(packed: Path) -> None:
    whole = load(packed, 8, drop_last=False)
    passes = [row for _ in range(2) for row in drain([whole])]
    loader = load(packed, 8, steps_per_epoch=7)
    drain([loader], 5)  # 40 samples; with batches of 4, an epoch ends after 28
    smaller = load(packed, 4, steps_per_epoch=7)
    smaller.load_state_dict(loader.state_dict())
    assert drain([smaller]) == []
    assert drain([smaller]) == passes[40:68]


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_virtual_epoch_resumed_with_other_batches_skips_nothing(packed: Path, drop_last: bool) -> None:
    """What is too little for a batch at its end comes in the next epoch, if incomplete batches are dropped."""
    passes_alone = load(packed, 1)
    passes = [row for _ in range(6) for row in drain([passes_alone])]
    loader = load(packed, 10, steps_per_epoch=20)
    rows = drain([loader], 3)
    for batch_size, steps, taken in ((16, 13, 2), (7, 31, 4), (24, 5, None)):  # epochs of 208, 217 and 120
        other = load(packed, batch_size, steps_per_epoch=steps, drop_last=drop_last)
        other.load_state_dict(loader.state_dict())
        loader = other
        rows += drain([loader])
        if taken:
            rows += drain([loader], taken)
    assert rows == passes[: len(rows)]
    state = loader.state_dict()
    assert len(rows) == state["begin"] + state["samples"] > 5 * 97


# Mixtures


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


shuffled = partial(ShuffledBlocks, seed=0)


def make_shares(parts: list[int]) -> tuple[float, ...]:
    return tuple(part / sum(parts) for part in parts)


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


@given(weights, st.integers(0, 10**9), st.integers(1, 400), st.booleans())
@example([4, 4, 9, 1], 222, 348, False)
def test_any_batch_holds_the_shares(parts: list[int], start: int, batch: int, whole: bool) -> None:
    """Exactly where they are whole. Else each data set divides what those before it left, and rounds: so errors add up,
    by less than 1 for each."""
    batch *= sum(parts) // np.gcd.reduce(parts) if whole else 1
    counts = np.bincount(Stratified(make_shares(parts)).sources(start, start + batch), minlength=len(parts))
    most = 1e-6 if whole else max(1, len(parts) - 1)
    assert (np.abs(counts - np.array(parts) / sum(parts) * batch) < most).all()


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
