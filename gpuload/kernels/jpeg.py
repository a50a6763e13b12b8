"""JPEGs in memory: seek points, and headers that every decoder takes."""

import threading

import numpy as np

from gpuload.kernels.loading import kernel
from gpuload.types import I8, I32, I64

# What `check_jpegs` finds.
SOUND, NO_JPEG, BAD_HEADER, NO_END, OTHER_SIZE, TURNED_BY_XMP, UNMARKED_CMYK = range(7)
_NO_MEMORY = -2
_CACHE_LINE = 64  # bytes


class Scratch:
    """The memory of a thread that decodes: tables, and what it has read.

    Args:
        name: Of the kernel that says its size.
    """

    def __init__(self, name: str = "jpeg_scratch_bytes") -> None:
        self._memory = np.zeros(kernel(name)() + _CACHE_LINE, np.uint8)
        self.address: int = -(-self._memory.ctypes.data // _CACHE_LINE) * _CACHE_LINE


class ThreadScratch(threading.local):
    """A `Scratch` for each thread.

    Args:
        name: Of the kernel that says its size.
    """

    def __init__(self, name: str) -> None:
        self.scratch = Scratch(name)


_thread = ThreadScratch("jpeg_scratch_bytes")


def find_points(
    data: bytes, height: int, width: int, most_share: float = 0.01
) -> bytes | None:
    """The seek points of a JPEG, as the index holds them (docs/format.md), as dense as `most_share` allows.

    All of its coded pixels are read.

    Args:
        data: The file.
        height: Of the image in pixels, as the index gives it.
        width: The same.
        most_share: Of the bytes of the file, for the points.

    Returns:
        The points; b"" where there is no room for any, or where there are restart markers within rows. None where the
        file has a fault, is of another size or of a kind that is not decoded here.
    """
    points = np.zeros(int(most_share * len(data)), np.uint8)
    image = (data, len(data), _thread.scratch.address, height, width)
    written = kernel("find_points")(*image, points.ctypes.data, len(points))
    if written == _NO_MEMORY:
        raise MemoryError
    return None if written < 0 else points[:written].tobytes()


def points_hold(data: bytes, points: bytes, height: int, width: int) -> bool:
    """Whether these are points of a JPEG of this size. All of its coded pixels are read.

    Args:
        data: The file.
        points: As the index holds them (docs/format.md).
        height: Of the image in pixels, as the index gives it.
        width: The same.
    """
    image = (data, len(data), _thread.scratch.address, height, width)
    holds = kernel("points_hold")(*image, points, len(points))
    if holds == _NO_MEMORY:
        raise MemoryError
    return bool(holds)


def check_jpegs(spans: I64, heights: I32, widths: I32) -> I8:
    """Whether JPEGs in memory are sound as far as can be told without decoding them, by libjpeg's rules (ITU-T T.81,
    annex B), of the right size, and shown by DALI as by Pillow.

    Args:
        spans: int64 (N, 2), address and size in bytes of each file.
        heights: int32 (N,), that the images should have, upright.
        widths: The same.

    Returns:
        int8 (N,): SOUND, or NO_JPEG, BAD_HEADER, NO_END, OTHER_SIZE, TURNED_BY_XMP or UNMARKED_CMYK.
    """
    spans = np.ascontiguousarray(spans, np.int64)
    heights = np.ascontiguousarray(heights, np.int32)
    widths = np.ascontiguousarray(widths, np.int32)
    results = np.empty(len(spans), np.int8)
    addresses = (spans.ctypes.data, heights.ctypes.data, widths.ctypes.data)
    kernel("check_jpegs")(*addresses, len(spans), results.ctypes.data)
    return results


def exif_orientation(segment: bytes) -> int:
    """The orientation in an APP1 segment of Exif: 1 to 8, 1 where it has none, 0 where readers may differ on it."""
    if not segment.startswith(b"Exif\0\0"):
        return 0
    tiff = segment[6:]
    # Without what some readers pass over.
    orientation = int(kernel("exif_orientation")(tiff, len(tiff))) & 15
    return orientation if orientation <= 8 else 0
