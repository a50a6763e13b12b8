"""Subsets, filters, virtual epochs and mixtures: which samples come, how often, and after any stop."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import drain, load
from streams import seen, stream_of

import gpuload

shards = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3)


@settings(max_examples=50)
@given(shards, st.integers(0, 2**62), st.integers(0, 9000), st.integers(0, 300), st.integers(0, 300))
def test_any_part_of_a_stream_is_part_of_the_whole(shards: Any, seed: int, start: int, one: int, two: int) -> None:
    whole = seen(stream_of(*shards, seed=seed), start, start + one + two)
    parts = [(start, start + one), (start + one, start + one + two)]
    assert whole == [row for part in parts for row in seen(stream_of(*shards, seed=seed), *part)]


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
        (
            lambda d: d.filter(pc.field("colour") == 1),
            r"Dataset.filter\(expression\): .*colour.*The columns are key, source, width",
        ),
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
