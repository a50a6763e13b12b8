"""The header of a PNG, read strictly: is this a file that every decoder shows alike?

Plain is 8 bits, gray or RGB, one picture, upright. Palettes, transparency, 16 bits, animation, rotation and interlacing
are what decoders differ on; such files are stored anew.
"""

from typing import NamedTuple

START = b"\x89PNG\r\n\x1a\n"

_GRAY, _RGB = 0, 2
_MEANINGFUL = frozenset({b"tRNS", b"eXIf", b"acTL"})  # transparency, rotation, animation
_TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})


class PngHeader(NamedTuple):
    """Size in pixels; whether the file is plain."""

    width: int
    height: int
    plain: bool


def read_header(data: bytes) -> PngHeader:
    """Walks the chunks from end to end, without their pixels; `data` starts with `START`."""
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    odd = PngHeader(width, height, False)
    # Bit depth, colour type, compression, filter, interlacing: PNG specification, 11.2.2.
    if data[12:16] != b"IHDR" or data[24] != 8 or data[25] not in (_GRAY, _RGB) or data[26:29] != bytes(3):
        return odd
    at = len(START)
    while at + 12 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        end = at + 12 + length
        if kind in _MEANINGFUL:
            return odd
        if kind in _TEXTS and (b"rientation" in data[at:end] or (kind != b"tEXt" and b"xmp" in data[at:end].lower())):
            return odd  # XMP may turn the image, and Pillow heeds it
        if kind == b"IEND":
            return PngHeader(width, height, end == len(data))
        at = end
    return odd
