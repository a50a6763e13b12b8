"""Threads that run tasks, for batches that come every millisecond.

`concurrent.futures` costs 0.15 ms of processor time per task when caches are cold, as they are after a training step:
most of its bookkeeping is Python, and it waits for its own locks (2 cores, 2026-11). A queue and a lock, both in C, are
enough.
"""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from gpuload.machine.installed import fault_of

T = TypeVar("T")


class Task(Generic[T]):
    """Work in progress in another thread, or in `times` of them, each of which calls it.

    value: the result; None until then, and if the work raised or was cancelled before it began.
    """

    def __init__(self, work: Callable[[], T], times: int = 1) -> None:
        self._work: Callable[[], T] | None = work
        self._calls = list(range(times))  # left; taking one is atomic
        self._done = threading.Lock()
        self._done.acquire()
        self.value: T | None = None
        self._error: BaseException | None = None
        self.cancelled = False  # set to True to cancel a task that has not begun

    def run(self) -> None:
        work = self._work
        assert work is not None
        try:
            if not self.cancelled:
                self.value = work()
        except BaseException as error:
            self._error = self._error or error
        del work
        if self._calls.pop() == 0:
            self._work = None
            self._done.release()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, with or without an error."""
        return not self._done.locked()

    def wait(self) -> None:
        """Waits until it has ended, with or without an error."""
        with self._done:  # unlike with two calls, Ctrl-C cannot leave it taken
            pass

    def result(self) -> T | None:
        """Waits for the value. Raises the error of the work, once."""
        self.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self.value


class Threads:
    """Threads that end when this object is closed or garbage collected, or the interpreter exits.

    initializer: called first in each thread.
    """

    def __init__(self, count: int, name: str, initializer: Callable[[], None] = lambda: None) -> None:
        self._tasks: SimpleQueue[Task[Any] | None] = SimpleQueue()
        threads = [
            threading.Thread(target=_run, args=(self._tasks, initializer), name=f"{name}_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        self._closed = threading.Event()
        self._stop = weakref.finalize(self, _stop, self._tasks, threads, self._closed, os.getpid())

    def submit(self, work: Callable[[], T], times: int = 1) -> Task[T]:
        """Queues a task for the next free thread, or for so many. After `close`, or while the interpreter exits, it is
        cancelled."""
        task = Task(work, times)
        for _ in range(times):
            self._tasks.put(task)
        if self._closed.is_set():  # by another thread meanwhile
            _cancel(self._tasks)
        return task

    def close(self) -> None:
        """Ends the threads once they have run what was submitted."""
        self._stop()


def _run(tasks: "SimpleQueue[Task[Any] | None]", initializer: Callable[[], None]) -> None:
    initializer()
    while (task := tasks.get()) is not None:
        task.run()
        del task  # a waiting thread must not keep a batch alive


def _cancel(tasks: "SimpleQueue[Task[Any] | None]") -> None:
    """Ends the tasks that no thread will take: another thread may wait for them."""
    signals = 0  # to end threads, not all taken yet if several threads close at once
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            break
        if task is None:
            signals += 1
        else:
            task.cancelled = True
            task.run()
    for _ in range(signals):
        tasks.put(None)


def _stop(
    tasks: "SimpleQueue[Task[Any] | None]", threads: list[threading.Thread], closed: threading.Event, process: int
) -> None:
    if os.getpid() != process:  # a forked child has none of the threads
        return
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        if thread is not threading.current_thread():  # the garbage collector may call this in any thread
            thread.join()
    closed.set()
    _cancel(tasks)


def compute_threads(count: int, name: str) -> Threads:
    """Threads that compute, where torch is installed with one torch thread each.

    torch keeps its number of threads per calling thread, but process-wide for MKL and for threads yet to start. So the
    user's number is restored once all of ours have started.
    """
    if fault_of("torch") is not None:
        return Threads(count, name)
    torch = import_module("torch")
    torch_threads = torch.get_num_threads()
    started = threading.Barrier(count + 1)
    try:
        threads = Threads(count, name, partial(_compute_alone, torch, started))
        started.wait()
    except BaseException:  # Ctrl-C, or no more threads
        started.abort()
        raise
    finally:
        torch.set_num_threads(torch_threads)
    return threads


def _compute_alone(torch: Any, started: threading.Barrier) -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread adopts the number when it first uses it, which must happen here
    with suppress(threading.BrokenBarrierError):
        started.wait()
