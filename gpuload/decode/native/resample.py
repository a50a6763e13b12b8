"""The resize of the CPU decoder, compiled: a region of each image to the size of the output, antialiased.

A pixel's three channels are kept in one 64-bit word, 21 bits each, so that the filter takes one multiplication and one
addition for all three. Resizing a crop to 64×64 takes 6 µs, while torch's uint8 `interpolate` and normalisation take
23 µs, mostly for the calls; 400×400 to 224×224 takes 160 µs instead of 200 (AMD EPYC with AVX-512, medians of
interleaved runs, 2026-11). Most of that time is spent gathering words in the pass along the rows.

The filters are those of Pillow and torch (`filters.py`). As there, a pass along the rows and then one along the columns
each round to whole levels.
"""

from typing import Any

import numpy as np

from gpuload.decode.native.compiled import inlined
from gpuload.decode.native.intrinsics import array_at, bytes_at, doubles_at, longs_at
from gpuload.decode.native.steps import kept, step
from gpuload.decode.native.values import (
    CUBIC_BIAS,
    CUBIC_BITS,
    LANE,
    LINEAR_BIAS,
    LINEAR_BITS,
    PIXELS,
    SPARE_BYTES,
    Taps,
    constants_of,
    fill_taps,
    output_at,
    place_of,
    room_for,
    row_of,
    span_of,
    store_row,
    word_at,
)
from gpuload.types import U8, U64

_ONES = (1 << 2 * LANE) | (1 << LANE) | 1
_LEVELS = 255 * _ONES


@inlined
def _weigh_two(begin: float, step: float, low: int, high: int, flipped: bool, taps: Taps) -> None:
    """`_weigh` if the region is not reduced, so at most two inputs have a weight; five times as fast."""
    one, first, weights = float(1 << LINEAR_BITS), taps.first, taps.weights
    for index in range(len(first)):
        output = len(first) - 1 - index if flipped else index
        at = begin + step * (index + 0.5) - 0.5
        start = np.floor(at)
        near = np.floor((start + 1.0 - at) * one + 0.5)
        if start < low or start >= high - 1:
            start, near = min(max(start, float(low)), float(high - 1)), one
        first[output], taps.number[output] = np.uint64(start), 1 if near == one else 2
        weights[0, output], weights[1, output] = np.uint64(near), np.uint64(one - near)


@inlined
def _weigh(begin: float, step: float, low: int, high: int, cubic: bool, flipped: bool, taps: Taps) -> int:
    """The filter's weights for each output, uint64, negative ones as two's complement, using only inputs low..high-1.
    Returns the largest number of taps."""
    first, weights = taps.first, taps.weights
    if not cubic and step <= 1.0:
        _weigh_two(begin, step, low, high, flipped, taps)
        return 2
    most, one = 1, float(1 << (CUBIC_BITS if cubic else LINEAR_BITS))
    for index in range(len(first)):
        output = len(first) - 1 - index if flipped else index
        start, number, total = fill_taps(begin + step * (index + 0.5), step, low, high, cubic, taps.values)
        # The rounding error of the weights so far goes into the next one, so they still sum to 1.
        scale, exact, done, used = one / total, 0.0, 0, 1
        for tap in range(number):
            exact += taps.values[tap] * scale
            weight = int(np.floor(exact + 0.5)) - done
            done += weight
            weights[tap, output] = np.uint64(weight)
            if weight != 0:
                used = tap + 1
        for tap in range(number, len(weights)):
            weights[tap, output] = np.uint64(0)
        first[output], taps.number[output] = start, used
        most = max(most, used)
    return most


# Rows are passed as indices and not as slices, each of which costs as much as 50 pixels: numba counts references to
# arrays atomically. Taps are taken in pairs, the last one of an odd number with a weight of 0: a branch for single taps
# costs more than it saves.


@inlined
def _pack(pixels: U8, begin: int, number: int, words: U64, row: int) -> None:
    """Loads `number` pixels, from byte `begin` on, into a row of words."""
    for x in range(number):
        words[row, x] = word_at(pixels, begin + 3 * x)


@inlined
def _sum_columns(words: U64, first: U64, weights: U64, taps: int, start: np.uint64, sums: U64) -> None:
    """For each output, `start` and the weighted sum of `taps` words; there is one row of them."""
    one = np.uint64(1)
    for x in range(len(sums)):
        sums[x] = start + weights[0, x] * words[0, first[x]] + weights[1, x] * words[0, first[x] + one]
    for tap in range(2, taps, 2):
        after = np.uint64(tap)
        for x in range(len(sums)):
            at = first[x] + after
            sums[x] += weights[tap, x] * words[0, at] + weights[tap + 1, x] * words[0, at + one]


@inlined
def _sum_rows(rows: U64, first: int, weights: U64, output: int, taps: int, start: np.uint64, sums: U64) -> None:
    """For one output, `start` and the weighted sum of `taps` rows of words, out of a ring of 2^k rows."""
    slots = len(rows) - 1
    row, weight = first & slots, weights[0, output]
    below, other = (first + 1) & slots, weights[1, output]
    for x in range(len(sums)):
        sums[x] = start + weight * rows[row, x] + other * rows[below, x]
    for tap in range(2, taps, 2):
        row, weight = (first + tap) & slots, weights[tap, output]
        below, other = (first + tap + 1) & slots, weights[tap + 1, output]
        for x in range(len(sums)):
            sums[x] += weight * rows[row, x] + other * rows[below, x]


@inlined
def _cubic_level(total: np.uint64, lane: int) -> Any:
    """uint64: one channel of a sum, 0..255."""
    level = np.int32((total >> np.uint64(lane * LANE + CUBIC_BITS)) & np.uint64((1 << (LANE - CUBIC_BITS)) - 1))
    return np.uint64(min(max(level - np.int32(CUBIC_BIAS >> CUBIC_BITS), np.int32(0)), np.int32(255)))


@inlined
def _round(sums: U64, cubic: bool, words: U64, row: int) -> None:
    """Rounds sums to a row of words."""
    if not cubic:
        for x in range(len(sums)):
            words[row, x] = (sums[x] >> np.uint64(LINEAR_BITS)) & np.uint64(_LEVELS)
        return
    for x in range(len(sums)):
        r = _cubic_level(sums[x], 0)
        g = _cubic_level(sums[x], 1)
        b = _cubic_level(sums[x], 2)
        words[row, x] = r | g << np.uint64(LANE) | b << np.uint64(2 * LANE)


@step
def resample_rows(arguments: int, begin: int, end: int) -> int:
    of, output = longs_at(arguments), output_at(arguments + 5 * 8)
    pictures, windows = array_at(longs_at(of[0]), (end, 7)), array_at(longs_at(of[1]), (end, 4))
    regions, flips, cubic = array_at(doubles_at(of[2]), (end, 4)), array_at(bytes_at(of[3]), (end, 2)), of[4] != 0
    height, width = output.height, output.width
    bits, bias = (CUBIC_BITS, CUBIC_BIAS) if cubic else (LINEAR_BITS, LINEAR_BIAS)
    start = np.uint64(bias + (1 << (bits - 1))) * np.uint64(_ONES)
    most_columns, most_taps, slots = room_for(pictures, regions, begin, end, height, width, cubic)
    values = np.empty(most_taps)
    first_rows, row_taps = np.empty(height, np.uint64), np.empty(height, np.int64)
    first_columns, column_taps = np.empty(width, np.uint64), np.empty(width, np.int64)
    row_weights = np.empty((most_taps, height), np.uint64)
    column_weights = np.empty((most_taps, width), np.uint64)
    words = np.zeros((1, most_columns + most_taps), np.uint64)
    all_sums, spare = np.empty(max(width, PIXELS), np.uint64), np.empty(SPARE_BYTES, np.uint8)
    sums = all_sums[:width]
    ring, all_row_sums = np.empty((slots, max(width, most_columns)), np.uint64), np.empty(most_columns, np.uint64)
    means, factors = constants_of(output)
    sums_at, spare_at = np.int64(all_sums.ctypes.data), np.int64(spare.ctypes.data)
    for image in range(begin, end):
        stored, rows, columns, stride, y, x, reduced = pictures[image]
        if stored == 0:
            continue
        pixels = array_at(bytes_at(stored), (rows * stride,))
        top, bottom, begin_y, step_y = span_of(windows[image], regions[image], 0, y, rows, reduced, height)
        left, right, begin_x, step_x = span_of(windows[image], regions[image], 1, x, columns, reduced, width)
        _weigh(begin_y, step_y, top, bottom, cubic, False, Taps(values, first_rows, row_taps, row_weights))
        flipped = flips[image, 1] != 0
        across = Taps(values, first_columns, column_taps, column_weights)
        taps = _weigh(begin_x, step_x, left, right, cubic, flipped, across)
        first_columns -= np.uint64(left)
        row_sums = all_row_sums[: right - left]
        # The pass along the columns goes first where many pixels become few: it leaves fewer rows to the pass along the
        # rows, which gathers. 1200 pixels to 224 take 0.43 ms in this order and 0.61 in the other. But single pixels
        # then differ by a level, so this is for images decoded at a reduced size, which are not exact anyway.
        rows_first = reduced > 1
        known = top  # the rows before this one are, or have been, in the ring
        for row in range(height):
            first = np.int64(first_rows[row])
            known = max(known, first)
            while known < first + row_taps[row]:
                if rows_first:
                    _pack(pixels, known * stride + 3 * left, right - left, ring, known & (slots - 1))
                else:
                    _pack(pixels, known * stride + 3 * left, right - left, words, 0)
                    _sum_columns(words, first_columns, column_weights, taps, start, sums)
                    _round(sums, cubic, ring, known & (slots - 1))
                known += 1
            if rows_first:
                _sum_rows(ring, first, row_weights, row, row_taps[row], start, row_sums)
                _round(row_sums, cubic, words, 0)
                _sum_columns(words, first_columns, column_weights, taps, start, sums)
            else:
                _sum_rows(ring, first, row_weights, row, row_taps[row], start, sums)
            shown = height - 1 - row if flips[image, 0] != 0 else row
            store_row(sums_at, cubic, means, factors, output, row_of(output, image, shown), spare_at)
    return kept(all_sums, spare)


@step
def crop_or_pad_rows(arguments: int, begin: int, end: int) -> int:
    of, output = longs_at(arguments), output_at(arguments + 6 * 8)
    pictures, windows = array_at(longs_at(of[0]), (end, 7)), array_at(longs_at(of[1]), (end, 4))
    flips, sizes, mode = array_at(bytes_at(of[2]), (end, 2)), array_at(longs_at(of[3]), (end, 2)), of[5]
    height, width = output.height, output.width
    words, spare = np.empty(max(width, PIXELS), np.uint64), np.empty(SPARE_BYTES, np.uint8)
    words_at, spare_at = np.int64(words.ctypes.data), np.int64(spare.ctypes.data)
    means, factors = constants_of(output)
    outside = word_at(bytes_at(of[4]), 0) << np.uint64(LINEAR_BITS)
    places = np.empty(width, np.int64)
    for image in range(begin, end):
        address, rows, columns, stride, y, x, _ = pictures[image]
        if address == 0:
            continue
        for column in range(width):
            at_x = windows[image, 1] + (width - 1 - column if flips[image, 1] != 0 else column)
            places[column] = place_of(at_x, x, columns, sizes[image, 1], mode)
        for row in range(height):
            at_y = windows[image, 0] + (height - 1 - row if flips[image, 0] != 0 else row)
            line = place_of(at_y, y, rows, sizes[image, 0], mode)
            pixels = bytes_at(address + max(line, 0) * stride)
            for column in range(width):
                if line >= 0 and places[column] >= 0:
                    words[column] = word_at(pixels, 3 * places[column]) << np.uint64(LINEAR_BITS)
                else:
                    words[column] = outside
            store_row(words_at, False, means, factors, output, row_of(output, image, row), spare_at)
    return kept(words, spare)
