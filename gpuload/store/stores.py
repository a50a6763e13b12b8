"""The shards of a remote set, downloaded before they are needed: into the cache, or into memory (`cache_size=0`).

A shard in memory lies in a file that has no name (memfd). Decoders map it as any other, and it goes with its process,
however that ends.
"""

import asyncio
import logging
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from gpuload.errors import GpuloadError, RemoteError
from gpuload.store import Lease, Store
from gpuload.store.cache import Cache, Wanted
from gpuload.store.files import Handle
from gpuload.store.network import NEEDED, Waiter, background
from gpuload.store.objects import Objects
from gpuload.store.transfer import download, sha256_of
from gpuload.store.url import URL

_LOG = logging.getLogger(__name__)

_AT_A_TIME = 4  # shards: each in ranges, so that this is for small ones
# The first shards of a loop are downloaded window by window: four at a time can delay one by the time of three. On a
# network 1.2 times as fast as training, enough is ahead after 18 shards, whatever the window.
_IN_TURN = 24
_POLL_S = 0.05  # while something else keeps a shard from being downloaded
_ROOM_S = 0.05  # by then, a download that is still running has its room
_IDLE_S = 2.0  # until the next look, where nothing changes
_NEVER = float("inf")
_RELEASE_S, _RELEASE_POLL_S = 1.0, 0.005  # for which a shard that is waited for waits for memory

# Those of this process, by their ids: what they need is not evicted. Another thread may open one at any moment, which a
# WeakSet, iterated in Python, would not survive.
_stores: "weakref.WeakValueDictionary[int, CachedStore]" = weakref.WeakValueDictionary()

# Shards whose bytes this process has compared with their SHA-256: as it downloaded them, or as it found them.
_compared: dict[str, tuple[int, ...]] = {}


class DownloadingStore(Waiter, Store, ABC):
    """One set's shards for one reader. Subclasses decide where shards are kept and how many fit.

    A part is a shard being downloaded: `number` is the file descriptor it is written to, valid once there is room;
    `finish` publishes the complete shard, which can be leased from then on; `drop` discards an unfinished one.
    """

    full_s = 1.0  # until the next look, where there was no room

    def __init__(self, url: URL, shards: Sequence[Wanted]) -> None:
        super().__init__()
        self._objects, self._shards = Objects(url), shards
        self._order: list[int] = []
        self._soon: list[int] = []  # those of the order that a store in memory may hold
        self._ranks: dict[str, int] = {}
        self._windows: dict[int, int] = {}  # of shards, counted from the one that is read from
        self._in_turn = _IN_TURN  # downloads of this loop that go window by window
        self._starts = 0  # downloads of this loop
        self._arriving: set[int] = set()  # downloads that use the network, or will once there is room
        self._ahead: dict[int, Lease] = {}
        self._failed: dict[int, Exception] = {}  # why downloads of this loop failed
        self._running: dict[int, asyncio.Task[bool]] = {}
        self._changed = asyncio.Event()
        self._prefetch: Future[None] | None = None
        weakref.finalize(self, _cancel, self._running.values())

    @abstractmethod
    def _lease(self, number: int) -> Lease | None:
        """The shard, if it is here already."""

    @abstractmethod
    def _missing(self) -> Iterator[int]:
        """Shards to prefetch, in the order of need."""

    @abstractmethod
    def _claim(self, number: int, urgent: bool) -> "Callable[[], Coroutine[Any, Any, bool]] | None":
        """What downloads a shard, and returns whether there was room; None if another process has the right to it.

        urgent: a reader waits for it.
        """

    @abstractmethod
    async def _make_room(self, number: int, part: Any, urgent: bool) -> bool:
        """Makes room for a shard; False if that is impossible. urgent: a reader waits for it.

        Raises:
            OSError, GpuloadError: it cannot be written.
        """

    def _obstacle(self, number: int, claimed: bool) -> tuple[str, float | None]:
        """Why there is no room (claimed), or no claim; and what changes while the other process makes progress."""
        return "there is no memory for it", None

    @abstractmethod
    def _unwritable(self, error: OSError) -> GpuloadError:
        """The error for a shard that cannot be written."""

    def _finish(self, number: int, part: Any) -> None:
        """Publishes a shard that was compared with its SHA-256."""
        part.finish()

    async def _download(self, number: int, part: Any, urgent: bool) -> bool:
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
            await asyncio.to_thread(self._finish, number, part)
        finally:
            part.drop()
        return True

    def begin(self) -> None:
        super().begin()
        self._failed, self._in_turn, self._starts = {}, _IN_TURN, 0

    def plan(self, numbers: Iterable[int], now: int = 0, soon: int = 0) -> None:
        order = list(dict.fromkeys(int(number) for number in numbers))  # the first time each is needed
        for number in self._ahead.keys() - set(order[:soon]):
            self._ahead.pop(number, None)
        self._ranks = {self._shards[number].sha256: rank for rank, number in enumerate(order)}
        self._in_turn = max(self._in_turn, now)  # all of the first window
        self._windows = {number: place // now for place, number in enumerate(order)} if now else {}
        self._order, self._soon = order, order[:soon]
        if self._prefetch is None or self._prefetch.done():
            self._prefetch = background().start(_prefetch(weakref.ref(self), self._changed))
        background().loop.call_soon_threadsafe(self._changed.set)

    def ready(self, number: int) -> bool:
        if number not in self._ahead and (lease := self._lease(number)) is not None:
            self._ahead[number] = lease
        return number in self._ahead

    def open(self, number: int) -> Lease:
        lease = self._ahead[number] if self.ready(number) else self.wait(self._get(number), self._where(number))
        self._ahead.pop(number, None)
        return lease

    def close(self) -> None:
        if self._prefetch is not None:
            self._prefetch.cancel()
            self._prefetch = None
        self._drop_plan()

    def _drop_plan(self) -> None:
        self._order, self._soon, self._ranks, self._windows = [], [], {}, {}
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
            if self._starts <= self._in_turn and any(self._windows.get(one, 0) < window for one in self._arriving):
                return _POLL_S  # what is needed before has the network for itself
            if len(self._running) >= _AT_A_TIME:
                await asyncio.wait(list(self._running.values()), return_when=asyncio.FIRST_COMPLETED)
                return 0
            if number in self._running or number in self._failed or (work := self._claim(number, urgent=False)) is None:
                continue
            task = self._start(number, work)
            done, _ = await asyncio.wait([task], timeout=_ROOM_S)
            if done and not task.cancelled() and not task.result():
                return self.full_s  # there is no room; what is in use now will be needed later
        return _IDLE_S

    async def _get(self, number: int) -> Lease:
        """Waits until this or another process has downloaded the shard."""
        give_up_s, since, progress = self._objects.patience.give_up_s, time.monotonic(), -1.0
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
            why, made = self._obstacle(number, task is not None)
            if made not in (None, progress):
                since, progress = time.monotonic(), made
            if time.monotonic() - since > give_up_s:
                raise RemoteError(f"{self._where(number)}: has not arrived after {give_up_s:.0f} s: {why}")
            await asyncio.sleep(_POLL_S)

    def _start(self, number: int, work: Callable[[], Coroutine[Any, Any, bool]]) -> "asyncio.Task[bool]":
        """Starts what `_claim` has returned."""

        def ended(_: object) -> None:
            self._running.pop(number, None)
            self._arriving.discard(number)

        task = self._running[number] = asyncio.create_task(self._run(number, work))
        task.add_done_callback(ended)
        return task

    async def _run(self, number: int, work: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Returns whether there was room; any other failure is recorded in `_failed`."""
        NEEDED.set(_needed_by(self, self._shards[number].sha256))
        failed = self._failed  # of this loop
        try:
            return await work()
        except OSError as error:
            failed[number] = self._unwritable(error)
        except (GpuloadError, RuntimeError) as error:  # RuntimeError: after the interpreter has begun to end
            failed[number] = error
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


def _cancel(tasks: "Iterable[asyncio.Task[bool]]") -> None:
    for task in list(tasks):
        with suppress(RuntimeError):  # the loop has ended
            task.get_loop().call_soon_threadsafe(task.cancel)


class CachedStore(DownloadingStore):
    """One set's shards for one reader, in the cache.

    trusts: uses shards found in the cache as they are. Otherwise each is hashed before its first use in this process,
    and downloaded again if it is damaged.

    Everything planned is downloaded as far as the cache has room without evicting what is needed earlier. The other
    processes of the node follow the same plan: whichever gets to a shard first downloads it.
    """

    def __init__(self, url: URL, cache: Cache, shards: Sequence[Wanted], trusts: bool = False) -> None:
        super().__init__(url, shards)
        self._cache, self._trusts = cache, trusts
        cache.clear_leftovers()
        _stores[id(self)] = self

    def _lease(self, number: int) -> Lease | None:
        shard = self._shards[number]
        lease = self._cache.lease(shard)
        if lease is None or self._is_trusted(shard, lease):
            return lease
        _compared.pop(shard.sha256, None)
        return None

    def _is_trusted(self, shard: Wanted, lease: Lease) -> bool:
        return self._trusts or _compared.get(shard.sha256) == _stamp(lease.holder.number)

    def _missing(self) -> Iterator[int]:
        here = set(os.listdir(self._cache.shards))
        if not self._trusts:
            here &= _compared.keys()
        return (number for number in self._order if self._shards[number].sha256 not in here)

    def _claim(self, number: int, urgent: bool) -> "Callable[[], Coroutine[Any, Any, bool]] | None":
        shard = self._shards[number]
        if (lease := self._cache.lease(shard)) is not None:
            return None if self._is_trusted(shard, lease) else partial(self._verify, shard, lease)
        part = self._cache.begin(shard)
        return None if part is None else partial(self._download, number, part, urgent)

    async def _make_room(self, number: int, part: Any, urgent: bool) -> bool:
        shard = self._shards[number]
        stores = [store for reference in _stores.valuerefs() if (store := reference()) is not None]

        def rank(sha256: str) -> float:
            return min(store.rank(sha256) for store in stores)

        needed = -1 if urgent else rank(shard.sha256)
        return await asyncio.to_thread(self._cache.make_room, part, shard.bytes, lambda sha256: rank(sha256) - needed)

    def _finish(self, number: int, part: Any) -> None:
        _compared[self._shards[number].sha256] = _stamp(part.number)
        part.finish()

    async def _verify(self, shard: Wanted, lease: Lease) -> bool:
        """Hashes a shard that was found in the cache, and deletes it if it is damaged."""
        handle = lease.holder.number
        if (sha256 := await sha256_of(handle, shard.bytes)) == shard.sha256:
            _compared[sha256] = _stamp(handle)
            return True
        _LOG.warning("%s: is damaged: its SHA-256 is %s…. It is downloaded again", lease.path, sha256[:16])
        with suppress(FileNotFoundError):
            if os.lstat(lease.path).st_ino == os.fstat(handle).st_ino:
                lease.path.unlink()
        return True

    def _obstacle(self, number: int, claimed: bool) -> tuple[str, float | None]:
        shard, place = self._shards[number], f"the cache {self._cache.folder}"
        if claimed:
            used = f"its {self._cache.limit:,} bytes are all in use, of {shard.bytes:,} more"
            return f"{place}: {used}. Raise cache_size", None
        progress = -1.0
        with suppress(OSError):
            progress = os.stat(self._cache.shards / f"{shard.sha256}.part").st_mtime
        return f"{place}: another process downloads it, and has made no progress; it may be suspended", progress

    def _unwritable(self, error: OSError) -> RemoteError:
        return self._cache.unwritable(error)


def _stamp(handle: int) -> tuple[int, ...]:
    """What changes where a file is replaced, or written."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class MemoryFile(Handle):
    """A shard in memory. It is free once neither this object nor a mapping exists.

    size: in bytes. kept: is called once the shard is whole.
    """

    def __init__(self, size: int, kept: "Callable[[MemoryFile], None]") -> None:
        super().__init__(-1)
        self.size, self._kept = size, kept

    def finish(self) -> None:
        self._is_whole = True
        self._kept(self)
        del self._kept  # may hold all that still holds this file

    def drop(self) -> None:
        if not self._is_whole:
            self.close()  # whoever still holds the error of a download holds this object, too

    _is_whole = False


# Whole shards by SHA-256, of all stores of this process: a preview uses those of its loader.
_files: "weakref.WeakValueDictionary[str, MemoryFile]" = weakref.WeakValueDictionary()


class MemoryStore(DownloadingStore):
    """One set's shards for one reader, in memory.

    Downloads the part of the plan that is needed soon, while all shards of this store, including those that undecoded
    batches still view, take no more bytes than that part. What a reader waits for is downloaded in any case, after a
    second at the latest.

    kept: a list for the last shard that was opened without a plan, to look at a sample: the next sample is mostly of
    the same shard.
    """

    full_s = 0.05

    def __init__(self, url: URL, shards: Sequence[Wanted], kept: list[MemoryFile]) -> None:
        super().__init__(url, shards)
        self._objects.again = "Check the network and the server, then run it again"
        self._had: weakref.WeakSet[MemoryFile] = weakref.WeakSet()  # downloaded by this store
        self._kept = kept
        self._awaited = 0  # bytes of shards that a reader waits for, and that have no memory yet

    def plan(self, numbers: Iterable[int], now: int = 0, soon: int = 0) -> None:
        super().plan(numbers, now, soon)
        if self._soon:
            _cancel([task for number, task in list(self._running.items()) if number not in self._soon])

    def open(self, number: int) -> Lease:
        lease = super().open(number)
        if not self._order:
            self._kept[:] = [lease.memory]
        return lease

    def taken(self) -> int:
        """Bytes of the shards that this store downloads, or has downloaded and something still references.

        Each shard counts for the store that downloaded it.
        """
        return sum(file.size for file in list(self._had) if file.number >= 0)

    def _lease(self, number: int) -> Lease | None:
        if (ahead := self._ahead.get(number)) is not None:  # another store may have had the same shard, and dropped it
            return ahead
        file = _files.get(self._shards[number].sha256)
        return None if file is None else Lease(file.path, memory=file)

    def _missing(self) -> Iterator[int]:
        return (number for number in self._soon if self._lease(number) is None)

    def _claim(self, number: int, urgent: bool) -> "Callable[[], Coroutine[Any, Any, bool]]":
        def kept(file: MemoryFile) -> None:
            ahead[number], _files[shard.sha256] = Lease(file.path, memory=file), file

        shard, ahead = self._shards[number], self._ahead
        return partial(self._download, number, MemoryFile(shard.bytes, kept), urgent)

    async def _make_room(self, number: int, part: Any, urgent: bool) -> bool:
        size, until = self._shards[number].bytes, time.monotonic() + _RELEASE_S
        if urgent and self._soon:  # batches of an earlier plan, which are being decoded, free theirs in a moment
            self._awaited += size
            while not self._fits(0) and time.monotonic() < until:
                await asyncio.sleep(_RELEASE_POLL_S)
            self._awaited -= size
        elif not urgent and not self._fits(size):
            return False
        part.number = os.memfd_create("gpuload-shard")
        self._count(part)
        return True

    def _fits(self, size: int) -> bool:
        """Whether this many bytes fit beside those that readers wait for."""
        return self.taken() + self._awaited + size <= sum(self._shards[one].bytes for one in self._soon)

    def _unwritable(self, error: OSError) -> GpuloadError:
        return RemoteError(
            f"cache_size=0: a shard cannot be kept in memory ({error.strerror}). Give a cache on disk "
            "(cache_size), or take less at a time: a smaller window, or smaller shards"
        )

    def _count(self, file: MemoryFile) -> None:
        self._had.add(file)
