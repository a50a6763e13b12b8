"""Threads that execute tasks, for batches that come every millisecond.

`concurrent.futures` costs 0.15 ms of processor time a task where the caches are cold, as they are after a training
step: most of its bookkeeping is Python, and it waits for its own locks (2 cores, 2026-11). A queue and a lock, both in
C, are enough.
"""

import os
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Task(Generic[T]):
    """Work in progress in another thread.

    value: what it returned; None until then, and where it raised or was cancelled before it began.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._done = threading.Lock()
        self._done.acquire()
        self.value: T | None = None
        self._error: BaseException | None = None
        self.cancelled = False  # set it to True where the task is not wanted any more

    def run(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        try:
            if not self.cancelled:
                self.value = work()
        except BaseException as error:
            self._error = error
        self._done.release()

    def wait(self) -> None:
        """Waits until it has ended, with an error or without."""
        with self._done:  # unlike with two calls, Ctrl-C cannot leave it taken
            pass

    def result(self) -> T | None:
        """The value. Raises what the work raised, once."""
        self.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self.value


class Threads:
    """Some threads, which end when this is closed or garbage collected, or the interpreter ends.

    initializer: each thread calls it first.
    """

    def __init__(self, count: int, name: str, initializer: Callable[[], None] = lambda: None) -> None:
        self._tasks: SimpleQueue[Task[Any] | None] = SimpleQueue()
        threads = [
            threading.Thread(target=_run, args=(self._tasks, initializer), name=f"{name}_{number}", daemon=True)
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        self._closed = False
        self._stop = weakref.finalize(self, _stop, self._tasks, threads, os.getpid())

    def submit(self, work: Callable[[], T]) -> Task[T]:
        """A task that the next free thread executes. One that comes after `close` is cancelled."""
        task = Task(work)
        self._tasks.put(task)
        if self._closed:  # meanwhile, by another thread
            _cancel(self._tasks)
        return task

    def close(self) -> None:
        """Ends the threads, after what was submitted."""
        self._stop()
        self._closed = True
        _cancel(self._tasks)


def _run(tasks: "SimpleQueue[Task[Any] | None]", initializer: Callable[[], None]) -> None:
    initializer()
    while (task := tasks.get()) is not None:
        task.run()
        del task  # a waiting thread must not keep a batch alive


def _cancel(tasks: "SimpleQueue[Task[Any] | None]") -> None:
    """Ends the tasks that no thread will take, since somebody may wait for them."""
    signals = 0  # for threads to end, which some may not have taken yet, where several close at once
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


def _stop(tasks: "SimpleQueue[Task[Any] | None]", threads: list[threading.Thread], process: int) -> None:
    if os.getpid() != process:  # a forked child has none of the threads
        return
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        if thread is not threading.current_thread():  # the garbage collector may call this in any thread
            thread.join()
