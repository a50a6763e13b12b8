"""A packed set at a URL: how far its server is, how fast it answers, and what its cache has room for."""

import os
import statistics
import tempfile
import time
from typing import Any

from gpuload.disk.dataset import Dataset
from gpuload.doctor.finding import Finding, size
from gpuload.doctor.shards import WINDOW
from gpuload.errors import GpuloadError
from gpuload.store.url import URL

_REQUESTS = 5
_LEAST_BYTES = 1_000_000  # less says nothing of the rate
_WRITTEN_BYTES, _CHUNK_BYTES = 64_000_000, 4 << 20
_MOST_SECONDS = 2.0
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
    from gpuload.store.objects import Objects
    from gpuload.store.transfer import RANGE_BYTES

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
    if count >= _LEAST_BYTES:
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
        remedy = "Free some, or give another folder by GPULOAD_CACHE. With cache_size=0 shards stay in memory"
        return [Finding("cache", "attention", f"{said}. Two windows of {WINDOW} shards do not fit", remedy, data)]
    if stored > room:
        return [Finding("cache", "note", f"{said}: every epoch downloads what does not fit", data=data)]
    return [Finding("cache", "ok", f"{said}: the first epoch alone downloads anything", data=data)]


def _write_rate(folder: str) -> float:
    """Bytes/s of a file that is written to a disk, and deleted."""
    chunk, written, begun = os.urandom(_CHUNK_BYTES), 0, time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        while written < _WRITTEN_BYTES and time.perf_counter() - begun < _MOST_SECONDS:
            written += file.write(chunk)
            os.fsync(file.fileno())
    return written / (time.perf_counter() - begun)


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
