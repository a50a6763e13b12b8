"""Threads that compute with torch, each alone: it is one of many already, and must not split its work among more."""

import threading
from contextlib import suppress
from functools import partial

import torch

from gpuload.decode.native.threads import Threads


def compute_threads(count: int, name: str) -> Threads:
    """Threads in which torch uses no further ones.

    torch keeps its number of threads for each calling thread, but for threads yet to start, and for MKL, in the whole
    process. So the user's number is restored once all of ours have started.
    """
    torch_threads = torch.get_num_threads()
    started = threading.Barrier(count + 1)
    try:
        threads = Threads(count, name, partial(_compute_alone, started))
        started.wait()
    except BaseException:  # Ctrl-C, or no more threads
        started.abort()
        raise
    finally:
        torch.set_num_threads(torch_threads)
    return threads


def _compute_alone(started: threading.Barrier) -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread adopts the number at its first use of it, which must not come later
    with suppress(threading.BrokenBarrierError):
        started.wait()
