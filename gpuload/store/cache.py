"""A folder of downloaded shards, shared by all processes of a node: who has a shard, who may delete it, what fits.

    CACHE/gpuload-1/lock                     held while room is made
    CACHE/gpuload-1/shards/<SHA-256>         a whole shard, of whichever set: locked (shared) by each of its readers
    CACHE/gpuload-1/shards/<SHA-256>.part    one on its way: locked by who downloads it
    CACHE/gpuload-1/sets/<URL's hash>/       manifests and indexes, see `remote_set`

A shard's name is the SHA-256 of its bytes, which its manifest says, so that it cannot be mistaken for another one.
Locks are those of `flock`, which end with the process that holds them, however it ends.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpuload.checks import PATH, Rule, as_text, as_whole, parse_size
from gpuload.errors import ArgumentError, RemoteError
from gpuload.store.handle import Handle
from gpuload.store.interface import Lease
from gpuload.store.locks import fcntl
from gpuload.store.url import refuse_urls

_ROOM = "gpuload-1"
_PART = ".part"
_LOCK_S = 60  # to wait for the lock that is held while room is made, which takes milliseconds
_FREE_SHARE = 0.9  # of what is free on the disk, where no limit is given


def _as_bytes(value: Any) -> int:
    try:
        found = parse_size(as_text(value)) if isinstance(value, str) else as_whole(value)
    except ArgumentError:  # which does not say what the value is for
        raise ValueError from None
    if found < 0:
        raise ValueError
    return found


CACHE_SIZE = Rule("bytes, such as '200GB', or 0 for no shards on disk", _as_bytes)


def default_folder() -> Path:
    """$GPULOAD_CACHE, else `gpuload` in the user's cache folder."""
    if given := os.environ.get("GPULOAD_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuload"


class Wanted(NamedTuple):
    """A shard: its SHA-256, and its size in bytes."""

    sha256: str
    bytes: int


class Cache:
    """The folder, and how large it may become.

    folder: None is `default_folder()`. limit: bytes, of all that lies in it; None: what is there already, and nine
    tenths of what is free on the disk now. asked: the folder that was given; `folder` is the one that is used.

    Raises:
        ArgumentError: the folder cannot be created or written.
    """

    _instead = ", or cache_size=0 to keep no shards on disk"

    def __init__(self, folder: str | Path | None = None, limit: int | None = None) -> None:
        if folder is not None:
            refuse_urls("cache", PATH.read(folder), "Give a folder on a local disk")
        self.asked = self.folder = Path(default_folder() if folder is None else folder).absolute()
        try:
            self._make_folders()
        except OSError as error:
            raise ArgumentError(
                f"cache {self.folder}: cannot be written ({error.strerror}). Give another folder with cache=, "
                f"or by the environment variable GPULOAD_CACHE{self._instead}"
            ) from None
        self.given = limit
        self.limit = self.used() + int(_FREE_SHARE * self.free()) if limit is None else limit

    def __repr__(self) -> str:
        return f"Cache({str(self.folder)!r}, {self.limit:,} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self.asked, self.given)

    def used(self) -> int:
        """Bytes of all that lies in it; a shard that is on its way counts as whole, of an index what is here."""
        sets = (size for folder in _folders(self.sets) for _, size, _ in _files(folder, allocated=True))
        return sum(size for _, size, _ in _files(self.shards)) + sum(sets)

    def free(self) -> int:
        """Bytes that are free on its disk."""
        return shutil.disk_usage(self._room).free

    def require(self, needed: int, what: str) -> None:
        """Raises where so many bytes of shards, which are in use at the same time, do not fit.

        Raises:
            ArgumentError: with the numbers.
        """
        used, free = self.used(), self.free()
        others = used - sum(size for _, size, _ in _files(self.shards))  # manifests and indexes
        if needed + others > self.limit:
            raise ArgumentError(
                f"cache_size: {self.limit:,} bytes are too few for {what}, which take {needed + others:,}. Give more, "
                "or a smaller window"
            )
        if needed > used - others + free:
            raise ArgumentError(
                f"cache {self.folder}: {what} take {needed:,} bytes, and its disk has {free:,} free. Free some, give "
                "another folder, or a smaller window"
            )

    def lease(self, shard: Wanted) -> Lease | None:
        """The shard, if it is here; nobody deletes it as long as the lease exists."""
        path = self.shards / shard.sha256
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        holder = Handle(handle)
        if not _locked(handle, fcntl.LOCK_SH):
            return None  # it is being deleted
        found = os.fstat(handle)
        if found.st_nlink == 0:
            return None
        if found.st_size != shard.bytes:  # no download of ours ended so
            with suppress(FileNotFoundError):
                path.unlink()
            return None
        with suppress(OSError):  # used now; the time of change stays
            os.utime(handle, ns=(time.time_ns(), found.st_mtime_ns))
        return Lease(path, holder)

    def begin(self, shard: Wanted) -> "Part | None":
        """The right to download a shard; None where another process has it, or the shard is here."""
        path = self.shards / f"{shard.sha256}{_PART}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        part = Part(path, handle, self.shards / shard.sha256)
        if not _locked(handle, fcntl.LOCK_EX):
            return None
        try:
            is_ours = os.fstat(handle).st_ino == os.stat(path).st_ino
        except FileNotFoundError:  # whoever had it has finished meanwhile
            is_ours = False
        if not is_ours or part.final.exists():
            if is_ours:
                path.unlink()
            return None
        return part

    def make_room(self, part: "Part", size: int, order: Callable[[str], float]) -> bool:
        """Takes `size` bytes of the disk for a part, and deletes shards for them.

        order: for the name of a shard, when it is needed, the latest is deleted first; only those are that are needed
            after 0, which is when the part is. Shards that are in use, or not ours, stay.

        Returns whether they are there.

        Raises:
            RemoteError: the disk cannot be written, or a process that makes room does not end.
        """
        with self._lock():
            missing = self.used() - os.fstat(part.number).st_size + size - self.limit
            if missing > 0 and not self._delete(missing, order):
                return False
            while True:
                try:
                    _allocate(part.number, size)
                except OSError as error:
                    os.ftruncate(part.number, 0)
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise RemoteError(f"cache {self.folder}: cannot be written ({error.strerror})") from None
                    if not self._delete(1, order):
                        return False
                else:
                    return True

    def clear_leftovers(self) -> None:
        """Deletes parts that nobody downloads: a process was killed."""
        for name, _, _ in list(_files(self.shards)):
            if name.endswith(_PART):
                with suppress(FileNotFoundError):
                    handle = os.open(self.shards / name, os.O_RDWR | os.O_CLOEXEC)
                    Part(self.shards / name, handle, self.shards / name).drop()

    def _delete(self, missing: int, order: Callable[[str], float]) -> bool:
        """Deletes whole shards until so many bytes are free."""
        found = [(order(name), -used, name, size) for name, size, used in _files(self.shards)]
        for needed, _, name, size in sorted(found, reverse=True):
            if name.endswith(_PART) or len(name) != 64 or needed <= 0:
                continue
            if missing <= 0:
                break
            with suppress(FileNotFoundError):
                handle = Handle(os.open(self.shards / name, os.O_RDONLY | os.O_CLOEXEC))
                if _locked(handle.number, fcntl.LOCK_EX):
                    (self.shards / name).unlink()
                    missing -= size
        return missing <= 0

    def _make_folders(self) -> None:
        self._room = self.folder / _ROOM
        self.shards, self.sets = self._room / "shards", self._room / "sets"
        for made in (self.shards, self.sets):
            made.mkdir(parents=True, exist_ok=True)
            if not os.access(made, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        os.close(self._open_lock())

    @contextmanager
    def _lock(self) -> Iterator[None]:
        handle = Handle(self._open_lock())
        give_up = time.monotonic() + _LOCK_S
        while not _locked(handle.number, fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                raise RemoteError(
                    f"cache {self.folder}: another process has held its lock for {_LOCK_S} s. Is one stopped?"
                )
            time.sleep(0.01)
        yield
        handle.close()

    def _open_lock(self) -> int:
        return os.open(self._room / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


class Part(Handle):
    """A shard that this process downloads."""

    def __init__(self, path: Path, handle: int, final: Path) -> None:
        super().__init__(handle)
        self.path, self.final = path, final

    def finish(self) -> None:
        """It is whole: gives it its name."""
        os.fdatasync(self.number)  # else it might have the right name and size after a power cut, and be empty
        self.path.rename(self.final)
        self.close()

    def drop(self) -> None:
        """Deletes it, unless another process has it."""
        if self.number >= 0 and _locked(self.number, fcntl.LOCK_EX):
            with suppress(FileNotFoundError):
                if os.fstat(self.number).st_ino == os.stat(self.path).st_ino:
                    self.path.unlink()
        self.close()


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _allocate(handle: int, size: int) -> None:
    os.ftruncate(handle, 0)
    if not hasattr(os, "posix_fallocate"):  # macOS
        os.ftruncate(handle, size)
        return
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(handle, size)  # a file system that cannot; it will say so while it is written


def _folders(folder: Path) -> Iterator[Path]:
    for root, names, _ in os.walk(folder):
        yield from (Path(root, name) for name in names)


def _files(folder: Path, allocated: bool = False) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of last use of each file. allocated: the size without holes."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if entry.is_file(follow_symlinks=False):
                        size = min(found.st_size, 512 * found.st_blocks) if allocated else found.st_size
                        yield entry.name, size, found.st_atime_ns
    except FileNotFoundError:
        return
