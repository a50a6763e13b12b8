"""Reads the size of a JPEG XL (ISO 18181-1, D.2, and 18181-2 for its boxes)."""

from collections.abc import Iterator

from gpuload.types import WidthHeight

_CODESTREAM = b"\xff\x0a"
_BOXES = b"\0\0\0\x0cJXL \r\n\x87\n"
STARTS = (_CODESTREAM, _BOXES)

_BITS_OF_SIDE = (9, 13, 18, 30)
# The width in parts of the height, by the ratio that stands for it; 0 is a width of its own.
_RATIOS = {
    1: (1, 1),
    2: (12, 10),
    3: (4, 3),
    4: (3, 2),
    5: (16, 9),
    6: (5, 4),
    7: (2, 1),
}
_MOST_HEADER_BYTES = 16
_BOX_BYTES = 8


def read_size(data: bytes) -> WidthHeight | None:
    """(width, height) as stored; None where there is no header."""
    stream = data if data.startswith(_CODESTREAM) else _codestream(data)
    if not stream.startswith(_CODESTREAM) or len(stream) <= len(_CODESTREAM):
        return None
    bits = _Bits(stream[len(_CODESTREAM) : _MOST_HEADER_BYTES])
    is_small = bits.read(1)
    height = _side(bits, is_small)
    ratio = bits.read(3)
    if ratio == 0:
        return _side(bits, is_small), height
    of_width, of_height = _RATIOS[ratio]
    return height * of_width // of_height, height


def _side(bits: "_Bits", is_small: int) -> int:
    if is_small:
        return 8 * (bits.read(5) + 1)
    return bits.read(_BITS_OF_SIDE[bits.read(2)]) + 1


class _Bits:
    """Reads bits, the lowest of a byte first."""

    def __init__(self, data: bytes) -> None:
        self._number = int.from_bytes(data, "little")

    def read(self, count: int) -> int:
        value = self._number & ((1 << count) - 1)
        self._number >>= count
        return value


def _codestream(data: bytes) -> bytes:
    """The beginning of the codestream in a file of boxes; b"" where there is none."""
    for kind, begin in _boxes(data):
        if kind == b"jxlc":
            return data[begin : begin + _MOST_HEADER_BYTES]
        if kind == b"jxlp":  # a part of it, behind its number
            return data[begin + 4 : begin + 4 + _MOST_HEADER_BYTES]
    return b""


def _boxes(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The kind of each box, and where its content begins."""
    place = 0
    while place + _BOX_BYTES <= len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        kind = data[place + 4 : place + _BOX_BYTES]
        head = _BOX_BYTES
        if size == 1:  # its size is in the next 8 bytes
            size = int.from_bytes(data[place + 8 : place + 16], "big")
            head = 2 * _BOX_BYTES
        yield kind, place + head
        if size < head:
            return
        place += size
