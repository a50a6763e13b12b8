"""Processes from multiprocessing's fork server, which has none of our threads and imports their modules once.

They may be killed at any time: each has its own pipe, and they share no lock.
"""

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from gpuload.errors import OutputError

_SERVER = multiprocessing.get_context("forkserver")
_SERVER_DIED = (
    255  # multiprocessing's exit code for a process whose fork server has died
)
_START_ATTEMPTS = 10
_RETRY_S = 0.1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_STARTING = (
    threading.Lock()
)  # held while a process starts, when the main module may be hidden


def ensure_server(preload: Sequence[str]) -> None:
    """Starts the server if it is not running; it imports these modules in the background.

    Modules that cannot be imported are ignored.

    Raises:
        OutputError: it cannot be started.
    """
    _SERVER.set_forkserver_preload(list(preload))
    try:
        with sigint_deferred():
            forkserver.ensure_running()
    except OSError as error:  # no room for its socket, or for another process
        raise OutputError(
            f"{tempfile.gettempdir()}: no process can be started there ({error.strerror or error}). Free some "
            "space, or set TMPDIR"
        ) from None


def exit_code(process: ForkServerProcess) -> int:
    """Waits for a process that died or was killed. Returns its exit code, or -(number of the signal)."""
    process.join()
    code = process.exitcode
    # The death of the server counts as the kernel's SIGKILL, its most likely cause.
    return code if code not in (None, _SERVER_DIED) else -signal.SIGKILL


def exit_name(code: int) -> str:
    """A signal's name, or the exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


def end_with_server() -> None:
    """Makes the kernel kill the calling process when the server ends, which ends with the process that started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The server ends when no process can write to this pipe, and each of its processes inherits an end.
    server: Any = forkserver._forkserver
    alive = server._forkserver_alive_fd
    server._forkserver_alive_fd = None
    if alive is not None:
        os.close(alive)


@contextmanager
def sigint_deferred() -> Iterator[None]:
    """Defers Ctrl-C, so that it neither hits a child that is still importing, nor leaves one half-started, nor is lost
    in a library that swallows it.

    SIGINT goes to the whole process group, and only the parent must react to it. A child inherits the blocked signal.
    In the parent another thread, such as a math library's, may receive the signal nevertheless, so a handler there
    records it too.
    """
    # Starts multiprocessing's helper process first: starting it later would unblock Ctrl-C again.
    resource_tracker.ensure_running()
    in_main = threading.current_thread() is threading.main_thread()
    seen: list[int] = []
    before = (
        signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
        if in_main
        else None
    )
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
    """Hides the main module's name and file, so that a process started within does not import it."""
    main = sys.modules["__main__"]
    kept = {
        name: getattr(main, name)
        for name in ("__spec__", "__file__")
        if hasattr(main, name)
    }
    for name in kept:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(main, name, value)


class Worker:
    """One process from the fork server, and this end of its pipe.

    Args:
        ensure: Makes sure that the server runs.
        prepare: Called in the process with its end of the pipe and `args`; returns the function that answers a task, or
            None to end.
        name: Of the process.
        need_main: Whether the process must import the main module.
        args: Further arguments of `prepare`; they are pickled.

    Attributes:
        task: What the process works on; None where it waits.
    """

    def __init__(
        self,
        ensure: Callable[[], None],
        prepare: Callable[..., Callable[[Any], Any] | None],
        *args: Any,
        name: str,
        need_main: bool,
    ) -> None:
        self.task: Any = None
        for attempts_left in reversed(range(_START_ATTEMPTS)):
            ensure()
            self.pipe, child_pipe = _SERVER.Pipe()
            arguments = (dict(os.environ), child_pipe, prepare, args)
            self.process = _SERVER.Process(
                target=_serve, args=arguments, name=name, daemon=True
            )
            try:
                with (
                    _STARTING,
                    sigint_deferred(),
                    nullcontext() if need_main else _hidden_main(),
                ):
                    self.process.start()
                break
            except (ConnectionError, EOFError):
                # The server was killed, but `ensure` has not noticed yet; the next attempt will.
                self.pipe.close()
                if not attempts_left:
                    raise
                time.sleep(_RETRY_S)
            finally:
                child_pipe.close()

    def send(self, task: object) -> None:
        self.task = task
        with suppress(OSError):  # it has died; `receive` will report that
            self.pipe.send(task)

    def receive(self) -> Any:
        """The answer to the task that was sent.

        Raises:
            EndedError: the process has ended. Otherwise, whatever the function raised.
        """
        try:
            answer, error, trace = self.pipe.recv()
        except (EOFError, OSError):
            raise EndedError from None
        self.task = None
        if error is not None:
            raise error from RaisedInWorkerError(trace)
        return answer

    def stop(self) -> int:
        """Waits for the end of a process that has died or was killed, and returns its exit code."""
        self.pipe.close()
        code = exit_code(self.process)
        self.process.close()
        return code


class EndedError(Exception):
    """The process has ended."""


class RaisedInWorkerError(Exception):
    """The cause of an exception from a process: its traceback as text."""


def _serve(
    environment: dict[str, str],
    pipe: Connection,
    prepare: Callable[..., Callable[[Any], Any] | None],
    args: tuple[Any, ...],
) -> None:
    """Answers tasks until the parent closes the pipe.

    Args:
        environment: The parent's current one rather than that at the start of the server: credentials may have been set
            since.
    """
    os.environ.clear()
    os.environ.update(environment)
    # When the parent is killed, its server ends, and the kernel then kills this process: a packer's worker must not
    # write while a resumed run does. If the parent was killed before this line, there is no task.
    end_with_server()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (answer := prepare(pipe, *args)) is None:
        return
    gc.freeze()  # imported objects stay alive, so the collector need not scan them, nor thereby copy shared pages
    with suppress(EOFError, OSError):
        while True:
            task = pipe.recv()
            try:
                reply: tuple[Any, Exception | None, str] = (answer(task), None, "")
            except Exception as error:  # raised by the process that gave the task
                reply = (None, _sendable(error), traceback.format_exc())
            pipe.send(reply)


def _sendable(error: Exception) -> Exception:
    """The exception, or an equivalent one if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # pickle raises many types
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
