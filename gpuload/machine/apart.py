"""What a signal must not stop half way. Python runs signal handlers in the main thread alone, between any two steps of
Python code: so work that starts or ends threads, or takes locks in Python, is done in another thread.

Ctrl-C in the main thread then ends the waiting for the work, and the work is done all the same.
"""

import sys
import threading
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Flag:
    """A truth that one thread sets and others read. A signal within `threading.Event.set` would leave its lock taken,
    and the next call would wait for ever."""

    def __init__(self) -> None:
        self.is_set = False


class Apart(Generic[T]):
    """Work in a thread of its own, which has begun. The interpreter waits for its end before it exits."""

    def __init__(self, work: Callable[[], T]) -> None:
        context = copy_context()
        self._work: Callable[[], T] = lambda: context.run(work)
        self._value: T | None = None
        self._error: BaseException | None = None
        self._running = allocate_lock()
        self._running.acquire()
        # A signal within `Thread.start` would leave a lock taken that the thread needs. So another one calls it, which
        # is started in a single step.
        start_new_thread(
            _start,
            (threading.Thread(target=self._run, name="gpuload-apart"), self._run),
        )

    def wait(self) -> T:
        """Waits for the result. Raises what the work raised."""
        with self._running:
            pass
        error = self._error
        self._error = None
        if error is not None:
            raise error
        return self._value  # type: ignore[return-value]  # of the work, which is done

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # raised in the thread that waits
            self._error = error
        finally:
            del self._work
            self._running.release()


def _start(thread: threading.Thread, run: Callable[[], Any]) -> None:
    try:
        thread.start()
    except (
        RuntimeError
    ):  # the limit of threads is reached, or the interpreter is ending
        run()


def uninterrupted(work: Callable[[], T]) -> T:
    """Does work that no signal can stop half way, and returns its result. Ctrl-C ends the waiting alone."""
    is_main = threading.get_ident() == threading.main_thread().ident
    if (
        not is_main or sys.is_finalizing()
    ):  # at the interpreter's end no other thread runs any more
        return work()
    return Apart(work).wait()
