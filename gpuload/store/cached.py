"""The shards of a remote set, downloaded into the cache before they are needed."""

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import NamedTuple

from gpuload.errors import GpuloadError, RemoteError
from gpuload.store.background import background
from gpuload.store.cache import Cache, Part, Wanted
from gpuload.store.interface import Lease
from gpuload.store.objects import Objects
from gpuload.store.transfer import download
from gpuload.store.url import URL

_LOG = logging.getLogger(__name__)

_AT_A_TIME = 4  # shards: each in ranges, so that this is for small ones
_POLL_S = 0.05  # while another process downloads a shard, or holds those that would make room
_FRESH_S = 30  # a failure is raised that is no older; after that, it is tried again
_ROOM_S = 0.05  # in which room is made; a download that has not ended then has it
_FULL_S, _IDLE_S = 1.0, 2.0  # until the next look, where nothing changes
_NEVER = float("inf")

_stores: "weakref.WeakSet[CachedStore]" = weakref.WeakSet()  # of this process: what they need is not deleted


class _Failure(NamedTuple):
    """Why a download failed, when it began, and when it ended."""

    error: Exception
    begun: float
    ended: float


class CachedStore:
    """One set's shards for one reader.

    names: of the shards, below the URL. All that is planned is downloaded, as far as the cache has room without what
    is needed earlier. Other processes of the node do the same with the same plan: each shard is downloaded by the first
    that comes to it.
    """

    def __init__(self, url: URL, cache: Cache, names: Sequence[str], shards: Sequence[Wanted]) -> None:
        self._objects, self._cache, self._names, self._shards = Objects(url), cache, names, shards
        self._order: list[int] = []
        self._ranks: dict[str, int] = {}
        self._ahead: dict[int, Lease] = {}
        self._failed: dict[int, _Failure] = {}
        self._begun = 0.0
        self._running: dict[int, asyncio.Task[bool]] = {}
        self._changed = asyncio.Event()
        self._prefetch: Future[None] | None = None
        self._waiting: Future[Lease] | None = None
        self._interrupted = False
        self.waited_s = 0.0
        cache.clear_leftovers()
        weakref.finalize(self, _cancel, self._running)
        _stores.add(self)

    def begin(self) -> None:
        self._interrupted, self._begun = False, time.monotonic()

    def interrupt(self) -> None:
        self._interrupted = True
        if (waiting := self._waiting) is not None:
            waiting.cancel()

    def plan(self, numbers: Iterable[int]) -> None:
        order = list(dict.fromkeys(int(number) for number in numbers))  # the first time each is needed
        self._ranks = {self._shards[number].sha256: rank for rank, number in enumerate(order)}
        self._order, self._ahead = order, {}
        if self._prefetch is None or self._prefetch.done():
            self._prefetch = background().start(_prefetch(weakref.ref(self), self._changed))
        background().loop.call_soon_threadsafe(self._changed.set)

    def ready(self, number: int) -> bool:
        if number not in self._ahead and (lease := self._cache.lease(self._shards[number])) is not None:
            self._ahead[number] = lease
        return number in self._ahead

    def open(self, number: int) -> Lease:
        if self.ready(number):
            return self._ahead.pop(number)
        self._waiting, begun = background().start(self._get(number)), time.perf_counter()
        waiting = self._waiting
        try:
            if self._interrupted:
                waiting.cancel()
            return waiting.result()
        except CancelledError:
            raise RemoteError(f"{self._objects.url / self._names[number]}: is not waited for any more") from None
        finally:
            waiting.cancel()  # after Ctrl-C
            self._waiting = None
            self.waited_s += time.perf_counter() - begun

    def close(self) -> None:
        if self._prefetch is not None:
            self._prefetch.cancel()
            self._prefetch = None
        self._order, self._ranks, self._ahead = [], {}, {}
        _cancel(self._running)

    def rank(self, sha256: str) -> float:
        """When a shard is needed, as a place in the plan."""
        return self._ranks.get(sha256, _NEVER)

    async def step(self) -> float:
        """Begins to download what is planned and not here. Returns for how long there is nothing more to do, in
        seconds."""
        here = set(os.listdir(self._cache.shards))
        for number in self._order:
            if len(self._running) >= _AT_A_TIME:
                await asyncio.wait(list(self._running.values()), return_when=asyncio.FIRST_COMPLETED)
                return 0
            if self._shards[number].sha256 in here or number in self._running or self._is_fresh(number):
                continue
            if (part := self._cache.begin(self._shards[number])) is None:
                continue  # another process downloads it
            task = self._start(number, part, min(store.rank(self._shards[number].sha256) for store in _stores))
            done, _ = await asyncio.wait([task], timeout=_ROOM_S)
            if done and not task.cancelled() and not task.result():
                return _FULL_S  # there is no room; what is in use now will be needed later
        return _IDLE_S

    async def _get(self, number: int) -> Lease:
        """The shard, as soon as somebody has downloaded it."""
        shard, where = self._shards[number], f"{self._objects.url / self._names[number]}"
        give_up_s, since, progress = self._objects.patience.give_up_s, time.monotonic(), -1.0
        while True:
            if (lease := self._cache.lease(shard)) is not None:
                return lease
            if self._is_fresh(number):
                error = self._failed[number].error
                for running in self._running.values():
                    running.cancel()  # the next loop tries everything again
                self._failed.clear()
                raise error
            self._failed.pop(number, None)
            task = self._running.get(number)
            if task is None and (part := self._cache.begin(shard)) is not None:
                task = self._start(number, part, -1)
            if task is not None:
                await asyncio.wait([task])
                if task.cancelled() or task.result():
                    since = time.monotonic()
                    continue
                why = f"its {self._cache.limit:,} bytes are all in use, of {shard.bytes:,} more. Raise cache_size"
            else:
                if (found := self._progress(shard)) != progress:
                    since, progress = time.monotonic(), found
                why = "another process downloads it, and does not get on. Is it stopped?"
            if time.monotonic() - since > give_up_s:
                raise RemoteError(f"{where}: is not in the cache {self._cache.folder} after {give_up_s:.0f} s: {why}")
            await asyncio.sleep(_POLL_S)

    def _is_fresh(self, number: int) -> bool:
        """Whether a shard failed lately, in a download that this loop began: others are tried again."""
        failed = self._failed.get(number)
        return failed is not None and failed.begun > self._begun and time.monotonic() - failed.ended < _FRESH_S

    def _start(self, number: int, part: Part, needed: float) -> "asyncio.Task[bool]":
        """Begins to download a shard, which is needed at this place of the plan."""
        task = self._running[number] = asyncio.create_task(self._download(number, part, needed))
        task.add_done_callback(lambda _: self._running.pop(number, None))
        task.add_done_callback(lambda _: part.drop())  # also where it was cancelled before it had begun
        return task

    async def _download(self, number: int, part: Part, needed: float) -> bool:
        """Whether there was room for it. What went wrong with it otherwise is in `_failed`."""
        shard, begun = self._shards[number], time.monotonic()
        failure: Exception | None = None
        try:
            if not await asyncio.to_thread(self._cache.make_room, part, shard.bytes, _order_after(needed)):
                return False
            await download(self._objects, self._names[number], part.number, size=shard.bytes, sha256=shard.sha256)
            await asyncio.to_thread(part.finish)
            self._failed.pop(number, None)
        except GpuloadError as error:
            failure = error
        except OSError as error:
            failure = RemoteError(
                f"cache {self._cache.folder}: cannot be written ({error.strerror}). Free some of its disk"
            )
        except RuntimeError as error:  # `to_thread`, after the interpreter has begun to end
            failure = error
        if failure is not None:
            self._failed[number] = _Failure(failure, begun, time.monotonic())
        return True

    def _progress(self, shard: Wanted) -> float:
        with suppress(OSError):
            return os.stat(self._cache.shards / f"{shard.sha256}.part").st_mtime
        return -1.0


def _order_after(needed: float) -> Callable[[str], float]:
    """When shards are needed by any reader of this process, from a place in their plans on."""
    stores = list(_stores)
    return lambda sha256: min(store.rank(sha256) for store in stores) - needed


async def _prefetch(of: "weakref.ref[CachedStore]", changed: asyncio.Event) -> None:
    """Downloads what is planned. It holds no reference to the store while it waits for another plan."""
    while (store := of()) is not None:
        changed.clear()
        try:
            wait_s = await store.step()
        except OSError:  # the cache cannot be read; the reader will say so
            _LOG.debug("reading ahead failed", exc_info=True)
            wait_s = _FULL_S
        del store
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(changed.wait(), wait_s)


def _cancel(running: "dict[int, asyncio.Task[bool]]") -> None:
    for task in list(running.values()):
        with suppress(RuntimeError):  # the loop has ended
            task.get_loop().call_soon_threadsafe(task.cancel)
