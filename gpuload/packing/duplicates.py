"""Images with the same bytes, which are skipped, or kept in one split."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.counted import counted
from gpuload.errors import DecodeError, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.rows import numbers_of
from gpuload.packing.options import PackOptions
from gpuload.packing.workers import Workers
from gpuload.sources.listing import BYTES, NAME, Listing, Rejection, addresses
from gpuload.sources.source import Source
from gpuload.types import I64, Bools

_BATCH_ROWS = 1024


def rejected_duplicates(
    listing: Listing, firsts: I64, skipped: Bools
) -> list[Rejection]:
    """The duplicates that are skipped, each with the name of the first sample with its image."""
    rows = np.flatnonzero(skipped)
    names = listing.samples.column(NAME)
    dropped_names = names.take(array_of(rows)).to_pylist()
    first_names = names.take(array_of(firsts[rows])).to_pylist()
    return [
        Rejection(name, f"has the same bytes as {first!r}", True)
        for name, first in zip(dropped_names, first_names, strict=True)
    ]


def hash_images(task: tuple[Source, pa.RecordBatch]) -> list[tuple[int, bytes]]:
    """Row and BLAKE2 hash of each of these images, given by their rows and addresses, except for those that cannot be
    read."""
    source, images = task
    rows, addresses = (column.to_pylist() for column in images.columns)
    hashes = []
    source.expect(addresses)
    for row, address in zip(rows, addresses, strict=True):
        try:
            data = source.read(address)
        except (OSError, DecodeError, MemoryError):
            continue
        if isinstance(data, np.ndarray):
            data = str(data.shape).encode() + data.tobytes()
        if data:
            hashes.append((row, hashlib.blake2b(data, digest_size=16).digest()))
    return hashes


def find_firsts(source: Source, options: PackOptions, listing: Listing) -> I64:
    """int64 (N,): for each sample the row of the first one with the same image, usually its own.

    Images are compared if the options ask for it, or if duplicates could go into different splits.
    """
    firsts = np.arange(len(listing))
    if not options.dedup and len(options.shares) == 1:
        return firsts
    first_of = dict[bytes, int]()
    for row, digest in _hash(source, options, listing, _of_one_size(listing)):
        firsts[row] = first_of.setdefault(digest, row)
    return firsts


def _hash(
    source: Source, options: PackOptions, listing: Listing, rows: I64
) -> list[tuple[int, bytes]]:
    """Row and digest of the images of these rows, in order, without those that cannot be read."""
    if not len(rows):
        return []
    columns = {"row": rows, "address": addresses(listing.samples).take(array_of(rows))}
    images = pa.table(columns).combine_chunks()
    # A slice is pickled with the whole of its table, what is taken from it is not.
    tasks = [
        (source, batch.take(array_of(np.arange(len(batch)))))
        for batch in images.to_batches(_BATCH_ROWS)
    ]
    count = min(options.worker_count, len(tasks))
    hashes = list[tuple[int, bytes]]()
    with Workers[Any, list[tuple[int, bytes]]](count, hash_images) as workers:
        # Where an image killed the worker, none of its batch are compared.
        results = workers.run(tasks, died=lambda task, _: (task[0], task[1][:0]))
        for _, hashes_of_batch in results:
            hashes += hashes_of_batch
    return sorted(hashes)


def _of_one_size(listing: Listing) -> I64:
    """The rows whose images have as many bytes as another one; a sample without an image has none."""
    sizes = numbers_of(listing.samples.column(BYTES))
    _, number, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    return np.flatnonzero((counts[number] > 1) & (sizes > 0))


def note_on_shared(source: Source, options: PackOptions, listing: Listing) -> list[str]:
    """A sentence on images that lie in several of the source's own splits: a validation with them says too much."""
    if listing.splits is None or options.dedup:
        return []
    split_of = listing.splits.numbers
    first_of = dict[bytes, int]()
    shared = list[int]()
    for row, digest in _hash(source, options, listing, _under_one_name(listing)):
        first = first_of.setdefault(digest, row)
        if split_of[first] != split_of[row]:
            shared.append(row)
    if not shared:
        return []
    names = listing.samples.column(NAME).take(array_of(np.array(shared))).to_pylist()
    are = counted(len(shared), "image lies", "images lie")
    return [
        f"{are} in another split, too: {some_of(names)}. --dedup packs each once; `python -m gpuload report` finds "
        "those of other names"
    ]


def _under_one_name(listing: Listing) -> I64:
    """The rows whose files have the name and the size of one in another split. Only these are read to be compared."""
    assert listing.splits is not None
    rows = _of_one_size(listing)
    names = listing.samples.column(NAME).take(array_of(rows)).to_pylist()
    sizes = numbers_of(listing.samples.column(BYTES))[rows].tolist()
    base_names = [name.rpartition("/")[2] for name in names]
    files = list(zip(base_names, sizes, strict=True))
    splits_of_file = dict[tuple[str, int], set[int]]()
    numbers = listing.splits.numbers[rows].tolist()
    for file, split in zip(files, numbers, strict=True):
        splits_of_file.setdefault(file, set()).add(split)
    is_shared = [len(splits_of_file[file]) > 1 for file in files]
    return rows[np.array(is_shared, bool)]
