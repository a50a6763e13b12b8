"""Functions in processes of their own, for those that hold Python's lock.

A calling thread has a process for itself for the time of a call: the pixels lie in memory that both share, and a pipe
takes everything else. So a process that is killed, or ends, is noticed at once by the one thread that waits for it, and
nobody else waits for anything. Processes come from the fork server (`gpuload.fork_server`), ignore Ctrl-C, and are
killed when the loader is closed, when the interpreter ends, or when this process dies.
"""

import atexit
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from gpuload.errors import ArgumentError
from gpuload.fork_server import end_with_server, ensure_server, exit_code, start_process
from gpuload.functions.global_draws import seed_global
from gpuload.functions.interface import CallFailedError, Entries, Sample, SampleFunction, name_of
from gpuload.functions.memory import SharedMemory
from gpuload.functions.result import call
from gpuload.types import Array

_END_S = 1.0  # for a process that has closed its pipe


class InProcesses:
    """Calls functions in processes, of which each thread uses one at a time.

    functions: must be picklable. count: of the processes.

    Raises:
        ArgumentError: a function cannot be sent to a process, or the processes do not start.
    """

    def __init__(self, functions: Sequence[SampleFunction], entries: Entries, count: int) -> None:
        self.threads, self._owner, self._is_closed = count, os.getpid(), False
        self.notices: deque[str] = deque()
        self._subject = f"function_processes={count}"
        self._check_process()
        try:
            self._payload = pickle.dumps((tuple(functions), entries))
        except Exception as error:  # pickle raises many kinds
            names = ", ".join(map(name_of, functions))
            raise ArgumentError(
                f"{self._subject}: {names} cannot be sent to a process ({type(error).__name__}: {error}). Give a "
                "function at the top level of a module, or an object that can be pickled; or use function_processes=0"
            ) from None
        self._need_main = b"__main__" in self._payload
        modules = {getattr(one, "__module__", None) or type(one).__module__ for one in functions}
        self._ensure = partial(ensure_server, [__name__, *sorted(modules - {"__main__"})])
        self._free: list[_Worker] = []  # that no thread has taken yet
        self._own = threading.local()  # a thread keeps its process, in whose memory the last result lies
        self._all: weakref.WeakSet[_Worker] = weakref.WeakSet()
        atexit.register(_close, weakref.ref(self))  # before multiprocessing's own end, and that of our threads
        try:
            self._free += [self._start() for _ in range(count)]
            for worker in self._free:
                self._make_ready(worker)
        except BaseException:
            self.close()
            raise

    def call(self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool) -> Mapping[str, Array]:
        """As `gpuload.functions.callers.Caller`."""
        if self._is_closed:
            raise CallFailedError("was not called, since the loader is closed")
        worker: _Worker | None = getattr(self._own, "worker", None)
        try:
            if worker is None and self._free:
                worker = self._free.pop()
            if worker is None or worker.has_ended():
                worker = self._start()
                self._make_ready(worker)
            self._own.worker = worker
            return worker.call(number, key, sample, keeps_size)
        except _EndedError as error:
            self._own.worker = None
            raise CallFailedError(f"did not return: {error}") from None

    def close(self) -> None:
        """Kills the processes. Calls that are under way, and later ones, raise CallFailedError."""
        self._is_closed = True
        if os.getpid() != self._owner:  # a forked child
            return
        for worker in list(self._all):
            worker.kill()

    def _start(self) -> "_Worker":
        worker = _Worker(self._ensure, self._payload, self._need_main)
        self._all.add(worker)
        if self._is_closed:  # meanwhile, by another thread
            worker.kill()
        return worker

    def _make_ready(self, worker: "_Worker") -> None:
        try:
            problem = worker.wait_until_ready()
        except _EndedError as error:
            problem = f"{error} before it was ready"
            if self._need_main:
                problem += "; it imports the main module, whose code must be under if __name__ == '__main__':"
        if problem and not self._is_closed:
            raise ArgumentError(
                f"{self._subject}: a process does not start: {problem}. Define the function in a module that can be "
                "imported, or use function_processes=0"
            )

    def _check_process(self) -> None:
        current: Any = multiprocessing.current_process()
        if getattr(current, "_inheriting", False):
            raise ArgumentError(
                f"{self._subject}: the main module constructs a loader while a process of another one imports it. Put "
                "that code under if __name__ == '__main__':"
            )
        if current.daemon:
            raise ArgumentError(
                f"{self._subject}: this process is a daemon, which cannot have any. Use function_processes=0 in it"
            )


class _EndedError(Exception):
    """A process has ended; the message says how."""


class _Worker:
    """One process, as one thread at a time sees it."""

    def __init__(self, ensure: Any, payload: bytes, need_main: bool) -> None:
        self._memory = SharedMemory()
        self._process, self._pipe = start_process(
            ensure, _serve, (payload,), name="gpuload-function", need_main=need_main
        )
        # Without a reference to this object, which a thread may drop at any time.
        weakref.finalize(self, _end, self._process, self._pipe, self._memory, os.getpid())

    def wait_until_ready(self) -> str:
        """ "", or why it cannot work."""
        try:
            reduction.send_handle(self._pipe, self._memory.fd, self._process.pid)
            problem: str = self._pipe.recv()
        except (EOFError, OSError):
            raise _EndedError(self._how_it_ended()) from None
        return problem

    def has_ended(self) -> bool:
        """Whether it was killed since its last call: else there is nothing to read between calls."""
        return self._pipe.poll()

    def call(self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool) -> dict[str, Array]:
        pixels = _pixels_of(sample)
        others = {name: value for name, value in sample.items() if name not in pixels}
        try:
            places, end = self._memory.write(pixels)
            self._pipe.send((number, key, keeps_size, places, end, others))
            places, others, error, trace = self._pipe.recv()
        except (EOFError, OSError):
            raise _EndedError(self._how_it_ended()) from None
        if error is not None:
            raise error from (None if trace is None else _RaisedThereError(trace))
        return {**others, **self._memory.arrays(places)}

    def kill(self) -> None:
        with suppress(OSError):  # it has ended meanwhile
            self._process.kill()

    def _how_it_ended(self) -> str:
        # Not closed: where the interpreter ends, multiprocessing waits for it in another thread meanwhile.
        self._process.join(_END_S)
        if self._process.exitcode is None:
            self._process.kill()
        code = exit_code(self._process)
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"


class _RaisedThereError(Exception):
    """The cause of an exception from a process: its traceback as text."""


def _pixels_of(sample: Mapping[str, Any]) -> dict[str, Array]:
    """Image and masks, which are copied once the call is over; other entries are kept."""
    return {
        name: value for name, value in sample.items() if name == "image" or getattr(value, "dtype", None) == "uint8"
    }


def _close(callers: "weakref.ref[InProcesses]") -> None:
    if (caller := callers()) is not None:
        caller.close()


def _end(process: Any, pipe: Connection, memory: SharedMemory, owner: int) -> None:
    memory.close()
    pipe.close()
    if os.getpid() != owner:
        return
    with suppress(OSError):
        process.kill()
        process.join(_END_S)


def _serve(pipe: Connection, payload: bytes) -> None:
    """The main loop of a process: calls functions until its end of the pipe is closed."""
    end_with_server()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    memory = SharedMemory(reduction.recv_handle(pipe))
    try:
        functions, entries = pickle.loads(payload)
    except Exception as error:  # whatever importing the functions' modules raises
        pipe.send(f"{type(error).__name__}: {error}")
        return
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # it is one of many processes
    gc.freeze()  # imported objects stay alive, so the collector need not scan them, nor thereby copy shared pages
    pipe.send("")
    while True:
        try:
            number, key, keeps_size, places, end, others = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            sample = {**others, **memory.arrays(places)}
            seed_global(key)
            found = call(functions[number], sample, key, entries, keeps_size)
            pixels = _pixels_of(found)
            places, _ = memory.write(pixels, end)
            answer: Any = (places, {name: value for name, value in found.items() if name not in pixels}, None, None)
        except Exception as error:
            answer = (None, None, _sendable(error), traceback.format_exc())
        try:
            pipe.send(answer)
        except OSError:
            return


def _sendable(error: Exception) -> Exception:
    """The exception, or one that says the same where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
