"""The shards of a remote set, downloaded into the cache before they are needed."""

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from gpuload.errors import GpuloadError, RemoteError
from gpuload.store import Lease, Store
from gpuload.store.cache import Cache, CachePart, WantedShard
from gpuload.store.network import NEEDED, Waiter, background
from gpuload.store.objects import Objects
from gpuload.store.transfer import download, sha256_of
from gpuload.store.url import URL

_LOG = logging.getLogger(__name__)
_Work = Callable[[], Coroutine[Any, Any, bool]]

_AT_A_TIME = 4  # shards: each in ranges, so that this is for small ones
# The first shards of a loop are downloaded window by window: four at a time can delay one by the time of three. On a
# network 1.2 times as fast as training, enough is ahead after 18 shards, whatever the window.
_IN_TURN = 24
_POLL_S = 0.05  # while something else keeps a shard from being downloaded
_ROOM_S = 0.05  # by then, a download that is still running has its room
_IDLE_S = 2.0  # until the next look, where nothing changes
_FULL_S = 1.0  # until the next look, where there was no room
_NEVER = float("inf")

# Those of this process, by their ids: what they need is not evicted. Another thread may open one at any moment, which a
# WeakSet, iterated in Python, would not survive.
_stores: "weakref.WeakValueDictionary[int, CachedStore]" = weakref.WeakValueDictionary()

# Shards whose bytes this process has compared with their SHA-256: as it downloaded them, or as it found them.
_compared: dict[str, tuple[int, ...]] = {}


class CachedStore(Waiter, Store):
    """One set's shards for one reader, in the cache.

    Everything planned is downloaded as far as the cache has room without evicting what is needed earlier. The other
    processes of the node follow the same plan: whichever gets to a shard first downloads it.

    Args:
        url: Of the set.
        cache: Where its shards are downloaded to.
        shards: As the manifest lists them.
        trusts: Whether shards found in the cache are used as they are. Otherwise each is hashed before its first use in
            this process, and downloaded again if it is damaged.
    """

    def __init__(
        self,
        url: URL,
        cache: Cache,
        shards: Sequence[WantedShard],
        trusts: bool = False,
    ) -> None:
        super().__init__()
        self._objects = Objects(url)
        self._cache = cache
        self._shards = shards
        self._trusts = trusts
        self._order: list[int] = []
        self._ranks: dict[str, int] = {}
        self._windows: dict[
            int, int
        ] = {}  # of shards, counted from the one that is read from
        self._in_turn = _IN_TURN  # downloads of this loop that go window by window
        self._starts = 0  # downloads of this loop
        self._arriving: set[int] = (
            set()
        )  # downloads that use the network, or will once there is room
        self._ahead: dict[int, Lease] = {}
        self._failed: dict[int, Exception] = {}  # why downloads of this loop failed
        self._running: dict[int, asyncio.Task[bool]] = {}
        self._changed = asyncio.Event()
        self._prefetch: Future[None] | None = None
        weakref.finalize(self, _cancel, self._running.values())
        cache.clear_leftovers()
        _stores[id(self)] = self

    async def _download(self, number: int, part: CachePart, urgent: bool) -> bool:
        """Downloads a shard, and compares it with its SHA-256. Returns whether there was room.

        Raises:
            OSError, GpuloadError: as `download`.
        """
        shard = self._shards[number]
        try:
            self._arriving.add(number)
            if not await self._make_room(number, part, urgent):
                return False
            self._starts += 1
            await download(
                self._objects,
                shard.name,
                part.number,
                size=shard.bytes,
                sha256=shard.sha256,
                arrived=lambda: self._arriving.discard(number),
            )
            _compared[shard.sha256] = _stamp(part.number)
            await asyncio.to_thread(part.finish)
        finally:
            part.drop()
        return True

    def begin(self) -> None:
        super().begin()
        self._failed = {}
        self._in_turn = _IN_TURN
        self._starts = 0

    def plan(self, numbers: Iterable[int], now: int = 0) -> None:
        order = list(
            dict.fromkeys(int(number) for number in numbers)
        )  # the first time each is needed
        for number in self._ahead.keys() - set(order[: 2 * now]):
            self._ahead.pop(number, None)
        self._ranks = {
            self._shards[number].sha256: rank for rank, number in enumerate(order)
        }
        self._in_turn = max(self._in_turn, now)  # all of the first window
        self._windows = (
            {number: place // now for place, number in enumerate(order)} if now else {}
        )
        self._order = order
        if self._prefetch is None or self._prefetch.done():
            self._prefetch = background().start(
                _prefetch(weakref.ref(self), self._changed)
            )
        background().loop.call_soon_threadsafe(self._changed.set)

    def ready(self, number: int) -> bool:
        if number not in self._ahead and (lease := self._lease(number)) is not None:
            self._ahead[number] = lease
        return number in self._ahead

    def open(self, number: int) -> Lease:
        lease = (
            self._ahead[number]
            if self.ready(number)
            else self.wait(self._get(number), self._where(number))
        )
        self._ahead.pop(number, None)
        return lease

    def close(self) -> None:
        if self._prefetch is not None:
            self._prefetch.cancel()
            self._prefetch = None
        self._drop_plan()

    def _drop_plan(self) -> None:
        self._order = []
        self._ranks = {}
        self._windows = {}
        self._ahead = {}  # the previous one gets the shard of a download that ends at this moment
        _cancel(self._running.values())

    def _where(self, number: int) -> str:
        return f"{self._objects.url / self._shards[number].name}"

    def rank(self, sha256: str) -> float:
        """When a shard is needed, as a place in the plan."""
        return self._ranks.get(sha256, _NEVER)

    async def step(self) -> float:
        """Starts downloads of planned shards that are missing. Returns after how many seconds to look again."""
        for number in self._missing():
            window = self._windows.get(number, 0)
            if self._starts <= self._in_turn and any(
                self._windows.get(arriving, 0) < window for arriving in self._arriving
            ):
                return _POLL_S  # what is needed before has the network for itself
            if len(self._running) >= _AT_A_TIME:
                await asyncio.wait(
                    list(self._running.values()), return_when=asyncio.FIRST_COMPLETED
                )
                return 0
            if (
                number in self._running
                or number in self._failed
                or (work := self._claim(number, urgent=False)) is None
            ):
                continue
            task = self._start(number, work)
            done, _ = await asyncio.wait([task], timeout=_ROOM_S)
            if done and not task.cancelled() and not task.result():
                return (
                    _FULL_S  # there is no room; what is in use now will be needed later
                )
        return _IDLE_S

    async def _get(self, number: int) -> Lease:
        """Waits until this or another process has downloaded the shard."""
        give_up_s = self._objects.patience.give_up_s
        since = time.monotonic()
        progress = -1.0
        self._failed.pop(number, None)  # of reading ahead: it is tried again
        while True:
            if (lease := self._lease(number)) is not None:
                return lease
            if number in self._failed:
                self._drop_plan()
                raise self._failed.pop(number)
            task = self._running.get(number)
            if task is None and (work := self._claim(number, urgent=True)) is not None:
                task = self._start(number, work)
            if task is not None:
                await asyncio.wait([task])
                if task.cancelled() or task.result():
                    since = time.monotonic()
                    continue
            why, activity = self._obstacle(number, task is not None)
            if activity not in (None, progress):
                since = time.monotonic()
                progress = activity
            if time.monotonic() - since > give_up_s:
                raise RemoteError(
                    f"{self._where(number)}: has not arrived after {give_up_s:.0f} s: {why}"
                )
            await asyncio.sleep(_POLL_S)

    def _start(self, number: int, work: _Work) -> "asyncio.Task[bool]":
        """Starts what `_claim` has returned."""

        def ended(_: object) -> None:
            self._running.pop(number, None)
            self._arriving.discard(number)

        task = self._running[number] = asyncio.create_task(self._run(number, work))
        task.add_done_callback(ended)
        return task

    async def _run(self, number: int, work: _Work) -> bool:
        """Returns whether there was room; any other failure is recorded in `_failed`."""
        NEEDED.set(_needed_by(self, self._shards[number].sha256))
        failed = self._failed  # of this loop
        try:
            return await work()
        except OSError as error:
            failed[number] = self._cache.unwritable(error)
        except (
            GpuloadError,
            RuntimeError,
        ) as error:  # RuntimeError: after the interpreter has begun to end
            failed[number] = error
        return True

    def _lease(self, number: int) -> Lease | None:
        """The shard, if it is here already."""
        shard = self._shards[number]
        lease = self._cache.lease(shard)
        if lease is None or self._is_trusted(shard, lease):
            return lease
        _compared.pop(shard.sha256, None)
        return None

    def _is_trusted(self, shard: WantedShard, lease: Lease) -> bool:
        return self._trusts or _compared.get(shard.sha256) == _stamp(
            lease.holder.number
        )

    def _missing(self) -> Iterator[int]:
        """Shards to prefetch, in the order of need."""
        here = set(os.listdir(self._cache.shards))
        if not self._trusts:
            here &= _compared.keys()
        return (
            number for number in self._order if self._shards[number].sha256 not in here
        )

    def _claim(self, number: int, urgent: bool) -> _Work | None:
        """What downloads or verifies a shard, and returns whether there was room; None if another process has the right
        to it, or it is here.

        Args:
            urgent: Whether a reader waits for it.
        """
        shard = self._shards[number]
        if (lease := self._cache.lease(shard)) is not None:
            return (
                None
                if self._is_trusted(shard, lease)
                else partial(self._verify, shard, lease)
            )
        part = self._cache.begin(shard)
        return None if part is None else partial(self._download, number, part, urgent)

    async def _make_room(self, number: int, part: CachePart, urgent: bool) -> bool:
        """Makes room for a shard; False if that is impossible.

        Args:
            urgent: Whether a reader waits for it.

        Raises:
            OSError, RemoteError: it cannot be written.
        """
        shard = self._shards[number]
        stores = [
            store
            for reference in _stores.valuerefs()
            if (store := reference()) is not None
        ]

        def rank(sha256: str) -> float:
            return min(store.rank(sha256) for store in stores)

        needed = -1 if urgent else rank(shard.sha256)
        return await asyncio.to_thread(
            self._cache.make_room,
            part,
            shard.bytes,
            lambda sha256: rank(sha256) - needed,
        )

    async def _verify(self, shard: WantedShard, lease: Lease) -> bool:
        """Hashes a shard that was found in the cache, and deletes it if it is damaged."""
        handle = lease.holder.number
        if (sha256 := await sha256_of(handle, shard.bytes)) == shard.sha256:
            _compared[sha256] = _stamp(handle)
            return True
        _LOG.warning(
            "%s: is damaged: its SHA-256 is %s…. It is downloaded again",
            lease.path,
            sha256[:16],
        )
        with suppress(FileNotFoundError):
            if os.lstat(lease.path).st_ino == os.fstat(handle).st_ino:
                lease.path.unlink()
        return True

    def _obstacle(self, number: int, claimed: bool) -> tuple[str, float | None]:
        """Why there is no room (claimed), or no claim; and what changes while the other process makes progress."""
        shard = self._shards[number]
        place = f"the cache {self._cache.folder}"
        if claimed:
            used = f"its {self._cache.limit:,} bytes are all in use, of {shard.bytes:,} more"
            return f"{place}: {used}. Raise cache_size", None
        progress = -1.0
        with suppress(OSError):
            progress = os.stat(self._cache.shards / f"{shard.sha256}.part").st_mtime
        return (
            f"{place}: another process downloads it, and has made no progress; it may be suspended",
            progress,
        )


def _needed_by(store: CachedStore, sha256: str) -> Callable[[], float]:
    """`store.rank(sha256)`, without a reference to the store.

    obstore holds the context of a finished request until it is next called, which may be never.
    """
    reference = weakref.ref(store)

    def needed() -> float:
        alive = reference()
        return _NEVER if alive is None else alive.rank(sha256)

    return needed


async def _prefetch(of: "weakref.ref[CachedStore]", changed: asyncio.Event) -> None:
    """Prefetches by the plan, without a reference to the store while it waits for another one."""
    while (store := of()) is not None:
        changed.clear()
        try:
            wait_s = await store.step()
        except (
            OSError,
            GpuloadError,
        ):  # the cache cannot be read; the reader will say so
            _LOG.debug("reading ahead failed", exc_info=True)
            wait_s = _FULL_S
        del store
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(changed.wait(), wait_s)


def _cancel(tasks: "Iterable[asyncio.Task[bool]]") -> None:
    for task in list(tasks):
        with suppress(RuntimeError):  # the loop has ended
            task.get_loop().call_soon_threadsafe(task.cancel)


def _stamp(handle: int) -> tuple[int, ...]:
    """What changes where a file is replaced, or written."""
    status = os.fstat(handle)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
