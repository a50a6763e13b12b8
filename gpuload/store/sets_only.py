"""What stands for the cache where shards stay in memory (`cache_size=0`): a folder for manifests and indexes alone."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuload.errors import ArgumentError
from gpuload.limits import available_memory, memory_limit
from gpuload.store.cache import Cache
from gpuload.store.handle import Handle
from gpuload.store.locks import fcntl

_PREFIX = "gpuload-sets-"

_temporary: dict[int, tuple[Path, Handle]] = {}  # by process


class SetsOnly(Cache):
    """A cache that has no room for shards.

    folder: as for `Cache`. Where it cannot be written, a temporary folder is used, one for each process.

    kept: what `MemoryStore` keeps of the samples that were looked at.
    """

    _instead = ", or a temporary folder by TMPDIR"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder, 0)
        self.kept: list[Any] = []

    def __repr__(self) -> str:
        return f"SetsOnly({str(self.folder)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SetsOnly, (self.asked,)

    def require(self, needed: int, what: str) -> None:
        """As `Cache.require`, of memory."""
        free = min(filter(None, (available_memory(), memory_limit())), default=None)
        if free is not None and needed > free:
            raise ArgumentError(
                f"cache_size=0: {what} take {needed:,} bytes of memory, and {free:,} can be had. Give a smaller "
                "window, or a cache on disk (cache_size)"
            )

    def _make_folders(self) -> None:
        try:
            super()._make_folders()
        except OSError:
            self.folder = _temporary_folder()
            super()._make_folders()


def _temporary_folder() -> Path:
    """One for this process, which is deleted at its end. What a killed process left, the next one deletes that makes a
    folder of its own: its lock is free then."""
    from multiprocessing.util import Finalize  # children of multiprocessing do not call what `atexit` has

    process = os.getpid()
    while process not in _temporary:
        _delete_leftovers()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FileNotFoundError):  # another process took it for a leftover
            lock = Handle(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))
            fcntl.flock(lock.number, fcntl.LOCK_SH)
            if folder.exists():
                _temporary[process] = folder, lock
                Finalize(None, _delete, (folder,), exitpriority=0)
    return _temporary[process][0]


def _delete(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _delete_leftovers()  # of children, which were unpickled with a set, multiprocessing forgets what it should do


def _delete_leftovers() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, or another user's
            lock = Handle(os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
            fcntl.flock(lock.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
