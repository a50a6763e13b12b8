"""A file of the cache that holds some parts of an object, for all processes of the node.

    0 … size - 1       the object's bytes; what is not here takes no room on the disk, and reads as zeros
    parts bytes        1 for each part that is here
    1 byte             1 if all parts are here, and were compared with the object's SHA-256
    last 4096 bytes    JSON: the object's size and ETag, and the number of parts

A part is marked once its bytes are on the disk, so that a process may be killed at any moment, and the machine may
fail. Marks and bytes are in one file, so that they cannot belong to two versions of an object. The file only grows
fuller: its memory maps stay valid.
"""

import json
import mmap
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.errors import FormatError
from gpuload.store.locks import fcntl
from gpuload.store.transfer import write_at
from gpuload.types import I64, U8

_ABOUT_BYTES = 4096


class PartialFile:
    """The file, memory-mapped.

    memory: of the whole file. size: of the object. tag: the ETag of what lies in it. handle: to write parts with.

    Raises:
        OSError: it cannot be opened. ValueError: it is no such file, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.handle)
        whole = os.fstat(self.handle).st_size
        about = _read_about(os.pread(self.handle, _ABOUT_BYTES, max(whole - _ABOUT_BYTES, 0)))
        self.size, self.parts, self.tag = about
        if whole != self.size + self.parts + 1 + _ABOUT_BYTES:
            raise ValueError(f"{whole:,} bytes")
        self.memory = mmap.mmap(self.handle, whole, access=mmap.ACCESS_READ)

    @staticmethod
    def create(path: Path, size: int, parts: int, tag: str | None, written: Sequence[tuple[int, bytes]]) -> bool:
        """Makes one without parts; False where the ETag is too long for it. written: where bytes of the object begin
        that belong to no part, and these.

        Raises:
            OSError: it cannot be written.
        """
        about = json.dumps({"size": size, "parts": parts, "tag": tag}).encode()
        if len(about) > _ABOUT_BYTES:
            return False
        temporary = path.with_name(f"{path.name}.tmp")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            os.ftruncate(handle, size)
            for at, data in (*written, (size, bytes(parts + 1) + about.ljust(_ABOUT_BYTES))):
                write_at(handle, at, memoryview(data))
            os.fdatasync(handle)
            temporary.rename(path)
        finally:
            os.close(handle)
            temporary.unlink(missing_ok=True)
        return True

    def has(self, number: int) -> bool:
        """Whether a part is here: 0.6 µs. Marks are read by system calls, which do not fail by SIGBUS."""
        return os.pread(self.handle, 1, self.size + number) == b"\1"

    def missing(self, numbers: I64) -> I64:
        """Those of these parts that are not here."""
        missing: I64 = numbers[self._marks()[numbers] != 1]
        return missing

    def count(self) -> int:
        """Parts that are here."""
        return int(np.count_nonzero(self._marks()))

    @property
    def is_checked(self) -> bool:
        """Whether all parts are here, and were compared with the object's SHA-256."""
        return self.has(self.parts)

    def check(self) -> None:
        """To be called before what lies in the file is used, or written: 0.4 µs.

        Raises:
            FormatError: it was truncated since it was opened.
        """
        if (size := os.fstat(self.handle).st_size) != len(self.memory):
            raise FormatError(f"{self.path}: was truncated to {size:,} bytes while it was in use. Open the set anew")

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Writes bytes of the object.

        Raises:
            OSError: they cannot be written. FormatError: as `check`: to write would make a truncated file longer, whose
                memory maps would then show zeros in place of what was lost, and no fault.
        """
        self.check()
        write_at(self.handle, at, memoryview(data))

    def mark(self, numbers: Iterable[int]) -> None:
        """These parts are written: syncs them to the disk, and says that they are here.

        Raises:
            OSError, FormatError: as `write`.
        """
        os.fdatasync(self.handle)
        self.check()
        for number in numbers:
            os.pwrite(self.handle, b"\1", self.size + number)

    def mark_checked(self) -> None:
        self.check()
        os.pwrite(self.handle, b"\1", self.size + self.parts)

    def forget(self) -> None:
        """What lies in the file is wrong: no part is here, and whoever opens the set next makes another file."""
        with suppress(FormatError):
            self.check()
            os.pwrite(self.handle, bytes(self.parts + 1), self.size)
        self.path.unlink(missing_ok=True)

    def _marks(self) -> U8:
        marks = os.pread(self.handle, self.parts, self.size)
        return np.frombuffer(marks.ljust(self.parts, b"\0"), np.uint8)  # the file may have been truncated

    def lock(self, purpose: str) -> "Lock | None":
        """The right to download parts for a purpose; None where another process, or another object of this class, has
        it. What it does not prevent is that parts are downloaded twice, for two purposes, which does no harm."""
        try:
            handle = os.open(self.path.with_suffix(f".{purpose}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # the folder was removed: nobody else opens it any more
            return Lock(None)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return Lock(handle)


class Lock:
    """A lock that is held until `release`."""

    def __init__(self, handle: int | None) -> None:
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            with suppress(OSError):
                fcntl.flock(self._handle, fcntl.LOCK_UN)  # also that of a child, which inherits the handle over fork
            os.close(self._handle)
            self._handle = None


def _read_about(text: bytes) -> tuple[int, int, str | None]:
    """Size, parts and tag.

    Raises:
        ValueError: they are not there.
    """
    found: Any = json.loads(text)
    values = (found.get("size"), found.get("parts"), found.get("tag")) if isinstance(found, dict) else (None,) * 3
    size, parts, tag = values
    if type(size) is not int or type(parts) is not int or size < 0 or parts < 1 or not isinstance(tag, str | None):
        raise ValueError("its end")
    return size, parts, tag
