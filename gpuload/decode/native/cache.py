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
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from gpuload.store.files import replaced

_LOG = logging.getLogger(__name__)
_NOTICE = "gpuload compiles its CPU decoder, once on this machine, or waits for a process that does"

# How long a process waits for another that compiles before it compiles itself: several times the compile time on a slow
# machine, so the wait ends only for a suspended process.
_MOST_WAIT_S = 180.0
_LOOK_S = 0.05
_SILENT_S = 5.0  # before a waiting user is told the reason

_DIGEST_BYTES = hashlib.sha256().digest_size


class Cache(NullCache):  # type: ignore[misc]
    """The cache of a compiled function: a file for each signature, version and processor.

    It is in numba's usual place: NUMBA_CACHE_DIR, next to the function's file, or the user's cache folder. If none of
    these is writable, as in many containers, it is in a private folder in the system's temporary folder. Entries of
    earlier processes are used even if they are no longer writable, as in a container's image.

    A file is the stamp, the SHA-256 of the code, since a corrupt byte of machine code would run, and the code.

    stamp: 32 bytes, changes with any source text that the function is made of.
    """

    def __init__(self, function: Callable[..., Any], stamp: bytes) -> None:
        self._name, self._stamp = f"{function.__module__}.{function.__qualname__}", stamp
        self._read: list[Path] = []  # not those behind the first writable one: they may be another user's, after sudo
        self._own: Path | None = None
        for folder in _folders(function.__code__.co_filename):
            self._read.append(folder)
            if _is_writable(folder):
                self._own = folder
                break
        self._lock: int | None = None
        self._notice: threading.Timer | None = None

    @property
    def cache_path(self) -> str | None:
        """The folder; None if none is writable."""
        return None if self._own is None else str(self._own)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None for the caller to compile it, with the lock held until `save_overload`."""
        found = self._load(sig, target_context)
        if found is None:
            self._notice = threading.Timer(_SILENT_S, _say_once)
            self._notice.daemon = True
            self._notice.start()
            if self.lock(_MOST_WAIT_S):
                found = self._load(sig, target_context)  # another process may have compiled it meanwhile
        if found is not None:
            self._release()
        return found

    def has(self, sig: Any, target_context: Any) -> bool:
        """Whether there is an entry, without a look at its code."""
        for path in self._paths(sig, target_context):
            with suppress(OSError), path.open("rb") as file:
                if file.read(_DIGEST_BYTES) == self._stamp:
                    return True
        return False

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            if self._own is not None and not data.library.has_dynamic_globals:
                code = dumps(data._reduce())
                with replaced(self._own / self._file(sig, data.target_context)) as path:
                    path.write_bytes(self._stamp + hashlib.sha256(code).digest() + code)
        except Exception as error:  # a full disk or a read-only folder
            _LOG.info("compiled code is not kept: %s", error)
        finally:
            self._release()

    def lock(self, wait_s: float) -> bool:
        """Whether this process may compile for all others; False if locks are unavailable or held for longer.

        The lock is a POSIX lock of this process, not inherited by fork, so a killed process leaves none.
        """
        if self._lock is not None or self._own is None:
            return self._own is not None
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._own / f"{self._name}.lock", flags, 0o600)
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

    def _load(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None; without a lock."""
        target_context.refresh()
        for path in self._paths(sig, target_context):
            try:
                content = path.read_bytes()
                if content[:_DIGEST_BYTES] == self._stamp:
                    digest, code = content[_DIGEST_BYTES : 2 * _DIGEST_BYTES], content[2 * _DIGEST_BYTES :]
                    if hashlib.sha256(code).digest() != digest:
                        raise ValueError("it is not what was written")
                    return CompileResult._rebuild(target_context, *pickle.loads(code))
            except FileNotFoundError:
                continue
            except Exception as error:  # unpickling may raise anything
                _LOG.info("%s cannot be used and will be replaced: %s", path, error)
        return None

    def _paths(self, sig: Any, target_context: Any) -> Iterator[Path]:
        name = self._file(sig, target_context)
        return (folder / name for folder in self._read)

    def _file(self, sig: Any, target_context: Any) -> str:
        made_for = sys.version, numba.__version__, sig, target_context.codegen().magic_tuple()
        return f"{self._name}-{hashlib.sha256(repr(made_for).encode()).hexdigest()[:16]}.nbc"


def _folders(file: str) -> Iterator[Path]:
    """Where the code of a file's functions can be, in this order: where numba looks, and a temporary folder."""
    folder = Path(file).parent
    name = f"{folder.name}_{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}"
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR) / name
    yield folder / "__pycache__"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(home):
        yield Path(home) / "numba" / name
    if (private := _temporary_folder()) is not None:
        yield private / name


@functools.cache
def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _temporary_folder() -> Path | None:
    """One that only this user can write to, since its contents are unpickled and run; None if there cannot be one."""
    try:
        folder = Path(tempfile.gettempdir()) / f"gpuload-{os.getuid()}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise OSError(f"{folder} is not a private folder of this user")
    except OSError as error:
        _LOG.info("compiled code is not kept: %s", error)
        return None
    return folder


@functools.cache
def _say_once() -> None:
    _LOG.warning(_NOTICE)
