"""What the segments before the pixels of a JPEG say (ITU-T T.81, annex B), and whether it is decoded here."""

from typing import Any, NamedTuple

import numpy as np

from gpuload.decode.native.compiled import compiled
from gpuload.decode.native.jpeg.exif import UNKNOWN, UPRIGHT, read_orientation
from gpuload.decode.native.jpeg.huffman import CODES, LOOKUP_BITS, define
from gpuload.decode.native.jpeg.work import Addresses
from gpuload.decode.native.pointers import bytes_at, entries_at, longs_at, numbers_at

# Of a component: its identifier, blocks in a unit across and down, its tables.
NAME, ACROSS, DOWN, SCALES, DC, AC = range(6)


class File(NamedTuple):
    """The bytes of a file, in memory."""

    address: int
    size: int


class Frame(NamedTuple):
    """An image of a JPEG file.

    at: where in the file its coded pixels begin; 0 if it is not one to decode here. components: 1 or 3. across, down:
    blocks of luma in a unit (which T.81 calls MCU), where each chroma has one. rows, columns: of units. restart: units
    between two restart markers, or 0. orientation: as `gpuload.decode.native.jpeg.exif` tells it; UPRIGHT without Exif data.
    """

    at: int
    height: int
    width: int
    components: int
    across: int
    down: int
    rows: int
    columns: int
    restart: int
    orientation: int


_NOT_HERE = Frame(0, 0, 0, 0, 0, 0, 0, 0, 0, UNKNOWN)


@compiled
def component_of(work: Addresses, number: int) -> Any:
    """Pointer to int64 (6,)."""
    return longs_at(work.components + number * 6 * 8)


@compiled
def lookup_of(work: Addresses, table: int) -> Any:
    """Pointer to uint32 (2^LOOKUP_BITS,)."""
    return entries_at(work.lookups + (table << LOOKUP_BITS) * 4)


@compiled
def codes_of(work: Addresses, table: int) -> Any:
    """Pointer to uint8 (CODES,)."""
    return bytes_at(work.codes + table * CODES)


@compiled
def scales_of(work: Addresses, table: int) -> Any:
    """Pointer to int32 (64,)."""
    return numbers_at(work.scales + table * 64 * 4)


@compiled
def _two(file: Any, at: int) -> int:
    return int(np.int64(file[at]) << 8 | np.int64(file[at + 1]))


@compiled
def _define_scales(file: Any, at: int, end: int, work: Addresses) -> bool:
    """A DQT segment."""
    while at < end:
        wide, slot = file[at] >> 4, np.int64(file[at] & 15)
        at += 1
        if wide != 0 or slot > 3 or at + 64 > end:
            return False
        scales = scales_of(work, slot)
        for place in range(64):
            scales[place] = np.int32(file[at + place])
        at += 64
    return True


@compiled
def _define_codes(file: Any, address: int, at: int, end: int, work: Addresses) -> int:
    """A DHT segment. Returns a bit for each table that it defines; 0 if there is anything wrong with it."""
    defined = 0
    while at < end:
        if at + 17 > end:
            return 0
        kind, slot = np.int64(file[at] >> 4), np.int64(file[at] & 15)
        number = 0
        for length in range(16):
            number += np.int64(file[at + 1 + length])
        if kind > 1 or slot > 3 or number > 256 or at + 17 + number > end:
            return 0
        table = kind * 4 + slot
        if not define(bytes_at(address + at + 1), number, kind == 0, lookup_of(work, table), codes_of(work, table)):
            return 0
        defined |= 1 << table
        at += 17 + number
    return defined


@compiled
def _define_components(file: Any, at: int, length: int, work: Addresses) -> int:
    """A SOF segment. Returns how many there are; 0 if they are not to be decoded here."""
    if length < 6 or file[at] != 8:
        return 0
    components = np.int64(file[at + 5])
    if (components != 1 and components != 3) or length != 6 + 3 * components:
        return 0
    for number in range(components):
        component, one = component_of(work, number), at + 6 + 3 * number
        component[NAME], component[SCALES] = np.int64(file[one]), np.int64(file[one + 2])
        component[ACROSS], component[DOWN] = np.int64(file[one + 1] >> 4), np.int64(file[one + 1] & 15)
        if component[SCALES] > 3:
            return 0
    return int(components)


@compiled
def _begins_scan(file: Any, at: int, length: int, components: int, defined: int, work: Addresses) -> bool:
    """A SOS segment. False if it is not of all components, or a table that one needs is not defined in this file."""
    if components == 0 or length != 4 + 2 * components or file[at] != components:
        return False
    end = at + length
    if file[end - 3] != 0 or file[end - 2] != 63 or file[end - 1] != 0:
        return False
    for number in range(components):
        component, tables = component_of(work, number), file[at + 2 + 2 * number]
        dc, ac = np.int64(tables >> 4), np.int64(tables & 15)
        if np.int64(file[at + 1 + 2 * number]) != component[NAME] or dc > 3 or ac > 3:
            return False
        if not defined >> dc & 1 or not defined >> (4 + ac) & 1 or scales_of(work, component[SCALES])[0] == 0:
            return False
        component[DC], component[AC] = dc, 4 + ac
    return True


@compiled
def read_frame(file: File, work: Addresses) -> Frame:
    """Reads up to the first scan. Fills `work` with the tables and components.

    Baseline JPEGs, gray or YCbCr, of 8 bits, all of whose components are in one scan, and whose chroma is as large as
    the image, or half as wide, or half as wide and half as high.
    """
    data, size, at = bytes_at(file.address), file.size, 2
    height, width, components, restart, defined = 0, 0, 0, 0, 0
    has_jfif, adobe, orientation = False, -1, UPRIGHT
    if size < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return _NOT_HERE
    for slot in range(4):
        scales_of(work, slot)[0] = np.int32(0)
    while at + 4 <= size:
        if data[at] != 0xFF:
            return _NOT_HERE
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        begin, end = at + 4, at + 2 + _two(data, at + 2)
        if end > size or end < begin:
            return _NOT_HERE
        length = end - begin
        if marker == 0xDB:
            if not _define_scales(data, begin, end, work):
                return _NOT_HERE
        elif marker == 0xC4:
            found = _define_codes(data, file.address, begin, end, work)
            if found == 0:
                return _NOT_HERE
            defined |= found
        elif marker == 0xC0 or marker == 0xC1:
            if components != 0:
                return _NOT_HERE
            components = _define_components(data, begin, length, work)
            if components == 0:
                return _NOT_HERE
            height, width = _two(data, begin + 1), _two(data, begin + 3)
            if height == 0 or width == 0:
                return _NOT_HERE
        elif marker == 0xDD:
            if length != 2:
                return _NOT_HERE
            restart = _two(data, begin)
        elif marker == 0xE0:
            if length >= 14 and _starts(data, begin, (74, 70, 73, 70, 0)):
                if data[begin + 5] != 1:  # its version, of which libjpeg complains
                    return _NOT_HERE
                has_jfif = True
        elif marker == 0xE1:
            # Where Exif data do not tell, others of these segments may: XMP.
            is_first = orientation == UPRIGHT and length >= 6 and _starts(data, begin, (69, 120, 105, 102, 0))
            orientation = read_orientation(data, begin + 6, end) if is_first else UNKNOWN
        elif marker == 0xEE:
            if length >= 12 and _starts(data, begin, (65, 100, 111, 98, 101)):
                adobe = np.int64(data[begin + 11])
        elif marker == 0xDA:
            if not _begins_scan(data, begin, length, components, defined, work):
                return _NOT_HERE
            if not _has_known_colors(work, components, has_jfif, adobe):
                return _NOT_HERE
            luma = component_of(work, 0)
            across, down = luma[ACROSS], luma[DOWN]
            rows, columns = -(-height // (8 * down)), -(-width // (8 * across))
            return Frame(end, height, width, components, across, down, rows, columns, restart, orientation)
        elif marker < 0xE0 or (marker > 0xEF and marker != 0xFE):
            return _NOT_HERE
        at = end
    return _NOT_HERE


@compiled
def _starts(file: Any, at: int, text: tuple[int, int, int, int, int]) -> bool:
    same = True
    for place in range(5):
        same = same and file[at + place] == text[place]
    return same


@compiled
def _has_known_colors(work: Addresses, components: int, has_jfif: bool, adobe: int) -> bool:
    """Whether it is gray or YCbCr, as libjpeg tells, and its chroma of a size that is decoded here."""
    luma, blue, red = component_of(work, 0), component_of(work, 1), component_of(work, 2)
    if components == 1:
        luma[ACROSS], luma[DOWN] = 1, 1  # of one component, whatever the file says
        return True
    if blue[ACROSS] != 1 or blue[DOWN] != 1 or red[ACROSS] != 1 or red[DOWN] != 1:
        return False
    across, down = luma[ACROSS], luma[DOWN]
    if not ((across == 1 and down == 1) or (across == 2 and (down == 1 or down == 2))):
        return False
    if has_jfif or adobe == 1:
        return True
    return adobe == -1 and luma[NAME] == 1 and blue[NAME] == 2 and red[NAME] == 3
