"""The plan: tables for special cases, properties for the rest."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.disk.tar import BLOCK_BYTES, RECORD_BYTES, member_span
from gpuload.draws import make_key
from gpuload.fields.field import LABEL, Field
from gpuload.packing.options import PackOptions
from gpuload.packing.run.plan import (
    choose_measured,
    choose_splits,
    choose_val,
    cut_shards,
    make_plan,
    read_plan,
    sample_spans,
    usual_shard_bytes,
    write_plan,
)
from gpuload.sources import Listing
from gpuload.sources.listing import listing_schema


def listing(sizes: list[int], labels: list[int]) -> Listing:
    names = [f"c{label}/{number}.jpg" for number, label in enumerate(labels)]
    return Listing(pa.table([names, sizes, labels], schema=listing_schema((LABEL,))), (LABEL,))


def tar_bytes(spans: np.ndarray) -> int:
    """Size of a tar with members of these spans."""
    return -(-(int(spans.sum()) + 2 * BLOCK_BYTES) // RECORD_BYTES) * RECORD_BYTES


samples = st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 4)), min_size=1, max_size=200)


@settings(deadline=None)
@given(samples, st.sampled_from([0.0, 0.1, 0.5]), st.integers(1, 40), st.integers(1, 300_000), st.integers(0, 2**40))
def test_every_sample_once_and_limits_held(
    found: list[tuple[int, int]], val: float, maxcount: int, maxsize: int, seed: int
) -> None:
    sizes, labels = map(list, zip(*found, strict=True))
    source = listing(sizes, labels)
    splits = make_plan(source, PackOptions(val, seed=seed, maxcount=maxcount, maxsize=maxsize, measure=8))
    assert sorted(row for split in splits for row in split.rows.tolist()) == list(range(len(found)))
    spans = sample_spans(source.samples, source.fields)
    for split in splits:
        assert split.shard_sizes.sum() == len(split.rows)
        for start, end in itertools.pairwise([0, *split.ends.tolist()]):
            assert 1 <= end - start <= maxcount
            # A sample that is too large for any shard gets a shard of its own.
            assert end - start == 1 or tar_bytes(spans[split.rows[start:end]]) <= maxsize


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=300), st.floats(0.01, 0.9), st.integers(0, 2**40))
def test_val_takes_from_each_class_its_share(labels: list[int], share: float, seed: int) -> None:
    array = np.array(labels)
    chosen = choose_val(array, share, make_key(seed))
    for label in set(labels):
        in_class = array == label
        assert abs(chosen[in_class].sum() - share * in_class.sum()) < 1
        assert not chosen[in_class].all()  # at least one sample remains in train
    assert chosen.sum() <= round(share * len(labels))


def test_val_is_the_share_of_the_whole() -> None:
    assert choose_val(np.repeat(np.arange(100), 15), 0.1, make_key(3)).sum() == 150  # 1.5 of each class


@pytest.mark.parametrize(
    ("labels", "share", "chosen"),
    [
        ([0, 0], 0.4, [1]),  # 0.8 of them
        ([0, 1, 2, 3, 4, 4, 4, 4], 0.5, [0, 0, 0, 0, 2]),  # a class of one stays in train, and no other gives more
        ([0] * 7 + [1] * 3, 0.2, [1, 1]),
    ],
)
def test_val_of_small_classes(labels: list[int], share: float, chosen: list[int]) -> None:
    array = np.array(labels)
    assert np.bincount(array[choose_val(array, share, make_key(1))], minlength=len(chosen)).tolist() == chosen


def test_each_split_is_its_share_of_the_whole() -> None:
    labels = np.arange(2000) % 2
    split_of = choose_splits(labels, (0.4, 0.3, 0.2, 0.1), 6)
    assert [np.bincount(labels[split_of == split]).tolist() for split in range(4)] == [
        [n, n] for n in (400, 300, 200, 100)
    ]


@pytest.mark.parametrize("field", [None, Field("label", "target", "label.json")])
def test_without_class_numbers_samples_are_of_one_class(field: Field | None) -> None:
    """Each value of a target would else be a class of its own, of which none can leave train."""
    fields = () if field is None else (field,)
    columns = [[f"{n}.jpg" for n in range(10)], [100] * 10, *([[n / 8 for n in range(10)]] if fields else [])]
    source = Listing(pa.table(columns, schema=listing_schema(fields)), fields)
    splits = make_plan(source, PackOptions(0.3, seed=2, maxcount=9, measure=8))
    assert [len(split.rows) for split in splits] == [7, 3]


def test_skipped_samples_are_in_no_split() -> None:
    source, skipped = listing([100] * 50, [n % 2 for n in range(50)]), np.arange(50) % 5 == 3
    splits = make_plan(source, PackOptions(0.2, seed=2, maxcount=9, measure=8), skipped=skipped)
    assert sorted(row for split in splits for row in split.rows.tolist()) == np.flatnonzero(~skipped).tolist()


@pytest.mark.parametrize(
    ("spans", "maxcount", "maxsize", "ends"),
    [
        ([512] * 3, 2, 10**9, [2, 3]),
        ([512] * 4, 2, 10**9, [2, 4]),
        ([512] * 3, 9, RECORD_BYTES, [3]),
        ([512] * 18, 99, RECORD_BYTES, [18]),  # 18 blocks and the two of the end marker fill one record
        ([512] * 19, 99, RECORD_BYTES, [18, 19]),
        ([512, 99 * 512, 512], 9, RECORD_BYTES, [1, 2, 3]),  # the second is larger than maxsize
        ([512] * 2, 9, 1, [1, 2]),
        ([], 9, 1, []),
    ],
)
def test_cut_shards(spans: list[int], maxcount: int, maxsize: int, ends: list[int]) -> None:
    assert cut_shards(np.array(spans, np.int64), maxcount, maxsize).tolist() == ends


def test_spans_are_those_of_the_tar() -> None:
    source = listing([0, 1, 512, 513], [0, 9, 10, 12345])
    wanted = [
        member_span(size) + member_span(len(label)) for size, label in ((0, "0"), (1, "9"), (512, "10"), (513, "12345"))
    ]
    assert sample_spans(source.samples, source.fields).tolist() == wanted


def test_the_seed_changes_order_and_split() -> None:
    source = listing([100] * 200, [n % 2 for n in range(200)])

    def plan(seed: int, shuffle: bool = True, val: float = 0.1) -> list[list[int]]:
        splits = make_plan(source, PackOptions(val, shuffle=shuffle, seed=seed, maxcount=50, measure=8))
        return [split.rows.tolist() for split in splits]

    assert plan(0) == plan(0)
    assert plan(0, val=0)[0] != plan(1, val=0)[0]
    assert set(plan(0)[1]) != set(plan(1)[1])
    kept = plan(0, shuffle=False)
    assert all(rows == sorted(rows) for rows in kept)
    assert set(kept[1]) == set(plan(0)[1])  # the split does not depend on the shuffle


def test_usual_shard_bytes() -> None:
    assert usual_shard_bytes(0) == 16_000_000
    assert usual_shard_bytes(1_600_000_000) == 100_000_000
    assert usual_shard_bytes(10**15) == 1_000_000_000


@pytest.mark.parametrize(
    ("count", "measured"), [(0, 0), (10, 10), (512, 512), (8000, 512), (16_000, 1000), (10**6, 4096)]
)
def test_measured(count: int, measured: int) -> None:
    assert choose_measured(count, 4096, key=5).sum() == measured


def test_a_written_plan_reads_back(tmp_path) -> None:
    source = listing(list(range(10)), [n % 3 for n in range(10)])
    (split,) = make_plan(source, PackOptions(seed=1, maxcount=4, measure=8))
    write_plan(tmp_path, split, source.samples)
    shards = [read_plan(tmp_path, split.name, number).to_pydict() for number in range(3)]
    assert [row for shard in shards for row in shard["row"]] == split.rows.tolist()
    assert [name for shard in shards for name in shard["name"]] == [f"c{r % 3}/{r}.jpg" for r in split.rows]
    assert [len(shard["row"]) for shard in shards] == [4, 4, 2]


@pytest.mark.parametrize("seed", range(4))
def test_seeds_and_splits_are_drawn_independently(seed: int) -> None:
    """In an earlier version the third split of a seed was the second split of the next seed."""
    labels = np.zeros(1000, np.int64)
    third = choose_splits(labels, (1 - 2e-9, 1e-9, 0.5), seed) == 2
    second_of_next = choose_splits(labels, (0.5, 0.5), seed + 1) == 1
    assert third.sum() == second_of_next.sum() == 500
    assert 200 < (third & second_of_next).sum() < 300  # 250 expected by chance


def test_the_second_split_has_the_key_of_val() -> None:
    """--append and --resume rely on its key: (seed, 2), as in the first version."""
    labels = np.arange(400) % 3
    chosen = choose_val(labels, 0.2, make_key(5, 2))
    assert choose_splits(labels, (0.8, 0.2), 5).tolist() == chosen.astype(int).tolist()
    assert (choose_splits(labels, (0.7, 0.2, 0.1), 5) == 1).tolist() == chosen.tolist()
