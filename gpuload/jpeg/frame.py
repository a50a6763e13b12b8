"""What the segments before the pixels of a JPEG say (ITU-T T.81, annex B), for the JPEGs that `gpuload.jpeg` decodes."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.compiled import compiled
from gpuload.jpeg.blocks import STATES
from gpuload.jpeg.exif import UNKNOWN, UPRIGHT, read_orientation
from gpuload.jpeg.huffman import LOOKUP_BITS, SYMBOLS, define

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

# Columns of `Work.components`: its identifier, blocks in a unit across and down, its tables.
NAME, ACROSS, DOWN, SCALES, DC, AC = range(6)


class Work(NamedTuple):
    """What one thread needs to decode.

    lookups: uint32 (8, 2^k), of each Huffman table, four for the first coefficients of blocks and four for all others,
    as `gpuload.jpeg.huffman` makes them of `codes`, uint8 (8, 272). good: bool (8,).
    scales: int32 (4, 64), the quantisation tables, in the order of the file. components: int64 (3, 6).
    coefficients: int32 (64,), of a block. state: as `gpuload.jpeg.blocks` keeps it. bytes: uint8, what is read ahead of the file.
    """

    lookups: U32
    codes: U8
    good: Bools
    scales: I32
    components: I64
    coefficients: I32
    state: U64
    bytes: U8


class Frame(NamedTuple):
    """An image of a JPEG file.

    at: where in the file its coded pixels begin; 0 if it is not one to decode here. restart: units between two restart
    markers, or 0. orientation: as `gpuload.jpeg.exif` tells it; of a file without Exif data UPRIGHT.
    """

    at: int
    height: int
    width: int
    components: int
    restart: int
    orientation: int


_NOT_HERE = Frame(0, 0, 0, 0, 0, UNKNOWN)


@compiled
def _two(file: U8, at: int) -> int:
    return np.int64(file[at]) << 8 | np.int64(file[at + 1])


@compiled
def _define_scales(file: U8, at: int, end: int, scales: I32) -> bool:
    """A DQT segment."""
    while at < end:
        wide, slot = file[at] >> 4, file[at] & 15
        at += 1
        if wide != 0 or slot > 3 or at + 64 > end:
            return False
        for place in range(64):
            scales[slot, place] = np.int32(file[at + place])
        at += 64
    return True


@compiled
def _define_codes(file: U8, at: int, end: int, work: Work) -> bool:
    """A DHT segment."""
    while at < end:
        if at + 17 > end:
            return False
        kind, slot = file[at] >> 4, file[at] & 15
        number = 0
        for length in range(16):
            number += np.int64(file[at + 1 + length])
        if kind > 1 or slot > 3 or number > 256 or at + 17 + number > end:
            return False
        table = np.int64(kind) * 4 + np.int64(slot)
        define(file, at + 1, number, kind == 0, table, work.lookups, work.codes, work.good)
        at += 17 + number
    return True


@compiled
def read_frame(file: U8, work: Work) -> Frame:
    """Reads up to the first scan. Fills `work` with the tables and components.

    Baseline JPEGs, gray or YCbCr, of 8 bits, all of whose components are in one scan, and whose chroma is as large as
    the image, or half as wide, or half as wide and half as high.
    """
    size, at = len(file), 2
    height, width, components, restart = 0, 0, 0, 0
    has_jfif, adobe, orientation = False, -1, UPRIGHT
    if size < 4 or file[0] != 0xFF or file[1] != 0xD8:
        return _NOT_HERE
    work.scales[:, 0] = 0
    while at + 4 <= size:
        if file[at] != 0xFF:
            return _NOT_HERE
        marker = file[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        begin, end = at + 4, at + 2 + _two(file, at + 2)
        if end > size or end < begin:
            return _NOT_HERE
        length = end - begin
        if marker == 0xDB:
            if not _define_scales(file, begin, end, work.scales):
                return _NOT_HERE
        elif marker == 0xC4:
            if not _define_codes(file, begin, end, work):
                return _NOT_HERE
        elif marker == 0xC0 or marker == 0xC1:
            if components != 0 or length < 6 or file[begin] != 8:
                return _NOT_HERE
            height, width, components = _two(file, begin + 1), _two(file, begin + 3), np.int64(file[begin + 5])
            if height == 0 or width == 0 or (components != 1 and components != 3) or length != 6 + 3 * components:
                return _NOT_HERE
            for number in range(components):
                one = begin + 6 + 3 * number
                work.components[number, NAME] = file[one]
                work.components[number, ACROSS] = file[one + 1] >> 4
                work.components[number, DOWN] = file[one + 1] & 15
                work.components[number, SCALES] = file[one + 2]
                if file[one + 2] > 3:
                    return _NOT_HERE
        elif marker == 0xDD:
            if length != 2:
                return _NOT_HERE
            restart = _two(file, begin)
        elif marker == 0xE0:
            if length >= 14 and _starts(file, begin, (74, 70, 73, 70, 0)):
                if file[begin + 5] != 1:  # its version, of which libjpeg complains
                    return _NOT_HERE
                has_jfif = True
        elif marker == 0xE1:
            # Where Exif data do not tell, others of these segments may: XMP.
            is_first = orientation == UPRIGHT and length >= 6 and _starts(file, begin, (69, 120, 105, 102, 0))
            orientation = read_orientation(file, begin + 6, end) if is_first else UNKNOWN
        elif marker == 0xEE:
            if length >= 12 and _starts(file, begin, (65, 100, 111, 98, 101)):
                adobe = np.int64(file[begin + 11])
        elif marker == 0xDA:
            if components == 0 or length != 4 + 2 * components or file[begin] != components:
                return _NOT_HERE
            if file[end - 3] != 0 or file[end - 2] != 63 or file[end - 1] != 0:
                return _NOT_HERE
            for number in range(components):
                name, tables = file[begin + 1 + 2 * number], file[begin + 2 + 2 * number]
                dc, ac = np.int64(tables >> 4), np.int64(tables & 15)
                if name != work.components[number, NAME] or dc > 3 or ac > 3:
                    return _NOT_HERE
                if not work.good[dc] or not work.good[4 + ac] or work.scales[work.components[number, SCALES], 0] == 0:
                    return _NOT_HERE
                work.components[number, DC], work.components[number, AC] = dc, 4 + ac
            if not _has_known_colors(work.components, components, has_jfif, adobe):
                return _NOT_HERE
            return Frame(end, height, width, components, restart, orientation)
        elif marker < 0xE0 or (marker > 0xEF and marker != 0xFE):
            return _NOT_HERE
        at = end
    return _NOT_HERE


@compiled
def _starts(file: U8, at: int, text: tuple[int, int, int, int, int]) -> bool:
    same = True
    for place in range(5):
        same = same and file[at + place] == text[place]
    return same


@compiled
def _has_known_colors(components: I64, number: int, has_jfif: bool, adobe: int) -> bool:
    """Whether it is gray or YCbCr, as libjpeg tells, and its chroma of a size that is decoded here."""
    if number == 1:
        components[0, ACROSS], components[0, DOWN] = 1, 1  # of one component, whatever the file says
        return True
    for other in (1, 2):
        if components[other, ACROSS] != 1 or components[other, DOWN] != 1:
            return False
    across, down = components[0, ACROSS], components[0, DOWN]
    if not ((across == 1 and down == 1) or (across == 2 and (down == 1 or down == 2))):
        return False
    if has_jfif or adobe == 1:
        return True
    return adobe == -1 and components[0, NAME] == 1 and components[1, NAME] == 2 and components[2, NAME] == 3


def make_work() -> Work:
    """Of one thread."""
    return Work(
        lookups=np.zeros((8, 1 << LOOKUP_BITS), np.uint32),
        codes=np.zeros((8, SYMBOLS + 256), np.uint8),
        good=np.zeros(8, np.bool_),
        scales=np.zeros((4, 64), np.int32),
        components=np.zeros((3, 6), np.int64),
        coefficients=np.zeros(64, np.int32),
        state=np.zeros(STATES, np.uint64),
        bytes=np.zeros(24 << 10, np.uint8),
    )
