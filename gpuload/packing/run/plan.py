"""Which sample goes into which shard: a pure function of the listing and a seed. Numbers only, no image is read.

A plan lies on disk as one Arrow file a split, one record batch a shard, so that workers share its pages and take the
shard they are told without the parent sending it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpuload.disk.tar import BLOCK_BYTES, RECORD_BYTES
from gpuload.draws import MEASURE, SHUFFLE, SPLIT, make_key, permutation, random_bits
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.sources.listing import BYTES, Listing
from gpuload.types import I64, Bools

ROW = "row"
MEASURED = "measured"


@dataclass(frozen=True)
class Split:
    """One output folder: `rows` of the listing in stored order; shard s holds rows[ends[s-1]:ends[s]].

    measured: bool (len(rows),), whether the image's pixels count into mean and std.
    """

    name: str
    rows: I64
    ends: I64
    measured: Bools

    @property
    def shard_sizes(self) -> I64:
        """int64 (shards,): samples in each."""
        return np.diff(self.ends, prepend=0)


def make_plan(
    listing: Listing,
    *,
    shares: Sequence[tuple[str, float]],
    shuffle: bool,
    seed: int,
    maxcount: int,
    maxsize: int | None,
    measure: int,
    first_of: I64 | None = None,
    left_out: Bools | None = None,
) -> tuple[Split, ...]:
    """The splits: the source's own, where the listing has these, else in the order of `shares`.

    shares: name and share of the samples of each class that goes into a split (see `choose_splits`).
    shuffle: one permutation of the whole listing, else its order.
    maxcount, maxsize: most samples and bytes in a shard (see `cut_shards`); maxsize None: `usual_shard_bytes`.
    measure: about how many images of a split are measured for mean and std.
    first_of: int64 (N,), the first sample with the same image; the others go into the split of that one, unless the
        splits are the source's own.
    left_out: bool (N,), samples that go nowhere.
    """
    count = len(listing)
    spans = sample_spans(listing.samples, listing.fields)
    if maxsize is None:
        maxsize = usual_shard_bytes(int(spans.sum()))
    order = permutation(make_key(seed, SHUFFLE), count) if shuffle else np.arange(count)
    if listing.splits is not None:
        names, split_of = listing.splits.names, listing.splits.numbers.copy()
    else:
        names = tuple(name for name, _ in shares)
        split_of = _draw_splits(listing, [share for _, share in shares], seed, first_of)
    if left_out is not None:
        split_of[left_out] = -1
    splits = []
    for number, name in enumerate(names):
        rows = order[split_of[order] == number]
        measured = choose_measured(len(rows), measure, make_key(seed, MEASURE, number))
        splits.append(Split(name, rows, cut_shards(spans[rows], maxcount, maxsize), measured))
    return tuple(splits)


def _draw_splits(listing: Listing, shares: Sequence[float], seed: int, first_of: I64 | None) -> I64:
    """int64 (N,): number of the split of each sample."""
    count = len(listing)
    labels = listing.samples.column("label").to_numpy() if "label" in listing.samples.column_names else None
    if labels is None or labels.dtype.kind != "i":
        labels = np.zeros(count, np.int64)
    firsts = np.arange(count) if first_of is None else first_of
    split_of = np.zeros(count, np.int64)
    chosen = np.unique(firsts)
    split_of[chosen] = choose_splits(labels[chosen], shares, seed)
    return split_of[firsts]


def choose_splits(labels: I64, shares: Sequence[float], seed: int) -> I64:
    """int64 (N,): number of the split of each sample; from each class, every split but the first gets its share."""
    split_of = np.zeros(len(labels), np.int64)
    rest, share_left = np.arange(len(labels)), 1.0
    for number in range(1, len(shares)):
        # The first split but one has the key of a lone --val; the number is a word of its own in those of the others.
        key = make_key(seed, SPLIT) if number == 1 else make_key(seed, SPLIT, number)
        chosen = choose_val(labels[rest], shares[number] / share_left, key)
        split_of[rest[chosen]] = number
        rest, share_left = rest[~chosen], share_left - shares[number]
    return split_of


def sample_spans(samples: pa.Table, fields: Sequence[Field]) -> I64:
    """int64 (N,): bytes that each sample takes in a tar when its image is kept as it is.

    Exact for classes and texts; the others are small beside an image and are guessed.
    """
    spans = _member_spans(samples.column(BYTES).to_numpy())
    for field in fields:
        spans = spans + _member_spans(kind_of(field).estimate_bytes(field, samples))
    return spans


def usual_shard_bytes(total_bytes: int) -> int:
    """A sixteenth of all, between 16 MB and 1 GB: big sets get shards of 1 GB, small ones enough shards to share out.

    It may depend on the data only, never on the machine: the same input gives the same shards everywhere.
    """
    return min(max(total_bytes // 16, 16_000_000), 1_000_000_000)


def choose_val(labels: I64, share: float, key: int) -> Bools:
    """bool (N,): a random round(share * N) of the samples, from each class its share to within 1.

    No class is emptied: its last sample stays. 7 of class 0 and 3 of class 1, share 0.2 -> 1 of class 0, 1 of class 1.
    """
    chosen = np.zeros(len(labels), bool)
    if not share:
        return chosen
    classes, number, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    quota = np.floor(share * sizes).astype(np.int64)
    rest = share * sizes - quota
    wanted = round(share * len(labels)) - int(quota.sum())
    # Largest remainders first; equal ones in random order, so that no class is preferred for its number.
    by_rest = np.lexsort((random_bits(key, classes), -rest))
    may_grow = by_rest[(rest[by_rest] > 0) & (quota[by_rest] < sizes[by_rest] - 1)]
    quota[may_grow[: max(wanted, 0)]] += 1
    by_class = np.lexsort((random_bits(make_key(key), np.arange(len(labels))), number))
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen[by_class] = place < quota[number[by_class]]
    return chosen


def cut_shards(spans: I64, maxcount: int, maxsize: int) -> I64:
    """int64 (shards,): where each shard ends, cut as late as both limits allow.

    A shard's tar, its end marker included, is at most `maxsize` bytes; a sample larger than that has one to itself.

    spans 512 512 512, maxcount 2 -> ends 2 3.
    """
    # The end of an archive takes two zero blocks, and the whole is a multiple of the record size.
    room = maxsize // RECORD_BYTES * RECORD_BYTES - 2 * BLOCK_BYTES
    total = np.concatenate([[0], np.cumsum(spans)])
    ends, start = [], 0
    while start < len(spans):
        fitting = int(np.searchsorted(total, total[start] + room, side="right")) - 1
        start = max(start + 1, min(start + maxcount, fitting))
        ends.append(start)
    return np.array(ends, np.int64)


def choose_measured(count: int, measure: int, key: int) -> Bools:
    """bool (count,): which samples are measured: all of a small split, a random part of a large one.

    Measuring costs a decode to full RGB, so of a middling set it is a sixteenth, and never fewer than 1/8 of `measure`.
    """
    chosen = np.zeros(count, bool)
    chosen[permutation(key, count)[: min(measure, max(measure // 8, count // 16))]] = True
    return chosen


def write_plan(path: Path, split: Split, samples: pa.Table) -> None:
    """Writes a batch a shard: the columns of the listing, `row` (number in the listing) and `measured`."""
    columns = [pa.field(ROW, pa.int64()), pa.field(MEASURED, pa.bool_()), *samples.schema]
    schema = pa.schema(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        start = 0
        for end in split.ends.tolist():
            rows = split.rows[start:end]
            taken = samples.take(pa.array(rows)).combine_chunks().columns
            flat = [column.chunk(0) for column in taken]
            writer.write_batch(
                pa.record_batch([pa.array(rows), pa.array(split.measured[start:end]), *flat], schema=schema)
            )
            start = end


def read_plan(path: Path, shard: int) -> pa.RecordBatch:
    """The samples of one shard; views of the memory-mapped file."""
    return pa.ipc.open_file(pa.memory_map(str(path), "r")).get_batch(shard)


def _member_spans(sizes: I64) -> I64:
    """`tar.member_span` for an array."""
    return BLOCK_BYTES + -(-sizes.astype(np.int64) // BLOCK_BYTES) * BLOCK_BYTES
