"""Reads what the codestream of a JPEG 2000 says of its values (ISO 15444-1, A.5.1 and A.6.1)."""

from typing import NamedTuple

_CODESTREAM = b"\xff\x4f\xff\x51"
_COD = b"\xff\x52"
_BOX = b"\0\0\0\x0cjP  \r\n\x87\n"
_REVERSIBLE = 1


class Jpeg2000Header(NamedTuple):
    """The size segment of an image.

    Attributes:
        components: Channels.
        bits: Of a value, the largest of all components.
        signed: Whether any component may be negative.
        lossless: Whether the transform could be reversed exactly.
    """

    components: int
    bits: int
    signed: bool
    lossless: bool


def read_header(data: bytes) -> Jpeg2000Header | None:
    """The header of a JPEG 2000 file or codestream; None if it is neither."""
    if not data.startswith((_CODESTREAM, _BOX)):
        return None
    begin = data.find(_CODESTREAM)
    size = begin + 4  # of the segment, then 36 bytes before the components
    if begin < 0 or size + 38 > len(data):
        return None
    count = int.from_bytes(data[size + 36 : size + 38], "big")
    depths = data[size + 38 : size + 38 + 3 * count : 3]
    if not depths:
        return None
    bits = max((depth & 127) + 1 for depth in depths)
    style = data.find(_COD, size)
    lossless = style >= 0 and data[style + 13 : style + 14] == bytes([_REVERSIBLE])
    return Jpeg2000Header(count, bits, any(depth & 128 for depth in depths), lossless)
