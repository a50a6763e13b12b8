"""An event loop in a thread of its own, where everything is downloaded: one for each process.

obstore's own threads survive neither a fork nor the interpreter's end, so that the loop is started by the process that
uses it, and ended before the interpreter is.
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from gpuload.errors import RemoteError
from gpuload.store.connections import Connections

T = TypeVar("T")

_CONNECTIONS = 16  # requests at a time, of a process
_THREADS = 24  # that write what comes, and hash it; asyncio's default is 4 more than cores


class Background:
    """The loop. connections: what each request takes, so that there are never too many."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(ThreadPoolExecutor(_THREADS, "gpuload-download"))
        self.connections = Connections(_CONNECTIONS)
        self._thread = threading.Thread(target=self._run, name="gpuload-download", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result. Ctrl-C cancels it."""
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancels everything, and ends the thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.run_until_complete(self._end())
        self.loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_default_executor()


_of_process: dict[int, Background] = {}
_ended = threading.Event()
_inherited: list[Background] = []  # over fork: their threads do not exist, so that nobody may close them


def background() -> Background:
    """That of this process.

    Raises:
        RemoteError: the process was forked from one that had it, where obstore would wait forever.
    """
    process = os.getpid()
    if (found := _of_process.get(process)) is None:
        if _inherited:
            raise RemoteError(
                "this process was forked from one that had opened a set at a URL, and cannot open one itself. Start it "
                "by spawn or forkserver, or open such sets in the children alone"
            )
        if _ended.is_set():
            raise RemoteError("nothing is read from a URL any more, since the interpreter ends")
        # What is registered last is called first: before the finalizers that join threads which wait for this one.
        weakref.finalize(_ended, lambda: None).detach()
        found = _of_process[process] = Background()
        atexit.register(_stop, process)
    return found


def _stop(process: int) -> None:
    if os.getpid() == process:  # a forked child has inherited this, but not the thread
        _ended.set()
        _of_process.pop(process).stop()


def _forget() -> None:
    _inherited.extend(_of_process.values())
    _of_process.clear()


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(after_in_child=_forget)
