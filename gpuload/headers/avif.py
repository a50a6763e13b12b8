"""Reads the header of an AVIF strictly (ISO/IEC 14496-12, 23008-12): its size, and whether the file is complete."""

from collections.abc import Iterator

from gpuload.headers.sized import Sized

_BRANDS = (b"avif", b"avis")
_ROTATE = (b"irot", b"imir", b"clap")  # properties that turn, mirror or crop what is decoded


def is_avif(data: memoryview) -> bool:
    return bytes(data[4:8]) == b"ftyp" and any(
        bytes(data[at : at + 4]) in _BRANDS for at in range(8, min(_number(data, 0), len(data), 256), 4) if at != 12
    )


def read_header(data: memoryview) -> Sized:
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
            size = _number(data, first + 4), _number(data, first + 8)
            if size[0] * size[1] > width * height:  # of a grid the whole is the largest
                width, height = size
        upright = upright and kind not in _ROTATE
    if not width * height:
        return damaged
    return Sized(width, height, "", single=b"moov" not in boxes, upright=upright)


def _boxes(data: memoryview, at: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, begin and end of what each box holds; the end may be beyond the data."""
    while at + 8 <= stop:
        size, kind, header = _number(data, at), bytes(data[at + 4 : at + 8]), 8
        if size == 1:
            size, header = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        elif size == 0:  # up to the end
            size = stop - at
        if size < header:
            return
        yield kind, at + header, at + size
        at += size


def _number(data: memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")
