"""A file's bytes, memory-mapped."""

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.machine.untrusted import open_regular
from gpuload.read import bus_errors
from gpuload.types import U8

_FAILED = ctypes.c_void_p(-1).value


def _open_libc() -> Any:
    """The C library with mmap and munmap; None on a system where the process has none (Windows)."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    except (TypeError, AttributeError, OSError):
        return None
    return libc


_libc = _open_libc()


class MappedFile:
    """A file that stays mapped as long as an array of its bytes exists.

    Python's own `mmap` keeps a file handle for each mapping, and a process has 1,024 by default: a window of a thousand
    shards would not fit. It is used only on systems without mmap in the C library.

    owner: the object that queries `gpuload.read.bus_errors` for its faults. data: uint8 (size,), read-only. stamp: the
    file's `os.stat`. keep: an object that is kept alive as long as the file is mapped.

    Raises:
        OSError: it cannot be opened or mapped.
    """

    def __init__(self, path: Path, owner: object, keep: object = None) -> None:
        with open_regular(path) as file:
            handle = file.fileno()
            self.stamp = os.fstat(handle)
            size = self.stamp.st_size
            if _libc is None and size:  # the array keeps the mapping, and that a file handle
                self.data: U8 = np.frombuffer(mmap.mmap(handle, size, access=mmap.ACCESS_READ), np.uint8)
                return
            address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0) if size else 0
            if address == _FAILED:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        slot = bus_errors.protect(path, address, size, owner) if size else 0
        memory = _Memory(address, size, keep)
        if size:
            # Not at the interpreter's end, when threads may still be reading.
            weakref.finalize(memory, _unmap, address, size, slot).atexit = False
        self.data = np.asarray(memory)


class _Memory:
    """The object that arrays reference."""

    def __init__(self, address: int, size: int, keep: object) -> None:
        self.keep = keep
        about = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}
        self.__array_interface__: dict[str, Any] = about


def _unmap(address: int, size: int, slot: int) -> None:
    bus_errors.release(slot)
    _libc.munmap(address, size)
