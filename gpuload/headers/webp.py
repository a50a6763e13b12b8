"""Reads the header of a WebP strictly (RFC 9649): its size, and whether the file is complete."""

from gpuload.headers.exif import exif_orientation
from gpuload.headers.sized import Sized

_ANIMATION = 0x02  # a flag of the extended format


def is_webp(data: memoryview) -> bool:
    return bytes(data[:4]) == b"RIFF" and bytes(data[8:12]) == b"WEBP"


def read_header(data: memoryview) -> Sized:
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
            canvas = 1 + _number(data, body + 4, 3), 1 + _number(data, body + 7, 3)
        elif kind == b"VP8 " and length >= 10 and bytes(data[body + 3 : body + 6]) == b"\x9d\x01\x2a":
            frame = _number(data, body + 6, 2) & 0x3FFF, _number(data, body + 8, 2) & 0x3FFF
        elif kind == b"VP8L" and length >= 5 and data[body] == 0x2F:
            bits = _number(data, body + 1, 4)
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


def _number(data: memoryview, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
