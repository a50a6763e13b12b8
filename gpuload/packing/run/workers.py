"""Worker processes that may die without ending the packer.

Each worker has its own pipe and one task at a time, so the parent always knows which task a dead worker had, and there
is no shared lock that a killed process could hold. (concurrent.futures abandons all tasks when one worker dies. Pebble
5.2 passes tasks through one locked pipe: a worker killed while it holds the lock blocks all others, and one that dies
before its acknowledgement is read leaves its task waiting for ever.)

Workers are forked from multiprocessing's fork server, a process without threads of ours, which imports their modules
once: a worker starts in 5 ms of processor time, where a new interpreter ("spawn") needs 240 ms to import NumPy, Arrow
and Pillow (2 cores of an AMD EPYC, 2026-11). The server starts before the packer imports the same modules, so neither
waits for the other.
"""

import gc
import os
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Generic, TypeVar

from gpuload.fork_server import end_with_server, ensure_server, exit_code, start_process

Task = TypeVar("Task")
Result = TypeVar("Result")

_FORMATS = ("Bmp", "Gif", "Jpeg", "Ppm", "Png")  # the plugins that Pillow imports when it opens its first image
_PRELOAD = ["gpuload.packing.run.shard", *(f"PIL.{name}ImagePlugin" for name in _FORMATS)]
_POLL_S = 0.1  # between two calls of `watch`


def start_server(preload: Sequence[str] = ()) -> None:
    """Starts the process from which workers are forked, unless it is running; it imports modules in the background.

    preload: modules to import in addition to those that all workers need; modules that cannot be imported are ignored.
    """
    ensure_server([*_PRELOAD, *preload])


class Workers(Generic[Task, Result]):
    """Up to `count` processes that apply `function` to tasks; both must be picklable.

    run() passes results to `done` in the order in which they arrive. If a worker dies, its task and its exit code
    (negative: the number of the signal) are passed to `died`, which returns the task to run instead, or raises.
    Exceptions from `function` are raised by run(). Leaving the `with` block kills all processes.

    need_main: whether tasks contain objects defined in the main module, which workers must then import.
    preload: modules that `function` will import, so that they are imported once for all processes.
    """

    def __init__(
        self, count: int, function: Callable[[Task], Result], need_main: bool = True, preload: Sequence[str] = ()
    ) -> None:
        self._count = count
        self._function = function
        self._need_main = need_main
        self._preload = preload
        self._workers: list[_Worker[Task]] = []

    def start(self) -> None:
        """Starts importing the workers' modules while the caller does other things."""
        start_server(self._preload)

    def run(
        self,
        tasks: Iterable[Task],
        done: Callable[[Task, Result], None],
        died: Callable[[Task, int], Task],
        watch: Callable[[list[Task]], None],
    ) -> None:
        """Runs all tasks. `watch` is called a few times a second with the tasks in progress."""
        waiting = deque(tasks)
        while waiting or self._busy():
            for worker in self._workers:
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
            while waiting and len(self._workers) < self._count:
                self._workers.append(_Worker(self._function, self._need_main, self._preload))
                self._workers[-1].give(waiting.popleft())
            wait([worker.pipe for worker in self._workers], _POLL_S)
            for worker in list(self._workers):
                if not worker.pipe.poll():
                    continue
                task = worker.task
                try:
                    result, error, trace = worker.pipe.recv()
                except (EOFError, OSError):
                    self._workers.remove(worker)
                    code = worker.stop()
                    if task is not None:
                        waiting.appendleft(died(task, code))
                    continue
                worker.task = None
                if error is not None:
                    raise error from _RaisedInWorkerError(trace)
                assert task is not None
                done(task, result)
            watch(self._busy())

    def _busy(self) -> list[Task]:
        return [worker.task for worker in self._workers if worker.task is not None]

    def __enter__(self) -> "Workers[Task, Result]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.stop()
        self._workers.clear()


class _RaisedInWorkerError(Exception):
    """The cause of an exception from a worker: its traceback as text."""


class _Worker(Generic[Task]):
    """One process and the parent's end of its pipe."""

    def __init__(self, function: Callable[[Task], object], need_main: bool, preload: Sequence[str]) -> None:
        self.task: Task | None = None
        self.process, self.pipe = start_process(
            partial(start_server, preload), _work, (function,), name="gpuload-pack", need_main=need_main
        )

    def give(self, task: Task) -> None:
        self.task = task
        with suppress(OSError):  # it has died, which reading from the pipe will show
            self.pipe.send(task)

    def stop(self) -> int:
        """Waits for the end of a process that has died or was killed, and returns its exit code."""
        self.pipe.close()
        code = exit_code(self.process)
        self.process.close()
        return code


def _work(pipe: Connection, function: Callable[[Task], object]) -> None:
    """The main loop of a worker: receives tasks and sends results until the parent closes the pipe."""
    # When the packer is killed, its server ends, and the kernel then kills this process, so that it does not write
    # while a resumed run does. If the packer was killed before this line, there is no task.
    end_with_server()
    gc.freeze()  # imported objects stay alive, so the collector need not scan them, nor thereby copy shared pages
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Pillow warns about unusual files, and its C libraries write to stderr; the result says all that matters.
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            answer: tuple[object, Exception | None, str] = (function(task), None, "")
        except Exception as error:
            answer = (None, error, traceback.format_exc())
        try:
            pipe.send(answer)
        except OSError:
            return
