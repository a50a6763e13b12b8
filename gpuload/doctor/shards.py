"""A packed set: what it holds, whether memory and file handles suffice, and how fast its disk reads."""

import os
import time
from contextlib import suppress
from pathlib import Path

from gpuload.disk.dataset import Dataset
from gpuload.doctor.finding import Finding, size
from gpuload.doctor.machine import check_file_handles
from gpuload.limits import available_memory, memory_limit
from gpuload.store.url import URL

WINDOW = 8  # shards, the loader's default
_MOST_BYTES, _MOST_SECONDS = 256_000_000, 3.0
_LEAST_BYTES = 8_000_000  # less is read in an instant, and says nothing
_CHUNK_BYTES = 4 << 20
_FROM_MEMORY = 10e9  # bytes/s that hardly any disk gives


def open_sets(folder: Path | URL) -> list[Dataset]:
    """The set in a folder, or those in its subfolders, "train" first; at a URL the one that is there.

    Raises:
        FormatError: neither holds a packed set. ArgumentError, RemoteError: a URL cannot be read.
    """
    if isinstance(folder, Path) and not (folder / "manifest.json").exists():
        splits = sorted(path.parent for path in folder.glob("*/manifest.json"))
        if splits:
            return [Dataset(split) for split in sorted(splits, key=lambda split: split.name != "train")]
    return [Dataset(folder)]


def check_set(dataset: Dataset) -> list[Finding]:
    """What it holds, and whether its windows fit into memory and the limit of file handles."""
    manifest, shards = dataset.manifest, len(dataset.shard_paths)
    samples = len(dataset)
    each = manifest.bytes / max(1, samples)
    data = {"folder": str(dataset.folder), "samples": samples, "shards": shards, "bytes": manifest.bytes}
    said = f"{dataset.folder}: {samples:,} samples in {shards:,} shards, {size(manifest.bytes)}, {size(each)} a sample"
    found = [Finding("set", "ok", said, data=data)]
    largest = sorted((shard.bytes for shard in manifest.shards), reverse=True)
    windows = sum(largest[: 2 * WINDOW])
    free = min(available_memory() or windows, memory_limit() or windows)
    if windows > free:
        fitting = max(1, int(WINDOW * free / windows))
        found.append(
            Finding(
                "window",
                "attention",
                f"two windows of {WINDOW} shards are {size(windows)}, and {size(free)} of memory can be had: what is "
                "read ahead is dropped again before it is used",
                f"DaliIterator(window={fitting}), or pack again with smaller shards (--maxsize)",
                {"bytes": windows, "free": free},
            )
        )
    handles = check_file_handles(min(2 * WINDOW, shards))
    return found if handles.is_well else [*found, handles]


def check_disk(dataset: Dataset) -> list[Finding]:
    """How fast shards come from the disk: reads up to 256 MB of them, for 3 s at most, after asking the kernel to drop
    them from the page cache. Other processes that use them read them again. [] where they are at URLs."""
    local = [path for path in dataset.shard_paths if isinstance(path, Path)]
    if not local:
        return []
    paths = sorted(local, key=lambda path: path.stat().st_size, reverse=True)
    total, started, is_cold = 0, 0.0, True
    spent = 0.0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                with suppress(OSError):  # a file system that is only read
                    os.fsync(file.fileno())  # pages that are not written yet cannot be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                is_cold = False
            buffer = bytearray(_CHUNK_BYTES)
            started = time.perf_counter()
            while total < _MOST_BYTES and spent + time.perf_counter() - started < _MOST_SECONDS:
                count = file.readinto(buffer)
                if not count:
                    break
                total += count
            spent += time.perf_counter() - started
        if total >= _MOST_BYTES or spent >= _MOST_SECONDS:
            break
    rate = total / spent if spent else 0.0
    data = {"bytes": total, "seconds": spent, "bytes_per_s": rate, "cold": is_cold}
    if total < _LEAST_BYTES:
        said = f"{size(total)} were read; too little to measure the disk, and it stays in memory"
        return [Finding("disk", "ok", said, data={**data, "bytes_per_s": None})]
    each = dataset.manifest.bytes / max(1, len(dataset))
    said = f"{size(rate)}/s, {rate / each:,.0f} images/s of {size(each)}"
    if rate > _FROM_MEMORY:
        said += " (this is memory's speed: the page cache of the disk's host, or a file system in memory)"
    return [Finding("disk", "ok", said, data=data)]
