"""Finds duplicates, which are images with the same bytes as an earlier one, before anything is packed."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from gpuload.errors import DecodeError
from gpuload.packing.options import PackOptions
from gpuload.packing.run.plan import Split
from gpuload.packing.run.workers import Workers
from gpuload.sources.listing import BYTES, NAME, Listing, addresses
from gpuload.sources.rows import Source
from gpuload.types import I64, Bools

_BATCH_ROWS = 1024


@dataclass(frozen=True)
class HashJob:
    """Hashes images, by their rows and addresses. skipped: not at all, since one of them killed a worker."""

    source: Source
    images: pa.RecordBatch
    skipped: bool = False


def hash_images(job: HashJob) -> list[tuple[int, bytes]]:
    """Row and BLAKE2 hash of each image, except for those that cannot be read."""
    if job.skipped:
        return []
    rows, images = (column.to_pylist() for column in job.images.columns)
    hashes, parent = [], os.getppid()
    job.source.expect(images)
    for row, address in zip(rows, images, strict=True):
        if os.getppid() != parent:
            os._exit(1)  # the packer has died
        try:
            data = job.source.read(address)
        except (OSError, DecodeError, MemoryError):
            continue
        if isinstance(data, np.ndarray):
            data = str(data.shape).encode() + data.tobytes()
        if data:
            hashes.append((row, hashlib.blake2b(data, digest_size=16).digest()))
    return hashes


@dataclass(frozen=True)
class Duplicates:
    """The samples of a listing that have the same image as an earlier one.

    firsts: int64 (N,), for each sample the row of the first one with the same image, usually its own; None if the
        options do not require a search. rows: int64 (duplicates,), the rows of the duplicates.
    """

    firsts: I64 | None
    rows: I64

    @classmethod
    def find(cls, source: Source, options: PackOptions, listing: Listing) -> "Duplicates":
        """Searches if the options ask for it, or if duplicates could go into different splits."""
        if options.dedup == "no" and len(options.shares) == 1:
            return cls(None, np.array([], np.int64))
        # Only images of equal size can be duplicates.
        _, number, counts = np.unique(listing.samples.column(BYTES).to_numpy(), return_inverse=True, return_counts=True)
        rows = pa.array(np.flatnonzero(counts[number] > 1))
        images = pa.table({"row": rows, "address": addresses(listing.samples).take(rows)}).combine_chunks()
        # A slice is pickled with the whole of its table, what is taken from it is not.
        jobs = [HashJob(source, batch.take(np.arange(len(batch)))) for batch in images.to_batches(_BATCH_ROWS)]
        firsts, first_of = np.arange(len(listing)), dict[bytes, int]()
        with Workers[HashJob, list[tuple[int, bytes]]](min(options.worker_count, len(jobs)), hash_images) as workers:
            results = workers.run(jobs, died=lambda job, _: replace(job, skipped=True))
            for row, digest in sorted(hashed for _, batch in results for hashed in batch):
                firsts[row] = first_of.setdefault(digest, row)
        return cls(firsts, np.flatnonzero(firsts != np.arange(len(listing))))

    def mask(self, count: int) -> Bools:
        """bool (count,): whether each of `count` samples is a duplicate."""
        mask = np.zeros(count, np.bool_)
        mask[self.rows] = True
        return mask

    def with_names(self, listing: Listing, splits: Sequence[Split]) -> list[tuple[str, str, str]]:
        """Name of each duplicate, name of the sample that it duplicates, and its split, or "" if it is skipped."""
        if self.firsts is None:
            return []
        split_of: dict[int, str] = {}
        for split in splits:
            split_of.update(dict.fromkeys(np.intersect1d(split.rows, self.rows).tolist(), split.name))
        names = listing.samples.column(NAME)
        pairs = zip(self.rows.tolist(), self.firsts[self.rows].tolist(), strict=True)
        return [(names[row].as_py(), names[first].as_py(), split_of.get(row, "")) for row, first in pairs]
