"""The plan: tables for special cases, properties for the rest."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.fields.field import Field
from gpuload.packing.options import PackOptions
from gpuload.packing.plan import make_plan
from gpuload.sources import Listing
from gpuload.sources.listing import listing_schema

RECORD = 10_240  # bytes: a tar is a multiple of it


def listing(sizes: Any, labels: Any = None, kind: str = "class") -> Listing:
    """Samples with images of these sizes, and with labels where these are given."""
    names = [f"{number}.jpg" for number in range(len(sizes))]
    if labels is None:
        return Listing(pa.table([names, sizes], schema=listing_schema(())))
    fields = (Field("label", kind, "cls"),)
    return Listing(pa.table([names, sizes, labels], schema=listing_schema(fields)), fields)


def plan(source: Listing, **options: Any) -> Any:
    return make_plan(source, PackOptions(**{"measure": 8, **options}))


def tar_bytes(sizes: list[int], labels: bool) -> int:
    """Size of a tar with images of these sizes, and perhaps a label of one digit for each."""
    blocks = sum(1 + -(-size // 512) + 2 * labels for size in sizes) + 2
    return -(-blocks * 512 // RECORD) * RECORD


samples = st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 4)), min_size=1, max_size=200)


@given(samples, st.sampled_from([0.0, 0.1, 0.5]), st.integers(1, 40), st.integers(1, 300_000), st.integers(0, 2**40))
def test_every_sample_once_and_limits_held(
    found: list[tuple[int, int]], val: float, maxcount: int, maxsize: int, seed: int
) -> None:
    sizes, labels = map(list, zip(*found, strict=True))
    splits = plan(listing(sizes, labels), val=val, seed=seed, maxcount=maxcount, maxsize=maxsize)
    assert sorted(row for split in splits for row in split.rows.tolist()) == list(range(len(found)))
    for split in splits:
        assert split.ends[-1:].tolist() in ([], [len(split.rows)])
        shards = [split.rows[start:end].tolist() for start, end in itertools.pairwise([0, *split.ends.tolist()])]
        for shard, following in itertools.zip_longest(shards, shards[1:]):
            assert 1 <= len(shard) <= maxcount
            # A sample that is too large for any shard gets a shard of its own.
            assert len(shard) == 1 or tar_bytes([sizes[row] for row in shard], True) <= maxsize
            if following:  # no shard ends before it must
                more = [sizes[row] for row in (*shard, following[0])]
                assert len(shard) == maxcount or tar_bytes(more, True) > maxsize


@pytest.mark.parametrize(
    ("sizes", "maxcount", "maxsize", "ends"),
    [
        ([0] * 3, 2, 10**9, [2, 3]),
        ([0] * 4, 2, 10**9, [2, 4]),
        ([0] * 18, 99, RECORD, [18]),  # 18 blocks and the two of the end marker fill one record
        ([0] * 19, 99, RECORD, [18, 19]),
        ([512] * 9, 99, RECORD, [9]),
        ([512] * 8 + [513], 99, RECORD, [8, 9]),
        ([0, 98 * 512, 0], 9, RECORD, [1, 2, 3]),  # the second is larger than maxsize
        ([0] * 2, 9, 1, [1, 2]),
    ],
)
def test_where_shards_end(sizes: list[int], maxcount: int, maxsize: int, ends: list[int]) -> None:
    (split,) = plan(listing(sizes), shuffle=False, maxcount=maxcount, maxsize=maxsize)
    assert split.ends.tolist() == ends


@pytest.mark.parametrize(("images", "megabytes"), [(40, 16), (1600, 100), (20_000, 1000)])
def test_usual_sizes_of_shards(images: int, megabytes: int) -> None:
    """A sixteenth of all, between 16 MB and 1 GB."""
    (split,) = plan(listing([1_000_000] * images))
    assert np.diff(split.ends, prepend=0).max() == megabytes - 1


@given(st.lists(st.integers(0, 6), min_size=1, max_size=300), st.floats(0.01, 0.9), st.integers(0, 2**40))
def test_val_takes_from_each_class_its_share(labels: list[int], share: float, seed: int) -> None:
    train, val = (
        np.array(labels)[split.rows] for split in plan(listing([9] * len(labels), labels), val=share, seed=seed)
    )
    for label in set(labels):
        assert abs((val == label).sum() - share * labels.count(label)) < 1
        assert (train == label).any()
    assert len(val) <= round(share * len(labels))


@pytest.mark.parametrize(
    ("labels", "share", "chosen"),
    [
        ([0, 0], 0.4, [1]),  # 0.8 of them
        ([0, 1, 2, 3, 4, 4, 4, 4], 0.5, [0, 0, 0, 0, 2]),  # a class of one stays in train, and no other gives more
        ([0] * 7 + [1] * 3, 0.2, [1, 1]),
    ],
)
def test_val_of_small_classes(labels: list[int], share: float, chosen: list[int]) -> None:
    _, val = plan(listing([9] * len(labels), labels), val=share)
    assert np.bincount(np.array(labels)[val.rows], minlength=len(chosen)).tolist() == chosen


def test_splits_are_shares_of_the_whole() -> None:
    labels = np.arange(2000) % 2
    shares = (("a", 0.4), ("b", 0.3), ("c", 0.2), ("d", 0.1))
    splits = plan(listing([9] * 2000, labels), splits=shares, seed=6)
    assert [np.bincount(labels[split.rows]).tolist() for split in splits] == [[n, n] for n in (400, 300, 200, 100)]
    _, val = plan(listing([9] * 1500, np.repeat(np.arange(100), 15)), val=0.1, seed=3)
    assert len(val.rows) == 150  # 1.5 of each class


@pytest.mark.parametrize("labels", [None, np.arange(10) / 8])
def test_without_class_numbers_samples_are_of_one_class(labels: Any) -> None:
    """Each value of a target would else be a class of its own, of which none can leave train."""
    splits = plan(listing([100] * 10, labels, "target"), val=0.3, seed=2, maxcount=9)
    assert [len(split.rows) for split in splits] == [7, 3]


def test_the_seed_changes_order_and_split() -> None:
    def rows(seed: int, **options: Any) -> list[list[int]]:
        source = listing([100] * 200, np.arange(200) % 2)
        return [split.rows.tolist() for split in plan(source, seed=seed, maxcount=50, **{"val": 0.1, **options})]

    assert rows(0) == rows(0)
    assert rows(0, val=0)[0] != rows(1, val=0)[0]
    assert set(rows(0)[1]) != set(rows(1)[1])
    kept = rows(0, shuffle=False)
    assert all(found == sorted(found) for found in kept)
    assert set(kept[1]) == set(rows(0)[1])  # the split does not depend on the shuffle


@pytest.mark.parametrize(("count", "measured"), [(10, 10), (512, 512), (8000, 512), (16_000, 1000), (10**6, 4096)])
def test_measured(count: int, measured: int) -> None:
    (split,) = plan(listing(np.full(count, 9)), measure=4096)
    assert split.measured.sum() == measured


@pytest.mark.parametrize("seed", range(4))
def test_seeds_and_splits_are_drawn_independently(seed: int) -> None:
    """In an earlier version the third split of a seed was the second split of the next seed."""
    source = listing([9] * 1000)
    *_, third = plan(source, splits=(("a", 0.4), ("b", 0.1), ("c", 0.5)), seed=seed)
    _, second = plan(source, val=0.5, seed=seed + 1)
    assert len(third.rows) == len(second.rows) == 500
    assert 200 < len(set(third.rows.tolist()) & set(second.rows.tolist())) < 300  # 250 expected by chance


def test_the_second_split_is_drawn_as_val_is() -> None:
    """--append and --resume rely on its key, as in the first version."""
    source = listing([9] * 400, np.arange(400) % 3)
    val = set(plan(source, val=0.2, seed=5)[1].rows.tolist())
    for shares in ((("a", 0.8), ("b", 0.2)), (("a", 0.7), ("b", 0.2), ("c", 0.1))):
        assert set(plan(source, splits=shares, seed=5)[1].rows.tolist()) == val
    assert sorted(val)[:8] == [4, 6, 7, 13, 16, 26, 33, 38]
