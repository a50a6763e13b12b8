"""Checks of a packed set: what it holds, and how fast its disk is."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gpuload.disk.dataset import Dataset
from gpuload.doctor import Answer, size

_MOST_BYTES = 256_000_000
_MOST_SECONDS = 3.0
_LEAST_BYTES = 8_000_000  # less is read in an instant, and says nothing
_CHUNK_BYTES = 4 << 20
_FROM_MEMORY = 10e9  # bytes/s that hardly any disk gives


def check_set(dataset: Dataset) -> Answer:
    stored = dataset.manifest.bytes
    samples = len(dataset)
    shards = len(dataset.shard_paths)
    data = {
        "folder": str(dataset.folder),
        "samples": samples,
        "shards": shards,
        "bytes": stored,
    }
    said = f"{dataset.folder}: {samples:,} samples in {shards:,} shards, {size(stored)}"
    return "ok", f"{said}, {size(_sample_bytes(dataset))} a sample", "", data


def check_disk(dataset: Dataset) -> Answer:
    """How fast shards come from the disk: reads up to 256 MB of them, for 3 s at most, after asking the kernel to drop
    them from the page cache. Other processes that use them read them again."""
    paths = [path for path in dataset.shard_paths if isinstance(path, Path)]
    if not paths:
        return None
    total, spent = _read(
        sorted(paths, key=lambda path: path.stat().st_size, reverse=True)
    )
    rate = total / max(spent, 1e-9)
    each = _sample_bytes(dataset)
    data = {
        "bytes": total,
        "seconds": spent,
        "bytes_per_s": rate if total >= _LEAST_BYTES else None,
    }
    if total < _LEAST_BYTES:
        return (
            "ok",
            f"{size(total)} were read; too little to measure the disk, and it stays in memory",
            "",
            data,
        )
    said = f"{size(rate)}/s, {rate / each:,.0f} images/s of {size(each)}"
    if rate > _FROM_MEMORY:
        said += " (this is memory's speed: the page cache of the disk's host, or a file system in memory)"
    return "ok", said, "", data


def _read(paths: Sequence[Path]) -> tuple[int, float]:
    """Bytes and seconds of reading files from the disk, as far as the limits allow."""
    buffer = bytearray(_CHUNK_BYTES)
    total = 0
    spent = 0.0
    for path in paths:
        if total >= _MOST_BYTES or spent >= _MOST_SECONDS:
            break
        with path.open("rb", buffering=0) as file:
            with suppress(OSError):  # a file system that is only read
                os.fsync(
                    file.fileno()
                )  # pages that are not written yet cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            count = 1
            begun = time.perf_counter()
            while (
                count
                and total < _MOST_BYTES
                and spent + time.perf_counter() - begun < _MOST_SECONDS
            ):
                count = file.readinto(buffer)
                total += count
            spent += time.perf_counter() - begun
    return total, spent


def _sample_bytes(dataset: Dataset) -> float:
    return dataset.manifest.bytes / max(1, len(dataset))


# The disk comes before trials, which read the shards into memory.
CHECKS: dict[str, Callable[[Dataset], Answer]] = {
    "set": check_set,
    "disk": check_disk,
}
