"""Places in the coded pixels of a JPEG at which decoding may begin, so that a crop costs little more than its pixels.

Of every row of MCUs, and of every so many columns in it, the bit at which the MCU begins and the DC coefficients before
it. The index holds them for each image as bytes:

    uint8: columns of MCUs from point to point; then how many bits a number takes of (1) the distance between the first
    points of two rows, (2) that between two points of a row, (3) a DC coefficient of each of three components
    the numbers, from the highest bit of a byte on: (1) of all rows but the last; (2) row by row; (3) point by point,
    zigzag (0, -1, 1, -2, …)
    8 zeros

Distances are in bits of the file, with stuffed bytes. The first point is where the scan begins.

What is decoded must end at the next point, with its coefficients: so neither point can lie. Files with restart markers
have no points, since behind such a marker the coefficients before it can no longer be compared.
"""

from typing import NamedTuple

import numpy as np

from gpuload.decode.native.compiled import cached, inlined
from gpuload.decode.native.jpeg.blocks import BEFORE
from gpuload.decode.native.jpeg.frame import UPRIGHT, File, Frame, read_frame
from gpuload.decode.native.jpeg.part import Part
from gpuload.decode.native.jpeg.scan import (
    BEHIND,
    any_ff,
    begin_scan,
    ends_well,
    has_read_up_to,
    is_low,
    seek,
    skip_mcu,
    supply,
    used_bits,
)
from gpuload.decode.native.jpeg.scratch import Addresses, Scratch
from gpuload.decode.native.pointers import bytes_at, load_word, longs_at, words_at
from gpuload.types import I64

_HEAD_BYTES, _SPARE_BYTES = 6, 8
_MOST_BITS = 40
_FINEST, _COARSEST = 8, 128  # columns from point to point


class Points(NamedTuple):
    """The points of a file; `apart` is 0 where it has none.

    apart: columns from one to the next. number: in a row. at: address of the numbers. row_bits, step_bits, first_bits,
    second_bits, third_bits: of a number.
    """

    apart: int
    number: int
    at: int
    row_bits: int
    step_bits: int
    first_bits: int
    second_bits: int
    third_bits: int


NO_POINTS = Points(0, 0, 0, 0, 0, 0, 0, 0)


@inlined
def read_points(address: int, size: int, frame: Frame) -> Points:
    """The points in these bytes; none where they are not of this frame."""
    data = bytes_at(address)
    if size < _HEAD_BYTES or data[0] == 0 or frame.restart != 0:
        return NO_POINTS
    apart, most = np.int64(data[0]), 0
    number = -(-frame.columns // apart)
    found = Points(
        apart,
        number,
        address + _HEAD_BYTES,
        np.int64(data[1]),
        np.int64(data[2]),
        np.int64(data[3]),
        np.int64(data[4]),
        np.int64(data[5]),
    )
    for index in range(1, _HEAD_BYTES):
        most = max(most, np.int64(data[index]))
    if most > _MOST_BITS or size != _HEAD_BYTES + (_bits(found, frame) + 7) // 8 + _SPARE_BYTES:
        return NO_POINTS
    return found


@inlined
def _point_bits(points: Points) -> int:
    return points.first_bits + points.second_bits + points.third_bits


@inlined
def _steps_at(points: Points, frame: Frame) -> int:
    return (frame.rows - 1) * points.row_bits


@inlined
def _coefficients_at(points: Points, frame: Frame) -> int:
    return _steps_at(points, frame) + frame.rows * (points.number - 1) * points.step_bits


@inlined
def _bits(points: Points, frame: Frame) -> int:
    return _coefficients_at(points, frame) + frame.rows * points.number * _point_bits(points)


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
    return _number(points, row * points.row_bits, points.row_bits)


@inlined
def _point(points: Points, frame: Frame, row: int, row_at: int, index: int) -> int:
    """The bit of the file of a point. row_at: of the row."""
    at, found = _steps_at(points, frame) + row * (points.number - 1) * points.step_bits, row_at
    for before in range(index):
        found += _number(points, at + before * points.step_bits, points.step_bits)
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
    bits = points.first_bits
    if component == 1:
        at, bits = at + bits, points.second_bits
    elif component == 2:
        at, bits = at + bits + points.second_bits, points.third_bits
    found = _number(points, at, bits)
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
    row, index, bit = _next_point(points, frame, row, row_at, column)
    state, same = words_at(scratch.state), True
    for component in range(frame.components):
        before = _coefficient(points, frame, row, index, component)
        same = same and np.int64(state[BEFORE + component]) == before
    return same and has_read_up_to(scratch, bit)


def find_points(data: bytes, height: int, width: int, most_share: float = 0.01) -> bytes | None:
    """The points of a JPEG of this size, as dense as a share of its bytes allows; b"" where that is not enough.

    All of its coded pixels are read. None where it is not decoded here, or has a fault.
    """
    file, scratch = np.frombuffer(data, np.uint8), Scratch()
    table: I64 = np.zeros((-(-height // 8) * -(-width // (8 * _FINEST)), 4), np.int64)
    rows, number = _find(file.ctypes.data, len(file), scratch.addresses, height, width, table)
    if number == 0:
        return None if rows == 0 else b""
    apart, table = _FINEST, table[: rows * number].reshape(rows, number, 4)
    while apart <= _COARSEST:
        numbers = _numbers(table[:, :: apart // _FINEST])
        bits = [int(one.max(initial=0)).bit_length() for one in numbers]
        packed_bytes = (sum(one.size * each for one, each in zip(numbers, bits, strict=True)) + 7) // 8
        if _HEAD_BYTES + packed_bytes + _SPARE_BYTES <= most_share * len(data):
            digits = [(one[..., None] >> np.arange(each)[::-1]) & 1 for one, each in zip(numbers, bits, strict=True)]
            ordered = *digits[:2], np.concatenate(digits[2:], axis=-1)
            packed = np.packbits(np.concatenate([one.ravel() for one in ordered]).astype(np.uint8))
            return bytes([apart, *bits]) + packed.tobytes() + bytes(_SPARE_BYTES)
        apart *= 2
    return b""


def _numbers(table: I64) -> list[I64]:
    """What the index holds of points (rows, points, 4): the distances of rows and of points, and the coefficients."""
    at, before = table[..., 0], table[..., 1:]
    return [np.diff(at[:, 0]), np.diff(at), *np.moveaxis(before << 1 ^ before >> 63, -1, 0)]


@cached
def _find(address: int, size: int, scratch: Addresses, height: int, width: int, table: I64) -> tuple[int, int]:
    """Fills a table with a point every `_FINEST` columns: the bit of the file, and three DC coefficients.

    Returns the rows of MCUs, 0 where the file has a fault or is not decoded here; and the points in each.
    """
    file = File(address, size)
    frame = read_frame(file, scratch)
    if frame.at == 0 or frame.height != height or frame.width != width or frame.orientation != UPRIGHT:
        return 0, 0
    position, state, number = longs_at(scratch.position), words_at(scratch.state), 0
    begin_scan(file, frame, scratch)
    for mcu in range(frame.rows * frame.columns):
        if is_low(frame, scratch) and not supply(file, frame, scratch, mcu):
            return 0, 0
        if mcu % frame.columns % _FINEST == 0:
            table[number, 0] = position[BEHIND] * 8 + used_bits(scratch)
            for component in range(frame.components):
                table[number, 1 + component] = np.int64(state[BEFORE + component])
            number += 1
        if not skip_mcu(frame, scratch):
            return 0, 0
    if not ends_well(file, scratch, True):
        return 0, 0
    if frame.restart == 0:
        _to_file(file, frame, table[:number])
    return frame.rows, 0 if frame.restart != 0 else number // frame.rows


@inlined
def _to_file(file: File, frame: Frame, table: I64) -> None:
    """Adds the stuffed bytes that the file has between the bits of the scan, which has no fault."""
    data, at, read = bytes_at(file.address), frame.at, 0
    for point in range(len(table)):
        while read < table[point, 0] >> 3:
            if read + 8 <= table[point, 0] >> 3 and not any_ff(load_word(file.address + at)):
                at, read = at + 8, read + 8
                continue
            at, read = at + (2 if data[at] == 0xFF else 1), read + 1
        table[point, 0] = at * 8 + (table[point, 0] & 7)
