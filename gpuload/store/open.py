"""Which cache and which store a set has: by the size of its cache."""

from collections.abc import Sequence
from pathlib import Path

from gpuload.store.cache import Cache, Wanted
from gpuload.store.interface import Store
from gpuload.store.sets_only import SetsOnly
from gpuload.store.url import URL


def open_cache(folder: str | Path | None, size: int | None) -> Cache:
    """The cache in a folder. size: as `Cache`'s limit; 0: shards stay in memory.

    Raises:
        ArgumentError: the folder cannot be created or written.
    """
    return SetsOnly(folder) if size == 0 else Cache(folder, size)


def open_store(url: URL, cache: Cache, names: Sequence[str], shards: Sequence[Wanted]) -> Store:
    """The shards of a set. names: of the shards, below the URL."""
    if isinstance(cache, SetsOnly):
        from gpuload.store.in_memory import MemoryStore  # asyncio

        return MemoryStore(url, names, shards, cache.kept)
    from gpuload.store.cached import CachedStore

    return CachedStore(url, cache, names, shards)
