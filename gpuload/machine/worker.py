"""A process that answers tasks one after the other, and may die at any time without ending this one."""

import gc
import pickle
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from gpuload.machine.fork_server import end_with_server, start_process


class Worker:
    """One process from the fork server, and this end of its pipe.

    ensure: makes sure that the server runs. prepare: called in the process with its end of the pipe and `args`; returns
    the function that answers a task, or None to end. need_main: whether the main module is to be imported there.
    """

    def __init__(
        self,
        ensure: Callable[[], None],
        prepare: Callable[..., Callable[[Any], Any] | None],
        *args: Any,
        name: str,
        need_main: bool,
    ) -> None:
        self.process, self.pipe = start_process(ensure, _serve, (prepare, args), name=name, need_main=need_main)

    def send(self, task: object) -> None:
        with suppress(OSError):  # it has died, which `receive` will show
            self.pipe.send(task)

    def receive(self) -> Any:
        """The answer to the task that was sent.

        Raises:
            EndedError: the process has ended. Else what the function raised.
        """
        try:
            answer, error, trace = self.pipe.recv()
        except (EOFError, OSError):
            raise EndedError from None
        if error is not None:
            raise error from RaisedInWorkerError(trace)
        return answer


class EndedError(Exception):
    """The process has ended."""


class RaisedInWorkerError(Exception):
    """The cause of an exception from a process: its traceback as text."""


def _serve(pipe: Connection, prepare: Callable[..., Callable[[Any], Any] | None], args: tuple[Any, ...]) -> None:
    """Answers tasks until the parent closes the pipe."""
    # When the parent is killed, its server ends, and the kernel then kills this process: a packer's worker must not
    # write while a resumed run does. If the parent was killed before this line, there is no task.
    end_with_server()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (answer := prepare(pipe, *args)) is None:
        return
    gc.freeze()  # imported objects stay alive, so the collector need not scan them, nor thereby copy shared pages
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            reply: tuple[Any, Exception | None, str] = (answer(task), None, "")
        except Exception as error:
            reply = (None, _sendable(error), traceback.format_exc())
        try:
            pipe.send(reply)
        except OSError:
            return


def _sendable(error: Exception) -> Exception:
    """The exception, or one that says the same where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
