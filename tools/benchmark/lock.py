"""How long gpuload holds Python's lock for an image on the CPU, and how many threads that leaves room for.

The compiled steps of the native decoder are replaced: by nothing, so that what is left of the processor time is Python
and NumPy, nearly all of it with the lock; and by waiting as long as they take, so that more threads than the machine
has cores run as they would with a core each. What the machine can do of that is what as many threads reach that only
wait, without gpuload. The thread that reads ahead touches pages without the lock: its processor time does not count.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from numba import carray, cfunc, njit

from benchmark.ceiling import in_threads
from benchmark.work import Work
from gpuload.decode.native.intrinsics import add

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
    from gpuload.decode.native.decoder import warm_up

    warm_up()  # else other decoders took part
    ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)
    busy, idle = _least(lambda: _rates(work)[0]), _least(lambda: _waiting_rates(work, 0)[0])
    if (step_s := busy - idle) < 1e-6:
        raise SystemExit("Compiled steps take less than 1 µs an image, or other threads are at work in this process.")
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
        shares[threads] = tuple(sorted(column)[_ROUNDS // 2] for column in zip(*rounds, strict=True))
    return Lock(1e6 * idle, step_s, shares)


def _least(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(_ROUNDS))


def _waits(step_s: float, images: int) -> Callable[[Iterable[int]], int]:
    """A thread's share of the waits for so many images, each taken by itself, without Python's lock."""
    wait_us, sleep, taken = round(1e6 * step_s), _sleep(), np.zeros(1, np.int64)

    @njit(nogil=True)
    def wait(taken):  # type: ignore[no-untyped-def]
        done = 0
        while add(taken.ctypes.data, 1) < images:
            sleep(wait_us)
            done += 1
        return done

    wait(np.full(1, images))
    return lambda places: wait(taken)


def _sleep() -> Any:
    sleep = ctypes.CDLL(None).usleep
    sleep.argtypes = (ctypes.c_uint32,)
    return sleep


def _rates(work: Work) -> tuple[float, float]:
    """Processor time and time for an image, in seconds."""
    from benchmark.peers import own

    with own.open_loader(work, decoder="native", steps_per_epoch=8 + work.images // work.batch_size) as loader:
        batches = iter(loader)
        for _ in range(8):
            next(batches)
        started, used, images = time.perf_counter(), time.process_time() - _reading_s(), 0
        for pixels, _ in batches:
            images += len(pixels)
        return (time.process_time() - _reading_s() - used) / images, (time.perf_counter() - started) / images


def _reading_s() -> float:
    """Processor time of the threads that read ahead."""
    threads = [thread for thread in threading.enumerate() if thread.name == "gpuload-read-ahead"]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in threads if thread.ident)


def _waiting_rates(work: Work, step_s: float) -> tuple[float, float]:
    with _waiting(step_s):
        return _rates(work)


@contextmanager
def _waiting(step_s: float) -> Iterator[None]:
    """Steps wait so long for each image, instead of decoding; what fills batches does nothing."""
    from gpuload.decode.native.intrinsics import longs_at
    from gpuload.decode.native.jpeg.decode import PICTURES, _decode

    wait_us, sleep = round(1e6 * step_s), _sleep()

    @cfunc("int64(CPointer(int64), int64, int64)")
    def decode(arguments, begin, end):  # type: ignore[no-untyped-def]
        if wait_us > 0:
            sleep(wait_us * (end - begin))
        pictures = carray(longs_at(arguments[PICTURES]), (end, 7))
        for row in range(begin, end):
            pictures[row, 0] = 1
        return 1

    @cfunc("int64(int64, int64, int64)")
    def fill(arguments, begin, end):  # type: ignore[no-untyped-def]
        return 1

    def address_of(function: Callable[..., int]) -> int:
        return int((decode if function is _decode else fill).address)

    with patch("gpuload.decode.native.steps.address_of", address_of):
        yield


def print_lock(lock: Lock) -> None:
    """On the terminal."""
    print(f"compiled steps take {1e3 * lock.step_s:.3f} ms an image, all else {lock.held_us:.1f} µs")
    for threads, (share, alone) in lock.shares.items():
        rate = threads / lock.step_s
        print(f"{threads} threads that wait instead: {share:.2f} of {rate:,.0f} images/s; without gpuload {alone:.2f}")
    print(f"on {os.cpu_count()} cores")
