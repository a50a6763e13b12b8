"""Checks of a packed set: what it holds, whether it fits into memory and cache, and how fast its disk or server is."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuload.disk.dataset import Dataset
from gpuload.doctor import Answer, size
from gpuload.machine.limits import available_memory, memory_limit
from gpuload.store.url import URL

WINDOW = 8  # shards, the loader's default
_MOST_BYTES, _MOST_SECONDS = 256_000_000, 3.0
_LEAST_BYTES = 8_000_000  # less is read in an instant, and says nothing
_CHUNK_BYTES = 4 << 20
_FROM_MEMORY = 10e9  # bytes/s that hardly any disk gives
_REQUESTS = 5
_LEAST_RANGE = 1_000_000  # less says nothing of the rate
_FAR_S = 0.3  # a request to another continent takes less


def check_set(dataset: Dataset) -> Answer:
    stored, samples, shards = dataset.manifest.bytes, len(dataset), len(dataset.shard_paths)
    data = {"folder": str(dataset.folder), "samples": samples, "shards": shards, "bytes": stored}
    said = f"{dataset.folder}: {samples:,} samples in {shards:,} shards, {size(stored)}"
    return "ok", f"{said}, {size(_sample_bytes(dataset))} a sample", "", data


def check_window(dataset: Dataset) -> Answer:
    """Whether the shards that are read and read ahead fit into memory."""
    windows = _windows_bytes(dataset)
    free = min(available_memory() or windows, memory_limit() or windows)
    if windows <= free:
        return None
    said = f"two windows of {WINDOW} shards are {size(windows)}, and {size(free)} of memory can be had: what is read "
    fitting = max(1, int(WINDOW * free / windows))
    remedy = f"Use gpuload.Shuffle(window={fitting}), or pack smaller shards (--maxsize)"
    return "attention", f"{said}ahead is dropped again before it is used", remedy, {"bytes": windows, "free": free}


def check_disk(dataset: Dataset) -> Answer:
    """How fast shards come from the disk: reads up to 256 MB of them, for 3 s at most, after asking the kernel to drop
    them from the page cache. Other processes that use them read them again."""
    paths = [path for path in dataset.shard_paths if isinstance(path, Path)]
    if not paths:
        return None
    total, spent = _read(sorted(paths, key=lambda path: path.stat().st_size, reverse=True))
    rate, each = total / max(spent, 1e-9), _sample_bytes(dataset)
    data = {"bytes": total, "seconds": spent, "bytes_per_s": rate if total >= _LEAST_BYTES else None}
    if total < _LEAST_BYTES:
        return "ok", f"{size(total)} were read; too little to measure the disk, and it stays in memory", "", data
    said = f"{size(rate)}/s, {rate / each:,.0f} images/s of {size(each)}"
    if rate > _FROM_MEMORY:
        said += " (this is memory's speed: the page cache of the disk's host, or a file system in memory)"
    return "ok", said, "", data


def _read(paths: Sequence[Path]) -> tuple[int, float]:
    """Bytes and seconds of reading files from the disk, as far as the limits allow."""
    buffer, total, spent = bytearray(_CHUNK_BYTES), 0, 0.0
    for path in paths:
        if total >= _MOST_BYTES or spent >= _MOST_SECONDS:
            break
        with path.open("rb", buffering=0) as file:
            with suppress(OSError):  # a file system that is only read
                os.fsync(file.fileno())  # pages that are not written yet cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            count, begun = 1, time.perf_counter()
            while count and total < _MOST_BYTES and spent + time.perf_counter() - begun < _MOST_SECONDS:
                count = file.readinto(buffer)
                total += count
            spent += time.perf_counter() - begun
    return total, spent


def check_network(dataset: Dataset) -> Answer:
    """How long a small request takes, and how fast a range of a shard comes."""
    shards = [path for path in dataset.shard_paths if isinstance(path, URL)]
    if not shards:
        return None
    from gpuload.store.network import background  # asyncio and obstore
    from gpuload.store.objects import RANGE_BYTES, Objects

    sizes = [shard.bytes for shard in dataset.manifest.shards]
    folder, _, name = shards[sizes.index(max(sizes))].text.rpartition("/")
    objects = Objects(URL(folder))

    def timed(stop: int) -> tuple[float, int]:
        begun = time.perf_counter()
        found = background().wait(objects.read(name, 0, stop))
        return time.perf_counter() - begun, len(found.data)

    each_s = statistics.median(timed(1)[0] for _ in range(_REQUESTS))
    took_s, count = timed(RANGE_BYTES)
    data: dict[str, Any] = {"request_s": each_s, "bytes": count, "seconds": took_s}
    said = f"{folder}: a request takes {1000 * each_s:.0f} ms"
    if count >= _LEAST_RANGE:
        rate, each = count / took_s, _sample_bytes(dataset)
        data["bytes_per_s"] = rate
        said += f"; one connection gives {size(rate)}/s, {rate / each:,.0f} images/s of {size(each)}"
    else:
        said += f"; shards of {size(max(sizes))} are too small to measure how fast the network is"
    if each_s > _FAR_S:
        return "attention", said, "Use a server, or a copy of the set, that is nearer", data
    return "ok", said, "", data


def check_cache(dataset: Dataset) -> Answer:
    """What the cache has room for."""
    if (cache := dataset.cache) is None:
        return None
    stored, room = dataset.manifest.bytes, min(cache.limit, cache.used() + cache.free())
    data = {"folder": str(cache.folder), "limit": cache.limit, "room": room}
    said = f"{cache.folder}: room for {size(room)}, the set takes {size(stored)}"
    if _windows_bytes(dataset) > room:
        remedy = "Free some, or give another folder by GPULOAD_CACHE"
        return "attention", f"{said}. Two windows of {WINDOW} shards do not fit", remedy, data
    if stored > room:
        return "note", f"{said}: every epoch downloads what does not fit", "", data
    return "ok", f"{said}: the first epoch alone downloads anything", "", data


def _sample_bytes(dataset: Dataset) -> float:
    return dataset.manifest.bytes / max(1, len(dataset))


def _windows_bytes(dataset: Dataset) -> int:
    """Of two windows of the largest shards."""
    return sum(sorted((shard.bytes for shard in dataset.manifest.shards), reverse=True)[: 2 * WINDOW])


# The disk comes before trials, which read the shards into memory.
CHECKS: dict[str, Callable[[Dataset], Answer]] = {
    "set": check_set,
    "window": check_window,
    "disk": check_disk,
    "network": check_network,
    "cache": check_cache,
}
