"""Reads a PNG strictly: whether every decoder decodes it to the same image, and whether it is sound.

A plain PNG has 8 bits, is gray or RGB, a single image, and upright. Decoders differ on palettes, transparency, 16 bits,
animation, rotation and interlacing; files with these are re-encoded. A sound one has complete chunks with right
checksums (W3C PNG, 5 and 11.2).
"""

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from gpuload.types import HeightWidth

START = b"\x89PNG\r\n\x1a\n"
OTHER_SIZE = "it is not of the size that the index says"

SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel, by colour type

_GRAY = 0
_RGB = 2
_PALETTE = 3
_HEADER_BYTES = 33  # the signature and the first chunk
_NOT_PLAIN = frozenset({b"tRNS", b"eXIf", b"acTL"})  # transparency, rotation, animation
_TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})


class PngHeader(NamedTuple):
    """What the chunks of a PNG say.

    Attributes:
        width: In pixels.
        height: In pixels.
        depth: Bits of a sample.
        color: Colour type: 0 gray, 2 RGB, 3 palette, 4 and 6 with alpha.
        alike: Whether all decoders decode it alike at this depth and colour: it is not interlaced, has a single frame,
            and nothing rotates it or makes a colour transparent.
    """

    width: int
    height: int
    depth: int = 0
    color: int = 0
    alike: bool = False

    @property
    def row_bytes(self) -> int:
        """Of a row as it is compressed, with the byte that tells its filter; not of interlaced images."""
        return 1 + (self.width * self.depth * SAMPLES.get(self.color, 1) + 7) // 8

    @property
    def plain(self) -> bool:
        return self.alike and self.depth == 8 and self.color in (_GRAY, _RGB)


def read_header(data: bytes) -> PngHeader:
    """Reads all chunks without decompressing their pixels.

    Args:
        data: Content of the file, which begins with `START`.
    """
    width = int.from_bytes(data[16:20], "big")
    height = int.from_bytes(data[20:24], "big")
    header = PngHeader(width, height, *data[24:26])
    # Bit depth, colour type, compression, filter, interlacing: PNG specification, 11.2.2.
    if len(data) < _HEADER_BYTES or data[12:16] != b"IHDR" or data[26:29] != bytes(3):
        return header
    for kind, begin, end in chunks(data):
        if kind in _NOT_PLAIN:
            break
        if kind in _TEXTS and _may_turn(kind, data[begin:end]):
            break
        if kind == b"IEND":
            return header._replace(alike=end == len(data))
    return header


def has_indices(data: bytes) -> bool:
    """Whether a PNG stores indices of a palette, or gray of fewer than 8 bits.

    Args:
        data: Content of the file, which begins with `START`.
    """
    depth, color = (*data[24:26], 8, _GRAY)[:2]
    return color == _PALETTE or (color == _GRAY and depth < 8)


def _may_turn(kind: bytes, chunk: bytes) -> bool:
    """Whether a chunk of text may rotate the image, by XMP or by Exif data as ImageMagick writes them. Pillow applies
    that, others do not. What is compressed is not looked into."""
    if b"rientation" in chunk or b"Raw profile type exif" in chunk:
        return True
    return kind != b"tEXt" and b"xmp" in chunk.lower()


def has_chunk(data: bytes, wanted: bytes) -> bool:
    """Whether a PNG has a chunk of this kind."""
    return any(kind == wanted for kind, _, _ in chunks(data))


def chunks(data: bytes | memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Kind, begin and end of each chunk; the end of the last one may be beyond the data."""
    begin = len(START)
    while begin + 12 <= len(data):
        end = begin + 12 + int.from_bytes(data[begin : begin + 4], "big")
        yield bytes(data[begin + 4 : begin + 8]), begin, end
        begin = end


# Bit depths of each colour type.
_COLORS = {
    0: (1, 2, 4, 8, 16),
    2: (8, 16),
    3: (1, 2, 4, 8),
    4: (8, 16),
    6: (8, 16),
}


def find_fault(data: memoryview, size: HeightWidth | None = None) -> str | None:
    """What is wrong with a PNG; None if nothing is, and it has the size that is asked for.

    Every checksum is computed, which takes 0.1 ms for 100 kB, a fiftieth of the time to decode it. What follows the
    last chunk is not looked at.

    Args:
        data: Content of the file, which begins with `START`.
        size: (height, width) in pixels; then chunks that no pixel depends on may have wrong checksums, as libpng
            allows, and text may rotate the image. None: any.
    """
    has_pixels = False
    for kind, begin, end in chunks(data):
        if end > len(data):
            break
        chunk = data[begin:end]
        is_needed = size is not None or not kind[0] & 32
        if is_needed and not _has_its_checksum(chunk):
            return f"the checksum of its chunk at byte {begin:,} is wrong"
        if begin == len(START):
            fault = _header_fault(kind, chunk, size)
            if fault is not None:
                return fault
        if size is not None and kind in _TEXTS and _may_turn(kind, bytes(chunk)):
            return "its text may rotate it"
        has_pixels = has_pixels or kind == b"IDAT"
        if kind == b"IEND":
            return None if has_pixels else "it has no pixels"
    return "it is truncated"


def _has_its_checksum(chunk: memoryview) -> bool:
    return zlib.crc32(chunk[4:-4]) == int.from_bytes(chunk[-4:], "big")


def _header_fault(
    kind: bytes, chunk: memoryview, size: HeightWidth | None
) -> str | None:
    """What is wrong with the first chunk of a PNG.

    Args:
        size: That it must tell; None for any.
    """
    if kind != b"IHDR" or len(chunk) != 25 or not _is_header(chunk[8:21]):
        return "its header is damaged"
    width = int.from_bytes(chunk[8:12], "big")
    height = int.from_bytes(chunk[12:16], "big")
    if size is not None and size != (height, width):
        return OTHER_SIZE
    return None


def _is_header(content: memoryview) -> bool:
    depth, color, compression, filtering, interlacing = content[8:13]
    return (
        depth in _COLORS.get(color, ())
        and compression == 0
        and filtering == 0
        and interlacing <= 1
    )
