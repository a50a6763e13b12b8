"""A file's bytes, memory-mapped: a failed read of them is a loader error instead of the end of the process."""

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from gpuload.kernels.loading import kernel
from gpuload.store import Lease
from gpuload.types import U8

_FAILED = ctypes.c_void_p(-1).value

# The protected files by slot. The table of their memory is the handler's (gpuload/kernels/src/bus_errors.c).
_files: dict[int, tuple[Path, object]] = {}
_free_slots: list[int] = []


def install() -> None:
    """Installs the handler of SIGBUS. A further call replaces one that was installed since then, as by `ray.init`."""
    if not _files and not _free_slots:
        _free_slots.extend(range(kernel("range_slots")() - 1, 0, -1))
    kernel("install_bus_handler")()


def protect(path: Path, address: int, size: int, owner: object) -> int:
    """Protects the memory that a file is mapped to, until `release`.

    Args:
        path: Of the file.
        address: Of the memory.
        size: Of the file in bytes.
        owner: The object that queries its faults.

    Returns:
        Its slot, or 0 if none is free.
    """
    if not _free_slots:
        return 0
    slot = _free_slots.pop()
    _files[slot] = path, owner
    end = address + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    kernel("protect_range")(slot, address, end)
    return slot


def release(slot: int) -> None:
    """Ends the protection, before the memory is reused."""
    if slot:
        kernel("release_range")(slot)
        _files.pop(slot, None)
        _free_slots.append(slot)


def count() -> int:
    """Number of faults of all protected files so far."""
    return int(kernel("count_bus_faults")())


def find_fault(owner: object) -> tuple[Path, int] | None:
    """An unreadable file of this owner that is still protected, and the byte of the fault."""
    # A copy takes no object that the garbage collector counts: a list of items might start it, and mappings among the
    # garbage are released then.
    for slot, (path, its_owner) in _files.copy().items():
        if its_owner is not owner:
            continue
        byte = int(kernel("bus_fault_of")(slot))
        if byte >= 0:
            return path, byte
    return None


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    *[ctypes.c_int] * 3,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class MappedFile:
    """A file that stays mapped as long as an array of its bytes exists.

    Python's own `mmap` keeps a file handle for each mapping, and a process has 1,024 by default: a window of a thousand
    shards would not fit.

    Args:
        lease: The file.
        owner: The object that queries `gpuload.read.mapped_file` for its faults.

    Attributes:
        data: uint8 (size,), read-only.
        stamp: The file's `os.stat`.

    Raises:
        OSError: it cannot be opened or mapped.
    """

    def __init__(self, lease: Lease, owner: object) -> None:
        with lease.open() as file:
            handle = file.fileno()
            self.stamp = os.fstat(handle)
            size = self.stamp.st_size
            address = (
                _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
                if size
                else 0
            )
            if address == _FAILED:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        memory = _Memory(address, size)
        if size:
            slot = protect(lease.path, address, size, owner)
            # Not at the interpreter's end, when threads may still be reading.
            weakref.finalize(memory, _unmap, address, size, slot).atexit = False
        self.data: U8 = np.asarray(memory)


class _Memory:
    """The object that arrays reference."""

    def __init__(self, address: int, size: int) -> None:
        about = {
            "data": (address, True),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }
        self.__array_interface__: dict[str, Any] = about


def _unmap(address: int, size: int, slot: int) -> None:
    release(slot)
    _libc.munmap(address, size)
