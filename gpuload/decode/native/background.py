"""Compiling in the background, for what a run can do without for a while."""

import os
import threading
import weakref
from collections.abc import Callable

# Loading from the cache takes 0.2 s; waiting a little longer for it costs less than decoding without it.
_WAIT_S = 0.5


class BackgroundCompilation:
    """Calls a function that loads or compiles others, in a thread of its own.

    The interpreter waits for the thread at its end, and a fork waits for it too: a child that inherited numba's lock,
    without the thread that holds it, could never compile anything.
    """

    def __init__(self, load: Callable[[], None]) -> None:
        self._done = threading.Event()
        self._load = load
        self._thread = threading.Thread(target=self._run, name="gpuload-compile")

    def start(self, wait: bool = True) -> None:
        """wait: return when it is done, or after half a second; else at once."""
        _running.add(self)
        self._thread.start()
        if wait:
            self._done.wait(_WAIT_S)

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        self._load()
        self._done.set()


_running: "weakref.WeakSet[BackgroundCompilation]" = weakref.WeakSet()


def wait_for_all() -> None:
    """Waits until everything that was begun is compiled."""
    for compilation in list(_running):
        if not compilation.is_done and compilation._thread.is_alive():
            compilation.wait()


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(before=wait_for_all)
