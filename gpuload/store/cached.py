"""The shards of a remote set, downloaded into the cache before they are needed."""

import asyncio
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from gpuload.errors import RemoteError
from gpuload.store.cache import Cache, Wanted
from gpuload.store.downloading import DownloadingStore, Obstacle, Part
from gpuload.store.interface import Lease
from gpuload.store.url import URL

_stores: "weakref.WeakSet[CachedStore]" = weakref.WeakSet()  # of this process: what they need is not deleted


class CachedStore(DownloadingStore):
    """One set's shards for one reader, in the cache.

    names: of the shards, below the URL. All that is planned is downloaded, as far as the cache has room without what
    is needed earlier. Other processes of the node do the same with the same plan: each shard is downloaded by the first
    that comes to it.
    """

    def __init__(self, url: URL, cache: Cache, names: Sequence[str], shards: Sequence[Wanted]) -> None:
        super().__init__(url, names, shards)
        self._cache = cache
        cache.clear_leftovers()
        _stores.add(self)

    def _lease(self, number: int) -> Lease | None:
        return self._cache.lease(self._shards[number])

    def _missing(self) -> Iterator[int]:
        here = set(os.listdir(self._cache.shards))
        return (number for number in self._order if self._shards[number].sha256 not in here)

    def _claim(self, number: int) -> Part | None:
        return self._cache.begin(self._shards[number])

    async def _make_room(self, number: int, part: Any, urgent: bool) -> bool:
        shard = self._shards[number]
        needed = -1 if urgent else min(store.rank(shard.sha256) for store in _stores)
        return await asyncio.to_thread(self._cache.make_room, part, shard.bytes, _order_after(needed))

    def _obstacle(self, number: int, claimed: bool) -> Obstacle:
        shard, place = self._shards[number], f"the cache {self._cache.folder}"
        if claimed:
            return Obstacle(
                f"{place}: its {self._cache.limit:,} bytes are all in use, of {shard.bytes:,} more. Raise cache_size"
            )
        progress = -1.0
        with suppress(OSError):
            progress = os.stat(self._cache.shards / f"{shard.sha256}.part").st_mtime
        return Obstacle(f"{place}: another process downloads it, and does not get on. Is it stopped?", progress)

    def _unwritable(self, error: OSError) -> RemoteError:
        return RemoteError(f"cache {self._cache.folder}: cannot be written ({error.strerror}). Free some of its disk")


def _order_after(needed: float) -> Callable[[str], float]:
    """When shards are needed by any reader of this process, from a place in their plans on."""
    stores = list(_stores)
    return lambda sha256: min(store.rank(sha256) for store in stores) - needed
