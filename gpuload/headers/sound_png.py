"""Whether a PNG is sound: its chunks are complete and their checksums are right (W3C PNG, 5 and 11.2)."""

import zlib

from gpuload.headers.png import START
from gpuload.types import HeightWidth

_COLORS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # bit depths of each colour type


def find_fault(data: memoryview, size: HeightWidth | None = None) -> str | None:
    """What is wrong with a PNG that begins with `START`; None if nothing is, and it is of this size.

    size: None for any; then chunks that no pixel depends on may have wrong checksums, as libpng allows.

    Every checksum is computed, which takes 0.1 ms for 100 kB, a fiftieth of the time to decode it. What follows the
    last chunk is not looked at.
    """
    at, stop, has_pixels = len(START), len(data), False
    while at + 12 <= stop:
        length, kind = int.from_bytes(data[at : at + 4], "big"), bytes(data[at + 4 : at + 8])
        end = at + 12 + length
        if end > stop:
            return "it is truncated"
        is_needed = size is not None or not kind[0] & 32
        if is_needed and zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            return f"the checksum of its chunk at byte {at:,} is wrong"
        if at == len(START):
            if kind != b"IHDR" or length != 13 or not _is_header(data[at + 8 : at + 21]):
                return "its header is damaged"
            wide, high = int.from_bytes(data[at + 8 : at + 12], "big"), int.from_bytes(data[at + 12 : at + 16], "big")
            if size is not None and size != (high, wide):
                return "it is not of the size that the index says"
        has_pixels = has_pixels or kind == b"IDAT"
        if kind == b"IEND":
            return None if has_pixels else "it has no pixels"
        at = end
    return "it is truncated"


def _is_header(content: memoryview) -> bool:
    depth, color, compression, filtering, interlacing = content[8:13]
    return depth in _COLORS.get(color, ()) and compression == 0 and filtering == 0 and interlacing <= 1
