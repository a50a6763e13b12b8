"""The file of a shard while it is written: hashed as it goes, one system call a sample, soon on its way to the disk."""

import ctypes
import hashlib
import os
from pathlib import Path

_MOST_PARTS = 1024  # of one writev: IOV_MAX of Linux
_START_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class ShardFile:
    """A new file. What is given to `write` is kept until `flush`, and goes to the kernel from where it lies."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._hash = hashlib.sha256()
        self._parts: list[bytes] = []
        self._size = 0
        self._started = 0

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._parts.append(data)

    def flush(self) -> None:
        """Hands what was written to the kernel.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        parts, self._parts = self._parts, []
        while parts:
            written = os.writev(self._descriptor, parts[:_MOST_PARTS])
            self._size += written
            while parts and written >= len(parts[0]):
                written -= len(parts.pop(0))
            if written:
                parts[0] = parts[0][written:]
        if self._size - self._started >= _START_BYTES:
            # The disk writes while the next images are checked, so that at the end fsync has little to wait for. A hint
            # only: what it could not do, fsync does, or says.
            _LIBC.sync_file_range(self._descriptor, self._started, self._size - self._started, _SYNC_FILE_RANGE_WRITE)
            self._started = self._size

    def finish(self) -> None:
        """Waits until all is on the disk.

        Raises:
            OSError: it cannot be written.
        """
        self.flush()
        os.fsync(self._descriptor)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def __enter__(self) -> "ShardFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
