"""Caches machine code on the disk for all processes of a machine: one compiles, the others wait and load it.

With numba's own cache, several processes compile the same functions, and a damaged file or a full disk raises errors.
Here such a cache is only slower, and a damaged file is replaced.
"""

import fcntl
import functools
import hashlib
import logging
import os
import pickle
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    NullCache,
    UserProvidedCacheLocator,
)

_LOG = logging.getLogger(__name__)
_NOTICE = "gpuload compiles its CPU decoder, once on this machine, or waits for a process that does"

# How long a process waits for another that compiles before it compiles itself: several times the compile time on a slow
# machine, so the wait ends only for a suspended process.
_MOST_WAIT_S = 180.0
_LOOK_S = 0.05
_SILENT_S = 5.0  # before a waiting user is told the reason


def open_cache(function: Callable[..., Any], stamp: str) -> "_SharedCache | _LayeredCache | _NoCache":
    """The cache of a compiled function. Its `cache_path` is None if no folder is writable.

    stamp: changes with any source text that the function is made of.

    It is in numba's usual place: NUMBA_CACHE_DIR, next to the function's file, or the user's cache folder. If none of
    these is writable, as in many containers, it is in a private folder in the system's temporary folder. Entries of
    earlier processes in the first two are used even if they are no longer writable.
    """
    own = _own_cache(function, stamp)
    try:
        kept = _SharedCache(function, stamp, _OnlyRead)
    except (RuntimeError, OSError):
        return own
    return own if kept.cache_path == own.cache_path else _LayeredCache(kept, own)


def _own_cache(function: Callable[..., Any], stamp: str) -> "_SharedCache | _NoCache":
    try:
        return _SharedCache(function, stamp)
    except (RuntimeError, OSError):  # numba: "no locator available"
        pass
    before = numba.config.CACHE_DIR
    try:
        numba.config.CACHE_DIR = str(_temporary_folder())
        return _SharedCache(function, stamp)
    except (RuntimeError, OSError) as error:
        _LOG.info("compiled code is not kept: %s", error)
        return _NoCache()
    finally:
        numba.config.CACHE_DIR = before


def _temporary_folder() -> Path:
    """A folder that only this user can write to, since its contents are unpickled and run.

    Raises:
        OSError: it cannot be created, or belongs to another user.
    """
    if not hasattr(os, "getuid"):  # Windows, where a user's temporary folder is private
        raise OSError("this system has no user numbers")
    folder = Path(tempfile.gettempdir()) / f"gpuload-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(f"{folder} is not a private folder of this user")
    return folder


@functools.cache
def _say_once() -> None:
    _LOG.warning(_NOTICE)


class _SharedCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of one function, with a lock between processes, checksums, and no errors."""

    def __init__(
        self, function: Callable[..., Any], stamp: str, where: type[CompileResultCacheImpl] = CompileResultCacheImpl
    ) -> None:
        self._impl_class = where
        super().__init__(function)
        # numba only checks whether the function's own file has changed.
        stamps = (self._impl.locator.get_source_stamp(), stamp)
        self._cache_file = _CheckedFile(self._cache_path, self._impl.filename_base, stamps)
        self._lock: int | None = None
        self._notice: threading.Timer | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None for the caller to compile it, with the lock held until `save_overload`."""
        found = self.load(sig, target_context)
        if found is None:
            self._notice = threading.Timer(_SILENT_S, _say_once)
            self._notice.daemon = True
            self._notice.start()
            if self.lock(_MOST_WAIT_S):
                found = self.load(sig, target_context)  # another process may have compiled it meanwhile
        if found is not None:
            self._release()
        return found

    def has(self, sig: Any, target_context: Any) -> bool:
        """Whether there is an entry, without a look at it."""
        try:
            return self._index_key(sig, target_context.codegen()) in self._cache_file._load_index()
        except Exception:  # as in `load`, which says so
            return False

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a full disk or a read-only folder
            _LOG.info("compiled code is not kept: %s", error)
        finally:
            self._release()

    def load(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None; without a lock."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # unpickling a damaged file may raise anything
            _LOG.info("%s is damaged and will be replaced: %s", self._cache_file.index_path, error)
            with suppress(OSError):
                self._cache_file.index_path.unlink()
            return None

    def lock(self, wait_s: float) -> bool:
        """Whether this process may compile for all others; False if locks are unavailable or held for longer.

        The lock is a POSIX lock of this process, not inherited by fork, so a killed process leaves none.
        """
        if self._lock is not None:
            return True
        path = f"{self._cache_file.index_path}.lock"
        try:
            self._impl.locator.ensure_cache_path()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError:
            return False
        give_up = time.monotonic() + wait_s
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                if time.monotonic() < give_up:
                    time.sleep(_LOOK_S)
                    continue
            except OSError:  # a file system without locks
                pass
            else:
                self._lock = descriptor
                return True
            os.close(descriptor)
            return False

    def _release(self) -> None:
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None
        if self._lock is not None:
            os.close(self._lock)  # releases the lock
            self._lock = None


class _NoCache(NullCache):  # type: ignore[misc]
    """Where nothing can be kept."""

    def has(self, sig: Any, target_context: Any) -> bool:
        return False

    def lock(self, wait_s: float) -> bool:
        return False


class _Existing:
    """Keeps numba's locators from skipping a read-only folder."""

    get_cache_path: Callable[[], str]

    def ensure_cache_path(self) -> None:
        if not os.path.isdir(self.get_cache_path()):
            raise FileNotFoundError(self.get_cache_path())


class _ExistingGiven(_Existing, UserProvidedCacheLocator):  # type: ignore[misc]
    pass


class _ExistingBesideTheFile(_Existing, InTreeCacheLocator):  # type: ignore[misc]
    pass


class _OnlyRead(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_ExistingGiven, _ExistingBesideTheFile)


class _LayeredCache(NullCache):  # type: ignore[misc]
    """A read-only cache, as in a container's image, in front of a writable one."""

    def __init__(self, kept: _SharedCache, own: "_SharedCache | _NoCache") -> None:
        self._kept, self._own = kept, own

    @property
    def cache_path(self) -> str | None:
        path: str | None = self._own.cache_path
        return path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._kept.load(sig, target_context)
        return self._own.load_overload(sig, target_context) if found is None else found

    def save_overload(self, sig: Any, data: Any) -> None:
        self._own.save_overload(sig, data)

    def has(self, sig: Any, target_context: Any) -> bool:
        """As `_SharedCache.has`."""
        return self._kept.has(sig, target_context) or self._own.has(sig, target_context)

    def lock(self, wait_s: float) -> bool:
        """As `_SharedCache.lock`."""
        return self._own.lock(wait_s)


class _CheckedFile(IndexDataCacheFile):  # type: ignore[misc]
    """The files of a cache: data begin with their SHA-256, since a corrupt byte of machine code would run."""

    _DIGEST_BYTES = hashlib.sha256().digest_size

    @property
    def index_path(self) -> Path:
        return Path(self._index_path)

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(content).digest())
            file.write(content)

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        digest, content = content[: self._DIGEST_BYTES], content[self._DIGEST_BYTES :]
        if hashlib.sha256(content).digest() != digest:
            raise ValueError(f"{name} is not what was written")
        return pickle.loads(content)
