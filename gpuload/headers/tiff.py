"""Reads the header of a TIFF strictly (TIFF 6.0): its size, and whether its strips or tiles lie in the file."""

from typing import Literal

from gpuload.headers.sized import Sized

_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)  # bytes of a value by its type, from BYTE (1) to DOUBLE (12)
_WHOLE = (1, 3, 4)  # BYTE, SHORT and LONG
_MOST_PARTS = 1 << 20
_WIDTH, _HEIGHT, _ORIENTATION = 256, 257, 274
_PARTS = ((273, 279), (324, 325))  # offsets and sizes of strips, of tiles


def is_tiff(data: memoryview) -> bool:
    return bytes(data[:4]) in (b"II*\0", b"MM\0*")


def read_header(data: memoryview) -> Sized:
    """The size of a file for which `is_tiff` holds, and what is wrong with it. Nothing is decompressed."""
    order: Literal["big", "little"] = "big" if bytes(data[:2]) == b"MM" else "little"

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], order)

    damaged = Sized(0, 0, "its header is damaged")
    first = number(4, 4)
    end = first + 2 + 12 * number(first, 2)
    if first < 8 or end + 4 > len(data):
        return Sized(0, 0, "it is truncated")
    tags: dict[int, list[int]] = {}
    wanted = {_WIDTH, _HEIGHT, _ORIENTATION, *(tag for pair in _PARTS for tag in pair)}
    for at in range(first + 2, end, 12):
        tag, kind, count = number(at, 2), number(at + 2, 2), number(at + 4, 4)
        size = _SIZES[kind] if kind < len(_SIZES) else 0
        begin = at + 8 if size * count <= 4 else number(at + 8, 4)
        if begin + size * count > len(data):
            return Sized(0, 0, "it is truncated")
        if tag not in wanted:
            continue
        if kind not in _WHOLE or not 0 < count <= _MOST_PARTS:
            return damaged
        tags[tag] = [number(begin + size * index, size) for index in range(count)]
    width, height = (tags.get(tag, [0])[0] for tag in (_WIDTH, _HEIGHT))
    parts = next(((tags[o], tags[s]) for o, s in _PARTS if o in tags and s in tags), None)
    if not width * height or parts is None or len(parts[0]) != len(parts[1]):
        return damaged
    if any(offset + size > len(data) for offset, size in zip(*parts, strict=True)):
        return Sized(0, 0, "it is truncated")
    upright = tags.get(_ORIENTATION, [1])[0] == 1
    return Sized(width, height, "", single=number(end, 4) == 0, upright=upright)
