"""Writes the file of a shard: hashed on the way, with one system call per sample, and early write-back to disk."""

import ctypes
import hashlib
import os
from pathlib import Path

_MOST_PARTS = 1024  # Linux's IOV_MAX, the most buffers of one writev
_WRITE_BACK_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class ShardFile:
    """A new file. The buffers given to `write` are kept until `flush` hands them to the kernel without copying."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._hash = hashlib.sha256()
        self._parts: list[bytes] = []
        self._size = 0
        self._write_back_end = 0  # write-back of the bytes before this one was started

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._parts.append(data)

    def flush(self) -> None:
        """Hands all kept buffers to the kernel.

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
        new_bytes = self._size - self._write_back_end
        if new_bytes >= _WRITE_BACK_BYTES:
            # The disk writes while the next images are checked, so that the final fsync has little to wait for. It is
            # only a hint: fsync writes the rest, and reports errors.
            _LIBC.sync_file_range(self._descriptor, self._write_back_end, new_bytes, _SYNC_FILE_RANGE_WRITE)
            self._write_back_end = self._size

    def finish(self) -> None:
        """Waits until everything is on disk.

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
