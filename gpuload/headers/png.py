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
    """Width and height in pixels; whether the file is plain."""

    width: int
    height: int
    plain: bool


def read_header(data: bytes) -> PngHeader:
    """Reads all chunks without decompressing their pixels; `data` must start with `START`."""
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    not_plain = PngHeader(width, height, False)
    # Bit depth, colour type, compression, filter, interlacing: PNG specification, 11.2.2.
    if (
        len(data) < _HEADER_BYTES
        or data[12:16] != b"IHDR"
        or data[24] != 8
        or data[25] not in (_GRAY, _RGB)
        or data[26:29] != bytes(3)
    ):
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
            return PngHeader(width, height, end == len(data))
        at = end
    return not_plain
