"""A packed set: what it holds, and how fast its disk, or its server and the disk of its cache, are."""

import os
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuload.decode.dali.memory import MOST_SHARE, USUAL_SIDE, gpu_bytes, needed
from gpuload.disk.dataset import Dataset
from gpuload.disk.opening import packed_folders
from gpuload.doctor.findings import Finding, size
from gpuload.errors import GpuloadError
from gpuload.machine.limits import available_memory, memory_limit
from gpuload.store.url import URL

WINDOW = 8  # shards, the loader's default
_BATCH_SIZE = 256
_MOST_BYTES, _MOST_SECONDS = 256_000_000, 3.0
_LEAST_BYTES = 8_000_000  # less is read in an instant, and says nothing
_CHUNK_BYTES = 4 << 20
_FROM_MEMORY = 10e9  # bytes/s that hardly any disk gives


def open_sets(folder: Path | URL) -> list[Dataset]:
    """The set in a folder, or those in its subfolders, "train" first; at a URL the one that is there.

    Raises:
        FormatError: neither holds a packed set. ArgumentError, RemoteError: a URL cannot be read.
    """
    return [Dataset(one) for one in (packed_folders(folder) if isinstance(folder, Path) else [folder])]


def check_set(dataset: Dataset) -> list[Finding]:
    """What it holds, and whether its windows fit into memory."""
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
                f"Use gpuload.Shuffle(window={fitting}), or pack smaller shards (--maxsize)",
                {"bytes": windows, "free": free},
            )
        )
    found.append(_gpu_memory(dataset, min(_BATCH_SIZE, samples)))
    return found


def _gpu_memory(dataset: Dataset, batch_size: int) -> Finding:
    """What the usual loader takes there, beside what there is."""
    taken, there = needed([dataset], batch_size), gpu_bytes(0)
    data = {"dali": taken.dali, "native": taken.native, "total": there, "batch_size": batch_size}
    said = f"a loader of batches of {batch_size} crops of {USUAL_SIDE}, two ahead, takes {taken}"
    if there is None:
        return Finding("GPU memory", "ok", said, data=data)
    said += f"; the GPU has {size(there)}"
    if taken.dali > MOST_SHARE * there:
        remedy = "Use decoder='native', a smaller batch_size, or pack smaller images (--size)"
        return Finding("GPU memory", "attention", said, remedy, data)
    return Finding("GPU memory", "ok", said, data=data)


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


_REQUESTS = 5
_LEAST_RANGE = 1_000_000  # less says nothing of the rate
_WRITTEN_BYTES, _WRITTEN_SECONDS = 64_000_000, 2.0
_FAR_S = 0.3  # a request to another continent takes less


def unreachable(url: URL, error: GpuloadError) -> Finding:
    """A set that cannot be opened. The message of the error ends in what to do."""
    said, _, remedy = str(error).partition(". ")
    return Finding("URL", "broken", said, remedy, {"url": str(url)})


def check_network(dataset: Dataset) -> list[Finding]:
    """How long a small request takes, and how fast a range of a shard comes; [] where the shards are here."""
    shards = [path for path in dataset.shard_paths if isinstance(path, URL)]
    if not shards:
        return []
    from gpuload.store.background import background  # asyncio and obstore
    from gpuload.store.objects import RANGE_BYTES, Objects

    sizes = [shard.bytes for shard in dataset.manifest.shards]
    largest = shards[sizes.index(max(sizes))]
    folder, _, name = largest.text.rpartition("/")
    objects = Objects(URL(folder))

    def timed(stop: int) -> tuple[float, int]:
        begun = time.perf_counter()
        found = background().wait(objects.read(name, 0, stop))
        return time.perf_counter() - begun, len(found.data)

    first_s, *others = [timed(1)[0] for _ in range(_REQUESTS)]
    each_s = statistics.median(others)
    took_s, count = timed(RANGE_BYTES)
    data: dict[str, Any] = {"first_s": first_s, "request_s": each_s, "bytes": count, "seconds": took_s}
    said = f"{folder}: the first request took {_time(first_s)}, others take {_time(each_s)}"
    if count >= _LEAST_RANGE:
        data["bytes_per_s"] = count / took_s
        each = dataset.manifest.bytes / max(1, len(dataset))
        said += f"; {size(count)} of a shard came in {_time(took_s)}: {size(count / took_s)}/s, "
        said += f"{count / took_s / each:,.0f} images/s of {size(each)}, by one connection. The loader uses up to 16"
    else:
        said += f"; shards of {size(max(sizes))} are too small to measure how fast the network is"
    if each_s > _FAR_S:
        return [Finding("network", "attention", said, "Use a server, or a copy of the set, that is nearer", data)]
    return [Finding("network", "ok", said, data=data)]


def check_cache(dataset: Dataset) -> list[Finding]:
    """What the cache has room for, and how fast its disk is written; [] for a set that has none."""
    cache = dataset.cache
    if cache is None:
        return []
    stored, room = dataset.manifest.bytes, min(cache.limit, cache.used() + cache.free())
    windows = sum(sorted((shard.bytes for shard in dataset.manifest.shards), reverse=True)[: 2 * WINDOW])
    rate = _write_rate(str(cache.folder))
    data = {"folder": str(cache.folder), "limit": cache.limit, "room": room, "written_bytes_per_s": rate}
    said = f"{cache.folder}: room for {size(room)}, the set takes {size(stored)}; its disk is written at {size(rate)}/s"
    if windows > room:
        remedy = "Free some, or give another folder by GPULOAD_CACHE. With Dataset(cache_size=0) shards stay in memory"
        return [Finding("cache", "attention", f"{said}. Two windows of {WINDOW} shards do not fit", remedy, data)]
    if stored > room:
        return [Finding("cache", "note", f"{said}: every epoch downloads what does not fit", data=data)]
    return [Finding("cache", "ok", f"{said}: the first epoch alone downloads anything", data=data)]


def _write_rate(folder: str) -> float:
    """Bytes/s of a file that is written to a disk, and deleted."""
    chunk, written, begun = os.urandom(_CHUNK_BYTES), 0, time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        while written < _WRITTEN_BYTES and time.perf_counter() - begun < _WRITTEN_SECONDS:
            written += file.write(chunk)
            os.fsync(file.fileno())
    return written / (time.perf_counter() - begun)


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
