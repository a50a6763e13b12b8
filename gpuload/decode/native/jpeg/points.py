"""Places in the coded pixels of a JPEG at which decoding may begin, so that a crop costs little more than its pixels.

Of every row of MCUs, and of every so many columns in it, the bit at which the MCU begins and the DC coefficients before
it. The index holds them for each image as bytes:

    uint8: columns of MCUs from point to point; then how many bits a number takes of (1) the distance between the first
    points of two rows, (2) that between two points of a row, (3) a DC coefficient of each of three components
    the numbers, from the highest bit of a byte on: (1) of all rows but the last; (2) row by row; (3) point by point,
    zigzag (0, -1, 1, -2, …)
    8 zeros

Distances are in bits of the file, with stuffed bytes. The first point is where the scan begins.

What is decoded must end at the next point, with its coefficients: so neither point can lie. Where a restart marker is,
the point lies at the marker, with the coefficients before it. There may be none between two points, since behind it
these coefficients could no longer be compared: files with such markers have no points.
"""

import threading
from typing import NamedTuple

import numpy as np

from gpuload.decode.native.compiled import cached, inlined
from gpuload.decode.native.intrinsics import bytes_at, load_word, longs_at, words_at
from gpuload.decode.native.jpeg.blocks import BEFORE
from gpuload.decode.native.jpeg.frame import UPRIGHT, Addresses, File, Frame, Scratch, read_frame
from gpuload.decode.native.jpeg.part import Part
from gpuload.decode.native.jpeg.scan import (
    BEHIND,
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

_HEAD_BYTES, _SPARE_BYTES = 6, 8
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
def read_points(address: int, size: int, frame: Frame) -> Points:
    """The points in these bytes; none where they are not of this frame."""
    data = bytes_at(address)
    if size < _HEAD_BYTES or data[0] == 0 or not _can_be_entered(frame):
        return NO_POINTS
    apart = np.int64(data[0])
    bits = np.int64(data[1]), np.int64(data[2]), np.int64(data[3]), np.int64(data[4]), np.int64(data[5])
    found = Points(apart, -(-frame.columns // apart), address + _HEAD_BYTES, bits)
    return NO_POINTS if max(found.bits) > _MOST_BITS or size != _bytes(found, frame) else found


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
    return _HEAD_BYTES + (bits + 7) // 8 + _SPARE_BYTES


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
    file, room = np.frombuffer(data, np.uint8), int(most_share * len(data))
    table: I64 = np.empty((-(-height // 8) * -(-width // (8 * _FINEST)), 4), np.int64)
    begin, rows, columns = _find(file.ctypes.data, len(file), _memory.scratch.addresses, height, width, table)
    if begin == 0:
        return None
    in_row, step = -(-columns // _FINEST), 1
    points = table[: rows * in_row].reshape(rows, in_row, 4)
    points[:, :, 0] = begin * 8 + _in_file(file[begin:], points[:, :, 0])
    while columns and step * _FINEST <= _COARSEST:
        if len(found := _as_bytes(points[:, ::step], step * _FINEST)) <= room:
            return found
        step = max(step * len(found) // max(room, 1), step + 1)  # as many times fewer as there are too many bytes
    return b""


@cached
def _find(address: int, size: int, scratch: Addresses, height: int, width: int, table: I64) -> tuple[int, int, int]:
    """Where in the file the scan begins, 0 where it has a fault or is not decoded here; rows and columns of MCUs, none
    where they cannot be entered.

    table: int64 (n, 4), filled with a point every `_FINEST` columns: the bit of the scan, and three DC coefficients.
    """
    file = File(address, size)
    frame = read_frame(file, scratch)
    if frame.at == 0 or frame.height != height or frame.width != width or frame.orientation != UPRIGHT:
        return 0, 0, 0
    position, state, number = longs_at(scratch.position), words_at(scratch.state), 0
    begin_scan(file, frame, scratch)
    for mcu in range(frame.rows * frame.columns):
        if mcu % frame.columns % _FINEST == 0:
            table[number, 0] = position[BEHIND] * 8 + used_bits(scratch, is_after_marker(frame, mcu))
            for component in range(3):
                table[number, 1 + component] = np.int64(state[BEFORE + component])
            number += 1
        if is_low(frame, scratch) and not supply(file, frame, scratch, mcu):
            return 0, 0, 0
        if not skip_mcu(frame, scratch):
            return 0, 0, 0
    if not ends_well(file, scratch, True):
        return 0, 0, 0
    return (frame.at, frame.rows, frame.columns) if _can_be_entered(frame) else (frame.at, 0, 0)


def _in_file(scan: U8, bits: I64) -> I64:
    """Bits of a scan with the stuffed bytes and markers that the file has between them. scan: to the file's end."""
    behind_ff, kept = scan[:-1] == 0xFF, np.ones(len(scan), np.bool_)
    kept[1:] &= ~behind_ff
    kept[:-1] &= ~(behind_ff & (scan[1:] != 0))  # a marker
    last = np.flatnonzero(kept)[np.maximum(bits >> 3, 1) - 1]  # the byte before
    begin: I64 = np.where(bits >= 8, last + 1 + (scan[last] == 0xFF), 0)
    return begin * 8 + (bits & 7)


def _as_bytes(points: I64, apart: int) -> bytes:
    """What the index holds of points, (rows, number, 4), that lie so many columns apart."""
    at, before = points[:, :, 0], points[:, :, 1:].reshape(-1, 3)
    numbers = [np.diff(at[:, 0]), np.diff(at, axis=1).ravel(), *(before << 1 ^ before >> 63).T]
    most = [int(kind.max(initial=0)).bit_length() for kind in numbers]
    row, step, *coefficients = (
        (kind[:, None] >> np.arange(bits)[::-1] & 1).astype(np.uint8) for kind, bits in zip(numbers, most, strict=True)
    )
    told = np.concatenate([row.ravel(), step.ravel(), np.hstack(coefficients).ravel()])
    return bytes([apart, *most]) + np.packbits(told).tobytes() + bytes(_SPARE_BYTES)
