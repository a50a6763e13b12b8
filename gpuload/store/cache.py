"""A folder of downloaded shards, shared by all processes of a node: who has a shard, who may delete it, what fits.

    CACHE/gpuload-1/lock                     held while room is made
    CACHE/gpuload-1/shards/<SHA-256>         a whole shard, of whichever set: locked (shared) by each of its readers
    CACHE/gpuload-1/shards/<SHA-256>.part    one on its way: locked by who downloads it
    CACHE/gpuload-1/sets/<URL's hash>/       manifests and indexes, see `gpuload.disk.fetch`

A shard's name is the SHA-256 of its bytes, which its manifest says, so that it cannot be mistaken for another one.
Locks are those of `flock`, which end with the process that holds them, however it ends.
"""

import errno
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from gpuload.checks import (
    COUNT,
    PATH,
    Rule,
    as_text,
    either,
    fitting,
    parse_size,
    shown,
)
from gpuload.errors import ArgumentError, FormatError, RemoteError
from gpuload.store import Lease
from gpuload.store.files import locked, open_own, why_not_own
from gpuload.store.url import refuse_urls

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

_ROOM = "gpuload-1"
_NAME = re.compile("[0-9a-f]{64}")
_PART = ".part"
_LOCK_S = (
    60  # to wait for the lock that is held while room is made, which takes milliseconds
)
_TRIES = 10  # to open a file in folders that are deleted meanwhile
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CANNOT = (
    errno.EOPNOTSUPP,
    errno.EINVAL,
)  # of a file system that allocates nothing ahead
_FREE_SHARE = 0.9  # of what is free on the disk, where no limit is given


CACHE_SIZE: Rule[int] = either(
    "bytes above 0, such as '200GB'",
    fitting("", lambda value: parse_size(as_text(value)), lambda size: size > 0),
    COUNT,
)


def default_folder() -> Path:
    """$GPULOAD_CACHE, else `gpuload` in the user's cache folder."""
    if folder := os.environ.get("GPULOAD_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuload"


class WantedShard(NamedTuple):
    """A shard: its SHA-256, its size in bytes, and its name below the URL."""

    sha256: str
    bytes: int
    name: str = ""


class Cache:
    """The folder of downloaded shards, which all processes of a machine share.

    Args:
        folder: None is `default_folder()`.
        limit: Largest size in bytes of all that lies in it; None: what is there already, and nine tenths of what is
            free on the disk now.

    Attributes:
        given: The limit that was asked for.

    Raises:
        ArgumentError: the folder cannot be created or written.
    """

    def __init__(
        self, folder: str | Path | None = None, limit: int | None = None
    ) -> None:
        if folder is not None:
            refuse_urls("cache", PATH.read(folder), "Give a folder on a local disk")
        self.folder = Path(default_folder() if folder is None else folder).absolute()
        self.given = limit
        self._room = self.folder / _ROOM
        self.shards = self._room / "shards"
        self.sets = self._room / "sets"
        try:
            self._make_folders()
        except OSError as error:
            raise ArgumentError(
                f"cache {self.folder}: cannot be written ({error.strerror}). Give another folder with cache=, or by "
                "the environment variable GPULOAD_CACHE"
            ) from None
        self._in_sets: dict[
            Path, tuple[int, int]
        ] = {}  # when each folder was changed, and the bytes in it
        self.limit = (
            self.used() + int(_FREE_SHARE * self.free()) if limit is None else limit
        )

    def used(self) -> int:
        """Bytes of all that lies in it; a shard that is on its way counts as whole."""
        return _bytes_in(self.shards) + self._beside()

    def _beside(self) -> int:
        """Bytes of manifests and indexes."""
        sizes = {}
        for folder in (*self.sets.glob("*"), *self.sets.glob("*/*")):
            with suppress(FileNotFoundError):
                if folder.is_dir():
                    changed = folder.stat().st_mtime_ns
                    before, size = self._in_sets.get(folder, (0, 0))
                    if changed != before:
                        # Not each time: a large index has a file for each shard.
                        size = _bytes_in(folder)
                    sizes[folder] = (changed, size)
        self._in_sets = sizes
        return sum(size for _, size in sizes.values())

    def free(self) -> int:
        """Free bytes on its disk."""
        return shutil.disk_usage(self._room).free

    def require(self, needed: int, what: str, can_shrink: bool) -> None:
        """Checks that some shards, all in use at once, fit here.

        Args:
            needed: Their size in bytes.
            what: What they are, for the message.
            can_shrink: Whether a smaller window would need less.

        Raises:
            ArgumentError: they do not fit.
        """
        instead = f"give {'a smaller window' if can_shrink else 'a set that was packed into smaller shards'}"
        limit = self.limit - self._beside()
        free = _bytes_in(self.shards) + self.free()
        if needed > (room := max(0, min(limit, free))):
            raise ArgumentError(
                f"cache {self.folder}: {what} take {needed:,} bytes, and it has room for {room:,}. "
                f"{'Raise cache_size' if limit < free else 'Free some of its disk'}, or {instead}"
            )

    def lease(self, shard: WantedShard) -> Lease | None:
        """The shard, if it is here; it is not deleted while the lease exists.

        Raises:
            FormatError: what has its name is no file of this user.
        """
        path = self.path_of(shard)
        try:
            holder = open_own(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not holder.lock(exclusive=False):
            return None  # it is being deleted
        status = os.fstat(holder.number)
        if status.st_nlink == 0:
            return None
        if status.st_size != shard.bytes:  # no download of ours ended so
            with suppress(FileNotFoundError):
                path.unlink()
            return None
        with suppress(OSError):  # used now; the time of change stays
            os.utime(holder.number, ns=(time.time_ns(), status.st_mtime_ns))
        return Lease(path, holder)

    def begin(self, shard: WantedShard) -> "CachePart | None":
        """The right to download a shard; None if another process holds it, or the shard is here.

        Raises:
            RemoteError: the cache cannot be written. FormatError: what has its name is no file of this user.
        """
        final = self.path_of(shard)
        with self.writing():
            part = self._made_again(lambda: CachePart(final))
        if not part.is_held():
            return None
        if os.path.lexists(final):
            part.path.unlink(missing_ok=True)
            return None
        return part

    def path_of(self, shard: WantedShard) -> Path:
        """Where a shard lies once it is here.

        Raises:
            FormatError: its name is not a SHA-256.
        """
        if not _NAME.fullmatch(shard.sha256):
            raise FormatError(
                f"a shard's SHA-256 is {shown(shard.sha256)}, expected 64 lower-case hexadecimal digits. Its "
                "manifest.json was not written by gpuload: do not use the set"
            )
        return self.shards / shard.sha256

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turns an OSError of writing to the cache into a RemoteError.

        Raises:
            RemoteError: it cannot be written.
        """
        try:
            yield
        except OSError as error:
            raise self.unwritable(error) from None

    def unwritable(self, error: OSError) -> RemoteError:
        """The error for a file of the cache that cannot be written."""
        remedy = "Check the folder and its disk, or give another one with cache="
        if error.errno in _FULL:
            remedy = "Free some of its disk; `df -i` shows whether it has inodes left"
        return RemoteError(
            f"cache {self.folder}: cannot be written ({error.strerror}). {remedy}"
        )

    def make_room(
        self, part: "CachePart", size: int, order: Callable[[str], float]
    ) -> bool:
        """Allocates space on the disk for a part, evicting shards if necessary; returns whether it succeeded.

        Args:
            part: The shard that is to be written.
            size: In bytes.
            order: When a shard, by its name, is needed, relative to the part: the furthest one is evicted first, and
                none that is needed before the part (0 or less). Shards that are in use, or not ours, stay.

        Raises:
            RemoteError: the disk cannot be written, or a process that makes room does not end.
        """
        stuck = f"cache {self.folder}: another process has held its lock for {_LOCK_S} s; it may be suspended"
        lock = self._room / "lock"
        with self.writing(), ExitStack() as held:
            self._made_again(
                lambda: held.enter_context(locked(lock, _LOCK_S, RemoteError(stuck)))
            )
            missing = self.used() - os.fstat(part.number).st_size + size - self.limit
            if missing > 0 and not self._delete(missing, order):
                return False
            while True:
                try:
                    os.ftruncate(part.number, 0)
                    os.posix_fallocate(part.number, 0, size)
                except OSError as error:
                    if (
                        error.errno in _CANNOT
                    ):  # it will say while it is written that it is full
                        os.ftruncate(part.number, size)
                        return True
                    os.ftruncate(part.number, 0)
                    if error.errno not in _FULL:
                        raise
                    if not self._delete(1, order):
                        return False
                else:
                    return True

    def clear_leftovers(self) -> None:
        """Deletes partial downloads that killed processes left."""
        for name, _, _ in list(_files(self.shards)):
            if name.endswith(_PART):
                with suppress(FileNotFoundError, FormatError):
                    CachePart(
                        self.shards / name.removesuffix(_PART), create=False
                    ).drop()

    def _delete(self, missing: int, order: Callable[[str], float]) -> bool:
        """Evicts shards until this many bytes are free; returns whether it succeeded."""
        candidates = [
            (order(name), -used, name, size) for name, size, used in _files(self.shards)
        ]
        for needed, _, name, size in sorted(candidates, reverse=True):
            if not _NAME.fullmatch(name) or needed <= 0:
                continue
            if missing <= 0:
                break
            with suppress(FileNotFoundError, FormatError):
                handle = open_own(self.shards / name)
                if handle.lock():
                    (self.shards / name).unlink()
                    missing -= size
        return missing <= 0

    def _make_folders(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.folder, self._room, self.shards, self.sets):
            folder.mkdir(mode=0o700, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if (fault := why_not_own(folder)) and folder != self.folder:
                raise ArgumentError(
                    f"cache {folder}: {fault}, so others could replace what is loaded. Delete it, or give your own "
                    "folder"
                )
            if fault:
                _warn(
                    f"cache {folder}: {fault}, so others could delete what is kept there. Give a folder of your own"
                )
        open_own(self._room / "lock", os.O_RDWR | os.O_CREAT).lock(
            exclusive=False
        )  # OSError: there are no locks

    def _made_again(self, use: Callable[[], T]) -> T:
        """What `use` returns. If somebody has deleted the cache, its folders are made again.

        Raises:
            OSError: they cannot be made, or are deleted again and again.
        """
        for _ in range(_TRIES):
            with suppress(FileNotFoundError, NotADirectoryError):
                return use()
            with suppress(FileNotFoundError):
                self._make_folders()
        return use()


class CachePart:
    """A shard on its way into the cache, under a name of its own.

    Args:
        final: The path that it gets once it is whole.
        create: Whether the file may be created.

    Attributes:
        number: Descriptor of the file that the shard is written to.

    Raises:
        OSError: it cannot be opened. FormatError: what has its name is no file of this user.
    """

    def __init__(self, final: Path, create: bool = True) -> None:
        self.path = final.with_name(f"{final.name}{_PART}")
        self.final = final
        self._handle = open_own(self.path, os.O_RDWR | (os.O_CREAT if create else 0))

    @property
    def number(self) -> int:
        return self._handle.number

    def is_held(self) -> bool:
        """Acquires the right to it, and returns whether this object holds it."""
        if self.number < 0 or not self._handle.lock():
            return False
        with suppress(FileNotFoundError):  # whoever had it has finished meanwhile
            return os.fstat(self.number).st_ino == os.lstat(self.path).st_ino
        return False

    def finish(self) -> None:
        """Publishes the complete shard under its name."""
        os.fdatasync(
            self.number
        )  # else it might have the right name and size after a power cut, and be empty
        with suppress(
            FileNotFoundError
        ):  # somebody has deleted the cache, so that the shard is downloaded again
            self.path.rename(self.final)
        self._handle.close()

    def drop(self) -> None:
        """Deletes it, unless another process holds it."""
        if self.is_held():
            self.path.unlink(missing_ok=True)
        self._handle.close()


@cache
def _warn(message: str) -> None:
    """Once in a process."""
    _LOG.warning("%s", message)


def _bytes_in(folder: Path) -> int:
    return sum(size for _, size, _ in _files(folder))


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of last use of each file."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_file(follow_symlinks=False):
                        yield entry.name, status.st_size, status.st_atime_ns
    except FileNotFoundError:
        return
