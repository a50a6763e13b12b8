"""What `tools/bench_remote.py` measures, one kind a process: python -m tools.remote.child KIND JSON, prints JSON."""

import json
import resource
import statistics
import sys
import time
from typing import Any

from tools.remote.ending import end_with_parent


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


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

    options: dict[str, Any] = {"device": "cpu", "output": "numpy", "shuffle": gpuload.Shuffle(window=window)}
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


KINDS = {one.__name__: one for one in (epoch, limited, first_batch)}

if __name__ == "__main__":
    end_with_parent()
    print(json.dumps(KINDS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
