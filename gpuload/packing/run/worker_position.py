"""Where a worker is, in a file that outlives it: the pages of a file survive a process that is killed."""

import mmap
import os
import struct
from pathlib import Path

_LAYOUT = struct.Struct("<qq")
NOWHERE = -1  # no sample is being worked on: the shard is being closed


class WorkerPosition:
    """Position in the shard of the sample that its worker is at, and the bytes that it has read so far.

    A map of the file: 0.1 µs a sample, where a system call takes 0.8.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Written, not only lengthened: a page that finds no room on the disk would be SIGBUS, this is an OSError.
            os.pwrite(descriptor, _LAYOUT.pack(NOWHERE, 0), 0)
            self._map = mmap.mmap(descriptor, _LAYOUT.size)
        finally:
            os.close(descriptor)

    def write(self, position: int, read_bytes: int) -> None:
        _LAYOUT.pack_into(self._map, 0, position, read_bytes)

    def __enter__(self) -> "WorkerPosition":
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()


def read_position(path: Path) -> tuple[int, int]:
    """Position in the shard of the sample that its worker is at, or NOWHERE, and bytes read so far."""
    try:
        position, read_bytes = _LAYOUT.unpack(path.read_bytes())
    except (OSError, struct.error):
        return NOWHERE, 0
    return position, read_bytes
