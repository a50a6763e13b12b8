"""Finds duplicates, which are images with the same bytes as an earlier one, before anything is packed."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpuload.errors import DecodeError
from gpuload.packing.options import PackOptions
from gpuload.packing.run.output import Output
from gpuload.packing.run.plan import Split
from gpuload.packing.run.workers import Workers
from gpuload.sources.listing import BYTES, NAME, WHERE, Listing, Source
from gpuload.types import I64, Bools

FILE_NAME = "candidates"
_BATCH_ROWS = 1024


@dataclass(frozen=True)
class HashJob:
    """Hashes batch `number` of the candidates. skipped: whether not to read them, since that killed a worker before."""

    source: Source
    candidates: Path
    number: int
    skipped: bool = False


def write_candidates(scratch: Path, samples: pa.Table, source: Source) -> list[HashJob]:
    """Writes the images of which another has the same size, since only these can be duplicates; returns the jobs."""
    sizes = samples.column(BYTES).to_numpy()
    _, number, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[number] > 1)
    names = [name for name in (NAME, WHERE) if name in samples.column_names]
    taken = samples.select(names).take(pa.array(rows)).append_column("row", pa.array(rows))
    path = scratch / FILE_NAME
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, taken.schema) as writer:
        writer.write_table(taken.combine_chunks(), max_chunksize=_BATCH_ROWS)
    return [HashJob(source, path, number) for number in range(-(-len(rows) // _BATCH_ROWS))]


def hash_images(job: HashJob) -> list[tuple[int, bytes]]:
    """Row and BLAKE2 hash of each image of the batch, except for those that cannot be read."""
    batch = pa.ipc.open_file(pa.memory_map(str(job.candidates), "r")).get_batch(job.number).to_pydict()
    wheres = batch.get(WHERE) or [""] * len(batch["row"])
    hashes, parent = [], os.getppid()
    if not job.skipped:
        job.source.expect([where or name for name, where in zip(batch[NAME], wheres, strict=True)])
    for row, name, where in zip(batch["row"], batch[NAME], wheres, strict=True):
        if os.getppid() != parent:
            os._exit(1)  # the packer has died
        try:
            data = b"" if job.skipped else job.source.read(row, name, where)
        except (OSError, DecodeError, MemoryError):
            data = b""
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
    def find(cls, source: Source, options: PackOptions, output: Output, listing: Listing) -> "Duplicates":
        """Reads and hashes all images that can have duplicates, if the options require it."""
        if options.dedup == "no" and len(options.shares) == 1:
            return cls(None, np.array([], np.int64))
        jobs = write_candidates(output.scratch, listing.samples, source)
        with Workers[HashJob, list[tuple[int, bytes]]](min(options.worker_count, len(jobs)), hash_images) as workers:
            results = workers.run(jobs, died=lambda job, _: replace(job, skipped=True))
            hashes = [hashed for _, batch in results for hashed in batch]
        firsts = find_firsts(len(listing), hashes)
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


def find_firsts(count: int, hashes: Sequence[tuple[int, bytes]]) -> I64:
    """int64 (count,): for each sample the row of the first one with the same hash, its own if it has none.

    hashes: row and hash of some of the samples.
    """
    firsts = np.arange(count)
    seen: dict[bytes, int] = {}
    for row, digest in sorted(hashes):
        firsts[row] = seen.setdefault(digest, row)
    return firsts
