"""The segments before the coded pixels of a JPEG (ITU-T T.81, annex B), and whether it is decoded here."""

from typing import Any, NamedTuple

import numpy as np

from gpuload.decode.native.compiled import compiled, inlined
from gpuload.decode.native.intrinsics import bytes_at, entries_at, longs_at, numbers_at
from gpuload.decode.native.jpeg.blocks import CODES, LONG, LOOKUP_BITS, STATES, define
from gpuload.headers import jpeg as headers

READ_BYTES = 24 << 10

UPRIGHT, UNKNOWN = 1, 0

# The tables of a component.
QUANT, DC, AC = range(3)

_codes_end, _orientation = compiled(headers.codes_end), compiled(headers.orientation_at)
_frame_fault, _scan_fault = compiled(headers.frame_fault), compiled(headers.scan_fault)

_MAX_SIDE = 65_500  # libjpeg's limit
_MOST_DC_BITS = 11  # of a difference, with 8 bits (T.81, F.1.2.1.1); libjpeg-turbo has other pixels for larger ones


class Addresses(NamedTuple):
    """The addresses of the arrays of a `Scratch`.

    lookups: uint32 (8, 2^LOOKUP_BITS), of each Huffman table, four for DC coefficients and four for AC coefficients.
    codes: uint8 (8, CODES), of which the lookups were made (blocks.py).
    quant: int32 (4, 64), the quantisation tables in zigzag order.
    components: int64 (3, 3), see frame.py.
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
            np.full((8, 1 << LOOKUP_BITS), LONG, np.uint32),
            np.zeros((8, CODES), np.uint8),
            np.zeros((4, 64), np.int32),
            np.zeros((3, 3), np.int64),
            np.zeros(64, np.int32),
            np.zeros(STATES, np.uint64),
            np.zeros(READ_BYTES, np.uint8),
            np.zeros(5, np.int64),
        )
        self.addresses = Addresses(*(array.ctypes.data for array in self._arrays))


class File(NamedTuple):
    """A file in memory. size: in bytes."""

    address: int
    size: int


class Frame(NamedTuple):
    """An image of a JPEG file.

    at: where in the file its coded pixels begin; 0 if it is not decoded here. height, width: in pixels. components: 1
    or 3. across, down: blocks of luma in an MCU, in which each chroma component has one block. rows, columns: of MCUs.
    restart: MCUs between two restart markers, or 0. orientation: UPRIGHT, also without Exif data; any other number
    where it is not, or not for all readers.
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
    """Pointer to int64 (3,)."""
    return longs_at(scratch.components + number * 3 * 8)


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
def _define_quantization(file: Any, at: int, end: int, scratch: Addresses) -> int:
    """A DQT segment. Returns a bit for each table that it defines; 0 if it has any fault."""
    defined = 0
    while at < end:
        slot = np.int64(file[at])  # above 3 if its numbers have 16 bits
        if slot > 3 or at + 65 > end:
            return 0
        quant = quantization_of(scratch, slot)
        for index in range(64):
            quant[index] = np.int32(file[at + 1 + index])
        defined |= 1 << slot
        at += 65
    return defined


@inlined
def _define_codes(file: Any, address: int, at: int, end: int, scratch: Addresses) -> int:
    """A DHT segment. Returns a bit for each table that it defines; 0 if it has any fault."""
    defined = 0
    while at < end:
        stop = _codes_end(file, at, end)
        if stop == 0:
            return 0
        table = np.int64(file[at] >> 4) * 4 + np.int64(file[at] & 15)
        for symbol in range(at + 17, stop if table < 4 else 0):
            if file[symbol] > _MOST_DC_BITS:
                return 0
        define(
            bytes_at(address + at + 1), stop - at - 17, table < 4, lookup_of(scratch, table), codes_of(scratch, table)
        )
        defined |= 1 << table
        at = stop
    return defined


@inlined
def read_frame(file: File, scratch: Addresses) -> Frame:
    """Reads up to the first scan, and fills `scratch` with the tables and components.

    Decoded here are baseline JPEGs of 8 bits, gray or YCbCr, with all components in one scan and sampling 4:4:4, 4:2:2
    or 4:2:0.
    """
    data, size, at = bytes_at(file.address), file.size, 2
    frame, restart, quants, codes = 0, 0, 0, 0  # where the content of the SOF segment is
    has_jfif, adobe, orientation = False, -1, UPRIGHT
    if size < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return _NOT_HERE
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
            found = _define_quantization(data, begin, end, scratch)
            good = found != 0
            quants |= found
        elif marker == 0xC4:
            found = _define_codes(data, file.address, begin, end, scratch)
            good = found != 0
            codes |= found
        elif marker == 0xC0 or marker == 0xC1:
            good = frame == 0 and not _frame_fault(data, begin, length)
            frame = begin
        elif marker == 0xDD:
            good = length == 2
            restart = _two(data, begin) if good else 0
        elif marker == 0xE0:
            if length >= 14 and _starts(data, begin, (74, 70, 73, 70, 0)):
                has_jfif, good = True, data[begin + 5] == 1  # the version; libjpeg warns of others
        elif marker == 0xE1:
            # Another APP1 segment may give another orientation: XMP.
            is_first = orientation == UPRIGHT and length >= 6 and _starts(data, begin, (69, 120, 105, 102, 0))
            orientation = _orientation(data, begin + 6, end) if is_first else UNKNOWN
        elif marker == 0xEE:
            if length >= 12 and _starts(data, begin, (65, 100, 111, 98, 101)):
                adobe = np.int64(data[begin + 11])
        elif marker == 0xDA:
            if frame == 0 or _scan_fault(data, begin, length, frame, False, quants, codes):
                return _NOT_HERE
            if data[begin] != data[frame + 5]:
                return _NOT_HERE
            return _make_frame(data, frame, begin, scratch, has_jfif, adobe, restart, orientation)
        else:
            good = 0xE0 <= marker <= 0xEF or marker == 0xFE
        if not good:
            return _NOT_HERE
        at = end
    return _NOT_HERE


@inlined
def _make_frame(
    file: Any, frame: int, scan: int, scratch: Addresses, has_jfif: bool, adobe: int, restart: int, orientation: int
) -> Frame:
    """The image of a SOF and a SOS segment without a fault, whose content is at `frame` and at `scan`."""
    height, width, components = _two(file, frame + 1), _two(file, frame + 3), np.int64(file[frame + 5])
    if not 1 <= height <= _MAX_SIDE or not 1 <= width <= _MAX_SIDE or components > 3:
        return _NOT_HERE
    across, down = np.int64(file[frame + 7] >> 4), np.int64(file[frame + 7] & 15)
    if components == 1:
        across, down = 1, 1  # a single component is not interleaved, whatever the file says
    else:
        if file[frame + 10] != 0x11 or file[frame + 13] != 0x11 or across > 2 or down > across:
            return _NOT_HERE
        # By the rules of libjpeg: whether it is YCbCr.
        named = file[frame + 6] == 1 and file[frame + 9] == 2 and file[frame + 12] == 3
        if not has_jfif and adobe != 1 and not (adobe == -1 and named):
            return _NOT_HERE
    for number in range(components):
        component, tables = component_of(scratch, number), np.int64(file[scan + 2 + 2 * number])
        component[QUANT] = np.int64(file[frame + 8 + 3 * number])
        component[DC], component[AC] = tables >> 4, 4 + (tables & 15)
    rows, columns = -(-height // (8 * down)), -(-width // (8 * across))
    at = scan + 4 + 2 * components
    return Frame(at, height, width, components, across, down, rows, columns, restart, orientation)


@inlined
def _starts(file: Any, at: int, text: tuple[int, int, int, int, int]) -> bool:
    same = True
    for index in range(5):
        same = same and file[at + index] == text[index]
    return same
