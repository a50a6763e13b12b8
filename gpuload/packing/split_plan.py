"""Which sample goes into which shard: a pure function of the listing and a seed, which reads no images.

It is stored as one Arrow file per split with one record batch per shard, so that workers share its pages and read their
shard's part without the parent sending it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpuload.disk.tar import BLOCK_BYTES, RECORD_BYTES
from gpuload.draws import MEASURE, SHUFFLE, SPLIT, make_key, permutation, random_bits
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import numbers_of
from gpuload.lists import bounds_of, places_of
from gpuload.packing.options import PackOptions
from gpuload.sources.listing import BESIDE, BYTES, Listing
from gpuload.types import I64, Bools

ROW = "row"
MEASURED = "measured"
_MEASURED = 4096  # images from which mean and std are computed, about


@dataclass(frozen=True)
class SplitPlan:
    """One split: its samples in stored order, and where its shards end.

    Attributes:
        name: Such as "train".
        rows: int64 (N,), rows of the listing.
        ends: int64 (shards,); shard s holds rows[ends[s-1]:ends[s]].
        measured: bool (N,), whether mean and std include the image's pixels.
    """

    name: str
    rows: I64
    ends: I64
    measured: Bools


def make_plan(
    listing: Listing,
    options: PackOptions,
    firsts: I64 | None = None,
    skipped: Bools | None = None,
) -> tuple[SplitPlan, ...]:
    """The splits: the source's own if the listing has any, else in the order of `options.shares`.

    Args:
        listing: All samples of the source.
        options: Of the run: shares, seed, and the sizes of shards.
        firsts: int64 (N,), for each sample the row of the first one with the same image, into whose split it goes,
            unless the splits are the source's own.
        skipped: bool (N,), samples that are not packed.
    """
    spans = _sample_spans(listing)
    # The size must depend only on the data, never on the machine, so that the same input gives the same shards
    # everywhere. Small sets get enough shards to distribute over workers.
    usual_size = min(max(int(spans.sum()) // 16, 16_000_000), 1_000_000_000)
    maxsize = options.maxsize or usual_size
    order = np.arange(len(listing))
    if options.shuffle:
        order = permutation(make_key(options.seed, SHUFFLE), len(listing))
    names, split_of = _assign_splits(listing, options, firsts)
    if skipped is not None:
        split_of[skipped] = -1
    splits = []
    for number, name in enumerate(names):
        rows = order[split_of[order] == number]
        ends = _cut_shards(spans[rows], options.maxcount, maxsize)
        measured = _choose_measured(len(rows), make_key(options.seed, MEASURE, number))
        splits.append(SplitPlan(name, rows, ends, measured))
    return tuple(splits)


def _assign_splits(
    listing: Listing, options: PackOptions, firsts: I64 | None
) -> tuple[Sequence[str], I64]:
    """The names of the splits, and int64 (N,): the number of each sample's one."""
    if listing.splits is not None:
        return listing.splits.names, listing.splits.numbers.copy()
    names = [name for name, _ in options.shares]
    shares = [share for _, share in options.shares]
    return names, _draw_splits(listing, shares, options.seed, firsts)


def _sample_spans(listing: Listing) -> I64:
    """int64 (N,): bytes that each sample takes in a tar if its image is kept.

    Exact for classes and texts; other fields are small compared with an image and are estimated.
    """
    images: I64 = numbers_of(listing.samples.column(BYTES))
    members = [
        images,
        *(
            kind_of(field).estimate_bytes(field, listing.samples)
            for field in listing.fields
        ),
    ]
    if BESIDE in listing.samples.column_names:
        members.append(numbers_of(listing.samples.column(BESIDE)))
    sizes = np.array(members, np.int64)
    spans: I64 = np.sum(BLOCK_BYTES + -(-sizes // BLOCK_BYTES) * BLOCK_BYTES, axis=0)
    return spans


def _draw_splits(
    listing: Listing, shares: Sequence[float], seed: int, firsts: I64 | None
) -> I64:
    """int64 (N,): number of each sample's split. Each split but the first gets its share of every class.

    Args:
        shares: Of the splits, which add up to 1; the first split gets the rest.
    """
    count = len(listing)
    labels = (
        numbers_of(listing.samples.column("label"))
        if "label" in listing.samples.column_names
        else None
    )
    if labels is None or labels.dtype.kind != "i":
        labels = np.zeros(count, np.int64)
    firsts = np.arange(count) if firsts is None else firsts
    split_of = np.zeros(count, np.int64)
    rest = np.unique(firsts)
    rest_share = 1.0
    for number in range(1, len(shares)):
        # The second split has the key of a lone --val; in the keys of further splits the number is a separate word.
        key = make_key(seed, SPLIT) if number == 1 else make_key(seed, SPLIT, number)
        chosen = _choose_val(labels[rest], shares[number] / rest_share, key)
        split_of[rest[chosen]] = number
        rest = rest[~chosen]
        rest_share -= shares[number]
    return split_of[firsts]


def _choose_val(labels: I64, share: float, key: int) -> Bools:
    """bool (N,): chooses round(share * N) random samples, from each class its share to within 1.

    At least one sample of each class is not chosen, so fewer may be chosen in all. For example 7 samples of class 0 and
    3 of class 1 with share 0.2 give 1 of each class.
    """
    chosen = np.zeros(len(labels), bool)
    classes, number, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quota = np.floor(share * sizes).astype(np.int64)
    remainders = share * sizes - quota
    missing = round(share * len(labels)) - int(quota.sum())
    # Largest remainders first; equal ones in random order, so that no class is preferred because of its number.
    by_remainder = np.lexsort((random_bits(key, classes), -remainders))
    may_grow = by_remainder[
        (remainders[by_remainder] > 0) & (quota[by_remainder] < sizes[by_remainder] - 1)
    ]
    quota[may_grow[: max(missing, 0)]] += 1
    by_class = np.lexsort((random_bits(make_key(key), np.arange(len(labels))), number))
    chosen[by_class] = places_of(sizes) < quota[number[by_class]]
    return chosen


def _cut_shards(spans: I64, maxcount: int, maxsize: int) -> I64:
    """int64 (shards,): the end of each shard, as late as both limits allow.

    A shard's tar, including its end marker, has at most `maxsize` bytes; a larger sample gets a shard of its own.

    For example spans 512 512 512 with maxcount 2 give ends 2 3.
    """
    # An archive ends with two zero blocks, and its size is a multiple of the record size.
    room = maxsize // RECORD_BYTES * RECORD_BYTES - 2 * BLOCK_BYTES
    total = bounds_of(spans)
    ends = []
    start = 0
    while start < len(spans):
        fitting = int(np.searchsorted(total, total[start] + room, side="right")) - 1
        start = max(start + 1, min(start + maxcount, fitting))
        ends.append(start)
    return np.array(ends, np.int64)


def _choose_measured(count: int, key: int) -> Bools:
    """bool (count,): which samples are measured: all of a small split, a random part of a large one.

    Measuring requires a decode to full RGB, so a sixteenth of the samples is measured, but at least 512 and at most
    4096.
    """
    chosen = np.zeros(count, bool)
    chosen[
        permutation(key, count)[: min(_MEASURED, max(_MEASURED // 8, count // 16))]
    ] = True
    return chosen


def write_plan(scratch: Path, split: SplitPlan, samples: pa.Table) -> None:
    """Writes one batch per shard: `row` (number in the listing), `measured`, and the columns of the listing."""
    columns = [
        pa.field(ROW, pa.int64()),
        pa.field(MEASURED, pa.bool_()),
        *samples.schema,
    ]
    schema = pa.schema(columns)
    with (
        pa.OSFile(str(plan_path(scratch, split.name)), "wb") as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        start = 0
        for end in split.ends.tolist():
            rows = array_of(split.rows[start:end])
            measured = array_of(split.measured[start:end])
            flat = [
                column.chunk(0)
                for column in samples.take(rows).combine_chunks().columns
            ]
            writer.write_batch(pa.record_batch([rows, measured, *flat], schema=schema))
            start = end


def plan_path(scratch: Path, split: str) -> Path:
    return scratch / f"{split}.plan"


def read_plan(scratch: Path, split: str, shard: int) -> pa.RecordBatch:
    """The samples of one shard; the columns are views of the memory-mapped file."""
    return pa.ipc.open_file(
        pa.memory_map(str(plan_path(scratch, split)), "r")
    ).get_batch(shard)
