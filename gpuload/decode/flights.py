"""Batches on their way ahead of the training: started one after the other by a thread, finished by several."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from gpuload.decode.compute_threads import compute_threads
from gpuload.decode.native.threads import Task, Threads


@dataclass(kw_only=True)
class Flight:
    """A batch that threads work on.

    tasks: the shares of it. abandoned: nobody waits for it any more, so that they may end early.
    started, ended: on the clock of `time.perf_counter`. work_s: of each thread that has done its share.
    """

    tasks: "list[Task[None]]" = field(default_factory=list)
    abandoned: bool = False
    started: float = math.inf
    ended: float = -math.inf
    work_s: list[float] = field(default_factory=list)


F = TypeVar("F", bound=Flight)


class Taken(NamedTuple, Generic[F]):
    """The next batch, done. read_wait_s: how long it was waited for until it had been started. ready: batches that were
    done when it was asked for."""

    flight: F
    read_wait_s: float
    ready: int


class Flights(Generic[F]):
    """Up to `prefetch` batches ahead of the one asked for, each done by `num_threads` threads.

    name: of the threads, after "gpuload-".
    """

    def __init__(self, prefetch: int, num_threads: int, name: str) -> None:
        self._prefetch, self._num_threads = prefetch, num_threads
        self._in_flight: deque[Task[F | None]] = deque()
        # A thread of its own starts the batches while the training loop computes: reading a batch, its crops and its
        # cuts are 0.3 ms of Python.
        self._starter = Threads(1, f"gpuload-{name}-start")
        self._pool = compute_threads(num_threads, f"gpuload-{name}")

    def next(self, start: Callable[[], F | None]) -> Taken[F] | None:
        """The next batch; None where there are no more.

        start: starts the one after those in flight, in the thread that does so, and gives None where there is none.

        Raises:
            What `start`, or a share of the batch, raised.
        """
        asked, ready = time.perf_counter(), self._count_ready()
        while len(self._in_flight) <= self._prefetch:
            self._in_flight.append(self._starter.submit(start))
        flight = self._in_flight[0].result()
        read_wait_s = time.perf_counter() - asked
        if flight is None:
            return None
        for task in flight.tasks:
            task.result()
        self._in_flight.popleft()  # not before: where waiting is interrupted, `abandon` ends it
        return Taken(flight, read_wait_s, ready)

    def share(self, flight: F, work: Callable[[F], None]) -> F:
        """Has each thread do its share of a batch."""
        flight.tasks = [self._pool.submit(partial(work, flight)) for _ in range(self._num_threads)]
        return flight

    def abandon(self) -> None:
        """Ends the batches that nobody waits for any more."""
        tasks = []
        while self._in_flight:
            tasks.append(self._in_flight.popleft())
            tasks[-1].cancelled = True
        for task in tasks:
            if task.value is not None:
                task.value.abandoned = True
        for task in tasks:
            task.wait()
        flights = [task.value for task in tasks if task.value is not None]
        for flight in flights:
            flight.abandoned = True
        for flight in flights:
            for share in flight.tasks:
                share.wait()

    def close(self) -> None:
        """Ends the threads, and the batches that they work on."""
        self.abandon()
        self._starter.close()
        self._pool.close()

    def _count_ready(self) -> int:
        ready = 0
        for task in self._in_flight:
            if task.value is None or len(task.value.work_s) < self._num_threads:
                break
            ready += 1
        return ready
