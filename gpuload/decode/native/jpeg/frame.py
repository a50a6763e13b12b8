"""The segments before the coded pixels of a JPEG (ITU-T T.81, annex B), and whether it is decoded here."""

from typing import Any, NamedTuple

import numpy as np

from gpuload.decode.native.compiled import inlined
from gpuload.decode.native.intrinsics import bytes_at, entries_at, longs_at, numbers_at
from gpuload.decode.native.jpeg.blocks import CODES, LOOKUP_BITS, STATES, define
from gpuload.headers.jpeg import ORIENTATION

READ_BYTES = 24 << 10

UPRIGHT, UNKNOWN = 1, 0

_LITTLE, _BIG = 0x49, 0x4D  # "II" and "MM", the byte order
_VERSION, _SHORT = 42, 3

# Of a component: its identifier, horizontal and vertical sampling factors, and its tables.
NAME, ACROSS, DOWN, QUANT, DC, AC = range(6)

_MAX_SIDE = 65_500  # libjpeg's limit


class Addresses(NamedTuple):
    """The addresses of the arrays of a `Scratch`.

    lookups: uint32 (8, 2^LOOKUP_BITS), of each Huffman table, four for DC coefficients and four for AC coefficients.
    codes: uint8 (8, CODES), of which the lookups were made (blocks.py).
    quant: int32 (4, 64), the quantisation tables in zigzag order.
    components: int64 (3, 6), see frame.py.
    coefficients: int32 (64,), of one block.
    state: uint64 (STATES,), of the scan, see blocks.py.
    bytes: uint8 (READ_BYTES,), coded bits copied from the file; position: int64 (5,), how far, see scan.py.
    """

    lookups: int
    codes: int
    quant: int
    components: int
    coefficients: int
    state: int
    bytes: int
    position: int


@inlined
def addresses_at(arguments: int) -> Addresses:
    """Those whose fields are the int64 at this address."""
    of = longs_at(arguments)
    return Addresses(of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7])


class Scratch:
    """The memory of one thread."""

    def __init__(self) -> None:
        self._arrays = (
            np.zeros((8, 1 << LOOKUP_BITS), np.uint32),
            np.zeros((8, CODES), np.uint8),
            np.zeros((4, 64), np.int32),
            np.zeros((3, 6), np.int64),
            np.zeros(64, np.int32),
            np.zeros(STATES, np.uint64),
            np.zeros(READ_BYTES, np.uint8),
            np.zeros(5, np.int64),
        )
        self.addresses = Addresses(*(array.ctypes.data for array in self._arrays))


@inlined
def _number(file: Any, at: int, size: int, little: bool) -> int:
    value = np.int64(0)
    for byte in range(size):
        value = value << 8 | np.int64(file[at + (size - 1 - byte if little else byte)])
    return int(value)


@inlined
def read_orientation(file: Any, begin: int, end: int) -> int:
    """The orientation, 1 to 8 as the standard counts, of the Exif data in file[begin:end], from their TIFF header on;
    UNKNOWN where they do not give one or are malformed. file: pointer to uint8."""
    if end - begin < 8 or file[begin] != file[begin + 1] or (file[begin] != _LITTLE and file[begin] != _BIG):
        return UNKNOWN
    little = file[begin] == _LITTLE
    at = begin + _number(file, begin + 4, 4, little)
    if _number(file, begin + 2, 2, little) != _VERSION or at + 2 > end:
        return UNKNOWN
    entries = _number(file, at, 2, little)
    for entry in range(entries):
        tag = at + 2 + 12 * entry
        if tag + 12 > end:
            return UNKNOWN
        if _number(file, tag, 2, little) == ORIENTATION:
            is_short = _number(file, tag + 2, 2, little) == _SHORT and _number(file, tag + 4, 4, little) == 1
            value = _number(file, tag + 8, 2, little)
            return value if is_short and 1 <= value <= 8 else UNKNOWN
    return UNKNOWN


class File(NamedTuple):
    """A file in memory. size: in bytes."""

    address: int
    size: int


class Frame(NamedTuple):
    """An image of a JPEG file.

    at: where in the file its coded pixels begin; 0 if it is not decoded here. height, width: in pixels. components: 1
    or 3. across, down: blocks of luma in an MCU, in which each chroma component has one block. rows, columns: of MCUs.
    restart: MCUs between two restart markers, or 0. orientation: as `read_orientation`; UPRIGHT without Exif data.
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


@inlined
def component_of(scratch: Addresses, number: int) -> Any:
    """Pointer to int64 (6,)."""
    return longs_at(scratch.components + number * 6 * 8)


@inlined
def lookup_of(scratch: Addresses, table: int) -> Any:
    """Pointer to uint32 (2^LOOKUP_BITS,)."""
    return entries_at(scratch.lookups + (table << LOOKUP_BITS) * 4)


@inlined
def codes_of(scratch: Addresses, table: int) -> Any:
    """Pointer to uint8 (CODES,)."""
    return bytes_at(scratch.codes + table * CODES)


@inlined
def quantization_of(scratch: Addresses, table: int) -> Any:
    """Pointer to int32 (64,)."""
    return numbers_at(scratch.quant + table * 64 * 4)


@inlined
def _two(file: Any, at: int) -> int:
    return int(np.int64(file[at]) << 8 | np.int64(file[at + 1]))


@inlined
def _define_quantization(file: Any, at: int, end: int, scratch: Addresses) -> bool:
    """A DQT segment."""
    while at < end:
        wide, slot = file[at] >> 4, np.int64(file[at] & 15)
        at += 1
        if wide != 0 or slot > 3 or at + 64 > end:
            return False
        quant = quantization_of(scratch, slot)
        for index in range(64):
            quant[index] = np.int32(file[at + index])
        at += 64
    return True


@inlined
def _define_codes(file: Any, address: int, at: int, end: int, scratch: Addresses) -> int:
    """A DHT segment. Returns a bit for each table that it defines; 0 if it has any fault."""
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
        if not define(
            bytes_at(address + at + 1), number, kind == 0, lookup_of(scratch, table), codes_of(scratch, table)
        ):
            return 0
        defined |= 1 << table
        at += 17 + number
    return defined


@inlined
def _define_components(file: Any, at: int, length: int, scratch: Addresses) -> int:
    """A SOF segment. Returns the number of components; 0 if they are not decoded here."""
    if length < 6 or file[at] != 8:
        return 0
    components = np.int64(file[at + 5])
    if (components != 1 and components != 3) or length != 6 + 3 * components:
        return 0
    for number in range(components):
        component, one = component_of(scratch, number), at + 6 + 3 * number
        component[NAME], component[QUANT] = np.int64(file[one]), np.int64(file[one + 2])
        component[ACROSS], component[DOWN] = np.int64(file[one + 1] >> 4), np.int64(file[one + 1] & 15)
        if component[QUANT] > 3:
            return 0
        if not 1 <= component[ACROSS] <= 4 or not 1 <= component[DOWN] <= 4:
            return 0
    return int(components)


@inlined
def _begins_scan(file: Any, at: int, length: int, components: int, defined: int, scratch: Addresses) -> bool:
    """A SOS segment. False if it lacks a component, or a component needs a table that this file does not define."""
    if components == 0 or length != 4 + 2 * components or file[at] != components:
        return False
    end = at + length
    if file[end - 3] != 0 or file[end - 2] != 63 or file[end - 1] != 0:
        return False
    for number in range(components):
        component, tables = component_of(scratch, number), file[at + 2 + 2 * number]
        dc, ac = np.int64(tables >> 4), np.int64(tables & 15)
        if np.int64(file[at + 1 + 2 * number]) != component[NAME] or dc > 3 or ac > 3:
            return False
        if not defined >> dc & 1 or not defined >> (4 + ac) & 1 or quantization_of(scratch, component[QUANT])[0] == 0:
            return False
        component[DC], component[AC] = dc, 4 + ac
    return True


@inlined
def read_frame(file: File, scratch: Addresses) -> Frame:
    """Reads up to the first scan, and fills `scratch` with the tables and components.

    Decoded here are baseline JPEGs of 8 bits, gray or YCbCr, with all components in one scan and sampling 4:4:4, 4:2:2
    or 4:2:0.
    """
    data, size, at = bytes_at(file.address), file.size, 2
    height, width, components, restart, defined = 0, 0, 0, 0, 0
    has_jfif, adobe, orientation = False, -1, UPRIGHT
    if size < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return _NOT_HERE
    for slot in range(4):
        quantization_of(scratch, slot)[0] = np.int32(0)
    while at + 4 <= size:
        if data[at] != 0xFF:
            return _NOT_HERE
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        begin, end, good = at + 4, at + 2 + _two(data, at + 2), True
        if end > size or end < begin:
            return _NOT_HERE
        length = end - begin
        if marker == 0xDB:
            good = _define_quantization(data, begin, end, scratch)
        elif marker == 0xC4:
            found = _define_codes(data, file.address, begin, end, scratch)
            good = found != 0
            defined |= found
        elif marker == 0xC0 or marker == 0xC1:
            components = _define_components(data, begin, length, scratch) if components == 0 else 0
            if components != 0:
                height, width = _two(data, begin + 1), _two(data, begin + 3)
            good = components != 0 and 1 <= height <= _MAX_SIDE and 1 <= width <= _MAX_SIDE
        elif marker == 0xDD:
            good = length == 2
            restart = _two(data, begin) if good else 0
        elif marker == 0xE0:
            if length >= 14 and _starts(data, begin, (74, 70, 73, 70, 0)):
                has_jfif, good = True, data[begin + 5] == 1  # the version; libjpeg warns of others
        elif marker == 0xE1:
            # Where Exif data give no orientation, another APP1 segment may: XMP.
            is_first = orientation == UPRIGHT and length >= 6 and _starts(data, begin, (69, 120, 105, 102, 0))
            orientation = read_orientation(data, begin + 6, end) if is_first else UNKNOWN
        elif marker == 0xEE:
            if length >= 12 and _starts(data, begin, (65, 100, 111, 98, 101)):
                adobe = np.int64(data[begin + 11])
        elif marker == 0xDA:
            if not _begins_scan(data, begin, length, components, defined, scratch):
                return _NOT_HERE
            if not _has_known_colors(scratch, components, has_jfif, adobe):
                return _NOT_HERE
            luma = component_of(scratch, 0)
            across, down = luma[ACROSS], luma[DOWN]
            rows, columns = -(-height // (8 * down)), -(-width // (8 * across))
            return Frame(end, height, width, components, across, down, rows, columns, restart, orientation)
        else:
            good = 0xE0 <= marker <= 0xEF or marker == 0xFE
        if not good:
            return _NOT_HERE
        at = end
    return _NOT_HERE


@inlined
def _starts(file: Any, at: int, text: tuple[int, int, int, int, int]) -> bool:
    same = True
    for index in range(5):
        same = same and file[at + index] == text[index]
    return same


@inlined
def _has_known_colors(scratch: Addresses, components: int, has_jfif: bool, adobe: int) -> bool:
    """Whether it is gray or YCbCr by the rules of libjpeg, with a sampling that is decoded here."""
    luma, blue, red = component_of(scratch, 0), component_of(scratch, 1), component_of(scratch, 2)
    if components == 1:
        luma[ACROSS], luma[DOWN] = 1, 1  # a single component is not interleaved, whatever the file says
        return True
    if blue[ACROSS] != 1 or blue[DOWN] != 1 or red[ACROSS] != 1 or red[DOWN] != 1:
        return False
    across, down = luma[ACROSS], luma[DOWN]
    if not ((across == 1 and down == 1) or (across == 2 and (down == 1 or down == 2))):
        return False
    if has_jfif or adobe == 1:
        return True
    return adobe == -1 and luma[NAME] == 1 and blue[NAME] == 2 and red[NAME] == 3
