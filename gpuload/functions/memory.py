"""Shared memory of two processes, for the pixels of one sample at a time."""

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuload.types import Array

_ALIGNED = 64


class Place(NamedTuple):
    """Where an array lies in the memory."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    at: int


class SharedMemory:
    """A mapped anonymous file. It grows as needed, and disappears with the last process that has it open.

    fd: of the file, which this owns; None: makes one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("gpuload", os.MFD_CLOEXEC) if fd is None else fd
        self.size = 0
        self._map: Any = None

    def reach(self, size: int) -> None:
        """Maps at least `size` bytes; earlier arrays stay valid."""
        if size <= self.size:
            return
        found = os.fstat(self.fd).st_size
        if found < size:
            found = max(size, 2 * found)
            os.ftruncate(self.fd, found)
        self._map, self.size = np.frombuffer(mmap.mmap(self.fd, found), np.uint8), found

    def write(self, arrays: Mapping[str, Array], at: int = 0) -> tuple[list[Place], int]:
        """Copies arrays into the memory, starting at `at`; arrays that already lie in it are not copied. Returns their
        places, and the end of the last."""
        places = []
        for name, array in arrays.items():
            if (here := self._place_of(array)) is not None:
                places.append(Place(name, array.shape, array.dtype.str, here))
                continue
            self.reach(at + array.nbytes)
            places.append(Place(name, array.shape, array.dtype.str, at))
            self.array(places[-1])[...] = array
            at += -(-array.nbytes // _ALIGNED) * _ALIGNED
        return places, at

    def array(self, place: Place) -> Array:
        """The array at a place, in this memory."""
        size = int(np.prod(place.shape)) * np.dtype(place.dtype).itemsize
        self.reach(place.at + size)
        found: Array = self._map[place.at : place.at + size].view(place.dtype).reshape(place.shape)
        return found

    def arrays(self, places: Sequence[Place]) -> dict[str, Array]:
        """The arrays at some places, by name."""
        return {place.name: self.array(place) for place in places}

    def close(self) -> None:
        """Closes the file; arrays stay valid."""
        os.close(self.fd)

    def _place_of(self, array: Array) -> int | None:
        """Where a contiguous array begins in this memory, if it does."""
        if self._map is None or not array.flags.c_contiguous:
            return None
        at: int = array.ctypes.data - self._map.ctypes.data
        return at if at >= 0 and at + array.nbytes <= self.size else None
