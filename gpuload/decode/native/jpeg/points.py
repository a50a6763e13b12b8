"""Places in the coded pixels of a JPEG at which decoding may begin, so that a crop costs little more than its pixels.

Of every row of MCUs, and of every so many columns in it, the bit at which the MCU begins and the DC coefficients before
it. The index holds them for each image as bytes:

    uint8: columns of MCUs from point to point; then how many bits a number takes of (1) the distance between the first
    points of two rows, (2) that between two points of a row, (3) a DC coefficient of each of three components
    the numbers, from the highest bit of a byte on: (1) of all rows but the last; (2) row by row; (3) point by point,
    zigzag (0, -1, 1, -2, …)
    a checksum of all bytes before it and of the size of the JPEG, 8 bytes; or 8 zeros, as written until 2026-11-28

Distances are in bits of the file, with stuffed bytes. The first point is where the scan begins.

Points whose checksum does not match are not used. What is decoded must end at the next point, with its coefficients:
so points of another file and a fault of the file are noticed. Where a restart marker is, the point lies at the marker,
with the coefficients before it. There may be none between two points, since behind it these coefficients could no
longer be compared: files with such markers have no points.

Points that were forged to agree with each other, with a checksum, are not noticed here, as no proof costs less than
reading all coded pixels: `points_hold` does that, for `verify`.
"""

import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpuload.decode.native.compiled import cached, inlined
from gpuload.decode.native.intrinsics import bytes_at, load_word, longs_at, words_at
from gpuload.decode.native.jpeg.blocks import BEFORE
from gpuload.decode.native.jpeg.frame import UPRIGHT, Addresses, File, Frame, Scratch, read_frame
from gpuload.decode.native.jpeg.part import Part
from gpuload.decode.native.jpeg.scan import (
    BEHIND,
    any_ff,
    begin_scan,
    ends_well,
    has_read_up_to,
    is_after_marker,
    is_low,
    seek,
    skip_mcu,
    supply,
    used_bits,
)
from gpuload.types import I64, U8

_HEAD_BYTES = 6
_CHECKSUM_BYTES = 8  # which also keep the last number apart from the end of memory, as it is read with a word
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MOST_BITS = 40
_FINEST, _COARSEST = 4, 128  # columns from point to point


class Points(NamedTuple):
    """The points of a file; `apart` is 0 where it has none.

    apart: columns from one to the next. number: in a row. at: address of the numbers. bits: of a number, by its kind.
    """

    apart: int
    number: int
    at: int
    bits: tuple[int, int, int, int, int]


_ROW, _STEP, _COEFFICIENT = range(3)  # kinds of numbers; a coefficient of each component
NO_POINTS = Points(0, 0, 0, (0, 0, 0, 0, 0))


@inlined
def read_points(address: int, size: int, file: File, frame: Frame) -> Points:
    """The points in these bytes; none where they are not of this frame, or not those that were written."""
    data = bytes_at(address)
    if size < _HEAD_BYTES or data[0] == 0 or not _can_be_entered(frame):
        return NO_POINTS
    apart = np.int64(data[0])
    bits = np.int64(data[1]), np.int64(data[2]), np.int64(data[3]), np.int64(data[4]), np.int64(data[5])
    found = Points(apart, -(-frame.columns // apart), address + _HEAD_BYTES, bits)
    if max(found.bits) > _MOST_BITS or size != _bytes(found, frame):
        return NO_POINTS
    stored = load_word(address + size - _CHECKSUM_BYTES)
    if stored != np.uint64(0) and stored != _checksum(address, size, file.size):
        return NO_POINTS
    return found


@inlined
def _checksum(address: int, size: int, file_size: int) -> np.uint64:
    """Of points of this size, with their checksum, and of the size of their JPEG."""
    content = size - _CHECKSUM_BYTES
    mixed = np.uint64(file_size)
    for begin in range(0, content, 8):
        word = load_word(address + begin)
        missing = max(begin + 8 - content, 0)
        word = word >> np.uint64(8 * missing)
        mixed = (mixed ^ word) * _MULTIPLIER
        mixed = mixed ^ (mixed >> np.uint64(32))
    return mixed


@inlined
def _can_be_entered(frame: Frame) -> bool:
    """Whether there is no restart marker but between rows."""
    return frame.restart % frame.columns == 0


@inlined
def _point_bits(points: Points) -> int:
    return points.bits[_COEFFICIENT] + points.bits[_COEFFICIENT + 1] + points.bits[_COEFFICIENT + 2]


@inlined
def _steps_at(points: Points, frame: Frame) -> int:
    return (frame.rows - 1) * points.bits[_ROW]


@inlined
def _coefficients_at(points: Points, frame: Frame) -> int:
    return _steps_at(points, frame) + frame.rows * (points.number - 1) * points.bits[_STEP]


@inlined
def _bytes(points: Points, frame: Frame) -> int:
    """Of all that the index holds."""
    bits = _coefficients_at(points, frame) + frame.rows * points.number * _point_bits(points)
    return _HEAD_BYTES + (bits + 7) // 8 + _CHECKSUM_BYTES


@inlined
def _number(points: Points, bit: int, bits: int) -> int:
    if bits == 0:
        return 0
    word = load_word(points.at + (bit >> 3)) << np.uint64(bit & 7)
    return int(np.int64(word >> np.uint64(64 - bits)))


@inlined
def row_begin(points: Points, frame: Frame, row: int) -> int:
    """The bit of the file at which a row of MCUs begins."""
    at = frame.at * 8
    for above in range(row):
        at += row_bits(points, above)
    return at


@inlined
def row_bits(points: Points, row: int) -> int:
    """From the beginning of a row to that of the next, which there must be for it to be of use."""
    return _number(points, row * points.bits[_ROW], points.bits[_ROW])


@inlined
def _point(points: Points, frame: Frame, row: int, row_at: int, index: int) -> int:
    """The bit of the file of a point. row_at: of the row."""
    at, found = _steps_at(points, frame) + row * (points.number - 1) * points.bits[_STEP], row_at
    for before in range(index):
        found += _number(points, at + before * points.bits[_STEP], points.bits[_STEP])
    return found


@inlined
def _next_point(points: Points, frame: Frame, row: int, row_at: int, column: int) -> tuple[int, int, int]:
    """The row, number and bit of the point at this column, or of the one that begins the next row; of the last row the
    end has none."""
    index = column // points.apart
    if column < frame.columns:
        return row, index, _point(points, frame, row, row_at, index)
    return row + 1, 0, row_at + row_bits(points, row)


@inlined
def _coefficient(points: Points, frame: Frame, row: int, index: int, component: int) -> int:
    """The DC coefficient before a point."""
    at = _coefficients_at(points, frame) + (row * points.number + index) * _point_bits(points)
    for before in range(component):
        at += points.bits[_COEFFICIENT + before]
    found = _number(points, at, points.bits[_COEFFICIENT + component])
    return found >> 1 ^ -(found & 1)


@inlined
def seek_row(
    file: File, frame: Frame, scratch: Addresses, part: Part, points: Points, row: int, row_at: int
) -> tuple[int, int]:
    """Prepares for what the part needs of a row, from the point before it to the one after it. row_at: bit of the row.

    Returns which columns `read_row` is to read, up to -1 where the point lies outside of the file.
    """
    index = part.first_column // points.apart
    begin, bit = index * points.apart, _point(points, frame, row, row_at, index)
    end = min(-(-part.end_column // points.apart) * points.apart, frame.columns)
    stop, state = file.size * 8, words_at(scratch.state)
    if end < frame.columns or row + 1 < frame.rows:
        stop = _next_point(points, frame, row, row_at, end)[2]
    if bit < frame.at * 8 or bit >= file.size * 8:
        return begin, -1
    seek(file, scratch, bit, stop)
    for component in range(3):
        state[BEFORE + component] = np.uint64(_coefficient(points, frame, row, index, component))
    return begin, end


@inlined
def agrees(file: File, frame: Frame, scratch: Addresses, points: Points, row: int, row_at: int, column: int) -> bool:
    """Whether reading has come to the point at this column, or in the next row, as it has if both points are right."""
    if column >= frame.columns and row + 1 == frame.rows:
        return ends_well(file, scratch, True)
    at_marker = column >= frame.columns and is_after_marker(frame, (row + 1) * frame.columns)
    row, index, bit = _next_point(points, frame, row, row_at, column)
    state, same = words_at(scratch.state), True
    for component in range(frame.components):
        before = _coefficient(points, frame, row, index, component)
        same = same and np.int64(state[BEFORE + component]) == before
    return same and has_read_up_to(scratch, bit, at_marker)


class _Memory(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


_memory = _Memory()


def find_points(data: bytes, height: int, width: int, most_share: float = 0.01) -> bytes | None:
    """The points of a JPEG of this size, as dense as a share of its bytes allows; b"" where that is not enough, or
    where there are restart markers within rows.

    All of its coded pixels are read. None where it is not decoded here, or has a fault.
    """
    file, found = np.frombuffer(data, np.uint8), np.zeros(int(most_share * len(data)), np.uint8)
    table = _table(height, width, _FINEST)
    number = _find(file.ctypes.data, len(file), _memory.scratch.addresses, height, width, table, found)
    return None if number < 0 else found[:number].tobytes()


def points_hold(data: bytes, points: bytes, height: int, width: int) -> bool:
    """Whether these are points of a JPEG of this size. All of its coded pixels are read."""
    if not points or points[0] == 0:
        return False
    file = np.frombuffer(data, np.uint8)
    stored = np.frombuffer(points, np.uint8)
    table = _table(height, width, points[0])
    addresses = _memory.scratch.addresses
    return bool(_hold(file.ctypes.data, len(file), addresses, height, width, table, stored.ctypes.data, len(stored)))


def _table(height: int, width: int, apart: int) -> I64:
    """int64 (n, 4), with room for a point every `apart` columns: the bit of the file, and three DC coefficients."""
    return np.empty((-(-height // 8) * -(-width // (8 * apart)), 4), np.int64)


@cached
def _find(address: int, size: int, scratch: Addresses, height: int, width: int, table: I64, found: U8) -> int:
    """Writes the points into `found`, as dense as there is room for. Returns the bytes written; -1 where the file has a
    fault or is not decoded here.

    table: int64 (n, 4), as `_table` makes it for a point every `_FINEST` columns.
    """
    file = File(address, size)
    frame = read_frame(file, scratch)
    number = _read_table(file, frame, scratch, height, width, _FINEST, table)
    if number < 0 or not _can_be_entered(frame):
        return min(number, 0)
    points, step = table[:number].reshape(frame.rows, -1, 4), 1
    while step * _FINEST <= _COARSEST:
        written = _write(points[:, ::step], step * _FINEST, found)
        if written <= len(found):
            _seal(found[:written], size)
            return written
        step = max(step * written // max(len(found), 1), step + 1)  # as many times fewer as there are too many bytes
    return 0


@cached
def _hold(
    address: int, size: int, scratch: Addresses, height: int, width: int, table: I64, stored: int, stored_size: int
) -> bool:
    """Whether the points at `stored` are those of the file. table: int64 (n, 4), as `_table` makes it."""
    file = File(address, size)
    frame = read_frame(file, scratch)
    points = NO_POINTS
    if frame.at != 0:
        points = read_points(stored, stored_size, file, frame)
    if points.apart == 0 or _read_table(file, frame, scratch, height, width, points.apart, table) < 0:
        return False
    row_at = frame.at * 8
    same = True
    for row in range(frame.rows):
        for index in range(points.number):
            point = table[row * points.number + index]
            same = same and point[0] == _point(points, frame, row, row_at, index)
            for component in range(frame.components):
                same = same and point[1 + component] == _coefficient(points, frame, row, index, component)
        if row + 1 < frame.rows:
            row_at += row_bits(points, row)
    return same


@inlined
def _read_table(file: File, frame: Frame, scratch: Addresses, height: int, width: int, apart: int, table: I64) -> int:
    """Fills the table with a point every `apart` columns. Returns how many there are; -1 where the file has a fault, is
    of another size or is not decoded here."""
    if frame.at == 0 or frame.height != height or frame.width != width or frame.orientation != UPRIGHT:
        return -1
    position, state, number = longs_at(scratch.position), words_at(scratch.state), 0
    begin_scan(file, frame, scratch)
    for mcu in range(frame.rows * frame.columns):
        if mcu % frame.columns % apart == 0:
            table[number, 0] = position[BEHIND] * 8 + used_bits(scratch, is_after_marker(frame, mcu))
            for component in range(3):
                table[number, 1 + component] = np.int64(state[BEFORE + component])
            number += 1
        if is_low(frame, scratch) and not supply(file, frame, scratch, mcu):
            return -1
        if not skip_mcu(frame, scratch):
            return -1
    if not ends_well(file, scratch, True):
        return -1
    _to_file(file, frame, table[:number])
    return number


@inlined
def _seal(points: U8, file_size: int) -> None:
    """Writes the checksum into its place at the end."""
    checksum = _checksum(points.ctypes.data, len(points), file_size)
    for number in range(_CHECKSUM_BYTES):
        points[len(points) - 1 - number] = np.uint8(checksum >> np.uint64(8 * number) & np.uint64(255))


@inlined
def _to_file(file: File, frame: Frame, table: I64) -> None:
    """Adds the stuffed bytes and markers that the file has between the bits of the scan, which has no fault."""
    data, at, read = bytes_at(file.address), frame.at, 0
    for point in range(len(table)):
        while read < table[point, 0] >> 3:
            if read + 8 <= table[point, 0] >> 3 and not any_ff(load_word(file.address + at)):
                at, read = at + 8, read + 8
                continue
            if data[at] == 0xFF and data[at + 1] != 0:
                at += 2
                continue
            at, read = at + (2 if data[at] == 0xFF else 1), read + 1
        table[point, 0] = at * 8 + (table[point, 0] & 7)


@inlined
def _write(points: I64, apart: int, found: U8) -> int:
    """Writes what the index holds of points, (rows, number, 4), that lie so many columns apart. Returns how many bytes
    they take; nothing is written where there is no room for them."""
    told, most, count, bits = np.empty((2, 2 * points.size), np.int64), np.zeros(5, np.int64), 0, 0
    for kind, value in _told(points):
        told[0, count], told[1, count], count = kind, value, count + 1
        while value >> most[kind] != 0:
            most[kind] += 1
    for number in range(count):
        bits += most[told[0, number]]
    bytes_in_all = _HEAD_BYTES + (bits + 7) // 8 + _CHECKSUM_BYTES
    if bytes_in_all <= len(found):
        found[0], found[1:_HEAD_BYTES], at = apart, most, _HEAD_BYTES
        word, held = 0, 0  # the lowest bits of the word are not written yet
        for number in range(count):
            length = most[told[0, number]]
            word, held = word << length | told[1, number], held + length
            while held >= 8:
                held -= 8
                found[at], at = np.uint8(word >> held), at + 1
        found[at] = np.uint8(word << (8 - held))
    return bytes_in_all


@inlined
def _told(points: I64) -> Iterator[tuple[int, int]]:
    """The numbers that the index holds, in its order, after the kind of each."""
    rows, number = points.shape[0], points.shape[1]
    for row in range(rows - 1):
        yield _ROW, points[row + 1, 0, 0] - points[row, 0, 0]
    for row in range(rows):
        for index in range(1, number):
            yield _STEP, points[row, index, 0] - points[row, index - 1, 0]
    for row in range(rows):
        for index in range(number):
            for component in range(3):
                before = points[row, index, 1 + component]
                yield _COEFFICIENT + component, before << 1 ^ before >> 63
