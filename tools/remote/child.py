"""What `tools/bench_remote.py` measures, one kind a process: python -m tools.remote.child KIND JSON, prints JSON."""

import asyncio
import http.client
import json
import os
import resource
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tools.remote.ending import end_with_parent

_RANGE_BYTES, _AT_A_TIME = 8 << 20, 16
_DRAINED_AT_A_TIME = 4


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def obstore_alone(url: str, folder: str, names: list[str], sizes: list[int], writes: bool = True) -> dict[str, float]:
    """obstore and nothing else: the same ranges, as many at a time, written to the same disk and synced."""
    from obstore.store import from_url

    store = from_url(url, client_options={"allow_http": True})
    ranges = [(n, at) for n, size in zip(names, sizes, strict=True) for at in range(0, size, _RANGE_BYTES)]
    Path(folder).mkdir(parents=True)
    handles = {name: os.open(Path(folder, name), os.O_RDWR | os.O_CREAT) for name in names}
    ends = dict(zip(names, sizes, strict=True))
    left = {name: -(-size // _RANGE_BYTES) for name, size in ends.items()}

    async def worker(todo: Any) -> None:
        for name, at in todo:
            data = await store.get_range_async(name, start=at, end=min(at + _RANGE_BYTES, ends[name]))
            if writes:
                await asyncio.to_thread(os.pwrite, handles[name], data, at)
                left[name] -= 1
                if not left[name]:
                    await asyncio.to_thread(os.fdatasync, handles[name])

    async def every() -> None:
        todo = iter(ranges)
        await asyncio.gather(*[worker(todo) for _ in range(_AT_A_TIME)])

    begun, used = time.perf_counter(), _cpu_s()
    asyncio.run(every())
    return {"seconds": time.perf_counter() - begun, "cpu_s": _cpu_s() - used}


def loader_store(url: str, folder: str, names: list[str], sizes: list[int], digests: list[str]) -> dict[str, float]:
    """The store of the loader: the same objects into a new cache, checked."""
    from gpuload.store.background import background
    from gpuload.store.cache import Cache, Wanted
    from gpuload.store.cached import CachedStore
    from gpuload.store.objects import _obstore
    from gpuload.store.url import URL

    _obstore()
    background()
    cache = Cache(folder, 1 << 40)
    wanted = [Wanted(digest, size) for digest, size in zip(digests, sizes, strict=True)]
    begun, used = time.perf_counter(), _cpu_s()
    store = CachedStore(URL(url), cache, names, wanted)
    store.plan(range(len(names)))
    leases = [store.open(number) for number in range(len(names))]
    took = {"seconds": time.perf_counter() - begun, "cpu_s": _cpu_s() - used}
    assert len(leases) == len(names)
    store.close()
    return took


def epoch(data: str, cache: str, batch_size: int, size: int, epoch: int, **options: Any) -> dict[str, float]:
    """One epoch, as fast as it comes."""
    import gpuload

    opened: Any = gpuload.Dataset(data, cache) if "://" in data else data
    with gpuload.DaliIterator(
        opened, batch_size, augment=gpuload.Augment(size), device="cpu", output="numpy", **options
    ) as loader:
        loader.set_epoch(epoch)
        next(iter(loader))  # compiled code is loaded
        loader.set_epoch(epoch)
        begun, used, images = time.perf_counter(), _cpu_s(), 0
        for images_, _ in loader:
            images += len(images_)
        return {"seconds": time.perf_counter() - begun, "cpu_s": _cpu_s() - used, "images": images}


def limited(
    url: str, cache: str, batch_size: int, size: int, window: int, step_s: float, started_s: float
) -> dict[str, Any]:
    """One epoch with a training step of so many seconds: how many batches it waited for, and when.

    started_s: from the beginning of the loop on, in which waiting does not count.
    """
    import gpuload

    options: dict[str, Any] = {"device": "cpu", "output": "numpy", "window": window}
    with gpuload.DaliIterator(
        gpuload.Dataset(url, cache), batch_size, augment=gpuload.Augment(size), **options
    ) as loader:
        waits, begun = [], time.perf_counter()
        for _ in loader:
            assert loader.timing is not None
            waits.append((time.perf_counter() - begun, loader.timing.wait_s, loader.timing.download_s))
            time.sleep(step_s)
    waited = [one for one in waits if one[1] > 0.1 * step_s]
    return {
        "seconds": time.perf_counter() - begun,
        "batches": len(waits),
        "after_the_first_s": started_s,
        "batches_later": sum(at > started_s for at, *_ in waits),
        "waited_for": sum(at > started_s for at, *_ in waited),
        # When the batch came, how long it was waited for, and for how long of its reading a shard was downloaded.
        "waits": [[round(value, 3) for value in one] for one in waited],
        "longest_wait_s": max((wait for at, wait, _ in waits if at > started_s), default=0.0),
        "median_wait_s": statistics.median(wait for _, wait, _ in waits),
    }


def first_batch(url: str, local: str, cache: str, batch_size: int, size: int) -> dict[str, float]:
    """From opening the URL, with nothing in the cache, to the first batch. A local set was loaded before, so that
    packages are imported and compiled code is loaded."""
    import gpuload

    with gpuload.DaliIterator(local, batch_size, augment=gpuload.Augment(size), device="cpu", output="numpy") as loader:
        next(iter(loader))
    begun = time.perf_counter()
    dataset: Any = gpuload.Dataset(url, cache)
    opened = time.perf_counter()
    with gpuload.DaliIterator(
        dataset, batch_size, augment=gpuload.Augment(size), device="cpu", output="numpy"
    ) as loader:
        constructed = time.perf_counter()
        next(iter(loader))
        ended = time.perf_counter()
    return {
        "samples": len(dataset),
        "open_s": opened - begun,
        "construct_s": constructed - opened,
        "first_batch_s": ended - constructed,
        "all_s": ended - begun,
    }


def drain(url: str, paths: list[str]) -> dict[str, float]:
    """Downloads files and throws them away."""
    todo = iter(paths)

    def worker() -> None:
        connection, buffer = http.client.HTTPConnection(urlsplit(url).netloc), bytearray(1 << 20)
        for path in todo:
            connection.request("GET", path)
            answer = connection.getresponse()
            while answer.readinto(buffer):
                pass

    threads = [threading.Thread(target=worker) for _ in range(_DRAINED_AT_A_TIME)]
    begun, used = time.perf_counter(), _cpu_s()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"seconds": time.perf_counter() - begun, "cpu_s": _cpu_s() - used}


KINDS = {one.__name__: one for one in (obstore_alone, loader_store, epoch, limited, first_batch, drain)}

if __name__ == "__main__":
    end_with_parent()
    print(json.dumps(KINDS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
    os._exit(0)  # the obstore of `obstore_alone` has threads that are not ended
