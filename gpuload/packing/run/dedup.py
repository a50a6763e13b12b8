"""Finds images with the same bytes, before anything is packed."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpuload.errors import DecodeError
from gpuload.sources.listing import BYTES, NAME, WHERE, Source
from gpuload.types import I64

FILE_NAME = "candidates"
_BATCH_ROWS = 1024


@dataclass(frozen=True)
class HashJob:
    """Batch `number` of the images to hash. `skipped`: whether reading them brought a worker down."""

    source: Source
    candidates: Path
    number: int
    skipped: bool = False


def write_candidates(scratch: Path, samples: pa.Table, source: Source) -> list[HashJob]:
    """Jobs for the images whose size is that of another: no others can have the same bytes."""
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
    """Row and BLAKE2 hash of each image; one that cannot be read is like no other."""
    batch = pa.ipc.open_file(pa.memory_map(str(job.candidates), "r")).get_batch(job.number).to_pydict()
    wheres = batch.get(WHERE) or [""] * len(batch["row"])
    hashes, parent = [], os.getppid()
    for row, name, where in zip(batch["row"], batch[NAME], wheres, strict=True):
        if os.getppid() != parent:
            os._exit(1)  # the packer is gone
        try:
            data = b"" if job.skipped else job.source.read(row, name, where)
        except (OSError, DecodeError, MemoryError):
            data = b""
        if isinstance(data, np.ndarray):
            data = str(data.shape).encode() + data.tobytes()
        if data:
            hashes.append((row, hashlib.blake2b(data, digest_size=16).digest()))
    return hashes


def first_of(count: int, hashes: Sequence[tuple[int, bytes]]) -> I64:
    """int64 (count,): for each sample the first with the same image, mostly itself."""
    firsts = np.arange(count)
    seen: dict[bytes, int] = {}
    for row, digest in sorted(hashes):
        firsts[row] = seen.setdefault(digest, row)
    return firsts
