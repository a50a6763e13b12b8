"""Moves the pixels of images by a map of their coordinates, compiled: rotations, affine maps and perspectives.

Four pixels are weighted as words, see `gpuload.decode.native.values`, with 13 bits for each direction; the result is
normalised in the same pass.
"""

from typing import Any

import numpy as np

from gpuload.decode.native.compiled import cached, inlined
from gpuload.decode.native.pointers import bytes_at
from gpuload.decode.native.values import (
    LANE,
    LINEAR_BITS,
    PIXELS,
    SPARE_BYTES,
    Output,
    output_of,
    row_of,
    store_row,
    word_at,
)
from gpuload.types import F32, F64, I64, U8, Bools

_BITS = 24  # of a coordinate's fraction: over 65,535 pixels the error of the sum is below 1/256 of a pixel
_ONE = 1 << _BITS
_FARTHEST = float(1 << 30)  # pixels; beyond it, a coordinate only says that the pixel is outside
_WHOLE = 1 << LINEAR_BITS
_HALF = (_WHOLE >> 1) * ((1 << 2 * LANE) | (1 << LANE) | 1)


def warp(pictures: I64, maps: F64, bilinear: Bools, fills: U8, mean: F32, factor: F32, out: Any) -> None:
    """Each pixel of N outputs from the point of its picture that it comes from, as (level - mean) * factor.

    pictures: int64 (N, 7), as `gpuload.decode.native.resample.resample` takes them; where the address is 0, nothing is
        done.
    maps: float64 (N, 3, 3), from (column, row, 1) of the output to those of the picture, times any factor.
    bilinear: bool (N,), whether four pixels are weighted, else the nearest one is taken.
    fills: uint8 (N, 3), the levels outside of the picture.
    mean, factor: float32 (3,). out: as for `resample`.
    """
    _warp(pictures, maps.reshape(-1, 9), bilinear, fills, mean, factor, output_of(out))


@inlined
def _fixed(at: float) -> int:
    return int(min(max(at, -_FARTHEST), _FARTHEST) * _ONE)


@inlined
def _nearest(address: int, rows: int, columns: int, stride: int, x: int, y: int, outside: Any) -> Any:
    column, row = (x + (_ONE >> 1)) >> _BITS, (y + (_ONE >> 1)) >> _BITS
    if 0 <= column < columns and 0 <= row < rows:
        return word_at(bytes_at(address + row * stride), 3 * column) << np.uint64(LINEAR_BITS)
    return outside << np.uint64(LINEAR_BITS)


@inlined
def _tap(address: int, rows: int, columns: int, stride: int, column: int, row: int, outside: Any) -> Any:
    if 0 <= column < columns and 0 <= row < rows:
        return word_at(bytes_at(address + row * stride), 3 * column)
    return outside


@inlined
def _weighted(address: int, rows: int, columns: int, stride: int, x: int, y: int, outside: Any) -> Any:
    column, row = x >> _BITS, y >> _BITS
    if column < -1 or row < -1 or column >= columns or row >= rows:
        return outside << np.uint64(LINEAR_BITS)
    right = (x >> (_BITS - LINEAR_BITS)) & (_WHOLE - 1)
    below = (y >> (_BITS - LINEAR_BITS)) & (_WHOLE - 1)
    both = (right * below) >> LINEAR_BITS
    if 0 <= column < columns - 1 and 0 <= row < rows - 1:
        upper = bytes_at(address + row * stride + 3 * column)
        lower = bytes_at(address + (row + 1) * stride + 3 * column)
        first, second = word_at(upper, 0), word_at(upper, 3)
        third, fourth = word_at(lower, 0), word_at(lower, 3)
    else:
        first = _tap(address, rows, columns, stride, column, row, outside)
        second = _tap(address, rows, columns, stride, column + 1, row, outside)
        third = _tap(address, rows, columns, stride, column, row + 1, outside)
        fourth = _tap(address, rows, columns, stride, column + 1, row + 1, outside)
    total = first * np.uint64(_WHOLE - right - below + both) + second * np.uint64(right - both)
    return total + third * np.uint64(below - both) + fourth * np.uint64(both) + np.uint64(_HALF)


@cached
def _warp(pictures: I64, maps: F64, bilinear: Bools, fills: U8, mean: F32, factor: F32, output: Output) -> None:
    height, width = output.height, output.width
    words, spare = np.empty(max(width, PIXELS), np.uint64), np.empty(SPARE_BYTES, np.uint8)
    words_at, spare_at = np.int64(words.ctypes.data), np.int64(spare.ctypes.data)
    means, factors = (mean[0], mean[1], mean[2]), (factor[0], factor[1], factor[2])
    for image in range(len(pictures)):
        address, rows, columns, stride, _, _, _ = pictures[image]
        if address == 0:
            continue
        outside = word_at(fills[image], 0)
        a, b, c, d, e, f, g, h, i = maps[image]
        is_affine = g == 0.0 and h == 0.0
        for row in range(height):
            if is_affine:
                x, step_x = _fixed((b * row + c) / i), _fixed(a / i)
                y, step_y = _fixed((e * row + f) / i), _fixed(d / i)
                if bilinear[image]:
                    for column in range(width):
                        words[column] = _weighted(address, rows, columns, stride, x, y, outside)
                        x += step_x
                        y += step_y
                else:
                    for column in range(width):
                        words[column] = _nearest(address, rows, columns, stride, x, y, outside)
                        x += step_x
                        y += step_y
            else:
                for column in range(width):
                    nearness = 1.0 / (g * column + (h * row + i))
                    x = _fixed((a * column + (b * row + c)) * nearness)
                    y = _fixed((d * column + (e * row + f)) * nearness)
                    if bilinear[image]:
                        words[column] = _weighted(address, rows, columns, stride, x, y, outside)
                    else:
                        words[column] = _nearest(address, rows, columns, stride, x, y, outside)
            store_row(words_at, False, means, factors, output, row_of(output, image, row), spare_at)
