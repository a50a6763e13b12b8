"""The shards of a remote set, downloaded before they are needed: into the cache, or into memory (`cache_size=0`).

A shard in memory lies in a file that has no name: Linux's memfd, elsewhere a deleted temporary file. Decoders map it as
any other, and it goes with its process, however that ends.
"""

import asyncio
import logging
import os
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpuload.errors import GpuloadError, RemoteError
from gpuload.store import Lease
from gpuload.store.cache import Cache, Wanted
from gpuload.store.downloading import DownloadingStore, Obstacle, Part, cancel
from gpuload.store.files import Handle
from gpuload.store.transfer import sha256_of
from gpuload.store.url import URL

_LOG = logging.getLogger(__name__)

_RELEASE_S, _POLL_S = 1.0, 0.005  # for which a shard that is waited for waits for memory

# Those of this process, by their ids: what they need is not evicted. Another thread may open one at any moment, which a
# WeakSet, iterated in Python, would not survive.
_stores: "weakref.WeakValueDictionary[int, CachedStore]" = weakref.WeakValueDictionary()

# Shards whose bytes this process has compared with their SHA-256: as it downloaded them, or as it found them.
_compared: dict[str, tuple[int, ...]] = {}


class CachedStore(DownloadingStore):
    """One set's shards for one reader, in the cache.

    names: of the shards, below the URL. trusts: uses shards found in the cache as they are. Otherwise each is hashed
    before its first use in this process, and downloaded again if it is damaged.

    Everything planned is downloaded as far as the cache has room without evicting what is needed earlier. The other
    processes of the node follow the same plan: whichever gets to a shard first downloads it.
    """

    def __init__(
        self, url: URL, cache: Cache, names: Sequence[str], shards: Sequence[Wanted], trusts: bool = False
    ) -> None:
        super().__init__(url, names, shards)
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

    def _claim(self, number: int) -> Part | None:
        shard = self._shards[number]
        if (lease := self._cache.lease(shard)) is not None:
            return None if self._is_trusted(shard, lease) else _Found(lease)
        return self._cache.begin(shard)

    async def _make_room(self, number: int, part: Any, urgent: bool) -> bool:
        if isinstance(part, _Found):
            return True
        shard = self._shards[number]
        stores = [store for reference in _stores.valuerefs() if (store := reference()) is not None]

        def rank(sha256: str) -> float:
            return min(store.rank(sha256) for store in stores)

        needed = -1 if urgent else rank(shard.sha256)
        return await asyncio.to_thread(self._cache.make_room, part, shard.bytes, lambda sha256: rank(sha256) - needed)

    async def _fill(self, number: int, part: Any) -> None:
        shard = self._shards[number]
        if isinstance(part, _Found):
            self._arriving.discard(number)  # it needs no network
            if (sha256 := await sha256_of(part.number, shard.bytes)) != shard.sha256:
                _LOG.warning("%s: is damaged: its SHA-256 is %s…. It is downloaded again", part.lease.path, sha256[:16])
                part.delete()
                return
        else:
            await super()._fill(number, part)
        _compared[shard.sha256] = _stamp(part.number)

    def _obstacle(self, number: int, claimed: bool) -> Obstacle:
        shard, place = self._shards[number], f"the cache {self._cache.folder}"
        if claimed:
            return Obstacle(
                f"{place}: its {self._cache.limit:,} bytes are all in use, of {shard.bytes:,} more. Raise cache_size"
            )
        progress = -1.0
        with suppress(OSError):
            progress = os.stat(self._cache.shards / f"{shard.sha256}.part").st_mtime
        return Obstacle(
            f"{place}: another process downloads it, and has made no progress; it may be suspended", progress
        )

    def _unwritable(self, error: OSError) -> RemoteError:
        return self._cache.unwritable(error)


@dataclass(frozen=True)
class _Found:
    """A shard that this process found in the cache and has to verify."""

    lease: Lease

    @property
    def number(self) -> int:
        found: int = self.lease.holder.number
        return found

    def finish(self) -> None:
        """It is there."""

    def drop(self) -> None:
        """It stays."""

    def delete(self) -> None:
        with suppress(FileNotFoundError):
            if os.lstat(self.lease.path).st_ino == os.fstat(self.number).st_ino:
                self.lease.path.unlink()


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

    def open(self) -> None:
        """Takes the memory."""
        self.number = _open_unnamed()

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

    names: of the shards, below the URL. kept: a list for the last shard that was opened without a plan, to look at a
    sample: the next sample is mostly of the same shard.
    """

    full_s = 0.05

    def __init__(self, url: URL, names: Sequence[str], shards: Sequence[Wanted], kept: list[MemoryFile]) -> None:
        super().__init__(url, names, shards)
        self._objects.again = "Check the network and the server, then run it again"
        self._soon: list[int] = []
        self._unopened: dict[int, MemoryFile] = {}
        self._had: weakref.WeakSet[MemoryFile] = weakref.WeakSet()  # downloaded by this store
        self._kept = kept
        self._awaited = 0  # bytes of shards that a reader waits for, and that have no memory yet

    def plan(self, numbers: Iterable[int], now: int = 0, soon: int = 0) -> None:
        order = list(dict.fromkeys(int(number) for number in numbers))
        self._soon = order[:soon]
        for number in set(self._unopened).difference(self._soon):
            self._unopened.pop(number, None)
        if self._soon:
            cancel(self._running, set(self._running).difference(self._soon))
        super().plan(order, now, soon)

    def open(self, number: int) -> Lease:
        lease = super().open(number)
        self._unopened.pop(number, None)
        if not self._order:
            self._kept[:] = [lease.memory]
        return lease

    def _drop_plan(self) -> None:
        super()._drop_plan()
        self._soon = []
        self._unopened = {}  # the previous one gets the shard of a download that ends at this moment

    def taken(self) -> int:
        """Bytes of the shards that this store downloads, or has downloaded and something still references.

        Each shard counts for the store that downloaded it.
        """
        return sum(file.size for file in list(self._had) if file.number >= 0)

    def _lease(self, number: int) -> Lease | None:
        file = self._unopened.get(number) or _files.get(self._shards[number].sha256)
        return None if file is None else Lease(file.path, memory=file)

    def _missing(self) -> Iterator[int]:
        return (number for number in self._soon if self._lease(number) is None)

    def _claim(self, number: int) -> MemoryFile:
        def kept(file: MemoryFile) -> None:
            unopened[number] = _files[shard.sha256] = file

        shard, unopened = self._shards[number], self._unopened
        return MemoryFile(shard.bytes, kept)

    async def _make_room(self, number: int, part: Any, urgent: bool) -> bool:
        size, until = self._shards[number].bytes, time.monotonic() + _RELEASE_S
        if urgent and self._soon:  # batches of an earlier plan, which are being decoded, free theirs in a moment
            self._awaited += size
            while not self._fits(0) and time.monotonic() < until:
                await asyncio.sleep(_POLL_S)
            self._awaited -= size
        elif not urgent and not self._fits(size):
            return False
        part.open()
        self._count(part)
        return True

    def _fits(self, size: int) -> bool:
        """Whether this many bytes fit beside those that readers wait for."""
        return self.taken() + self._awaited + size <= sum(self._shards[one].bytes for one in self._soon)

    def _obstacle(self, number: int, claimed: bool) -> Obstacle:
        return Obstacle("it was begun ahead of its use, where there was no memory for it")  # and is urgent now

    def _unwritable(self, error: OSError) -> GpuloadError:
        return RemoteError(
            f"cache_size=0: a shard cannot be kept in memory ({error.strerror}). Give a cache on disk "
            "(cache_size), or take less at a time: a smaller window, or smaller shards"
        )

    def _count(self, file: MemoryFile) -> None:
        self._had.add(file)


def _open_unnamed() -> int:
    """An unnamed file, in memory if the system supports that."""
    try:
        return os.memfd_create("gpuload-shard")
    except (AttributeError, OSError):  # another system, or a sandbox
        with tempfile.TemporaryFile(prefix="gpuload-") as file:
            return os.dup(file.fileno())
