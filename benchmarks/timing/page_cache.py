"""The page cache: filling it, evicting files from it, and asking what it holds."""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def data_files(folder: Path) -> list[Path]:
    """Every file below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def warm(files: Iterable[Path]) -> None:
    for path in files:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def evict(files: Iterable[Path]) -> None:
    """Asks the kernel to evict these files; needs no root. Pages that a process has mapped stay."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # pages not yet written would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_share(files: Iterable[Path]) -> float:
    """The share of the files' pages that is in memory, 0 to 1."""
    cached = pages = 0
    for path in files:
        size = path.stat().st_size
        if not size:
            continue
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as view,
        ):
            count = -(-size // mmap.PAGESIZE)
            in_cache = (ctypes.c_ubyte * count)()
            start = ctypes.c_char.from_buffer(view)
            if _libc.mincore(ctypes.addressof(start), size, ctypes.addressof(in_cache)):
                raise OSError(ctypes.get_errno(), f"mincore: {path}")
            del start  # otherwise the map could not be closed
            cached += sum(page & 1 for page in in_cache)
            pages += count
    return cached / pages if pages else 0.0
