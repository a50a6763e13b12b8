"""The base of stores that download: prefetching by the plan, waiting, interruption and failures."""

import asyncio
import logging
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from gpuload.errors import GpuloadError, RemoteError
from gpuload.store import Lease, Store
from gpuload.store.background import NEEDED, Waiter, background
from gpuload.store.cache import Wanted
from gpuload.store.objects import Objects
from gpuload.store.transfer import download
from gpuload.store.url import URL

_LOG = logging.getLogger(__name__)

_AT_A_TIME = 4  # shards: each in ranges, so that this is for small ones
# The first shards of a loop are downloaded window by window: four at a time can delay one by the time of three. On a
# network 1.2 times as fast as training, enough is ahead after 18 shards, whatever the window.
_IN_TURN = 24
_POLL_S = 0.05  # while something else keeps a shard from being downloaded
_FRESH_S = 30  # a failure this recent is raised; older ones are retried
_ROOM_S = 0.05  # by then, a download that is still running has its room
_IDLE_S = 2.0  # until the next look, where nothing changes
_NEVER = float("inf")


class Part(Protocol):
    """A shard being downloaded. number: the file descriptor it is written to, valid once there is room."""

    @property
    def number(self) -> int: ...

    def finish(self) -> None:
        """Publishes the complete shard: from now on it can be leased."""

    def drop(self) -> None:
        """Discards an unfinished shard. Idempotent."""


class Obstacle(NamedTuple):
    """Why a shard that is needed now is not being downloaded. progress: changes while the blocker makes progress."""

    why: str
    progress: float | None = None


class _Failure(NamedTuple):
    """Why a download failed, and when it began and ended."""

    error: Exception
    begun: float
    ended: float


class DownloadingStore(Waiter, Store, ABC):
    """One set's shards for one reader. Subclasses decide where shards are kept and how many fit.

    names: of the shards, below the URL.
    """

    full_s = 1.0  # until the next look, where there was no room

    def __init__(self, url: URL, names: Sequence[str], shards: Sequence[Wanted]) -> None:
        super().__init__()
        self._objects, self._names, self._shards = Objects(url), names, shards
        self._order: list[int] = []
        self._ranks: dict[str, int] = {}
        self._windows: dict[int, int] = {}  # of shards, counted from the one that is read from
        self._in_turn = _IN_TURN  # downloads of this loop that go window by window
        self._starts = 0  # downloads of this loop
        self._arriving: set[int] = set()  # downloads that use the network, or will once there is room
        self._ahead: dict[int, Lease] = {}
        self._failed: dict[int, _Failure] = {}
        self._begun = 0.0
        self._running: dict[int, asyncio.Task[bool]] = {}
        self._changed = asyncio.Event()
        self._prefetch: Future[None] | None = None
        weakref.finalize(self, cancel, self._running)

    @abstractmethod
    def _lease(self, number: int) -> Lease | None:
        """The shard, if it is here already."""

    @abstractmethod
    def _missing(self) -> Iterator[int]:
        """Shards to prefetch, in the order of need."""

    @abstractmethod
    def _claim(self, number: int) -> Part | None:
        """The right to download a shard; None if another process holds it."""

    @abstractmethod
    async def _make_room(self, number: int, part: Any, urgent: bool) -> bool:
        """Makes room for a shard; False if that is impossible. urgent: a reader waits for it.

        Raises:
            OSError, GpuloadError: it cannot be written.
        """

    async def _fill(self, number: int, part: Any) -> None:
        """Downloads a shard, and compares it with its SHA-256.

        Raises:
            OSError, GpuloadError: as `download`.
        """
        shard = self._shards[number]
        self._starts += 1
        await download(
            self._objects,
            self._names[number],
            part.number,
            size=shard.bytes,
            sha256=shard.sha256,
            arrived=lambda: self._arriving.discard(number),
        )

    @abstractmethod
    def _obstacle(self, number: int, claimed: bool) -> Obstacle:
        """Why there is no room (claimed), or no claim."""

    @abstractmethod
    def _unwritable(self, error: OSError) -> GpuloadError:
        """The error for a shard that cannot be written."""

    def begin(self) -> None:
        super().begin()
        self._begun, self._in_turn, self._starts = time.monotonic(), _IN_TURN, 0

    def plan(self, numbers: Iterable[int], now: int = 0, soon: int = 0) -> None:
        order = list(dict.fromkeys(int(number) for number in numbers))  # the first time each is needed
        self._ranks = {self._shards[number].sha256: rank for rank, number in enumerate(order)}
        self._in_turn = max(self._in_turn, now)  # all of the first window
        self._windows = {number: place // now for place, number in enumerate(order)} if now else {}
        self._order, self._ahead = order, {}
        if self._prefetch is None or self._prefetch.done():
            self._prefetch = background().start(_prefetch(weakref.ref(self), self._changed))
        background().loop.call_soon_threadsafe(self._changed.set)

    def ready(self, number: int) -> bool:
        if number not in self._ahead and (lease := self._lease(number)) is not None:
            self._ahead[number] = lease
        return number in self._ahead

    def open(self, number: int) -> Lease:
        if self.ready(number):
            return self._ahead.pop(number)
        return self.wait(self._get(number), f"{self._objects.url / self._names[number]}")

    def close(self) -> None:
        if self._prefetch is not None:
            self._prefetch.cancel()
            self._prefetch = None
        self._drop_plan()

    def _drop_plan(self) -> None:
        self._order, self._ranks, self._windows, self._ahead = [], {}, {}, {}
        cancel(self._running)

    def rank(self, sha256: str) -> float:
        """When a shard is needed, as a place in the plan."""
        return self._ranks.get(sha256, _NEVER)

    def _window(self, number: int) -> int:
        return self._windows.get(number, 0)

    async def step(self) -> float:
        """Starts downloads of planned shards that are missing. Returns after how many seconds to look again."""
        for number in self._missing():
            if self._starts <= self._in_turn and any(
                self._window(one) < self._window(number) for one in self._arriving
            ):
                return _POLL_S  # what is needed before has the network for itself
            if len(self._running) >= _AT_A_TIME:
                await asyncio.wait(list(self._running.values()), return_when=asyncio.FIRST_COMPLETED)
                return 0
            if number in self._running or self._is_fresh(number) or (part := self._claim(number)) is None:
                continue
            task = self._start(number, part, urgent=False)
            done, _ = await asyncio.wait([task], timeout=_ROOM_S)
            if done and not task.cancelled() and not task.result():
                return self.full_s  # there is no room; what is in use now will be needed later
        return _IDLE_S

    async def _get(self, number: int) -> Lease:
        """Waits until this or another process has downloaded the shard."""
        give_up_s, since, progress = self._objects.patience.give_up_s, time.monotonic(), -1.0
        while True:
            if (lease := self._lease(number)) is not None:
                return lease
            if self._is_fresh(number):
                error = self._failed[number].error
                self._drop_plan()  # the next loop tries everything again
                self._failed.clear()
                raise error
            self._failed.pop(number, None)
            task = self._running.get(number)
            if task is None and (part := self._claim(number)) is not None:
                task = self._start(number, part, urgent=True)
            if task is not None:
                await asyncio.wait([task])
                if task.cancelled() or task.result():
                    since = time.monotonic()
                    continue
            obstacle = self._obstacle(number, task is not None)
            if obstacle.progress not in (None, progress):
                since, progress = time.monotonic(), obstacle.progress
            if time.monotonic() - since > give_up_s:
                where = self._objects.url / self._names[number]
                raise RemoteError(f"{where}: has not arrived after {give_up_s:.0f} s: {obstacle.why}")
            await asyncio.sleep(_POLL_S)

    def _is_fresh(self, number: int) -> bool:
        """Whether a download that this loop started failed recently: older failures are retried."""
        failed = self._failed.get(number)
        return failed is not None and failed.begun > self._begun and time.monotonic() - failed.ended < _FRESH_S

    def _start(self, number: int, part: Part, urgent: bool) -> "asyncio.Task[bool]":
        """Starts the download of a shard."""
        task = self._running[number] = asyncio.create_task(self._download(number, part, urgent))
        task.add_done_callback(lambda _: self._running.pop(number, None))
        task.add_done_callback(lambda _: self._arriving.discard(number))
        task.add_done_callback(lambda _: part.drop())  # also where it was cancelled before it had begun
        return task

    async def _download(self, number: int, part: Part, urgent: bool) -> bool:
        """Returns whether there was room; any other failure is recorded in `_failed`."""
        shard, begun = self._shards[number], time.monotonic()
        NEEDED.set(_needed_by(self, shard.sha256))
        self._arriving.add(number)
        failure: Exception | None = None
        try:
            if not await self._make_room(number, part, urgent):
                return False
            await self._fill(number, part)
            await asyncio.to_thread(part.finish)
            self._failed.pop(number, None)
        except GpuloadError as error:
            failure = error
        except OSError as error:
            failure = self._unwritable(error)
        except RuntimeError as error:  # `to_thread`, after the interpreter has begun to end
            failure = error
        if failure is not None:
            self._failed[number] = _Failure(failure, begun, time.monotonic())
        return True


def _needed_by(store: DownloadingStore, sha256: str) -> Callable[[], float]:
    """`store.rank(sha256)`, without a reference to the store.

    obstore holds the context of a finished request until it is next called, which may be never.
    """
    of = weakref.ref(store)

    def needed() -> float:
        found = of()
        return _NEVER if found is None else found.rank(sha256)

    return needed


async def _prefetch(of: "weakref.ref[DownloadingStore]", changed: asyncio.Event) -> None:
    """Prefetches by the plan, without a reference to the store while it waits for another one."""
    while (store := of()) is not None:
        changed.clear()
        try:
            wait_s = await store.step()
        except (OSError, GpuloadError):  # the cache cannot be read; the reader will say so
            _LOG.debug("reading ahead failed", exc_info=True)
            wait_s = store.full_s
        del store
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(changed.wait(), wait_s)


def cancel(running: "dict[int, asyncio.Task[bool]]", numbers: Iterable[int] | None = None) -> None:
    """Cancels the downloads of these shards, or of all."""
    for task in [running.get(number) for number in (list(running) if numbers is None else numbers)]:
        if task is None:
            continue
        with suppress(RuntimeError):  # the loop has ended
            task.get_loop().call_soon_threadsafe(task.cancel)
