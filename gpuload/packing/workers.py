"""Processes that may die without taking the packer along.

Each worker has a pipe of its own and holds one task at a time, so the parent always knows which task a dead worker
had, and no lock is shared that a killed process could take with it. (concurrent.futures gives up all tasks when one
worker dies. Pebble 5.2 passes tasks through one locked pipe: a worker killed while it holds the lock stops all, and
one that dies before its acknowledgement is read leaves its task waiting for ever.)

Workers are started by "spawn": it is safe beside threads, and loads nothing but what a task needs.
"""

import multiprocessing
import os
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_SPAWN = multiprocessing.get_context("spawn")
_LOOK_S = 0.1  # between two calls of `watch`


class Workers(Generic[Task, Result]):
    """Up to `count` processes that apply `function` to tasks; both must be picklable.

    run() gives results to `done` in the order in which they come. A task whose worker died goes to `died` with the
    exit code (negative: the number of the signal), which gives the task to run in its place, or raises.
    What `function` raises is raised by run(). Leaving the `with` block ends all processes at once.
    """

    def __init__(self, count: int, function: Callable[[Task], Result]) -> None:
        self._count = count
        self._function = function
        self._workers: list[_Worker[Task]] = []

    def run(
        self,
        tasks: Iterable[Task],
        done: Callable[[Task, Result], None],
        died: Callable[[Task, int], Task],
        watch: Callable[[list[Task]], None],
    ) -> None:
        """Runs all tasks. `watch` is called a few times a second with the tasks that are being worked on."""
        waiting = deque(tasks)
        while waiting or self._busy():
            while len(self._workers) < min(self._count, len(waiting) + len(self._busy())):
                self._workers.append(_Worker(self._function))
            for worker in self._workers:
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
            wait([worker.pipe for worker in self._workers], _LOOK_S)
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
    """The traceback, as text, of what a worker raised."""


class _Worker(Generic[Task]):
    """One process and the parent's end of its pipe."""

    def __init__(self, function: Callable[[Task], object]) -> None:
        self.task: Task | None = None
        self.pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(theirs, function), name="gpuload-pack", daemon=True)
        # Ctrl-C goes to the whole group; the parent alone answers it. Blocked, not ignored, so that it cannot strike
        # while the child still imports.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()

    def give(self, task: Task) -> None:
        self.task = task
        with suppress(OSError):  # it died before; reading from the pipe will say so
            self.pipe.send(task)

    def stop(self) -> int:
        """Waits for the end of a process that is dead or was told to die; its exit code."""
        self.pipe.close()
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        return code if code is not None else -signal.SIGKILL


def _work(pipe: Connection, function: Callable[[Task], object]) -> None:
    """The worker's life: tasks come, results go, until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Pillow warns of odd files, and the C libraries below it write to stderr; what matters is in the result.
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
