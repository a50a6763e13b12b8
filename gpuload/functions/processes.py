"""Calls of functions that hold the GIL, in worker processes.

Each calling thread owns one process during a call: arrays pass through shared memory, everything else through a pipe.
If a process dies, only its call fails, immediately, and no other thread blocks. Processes come from the fork server
(`gpuload.machine.fork_server`), ignore Ctrl-C, and are killed when the loader is closed, when the interpreter ends, or
when this process dies.
"""

import atexit
import mmap
import multiprocessing
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from gpuload.errors import ArgumentError
from gpuload.functions.function import (
    Entries,
    FailedCallError,
    Sample,
    SampleFunction,
    call,
    name_of,
    seed_global,
)
from gpuload.machine.fork_server import (
    EndedError,
    Worker,
    ensure_server,
    exit_code,
    exit_name,
)
from gpuload.types import Array

_ALIGNED = 64
_END_S = 1.0  # for a process that has closed its pipe

# A pickle, and the first byte and size of its arrays in the memory.
Dumped = tuple[bytes, list[tuple[int, int]]]


class SharedMemory:
    """A mapped anonymous file. It grows as needed and disappears with the last process that has it open.

    Args:
        fd: Of the file, which this object owns; None creates one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("gpuload", os.MFD_CLOEXEC) if fd is None else fd
        self._map: Any = np.empty(0, np.uint8)

    def dump(self, value: Any, begin: int = 0) -> tuple[Dumped, int]:
        """Pickles a value. Copies its contiguous arrays into the memory from `at`, unless they are already there.
        Returns the end of the last one, too."""
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(value, 5, buffer_callback=buffers.append)
        places = []
        for array in [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]:
            here = array.ctypes.data - self._map.ctypes.data
            if not 0 <= here <= len(self._map) - array.nbytes:
                here = begin
                self._reach(begin + array.nbytes)
                self._map[begin : begin + array.nbytes] = array
                begin += -(-array.nbytes // _ALIGNED) * _ALIGNED
            places.append((here, array.nbytes))
        return (data, places), begin

    def load(self, dumped: Dumped) -> Any:
        """The value; its arrays are in this memory."""
        data, places = dumped
        self._reach(max((begin + size for begin, size in places), default=0))
        return pickle.loads(
            data, buffers=[self._map[begin : begin + size] for begin, size in places]
        )

    def close(self) -> None:
        """Closes the file; arrays stay valid."""
        os.close(self.fd)

    def _reach(self, size: int) -> None:
        """Maps at least `size` bytes; earlier arrays stay valid."""
        if size <= len(self._map):
            return
        capacity = os.fstat(self.fd).st_size
        if capacity < size:
            capacity = max(size, 2 * capacity)
            os.ftruncate(self.fd, capacity)
        self._map = np.frombuffer(mmap.mmap(self.fd, capacity), np.uint8)


class InProcesses:
    """Calls functions in worker processes, one process for each calling thread.

    Args:
        functions: The users' functions, which must be picklable.
        entries: The fields that each function may read and change.
        count: Number of processes.

    Raises:
        ArgumentError: a function cannot be sent to a process, or the processes do not start.
    """

    def __init__(
        self, functions: Sequence[SampleFunction], entries: Entries, count: int
    ) -> None:
        self.threads = count
        self._owner = os.getpid()
        self._is_closed = False
        self._subject = f"Function(processes={count})"
        self._check_process()
        try:
            self._payload = pickle.dumps((tuple(functions), entries))
        except Exception as error:  # pickle raises many types
            names = ", ".join(map(name_of, functions))
            raise ArgumentError(
                f"{self._subject}: {names} cannot be sent to a process ({type(error).__name__}: {error}). Give a "
                "function at the top level of a module, or use processes=0"
            ) from None
        self._need_main = b"__main__" in self._payload
        modules = {
            getattr(function, "__module__", None) or type(function).__module__
            for function in functions
        }
        self._ensure = partial(
            ensure_server, [__name__, *sorted(modules - {"__main__"})]
        )
        self._free: list[_Process] = []  # not yet taken by a thread
        # A thread keeps its process, whose memory holds the last result.
        self._own = threading.local()
        self._all: weakref.WeakSet[_Process] = weakref.WeakSet()
        # Before the exit handlers of multiprocessing and of our threads.
        atexit.register(_close, weakref.ref(self))
        try:
            self._free += [self._start() for _ in range(count)]
            for worker in self._free:
                self._make_ready(worker)
        except BaseException:
            self.close()
            raise

    def call(
        self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool
    ) -> Mapping[str, Array]:
        """As `gpuload.functions.function.Caller`."""
        if self._is_closed:
            raise FailedCallError("was not called, since the loader is closed")
        worker: _Process | None = getattr(self._own, "worker", None)
        try:
            if worker is None and self._free:
                worker = self._free.pop()
            if worker is None or worker.has_ended():
                worker = self._start()
                self._make_ready(worker)
            self._own.worker = worker
            return worker.call(number, key, sample, keeps_size)
        except EndedError:
            self._own.worker = None
            how = (
                "its process does not start"
                if worker is None
                else worker.how_it_ended()
            )
            raise FailedCallError(f"did not return: {how}") from None

    def close(self) -> None:
        """Kills the processes. Calls in progress and later ones raise FailedCallError."""
        self._is_closed = True
        if os.getpid() != self._owner:  # a forked child
            return
        for worker in list(self._all):
            worker.kill()

    def _start(self) -> "_Process":
        worker = _Process(self._ensure, self._payload, self._need_main)
        self._all.add(worker)
        if self._is_closed:  # meanwhile, by another thread
            worker.kill()
        return worker

    def _make_ready(self, worker: "_Process") -> None:
        try:
            problem = worker.wait_until_ready()
        except (EOFError, OSError):
            problem = f"{worker.how_it_ended()} before it was ready"
            if self._need_main:
                problem += "; it imports the main module, whose code must be under if __name__ == '__main__':"
        if problem and not self._is_closed:
            raise ArgumentError(
                f"{self._subject}: a process does not start: {problem}. Define the function in a module that can be "
                "imported, or use processes=0"
            )

    def _check_process(self) -> None:
        current: Any = multiprocessing.current_process()
        if current.daemon or getattr(current, "_inheriting", False):
            raise ArgumentError(
                f"{self._subject}: this process is a daemon, or imports the main module for another loader, and cannot "
                "start processes. Construct loaders under if __name__ == '__main__':, or use processes=0"
            )


class _Process(Worker):
    """One process, used by one thread at a time."""

    def __init__(self, ensure: Any, payload: bytes, need_main: bool) -> None:
        super().__init__(
            ensure, _prepare, payload, name="gpuload-function", need_main=need_main
        )
        self._memory = SharedMemory()
        # No reference to this object, which a thread may drop at any time.
        weakref.finalize(self, _end, self.process, self.pipe, self._memory, os.getpid())

    def wait_until_ready(self) -> str:
        """ "", or the reason why it cannot work. Raises EOFError or OSError if it has ended."""
        reduction.send_handle(self.pipe, self._memory.fd, self.process.pid)
        problem: str = self.pipe.recv()
        return problem

    def has_ended(self) -> bool:
        """Whether it died since its last call: between calls, only the end of the pipe is readable."""
        return self.pipe.poll()

    def call(
        self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool
    ) -> dict[str, Array]:
        dumped, end = self._memory.dump(sample)
        self.send((number, key, keeps_size, dumped, end))
        result = self._memory.load(self.receive())
        # The caller copies pixels before the next call, and keeps all else.
        return {
            name: value if value.dtype == np.uint8 or name == "image" else value.copy()
            for name, value in result.items()
        }

    def kill(self) -> None:
        with suppress(OSError):  # it has ended meanwhile
            self.process.kill()

    def how_it_ended(self) -> str:
        """For messages."""
        # Not closed: at the interpreter's exit, multiprocessing waits for it in another thread.
        self.process.join(_END_S)
        if self.process.exitcode is None:
            self.process.kill()
        code = exit_code(self.process)
        return f"its process {'was killed by' if code < 0 else 'ended with'} {exit_name(code)}"


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


def _prepare(pipe: Connection, payload: bytes) -> Callable[[Any], Any] | None:
    """In the worker: maps the shared memory and returns the function that answers calls."""
    memory = SharedMemory(reduction.recv_handle(pipe))
    try:
        functions, entries = pickle.loads(payload)
    except Exception as error:  # whatever importing the functions' modules raises
        pipe.send(f"{type(error).__name__}: {error}")
        return None
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # it is one of many processes
    pipe.send("")

    def answer(task: Any) -> Any:
        number, key, keeps_size, dumped, end = task
        seed_global(key)
        result = call(functions[number], memory.load(dumped), key, entries, keeps_size)
        return memory.dump(
            {name: np.ascontiguousarray(value) for name, value in result.items()}, end
        )[0]

    return answer
