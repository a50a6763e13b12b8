"""The system's libturbojpeg, where there is one: many JPEGs in one call, without Python's lock.

simplejpeg, which everybody has, is the same library behind a call an image, and of small images its threads mostly wait
for Python's lock: 64×64 take 20 µs an image in one thread and 17 in two, here 18 and 12 (2 cores, 2026-11). On Debian
and Ubuntu `apt install libturbojpeg0` brings it, else conda's or Homebrew's jpeg-turbo.
"""

import ctypes
import sys
import weakref
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from numba import types

from gpuload.compiled import kept

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_NAMES = {"linux": "libturbojpeg.so.0", "darwin": "libturbojpeg.dylib"}

# https://rawcdn.githack.com/libjpeg-turbo/libjpeg-turbo/main/doc/turbojpeg: of version 2, which version 3 still has.
_POINTER, _ULONG, _INT = types.intp, types.ulong, types.intc
_SYMBOLS = {
    "tjDecompressHeader3": (_INT, _POINTER, _POINTER, _ULONG, _POINTER, _POINTER, _POINTER, _POINTER),
    "tjDecompress2": (_INT, _POINTER, _POINTER, _ULONG, _POINTER, _INT, _INT, _INT, _INT, _INT),
}
_read_header, _decompress = (
    types.ExternalFunction(f"gpuload_{name}", returned(*given)) for name, (returned, *given) in _SYMBOLS.items()
)
_RGB = 0  # TJPF_RGB
_NO_FLAGS = 0  # exact: the slow inverse DCT, and chroma that is interpolated


@cache
def find() -> ctypes.CDLL | None:
    """The library, or None. That of a virtual or conda environment goes first."""
    if (name := _NAMES.get(sys.platform)) is None:
        return None
    for path in (str(Path(sys.prefix, "lib", name)), name, f"/opt/homebrew/lib/{name}"):
        try:
            library = ctypes.CDLL(path)
            library.tjInitDecompress.restype = ctypes.c_void_p
            library.tjDestroy.argtypes = [ctypes.c_void_p]
            # Under names of our own: another library in this process may have functions of the same names.
            for symbol in _SYMBOLS:
                llvm.add_symbol(f"gpuload_{symbol}", ctypes.cast(library[symbol], ctypes.c_void_p).value)
        except (OSError, AttributeError):
            continue
        spans, numbers = np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
        _decode(0, spans, numbers, numbers.astype(np.bool_), 0, np.zeros((0, 7), np.int64))  # loads it
        return library
    return None


class TurboJpeg:
    """One decompressor, for one thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._handle = library.tjInitDecompress()
        weakref.finalize(self, library.tjDestroy, self._handle).atexit = False  # the process takes it along

    def decode(self, spans: I64, factors: I64, skipped: Bools, memory: int, pictures: I64) -> None:
        """RGB or gray JPEGs to RGB, each into its part of the memory, where 3 × height × width bytes are for it.

        spans: int64 (N, 2), address and number of bytes of each. factors: int64 (N,), 1, 2, 4 or 8: decoded at 1/factor
        of its size. skipped: bool (N,), what not to decode. pictures: int64 (N, 7), with the height and width that the
        index says; an image that is of this size, and decodes without any complaint, gets its row as
        `gpuload.resampling.resample` takes it.
        """
        _decode(self._handle, spans, factors, skipped, memory, pictures)


@kept
def _decode(handle: int, spans: I64, factors: I64, skipped: Bools, memory: int, pictures: I64) -> None:
    header = np.empty(4, np.intc)  # width, height, subsampling, colours
    at = header.ctypes.data
    for image in range(len(spans)):
        data, size = spans[image, 0], np.uint64(spans[image, 1])
        height, width, factor = pictures[image, 1], pictures[image, 2], factors[image]
        if (
            pictures[image, 0] == 0
            and not skipped[image]
            and _read_header(handle, data, size, at, at + 4, at + 8, at + 12) == 0
            and header[0] == width
            and header[1] == height
        ):
            low, narrow = -(-height // factor), -(-width // factor)
            if _decompress(handle, data, size, memory, narrow, 3 * narrow, low, _RGB, _NO_FLAGS) == 0:
                row = pictures[image]
                row[0], row[1], row[2], row[3], row[4], row[5], row[6] = memory, low, narrow, 3 * narrow, 0, 0, factor
        memory += 3 * height * width
