"""What DALI is fed, made ahead of it in a thread of its own.

DALI calls for its inputs on the thread that takes batches from it, the one that trains. With reading 256 samples and
wrapping their bytes there, a batch took that thread 1.9 ms of processor time, up to 7.8 where several are read at once;
now everything together takes 1.1, up to 1.6 (tools/training_thread.py, 2 cores, 2026-11).
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from gpuload.decode.native.threads import Task, Threads
from gpuload.monitor.ranges import annotate
from gpuload.read.batch import Batch

_AHEAD = 2  # batches: one would be waited for where DALI asks for two at once, as it does at the start


class Fed(NamedTuple):
    """A batch, and DALI's inputs for it."""

    batch: Batch
    inputs: tuple[Any, ...]


class Feed:
    """Makes the inputs of batches, in order and some batches ahead.

    make: gives the inputs for a batch.
    """

    def __init__(self, make: Callable[[Batch], tuple[Any, ...]]) -> None:
        self._make = make
        self._ahead: deque[Task[Fed | None]] = deque()
        self._batches: Iterator[Batch] = iter(())
        self._thread = Threads(1, "gpuload-feed")

    def restart(self, batches: Iterator[Batch]) -> None:
        """From now on, inputs are those of these batches."""
        ahead, self._ahead = self._ahead, deque()  # `close` may be called by another thread
        for task in list(ahead):
            task.cancelled = True
        for task in list(ahead):
            task.wait()
        self._batches = batches

    def take(self) -> Fed:
        """The next batch with its inputs.

        Raises:
            StopIteration: there is none, and what the batches themselves raise.
        """
        while len(self._ahead) <= _AHEAD:
            self._ahead.append(self._thread.submit(partial(_make_next, self._make, self._batches)))
        fed = self._ahead[0].result()
        if fed is None:
            raise StopIteration
        self._ahead.popleft()  # not before: where waiting is interrupted, `restart` ends it
        return fed

    def close(self) -> None:
        """Stops the thread."""
        self.restart(iter(()))
        self._thread.close()


def _make_next(make: Callable[[Batch], tuple[Any, ...]], batches: Iterator[Batch]) -> Fed | None:
    with annotate("read"):
        batch = next(batches, None)
        return None if batch is None else Fed(batch, make(batch))
