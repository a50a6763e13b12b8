"""The shards of a remote set in memory, without a cache on disk: `cache_size=0`.

A shard is downloaded into a file that has no name: Linux's memfd, elsewhere a deleted temporary file. Decoders map it
as any other, and it goes with its process, however that ends.
"""

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuload.errors import GpuloadError, RemoteError
from gpuload.store.cache import Wanted
from gpuload.store.downloading import DownloadingStore, Obstacle
from gpuload.store.handle import Handle
from gpuload.store.interface import Lease
from gpuload.store.url import URL

_DESCRIPTORS = Path("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")


class MemoryFile(Handle):
    """A shard in memory, of so many bytes. They are free once neither this object nor a mapping exists."""

    def __init__(self, size: int) -> None:
        super().__init__(_open_unnamed())
        self.size = size

    @property
    def path(self) -> Path:
        return _DESCRIPTORS / str(self.number)


# Whole shards by SHA-256, of all stores of this process: a preview uses those of its loader.
_files: "weakref.WeakValueDictionary[str, MemoryFile]" = weakref.WeakValueDictionary()


class MemoryStore(DownloadingStore):
    """One set's shards for one reader, in memory.

    Of what is planned, that is downloaded which is needed soon, as long as all shards that this store has take no more
    bytes than that; those that batches which are not decoded yet still view are counted, too. What a reader waits for
    is downloaded in any case.

    names: of the shards, below the URL. kept: a list for the shard that was opened last without a plan, to look at a
    sample: mostly another one of it is looked at next.
    """

    full_s = 0.05

    def __init__(self, url: URL, names: Sequence[str], shards: Sequence[Wanted], kept: list[MemoryFile]) -> None:
        super().__init__(url, names, shards)
        self._objects.again = "Check the network and the server, then run it again"
        self._soon: list[int] = []
        self._unopened: dict[int, MemoryFile] = {}
        self._had: dict[int, weakref.ref[MemoryFile]] = {}  # what this store has, by the objects' ids
        self._kept = kept

    def plan(self, numbers: Iterable[int], now: int = 0, soon: int = 0) -> None:
        order = list(dict.fromkeys(int(number) for number in numbers))
        self._soon = order[:soon]
        for number in set(self._unopened).difference(self._soon):
            self._unopened.pop(number, None)
        super().plan(order, now, soon)

    def open(self, number: int) -> Lease:
        lease = super().open(number)
        self._unopened.pop(number, None)
        if not self._order:
            self._kept[:] = [lease.memory]
        return lease

    def close(self) -> None:
        super().close()
        self._soon = []
        self._unopened.clear()

    def taken(self) -> int:
        """Bytes of the shards that this store has in memory, and of those that it downloads."""
        files = [of() for of in list(self._had.values())]
        return sum(file.size for file in files if file is not None and file.number >= 0)

    def _lease(self, number: int) -> Lease | None:
        file = self._unopened.get(number) or _files.get(self._shards[number].sha256)
        if file is None:
            return None
        self._count(file)
        return Lease(file.path, memory=file)

    def _missing(self) -> Iterator[int]:
        return (number for number in self._soon if self._lease(number) is None)

    def _claim(self, number: int) -> "_Part":
        return _Part(self, number)

    async def _make_room(self, number: int, part: Any, urgent: bool) -> bool:
        size = self._shards[number].bytes
        if not urgent and self.taken() + size > sum(self._shards[one].bytes for one in self._soon):
            return False
        part.file = MemoryFile(size)
        self._count(part.file)
        return True

    def _obstacle(self, number: int, claimed: bool) -> Obstacle:
        return Obstacle("it was begun ahead of its use, where there was no memory for it")  # and is urgent now

    def _unwritable(self, error: OSError) -> GpuloadError:
        return RemoteError(
            f"cache_size=0: a shard cannot be kept in memory ({error.strerror}). Give a smaller window, or a cache on "
            "disk (cache_size)"
        )

    def _count(self, file: MemoryFile) -> None:
        had, key = self._had, id(file)
        if key not in had:
            had[key] = weakref.ref(file, lambda _: had.pop(key, None))

    def finish(self, number: int, file: MemoryFile) -> None:
        """A shard is whole."""
        self._unopened[number] = file
        _files[self._shards[number].sha256] = file


class _Part:
    """A shard that is being downloaded."""

    def __init__(self, store: MemoryStore, number: int) -> None:
        self._store, self._shard = store, number
        self.file: MemoryFile | None = None

    @property
    def number(self) -> int:
        assert self.file is not None
        return self.file.number

    def finish(self) -> None:
        assert self.file is not None
        file, self.file = self.file, None
        self._store.finish(self._shard, file)

    def drop(self) -> None:
        self.file = None  # whoever still holds the error holds this object, too


def _open_unnamed() -> int:
    """A file without a name, in memory where the system has such files."""
    try:
        return os.memfd_create("gpuload-shard")
    except (AttributeError, OSError):  # another system, or a sandbox
        with tempfile.TemporaryFile(prefix="gpuload-") as file:
            return os.dup(file.fileno())
