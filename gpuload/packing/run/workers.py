"""Processes that may die without taking the packer along.

Each worker has a pipe of its own and holds one task at a time, so the parent always knows which task a dead worker
had, and no lock is shared that a killed process could take with it. (concurrent.futures gives up all tasks when one
worker dies. Pebble 5.2 passes tasks through one locked pipe: a worker killed while it holds the lock stops all, and
one that dies before its acknowledgement is read leaves its task waiting for ever.)

Workers are forked from multiprocessing's fork server, a process without threads of ours that imports what they need
once: a worker is there in 5 ms of processor time, where a fresh interpreter ("spawn") needs 240 ms for NumPy, Arrow and
Pillow (2 cores of an AMD EPYC, 2026-11). The server is started before the packer imports the same, so neither waits.
"""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_SERVER = multiprocessing.get_context("forkserver")
_FORMATS = ("Bmp", "Gif", "Jpeg", "Ppm", "Png")  # what Pillow imports when it opens its first image
_PRELOAD = ["gpuload.packing.run.shard", *(f"PIL.{name}ImagePlugin" for name in _FORMATS)]
_SERVER_DIED = 255  # multiprocessing's exit code for a process of a fork server that is gone
_STARTS = 10
_LOOK_S = 0.1  # between two calls of `watch`
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def start_server(preload: Sequence[str] = ()) -> None:
    """Starts the process that workers are forked from, unless it runs; it imports what they need in the background.

    preload: modules that they need besides; those that cannot be imported are left out.
    """
    _SERVER.set_forkserver_preload([*_PRELOAD, *preload])
    with _uninterrupted():
        forkserver.ensure_running()


class Workers(Generic[Task, Result]):
    """Up to `count` processes that apply `function` to tasks; both must be picklable.

    run() gives results to `done` in the order in which they come. A task whose worker died goes to `died` with the
    exit code (negative: the number of the signal), which gives the task to run in its place, or raises.
    What `function` raises is raised by run(). Leaving the `with` block ends all processes at once.

    need_main: whether tasks hold what is defined in the program itself, whose main module workers must then import.
    preload: modules that `function` will import, so that it is done once for all processes.
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
        """Has what processes need imported while the caller does other things."""
        start_server(self._preload)

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
            for worker in self._workers:
                if worker.task is None and waiting:
                    worker.give(waiting.popleft())
            while waiting and len(self._workers) < self._count:
                self._workers.append(_Worker(self._function, self._need_main, self._preload))
                self._workers[-1].give(waiting.popleft())
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

    def __init__(self, function: Callable[[Task], object], need_main: bool, preload: Sequence[str]) -> None:
        self.task: Task | None = None
        for left in reversed(range(_STARTS)):
            start_server(preload)
            self.pipe, theirs = _SERVER.Pipe()
            self.process = _SERVER.Process(target=_work, args=(theirs, function), name="gpuload-pack", daemon=True)
            try:
                with _uninterrupted(), nullcontext() if need_main else _hidden_main():
                    self.process.start()
                break
            except (ConnectionError, EOFError):
                # The server was killed and is not yet seen to be dead: the next start finds it so.
                self.pipe.close()
                if not left:
                    raise
                time.sleep(_LOOK_S)
            finally:
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
        # No image is to blame for the death of the server: it counts as the kernel's SIGKILL, which it will have been.
        return code if code not in (None, _SERVER_DIED) else -signal.SIGKILL


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits meanwhile: neither does it strike a child that still imports, nor leave one half-started.

    It goes to the whole group, and the parent alone answers it. A child inherits that it is blocked; in the parent
    another thread, such as a math library's, may be given the signal all the same, so there it is put off by hand too.
    """
    # multiprocessing's own helper: where it has to be started first, starting it lets Ctrl-C through again.
    resource_tracker.ensure_running()
    in_main = threading.current_thread() is threading.main_thread()
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number)) if in_main else None
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if in_main:
            signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if seen:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Meanwhile the main module has neither name nor file, so that a process that is started does not import it."""
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    for name in kept:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(main, name, value)


def _work(pipe: Connection, function: Callable[[Task], object]) -> None:
    """The worker's life: tasks come, results go, until the parent closes the pipe."""
    # When a packer is killed its server ends, and then the kernel ends this process, so that none writes beside the run
    # that goes on. Where the packer was killed before this line, there is no task.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.freeze()  # what was imported stays: the collector need not go through it, nor copy its pages
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
