"""PNGs in memory: seek points, and streams that are divided at them.

Points are stored as png.h says: the row and the byte of the file at which decoding may begin, both as uint32, of each;
then a checksum. All numbers are little-endian.
"""

import struct
import threading
import zlib
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpuload.headers import png
from gpuload.kernels.jpeg import Scratch
from gpuload.kernels.loading import kernel

_NO_MEMORY = -2
_MOST_BYTES = 1 << 32
_FLUSH = b"\0\0\xff\xff"  # how an empty stored block ends
_FILTERS_OF_ONE_ROW = (b"\0", b"\1")  # None and Sub, which need no row above
_INTERLACING = 28  # the byte of the file
# A stream grows by a fifth at most, and by a thousand bytes for each segment.
_GROWTH = 5
_SEGMENT_BYTES = 1000


class _Thread(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch("png_scratch_bytes")


_thread = _Thread()


def with_points(data: bytes, apart: int) -> tuple[bytes, bytes] | None:
    """A PNG of the same pixels with seek points, and these.

    Its chunks stay, but for those with pixels: each of these has the rows between two points.

    Args:
        data: The file.
        apart: Rows from one point to the next, a multiple of 4.

    Returns:
        None where the file has a fault, is interlaced, or has pixels that are not decoded by kernels.
    """
    segments = _segments(data, apart)
    if segments is None:
        return None
    places = [(begin, end) for kind, begin, end in png.chunks(data) if kind == b"IDAT"]
    begin = places[0][0]
    end = places[-1][1]
    file = [data[:begin]]
    points = []
    chunk_start = begin
    for number, segment in enumerate(segments):
        if number > 0:
            points.append((number * apart, chunk_start + 8))
        chunk = b"IDAT" + segment
        file += [struct.pack(">I", len(segment)), chunk, _big(zlib.crc32(chunk))]
        chunk_start += len(segment) + 12
    file.append(data[end:])
    written = b"".join(file)
    return (
        (written, _stored(points, len(written))) if chunk_start < _MOST_BYTES else None
    )


def find_points(data: bytes) -> bytes:
    """The seek points of a PNG; b"" where it has none, or a fault."""
    try:
        return _stored(_find(data), len(data))
    except (zlib.error, struct.error, IndexError, ValueError):
        return b""


def _segments(data: bytes, apart: int) -> list[bytes] | None:
    height = png.read_header(data).height
    ends = np.zeros(height // apart + 1, np.int64)
    room = len(data) + len(data) // _GROWTH + _SEGMENT_BYTES * len(ends)
    stream = np.empty(room, np.uint8)
    places = (stream.ctypes.data, room, ends.ctypes.data)
    number = kernel("divide_png")(
        data, len(data), apart, _thread.scratch.address, *places
    )
    if number == _NO_MEMORY:
        raise MemoryError
    if number <= 0:
        return None
    bounds = [0, *ends[:number].tolist()]
    return [stream[begin:end].tobytes() for begin, end in pairwise(bounds)]


def _big(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _stored(points: list[tuple[int, int]], file_bytes: int) -> bytes:
    if not points:
        return b""
    content = b"".join(struct.pack("<II", *point) for point in points)
    checksum = zlib.crc32(content) ^ zlib.crc32(struct.pack("<Q", file_bytes))
    return content + struct.pack("<I", checksum)


class _Pixels(NamedTuple):
    """The compressed pixels of a PNG.

    Attributes:
        stream: What its chunks of pixels hold, in one piece.
        places: Where each of these begins in the stream, and in the file.
    """

    stream: bytes
    places: list[tuple[int, int]]

    def in_file(self, byte: int) -> int:
        """The byte of the file that is this one of the stream."""
        begin, place = next(pair for pair in reversed(self.places) if pair[0] <= byte)
        return place + byte - begin


def _read_pixels(data: bytes) -> _Pixels:
    parts: list[bytes] = []
    places = []
    stream_bytes = 0
    for kind, begin, end in png.chunks(data):
        if kind == b"IDAT":
            places.append((stream_bytes, begin + 8))
            parts.append(data[begin + 8 : end - 4])
            stream_bytes += len(parts[-1])
    return _Pixels(b"".join(parts), places)


def _find(data: bytes) -> list[tuple[int, int]]:
    header = png.read_header(data)
    if not header.alike or data[_INTERLACING] or len(data) >= _MOST_BYTES:
        return []
    pixels = _read_pixels(data)
    if _FLUSH not in pixels.stream:
        return []
    rows, flushes = _read_flushes(pixels.stream, header)
    points = []
    end = len(pixels.stream)
    end_of_rows = len(rows)
    for row, flush_end in reversed(flushes):
        begin_of_rows = row * header.row_bytes
        expected = rows[begin_of_rows:end_of_rows]
        if expected[:1] in _FILTERS_OF_ONE_ROW and _gives(
            pixels.stream[flush_end:end], expected
        ):
            points.append((row, pixels.in_file(flush_end)))
            end = flush_end
            end_of_rows = begin_of_rows
    return points[::-1]


def _read_flushes(
    stream: bytes, header: png.PngHeader
) -> tuple[bytes, list[tuple[int, int]]]:
    """The filtered rows, and what may be a flush between two of them: the row and the byte after it."""
    decompressor = zlib.decompressobj()
    parts = []
    number = 0
    flushes = []
    begin = 0
    while (flush := stream.find(_FLUSH, begin)) >= 0:
        end = flush + len(_FLUSH)
        parts.append(decompressor.decompress(stream[begin:end]))
        number += len(parts[-1])
        row, rest = divmod(number, header.row_bytes)
        if rest == 0 and 0 < row < header.height:
            flushes.append((row, end))
        begin = end
    parts.append(decompressor.decompress(stream[begin:]))
    return b"".join(parts), flushes


def _gives(stream: bytes, expected: bytes) -> bool:
    """Whether deflate blocks give these bytes, without any before them."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stream) == expected
    except zlib.error:
        return False
