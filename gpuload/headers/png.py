"""Reads the header of a PNG strictly, to find out whether every decoder decodes the file to the same image.

A plain PNG has 8 bits, is gray or RGB, a single image, and upright. Decoders differ on palettes, transparency, 16 bits,
animation, rotation and interlacing; files with these are re-encoded.
"""

from typing import NamedTuple

START = b"\x89PNG\r\n\x1a\n"

_GRAY, _RGB = 0, 2
_HEADER_BYTES = 33  # the signature and the first chunk
_NOT_PLAIN = frozenset({b"tRNS", b"eXIf", b"acTL"})  # transparency, rotation, animation
_TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})


class PngHeader(NamedTuple):
    """Width and height in pixels; whether the file is plain.

    depth, color: bits of a sample, and colour type: 0 gray, 2 RGB, 3 palette, 4 and 6 with alpha. alike: whether all
    decoders decode it alike at this depth and colour: it is not interlaced, has a single frame, and nothing rotates it
    or makes a colour transparent.
    """

    width: int
    height: int
    plain: bool
    depth: int = 0
    color: int = 0
    alike: bool = False


def read_header(data: bytes) -> PngHeader:
    """Reads all chunks without decompressing their pixels; `data` must start with `START`."""
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    not_plain = PngHeader(width, height, False, *data[24:26])
    # Bit depth, colour type, compression, filter, interlacing: PNG specification, 11.2.2.
    if len(data) < _HEADER_BYTES or data[12:16] != b"IHDR" or data[26:29] != bytes(3):
        return not_plain
    at = len(START)
    while at + 12 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + 12 + length
        if kind in _NOT_PLAIN:
            return not_plain
        if kind in _TEXTS and (b"rientation" in data[at:end] or (kind != b"tEXt" and b"xmp" in data[at:end].lower())):
            return not_plain  # XMP may rotate the image, which Pillow applies
        if kind == b"IEND":
            alike = end == len(data)
            plain = alike and data[24] == 8 and data[25] in (_GRAY, _RGB)
            return PngHeader(width, height, plain, data[24], data[25], alike)
        at = end
    return not_plain
