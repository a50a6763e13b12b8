"""How a process talks to servers: one event loop in its own thread, requests in the order of need, and retries.

obstore's threads survive neither a fork nor interpreter shutdown, so each process starts its own loop and stops it
before the interpreter exits.
"""

import asyncio
import atexit
import os
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from gpuload.counted import counted
from gpuload.errors import RemoteError

T = TypeVar("T")

_CONNECTIONS = 16  # requests at a time, of a process
_THREADS = 24  # write and hash downloads; asyncio's default is 4 more than cores

# When a task's data is needed, as a place in a plan. Evaluated whenever a request ends, since plans change. Data that a
# caller waits for (a manifest, an index, a file to pack) precedes every plan.
NEEDED: ContextVar[Callable[[], float]] = ContextVar("NEEDED", default=lambda: -1.0)


class Connections:
    """A semaphore for `async with` that admits the most urgent waiter first (`NEEDED`)."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[
            tuple[Callable[[], float], asyncio.Future[None]]
        ] = []  # in order of arrival

    async def __aenter__(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((NEEDED.get(), turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn came at the same moment
                await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._free += 1
        self._admit()

    def _admit(self) -> None:
        # Those that are done were cancelled.
        self._waiting = [waiting for waiting in self._waiting if not waiting[1].done()]
        while self._free and self._waiting:
            first = min(self._waiting, key=lambda waiting: waiting[0]())
            self._waiting.remove(first)
            self._free -= 1
            first[1].set_result(None)


class Background:
    """The loop. connections: acquired by each request, to limit how many run at once."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(ThreadPoolExecutor(_THREADS, "gpuload-download"))
        self.connections = Connections(_CONNECTIONS)
        self._thread = threading.Thread(
            target=self._run, name="gpuload-download", daemon=True
        )
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result. Ctrl-C cancels it."""
        return Waiter().wait(coroutine, "the request")

    def stop(self) -> None:
        """Cancels all tasks and ends the thread."""
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


_of_process: list[Background] = []  # the one of this process, if it is started
_inherited: list[Background] = []  # over fork, without their threads: never closed
_ended = threading.Event()


def background() -> Background:
    """The loop of this process, started if necessary.

    Raises:
        RemoteError: the process was forked from one that had it, where obstore would wait forever.
    """
    if not _of_process:
        if _inherited:
            raise RemoteError(
                "this process was forked from one that had opened a set at a URL, and cannot open one itself. Start it "
                "by spawn or forkserver, or open such sets in the children alone"
            )
        if _ended.is_set():
            raise RemoteError(
                "the interpreter is shutting down, so nothing is read from URLs any more"
            )
        # Registered last, called first: before the finalizers that join threads waiting for this one.
        weakref.finalize(_ended, lambda: None).detach()
        _of_process.append(Background())
        atexit.register(_stop, os.getpid())
    return _of_process[0]


def _stop(process: int) -> None:
    if os.getpid() == process:  # a forked child has inherited this, but not the thread
        _ended.set()
        _of_process.pop().stop()


def _forget() -> None:
    _inherited.extend(_of_process)
    _of_process.clear()


if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(after_in_child=_forget)


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results. If one fails, or this is cancelled, the others are cancelled and awaited."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Waiter:
    """Not used by several threads at a time, but for `interrupt`.

    waited_s: seconds that `wait` has waited so far.
    """

    def __init__(self) -> None:
        self._waiting: Future[Any] | None = None
        self._interrupted = False
        self.waited_s = 0.0

    def begin(self) -> None:
        """`wait` waits again."""
        self._interrupted = False

    def interrupt(self) -> None:
        """Cancels a blocked `wait`, in whichever thread; further calls raise until `begin`."""
        self._interrupted = True
        if (waiting := self._waiting) is not None:
            waiting.cancel()

    def wait(self, coroutine: Coroutine[Any, Any, T], what: str) -> T:
        """Waits for a coroutine in the process's event loop, and returns its result.

        Args:
            coroutine: What to wait for.
            what: What is downloaded, for the message.

        Raises:
            RemoteError: it was cancelled by `interrupt`. Whatever the coroutine raises.
        """
        waiting = background().start(coroutine)
        begun = time.perf_counter()
        self._waiting = waiting
        try:
            if self._interrupted:
                waiting.cancel()
            return waiting.result()
        except CancelledError:
            raise RemoteError(f"{what}: was cancelled") from None
        finally:
            waiting.cancel()  # after Ctrl-C
            self._waiting = None
            self.waited_s += time.perf_counter() - begun


# Not the global generator, which the program may have seeded: retries run in other threads.
_DRAWS = random.SystemRandom()


@dataclass(frozen=True)
class Patience:
    """How long a request is tried, in seconds.

    Attributes:
        silent_s: How long no byte may come until a request has failed.
        request_s: How long a whole request of a few MB may take.
        give_up_s: How long after the first attempt further ones are made.
        first_wait_s: Between the first two attempts; each further wait is twice as long.
        longest_wait_s: Between any two attempts.
    """

    silent_s: float = 20
    request_s: float = 120
    give_up_s: float = 300
    first_wait_s: float = 0.2
    longest_wait_s: float = 15


class Problem(NamedTuple):
    """Why an attempt failed.

    Attributes:
        fault: What is wrong, for the message.
        advice: What to do about it, for the message.
        final: Whether no further attempt can change it.
        kind: The class of the error to raise.
        limit_s: Seconds after the first attempt in which others are made, where they are fewer than the patience's.
    """

    fault: str
    advice: str
    final: bool = False
    kind: type[RemoteError] = RemoteError
    limit_s: float = float("inf")


async def persist(
    where: str,
    once: Callable[[], Awaitable[T]],
    explain: Callable[[Exception], Problem],
    patience: Patience,
    give_up_s: float | None = None,
) -> T:
    """The result of the first attempt that succeeds.

    Args:
        where: Subject of the message.
        once: Starts an attempt.
        explain: Describes the error of an attempt, or raises another one, which ends all attempts.
        patience: How long and how often to try.
        give_up_s: In place of the patience's, in seconds.

    Raises:
        RemoteError: no attempt succeeded.
    """
    give_up_s = patience.give_up_s if give_up_s is None else give_up_s
    started = time.monotonic()
    wait_s = patience.first_wait_s
    attempt = 1
    while True:
        try:
            return await once()
        except Exception as error:  # `explain` raises what no attempt mends
            problem = explain(error)
        passed_s = time.monotonic() - started
        pause_s = wait_s * _DRAWS.uniform(0.75, 1.25)
        if problem.final or passed_s + pause_s > min(give_up_s, problem.limit_s):
            after = (
                ""
                if problem.final
                else f" after {counted(attempt, 'attempt')} in {passed_s:.0f} s"
            )
            raise problem.kind(f"{where}: {problem.fault}{after}. {problem.advice}")
        await asyncio.sleep(pause_s)
        wait_s = min(2 * wait_s, patience.longest_wait_s)
        attempt += 1
