"""Headers of the encodings besides JPEG and PNG that are stored unchanged, read strictly: their size, and whether the
file is complete. WebP is RFC 9649, AVIF ISO/IEC 14496-12 and 23008-12, TIFF is TIFF 6.0.
"""

import math
from typing import Literal, NamedTuple

from gpuload.headers.jpeg import ORIENTATION, exif_orientation
from gpuload.types import HeightWidth

MAX_PIXELS = 178_956_970  # Pillow's: 0.5 GB as RGB


class Sized(NamedTuple):
    """width, height: in pixels, as stored; 0 where the header is damaged. fault: what is wrong, or "". single: whether
    it is a single frame. upright: whether nothing rotates it."""

    width: int
    height: int
    fault: str
    single: bool = True
    upright: bool = True


OTHER_SIZE = "it is not of the size that the index says"


_TRUNCATED, _DAMAGED = "it is truncated", "its header is damaged"
Order = Literal["big", "little"]


def _number(data: memoryview, at: int, size: int, order: Order) -> int:
    if at + size > len(data):
        raise ValueError(_TRUNCATED)
    return int.from_bytes(data[at : at + size], order)


_ANIMATION = 0x02  # a flag of the extended format


def is_webp(data: memoryview) -> bool:
    return bytes(data[:4]) == b"RIFF" and bytes(data[8:12]) == b"WEBP"


def _read_webp(data: memoryview) -> Sized:
    canvas, frame, upright, single = None, None, True, True
    stop = 8 + _number(data, 4, 4, "little")
    at = 12
    while at + 8 <= stop:
        kind, body = bytes(data[at : at + 4]), at + 8
        length = _number(data, at + 4, 4, "little")
        if body + length > min(stop, len(data)):
            raise ValueError(_TRUNCATED)
        if kind == b"VP8X" and length >= 10:
            single = not data[body] & _ANIMATION
            canvas = 1 + _number(data, body + 4, 3, "little"), 1 + _number(data, body + 7, 3, "little")
        elif kind == b"VP8 " and length >= 10 and bytes(data[body + 3 : body + 6]) == b"\x9d\x01\x2a":
            frame = _number(data, body + 6, 2, "little") & 0x3FFF, _number(data, body + 8, 2, "little") & 0x3FFF
        elif kind == b"VP8L" and length >= 5 and data[body] == 0x2F:
            bits = _number(data, body + 1, 4, "little")
            frame = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        elif kind == b"EXIF":
            segment = bytes(data[body : body + length])
            upright &= exif_orientation(b"Exif\0\0" + segment.removeprefix(b"Exif\0\0")) == 1
        elif kind == b"XMP ":
            upright &= b"rientation" not in bytes(data[body : body + length])
        at = body + length + (length & 1)
    if stop > len(data):
        raise ValueError(_TRUNCATED)
    if not single and canvas is not None:
        return Sized(*canvas, "", single=False, upright=upright)
    if frame is None or not all(frame) or (canvas is not None and canvas != frame):
        raise ValueError(_DAMAGED)
    return Sized(*frame, "", upright=upright)


_BRANDS = (b"avif", b"avis")
_ROTATE = (b"irot", b"imir", b"clap")  # properties that turn, mirror or crop what is decoded


def is_avif(data: memoryview) -> bool:
    return bytes(data[4:8]) == b"ftyp" and any(
        bytes(data[at : at + 4]) in _BRANDS
        for at in range(8, min(_number(data, 0, 4, "big"), len(data), 256), 4)
        if at != 12
    )


def _read_avif(data: memoryview) -> Sized:
    top = _boxes(data, 0, len(data))
    begin, stop = top[b"meta"][0]
    meta = _boxes(data, begin + 4, stop)  # after version and flags
    properties = _boxes(data, *_boxes(data, *meta[b"iprp"][0])[b"ipco"][0])
    sizes = [
        (_number(data, first + 4, 4, "big"), _number(data, first + 8, 4, "big"))
        for first, last in properties.get(b"ispe", ())
        if last - first == 12
    ]
    width, height = max(sizes, key=math.prod, default=(0, 0))  # of a grid the whole is the largest
    if b"mdat" not in top or not width * height:
        raise ValueError(_DAMAGED)
    upright = not any(kind in properties for kind in _ROTATE)
    return Sized(width, height, "", single=b"moov" not in top, upright=upright)


def _boxes(data: memoryview, at: int, stop: int) -> dict[bytes, list[tuple[int, int]]]:
    """Begin and end of what each box holds, by its kind."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    while at + 8 <= stop:
        size, kind, header = _number(data, at, 4, "big"), bytes(data[at + 4 : at + 8]), 8
        if size == 1:
            size, header = _number(data, at + 8, 8, "big"), 16
        elif size == 0:  # up to the end
            size = stop - at
        if size < header:
            break
        if at + size > stop:
            raise ValueError(_TRUNCATED if stop == len(data) else _DAMAGED)
        found.setdefault(kind, []).append((at + header, at + size))
        at += size
    return found


_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)  # bytes of a value by its type, from BYTE (1) to DOUBLE (12)
_WHOLE = (1, 3, 4)  # BYTE, SHORT and LONG
_MOST_PARTS = 1 << 20
_WIDTH, _HEIGHT = 256, 257
_PARTS = ((273, 279), (324, 325))  # offsets and sizes of strips, of tiles


def is_tiff(data: memoryview) -> bool:
    return bytes(data[:4]) in (b"II*\0", b"MM\0*")


def _read_tiff(data: memoryview) -> Sized:
    order: Order = "big" if bytes(data[:2]) == b"MM" else "little"

    def number(at: int, size: int) -> int:
        return _number(data, at, size, order)

    first = number(4, 4)
    end = first + 2 + 12 * number(first, 2)
    is_single = number(end, 4) == 0
    tags: dict[int, list[int]] = {}
    wanted = {_WIDTH, _HEIGHT, ORIENTATION, *(tag for pair in _PARTS for tag in pair)}
    for at in range(first + 2, end, 12):
        tag, kind, count = number(at, 2), number(at + 2, 2), number(at + 4, 4)
        size = _SIZES[kind] if kind < len(_SIZES) else 0
        begin = at + 8 if size * count <= 4 else number(at + 8, 4)
        if begin + size * count > len(data):
            raise ValueError(_TRUNCATED)
        if tag in wanted:
            if kind not in _WHOLE or not 0 < count <= _MOST_PARTS:
                raise ValueError(_DAMAGED)
            tags[tag] = [number(begin + size * index, size) for index in range(count)]
    width, height = tags[_WIDTH][0], tags[_HEIGHT][0]
    offsets, sizes = next((tags[o], tags[s]) for o, s in _PARTS if o in tags and s in tags)
    if first < 8 or not width * height or len(offsets) != len(sizes):
        raise ValueError(_DAMAGED)
    if any(offset + size > len(data) for offset, size in zip(offsets, sizes, strict=True)):
        raise ValueError(_TRUNCATED)
    return Sized(width, height, "", single=is_single, upright=tags.get(ORIENTATION, [1])[0] == 1)


_READERS = (
    ("webp", is_webp, _read_webp),
    ("avif", is_avif, _read_avif),
    ("tif", is_tiff, _read_tiff),
)


def read_header(data: memoryview) -> tuple[str, Sized] | None:
    """The extension of a WebP, AVIF or TIFF and its header; None of any other file. Nothing is decompressed."""
    for extension, is_it, read in _READERS:
        if is_it(data):
            try:
                return extension, read(data)
            except ValueError as error:
                return extension, Sized(0, 0, str(error))
            except (KeyError, StopIteration):  # what it needs is not there
                return extension, Sized(0, 0, _DAMAGED)
    return None


def find_fault(data: memoryview, size: HeightWidth) -> str | None:
    """What is wrong with a file that `read_header` reads, or None; None of any other file.

    size: of the stored pixels, as the index says; one that lies on its side may have them exchanged.
    """
    if (found := read_header(data)) is None:
        return None
    header = found[1]
    if header.fault:
        return header.fault
    told = (header.height, header.width)
    return None if size in (told, told[::-1] if not header.upright else told) else OTHER_SIZE
