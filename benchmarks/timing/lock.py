"""How long gpuload holds Python's lock for an image on the CPU, and how many threads that leaves room for.

The compiled steps of the native decoder are replaced: by nothing, so that what is left of the processor time is Python
and NumPy, nearly all of it with the lock; and by waiting as long as they take, so that more threads than the machine
has cores run as they would with a core each. What the machine can do of that is what as many threads reach that only
wait, without gpuload. The thread that reads ahead touches pages without the lock: its processor time does not count.
"""

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from timing.ceiling import in_threads
from timing.work import Work

_MANY_THREADS = (16, 64)
_ROUNDS = 3
_TIMER_SLACK = 29  # PR_SET_TIMERSLACK; threads inherit it


@dataclass(frozen=True)
class Lock:
    """held_us: processor time for an image beside compiled steps, microseconds. step_s: what these take for one image.

    shares: for numbers of threads, the rate with that many that wait instead, of the number divided by `step_s`; and
        the rate of that many threads that only wait.
    """

    held_us: float
    step_s: float
    shares: dict[int, tuple[float, float]]


def measure_lock(work: Work) -> Lock:
    """Processor times are the least of three rounds, since other threads only add to them; rates are medians."""
    ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)
    busy = _least(lambda: _rates(work)[0])
    idle = _least(lambda: _waiting_rates(work, 0)[0])
    if (step_s := busy - idle) < 1e-6:
        raise SystemExit(
            "Compiled steps take less than 1 µs an image, or other threads are at work in this process."
        )
    shares = {}
    for threads in _MANY_THREADS:
        least_s = step_s / threads
        rounds = [
            (
                least_s / _waiting_rates(work._replace(threads=threads), step_s)[1],
                least_s * in_threads(threads, _waits(step_s, work.images)),
            )
            for _ in range(_ROUNDS)
        ]
        shares[threads] = tuple(
            sorted(column)[_ROUNDS // 2] for column in zip(*rounds, strict=True)
        )
    return Lock(1e6 * idle, step_s, shares)


def _least(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(_ROUNDS))


# What waits in place of kernels: for each row of a block; and a thread's share of the waits for all images.
_WAITS = """
#include <stdint.h>
#include <unistd.h>

int64_t wait_us;

int64_t wait_for_rows(const void *arguments, int64_t begin, int64_t end) {
    (void)arguments;
    if (wait_us > 0)
        usleep((useconds_t)(wait_us * (end - begin)));
    return 1;
}

int64_t wait_for_all(int64_t *taken, int64_t images) {
    int64_t done = 0;
    for (; __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED) < images; done++)
        usleep((useconds_t)wait_us);
    return done;
}
"""


@functools.cache
def _waiting_kernels() -> ctypes.CDLL:
    """Compiled with the compiler of the kernels."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    source = folder / "waits.c"
    library = folder / "waits.so"
    source.write_text(_WAITS)
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-O2",
        "-fPIC",
        "-shared",
        "-o",
        str(library),
        str(source),
    ]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.wait_for_all.restype = ctypes.c_int64
    loaded.wait_for_all.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    return loaded


def _set_wait(step_s: float) -> ctypes.CDLL:
    kernels = _waiting_kernels()
    ctypes.c_int64.in_dll(kernels, "wait_us").value = round(1e6 * step_s)
    return kernels


def _waits(step_s: float, images: int) -> Callable[[Iterable[int]], int]:
    """A thread's share of the waits for so many images, each taken by itself, without Python's lock."""
    kernels = _set_wait(step_s)
    taken = np.zeros(1, np.int64)
    return lambda places: int(kernels.wait_for_all(taken.ctypes.data, images))


def _rates(work: Work) -> tuple[float, float]:
    """Processor time and time for an image, in seconds."""
    from timing.peers import own

    with own.open_loader(
        work, decoder="native", steps_per_epoch=8 + work.images // work.batch_size
    ) as loader:
        batches = iter(loader)
        for _ in range(8):
            next(batches)
        started = time.perf_counter()
        used = time.process_time() - _reading_s()
        images = 0
        for pixels, _ in batches:
            images += len(pixels)
        return (time.process_time() - _reading_s() - used) / images, (
            time.perf_counter() - started
        ) / images


def _reading_s() -> float:
    """Processor time of the threads that read ahead."""
    threads = [
        thread
        for thread in threading.enumerate()
        if thread.name == "gpuload-read-ahead"
    ]
    return sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threads
        if thread.ident
    )


def _waiting_rates(work: Work, step_s: float) -> tuple[float, float]:
    with _waiting(step_s):
        return _rates(work)


@contextmanager
def _waiting(step_s: float) -> Iterator[None]:
    """What fills batches waits so long for each image; nothing is decoded."""
    wait = ctypes.cast(_set_wait(step_s).wait_for_rows, ctypes.c_void_p).value

    def skip(decoder: Any, plan: Any) -> None:
        plan.pictures["pixels"] = 1

    images = "gpuload.decode.native.images.ImageDecoder.step"
    with (
        patch("gpuload.decode.native.steps.address_of", lambda name: wait),
        patch(images, skip),
    ):
        yield


def print_lock(lock: Lock) -> None:
    """On the terminal."""
    print(
        f"compiled steps take {1e3 * lock.step_s:.3f} ms an image, all else {lock.held_us:.1f} µs"
    )
    for threads, (share, alone) in lock.shares.items():
        rate = threads / lock.step_s
        print(
            f"{threads} threads that wait instead: {share:.2f} of {rate:,.0f} images/s; without gpuload {alone:.2f}"
        )
    print(f"on {os.cpu_count()} cores")
