"""Headers of the encodings besides JPEG and PNG that are stored unchanged, read strictly: their size, and whether the
file is complete. WebP is RFC 9649, AVIF ISO/IEC 14496-12 and 23008-12, TIFF is TIFF 6.0.
"""

from collections.abc import Iterator
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


_ANIMATION = 0x02  # a flag of the extended format


def is_webp(data: memoryview) -> bool:
    return bytes(data[:4]) == b"RIFF" and bytes(data[8:12]) == b"WEBP"


def _read_webp(data: memoryview) -> Sized:
    """The size of a file for which `is_webp` holds, and what is wrong with it. Nothing is decompressed."""
    stop = 8 + int.from_bytes(data[4:8], "little")
    if stop > len(data):
        return Sized(0, 0, "it is truncated")
    at, canvas, frame, upright, single = 12, None, None, True, True
    while at + 8 <= stop:
        kind, length = bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8], "little")
        body, end = at + 8, at + 8 + length
        if end > stop:
            return Sized(0, 0, "it is truncated")
        if kind == b"VP8X" and length >= 10:
            single = not data[body] & _ANIMATION
            canvas = 1 + _little(data, body + 4, 3), 1 + _little(data, body + 7, 3)
        elif kind == b"VP8 " and length >= 10 and bytes(data[body + 3 : body + 6]) == b"\x9d\x01\x2a":
            frame = _little(data, body + 6, 2) & 0x3FFF, _little(data, body + 8, 2) & 0x3FFF
        elif kind == b"VP8L" and length >= 5 and data[body] == 0x2F:
            bits = _little(data, body + 1, 4)
            frame = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        elif kind == b"EXIF":
            segment = bytes(data[body:end])
            found = exif_orientation(segment if segment.startswith(b"Exif\0\0") else b"Exif\0\0" + segment)
            upright = upright and found == 1
        elif kind == b"XMP ":
            upright = upright and b"rientation" not in bytes(data[body:end])
        at = end + (length & 1)
    if not single and canvas is not None:
        return Sized(*canvas, "", single=False, upright=upright)
    if frame is None or not all(frame) or (canvas is not None and canvas != frame):
        return Sized(0, 0, "its header is damaged")
    return Sized(*frame, "", upright=upright)


def _little(data: memoryview, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


_BRANDS = (b"avif", b"avis")
_ROTATE = (b"irot", b"imir", b"clap")  # properties that turn, mirror or crop what is decoded


def is_avif(data: memoryview) -> bool:
    return bytes(data[4:8]) == b"ftyp" and any(
        bytes(data[at : at + 4]) in _BRANDS for at in range(8, min(_big(data, 0), len(data), 256), 4) if at != 12
    )


def _read_avif(data: memoryview) -> Sized:
    """The size of a file for which `is_avif` holds, and what is wrong with it. Nothing is decompressed."""
    truncated, damaged = Sized(0, 0, "it is truncated"), Sized(0, 0, "its header is damaged")
    boxes = dict[bytes, tuple[int, int]]()
    for kind, begin, end in _boxes(data, 0, len(data)):
        if end > len(data):
            return truncated
        boxes.setdefault(kind, (begin, end))
    if b"meta" not in boxes or b"mdat" not in boxes:
        return damaged
    begin, stop = boxes[b"meta"]
    inner = {kind: (first, last) for kind, first, last in _boxes(data, begin + 4, stop)}  # after version and flags
    if b"iprp" not in inner or any(last > stop for _, last in inner.values()):
        return damaged
    properties = {kind: (first, last) for kind, first, last in _boxes(data, *inner[b"iprp"])}
    if b"ipco" not in properties:
        return damaged
    width = height = 0
    upright = True
    for kind, first, last in _boxes(data, *properties[b"ipco"]):
        if last > stop:
            return damaged
        if kind == b"ispe" and last - first == 12:
            size = _big(data, first + 4), _big(data, first + 8)
            if size[0] * size[1] > width * height:  # of a grid the whole is the largest
                width, height = size
        upright = upright and kind not in _ROTATE
    if not width * height:
        return damaged
    return Sized(width, height, "", single=b"moov" not in boxes, upright=upright)


def _boxes(data: memoryview, at: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, begin and end of what each box holds; the end may be beyond the data."""
    while at + 8 <= stop:
        size, kind, header = _big(data, at), bytes(data[at + 4 : at + 8]), 8
        if size == 1:
            size, header = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        elif size == 0:  # up to the end
            size = stop - at
        if size < header:
            return
        yield kind, at + header, at + size
        at += size


def _big(data: memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")


_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)  # bytes of a value by its type, from BYTE (1) to DOUBLE (12)
_WHOLE = (1, 3, 4)  # BYTE, SHORT and LONG
_MOST_PARTS = 1 << 20
_WIDTH, _HEIGHT = 256, 257
_PARTS = ((273, 279), (324, 325))  # offsets and sizes of strips, of tiles


def is_tiff(data: memoryview) -> bool:
    return bytes(data[:4]) in (b"II*\0", b"MM\0*")


def _read_tiff(data: memoryview) -> Sized:
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
    wanted = {_WIDTH, _HEIGHT, ORIENTATION, *(tag for pair in _PARTS for tag in pair)}
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
    upright = tags.get(ORIENTATION, [1])[0] == 1
    return Sized(width, height, "", single=number(end, 4) == 0, upright=upright)


_READERS = (
    ("webp", is_webp, _read_webp),
    ("avif", is_avif, _read_avif),
    ("tif", is_tiff, _read_tiff),
)


def read_header(data: memoryview) -> tuple[str, Sized] | None:
    """The extension of a WebP, AVIF or TIFF and its header; None of any other file. Nothing is decompressed."""
    for extension, is_it, read in _READERS:
        if is_it(data):
            return extension, read(data)
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
