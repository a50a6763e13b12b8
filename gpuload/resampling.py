"""The arithmetic of the CPU's resize, compiled: a region of each image to the size of the output, antialiased.

A pixel's three channels are kept in one 64-bit word, 21 bits each, so that the filter takes one multiplication and one
addition for the three. With that a crop of 64×64 pixels takes 8 µs where torch's uint8 `interpolate` and normalisation
take 27 µs, most of them for the calls, one of 400×400 to 224×224 84 µs for 170 µs (AMD EPYC, 2026-11). The functions
run without Python's lock.

The filters are those of Pillow and torch: a triangle, or Keys' cubic with a = -0.5, as wide as the region is to be made
smaller (https://pillow.readthedocs.io/en/stable/handbook/concepts.html#filters). As there, a pass along the rows and
then one along the columns each round to whole levels.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpuload.errors import MissingPackageError

try:
    from numba import carray, njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic
except ImportError:
    raise MissingPackageError(
        "decoder='turbo': numba is not installed. `pip install 'gpuload[cpu]'` brings it, or use decoder='dali'"
    ) from None

F = TypeVar("F", bound=Callable[..., Any])
U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Columns of `pictures`.
ADDRESS, HEIGHT, WIDTH, STRIDE, TOP, LEFT, FACTOR = range(7)

# A word: B, G, R from its top, of 21 bits each: a level (8 bits) times weights that sum to 1 << 13; of a cubic filter
# to 1 << 12, with a bias that keeps what it overshoots above 0.
_LANE = 21
_ONES = (1 << 2 * _LANE) | (1 << _LANE) | 1
_LEVELS = 255 * _ONES
_LINEAR_BITS, _LINEAR_BIAS = 13, 0
_CUBIC_BITS, _CUBIC_BIAS = 12, 1 << 19

_OPTIONS: Any = {"nogil": True, "fastmath": {"contract", "nsz", "arcp"}, "error_model": "numpy"}


def _compiled(function: F) -> F:
    compiled: F = njit(**_OPTIONS)(function)
    return compiled


def _kept(function: F) -> F:
    """Compiled once for all processes, where there is a place to keep it: compiling takes 4 s, loading 0.2 s."""
    try:
        compiled: F = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # neither NUMBA_CACHE_DIR nor the folder of this file nor the user's cache can be written to
        compiled = _compiled(function)
    return compiled


def _make_pointer(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.CPointer(types.uint8)(types.int64), generate


_pointer: Any = intrinsic(_make_pointer)


@_compiled
def _weigh(
    begin: float, step: float, low: int, high: int, cubic: bool, flipped: bool, first: U64, taps: I64, weights: F64
) -> int:
    """The filter's weights for each output, of the inputs low..high-1 alone.

    first: uint64 (outputs,), the first input. taps: int64 (outputs,), how many have a weight. weights: float64 (most
    taps, outputs). Returns the most taps of an output.
    """
    most, one = 1, 1 << (_CUBIC_BITS if cubic else _LINEAR_BITS)
    stretch = max(step, 1.0)
    support = stretch * (2.0 if cubic else 1.0)
    for place in range(len(first)):
        output = len(first) - 1 - place if flipped else place
        center = begin + step * (place + 0.5)
        start = min(max(int(np.floor(center - support + 0.5)), low), high - 1)
        stop = max(min(int(np.floor(center + support + 0.5)), high), start + 1)
        total = 0.0
        for at in range(start, stop):
            x = abs(at + 0.5 - center) / stretch
            if not cubic:
                value = max(1.0 - x, 0.0)
            elif x < 1.0:
                value = (1.5 * x - 2.5) * x * x + 1.0
            elif x < 2.0:
                value = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
            else:
                value = 0.0
            weights[at - start, output] = value
            total += value
        if total == 0.0:  # a region outside of its window
            weights[0, output] = total = 1.0
        # What was rounded off of the weights so far goes into the next: so they still sum to 1.
        exact = done = 0.0
        used = 1
        for tap in range(len(weights)):
            if tap < stop - start:
                exact += weights[tap, output] / total * one
                weights[tap, output] = np.floor(exact + 0.5) - done
                done += weights[tap, output]
                if weights[tap, output] != 0.0:
                    used = tap + 1
            else:
                weights[tap, output] = 0.0
        first[output], taps[output] = start, used
        most = max(most, used)
    return most


@_compiled
def _pack(pixels: U8, begin: int, words: U64) -> None:
    """Pixels, the first at byte `begin`, to words."""
    row = pixels[begin : begin + 3 * len(words)]
    for x in range(len(words)):
        g, b = np.uint64(row[3 * x + 1]) << np.uint64(_LANE), np.uint64(row[3 * x + 2]) << np.uint64(2 * _LANE)
        words[x] = np.uint64(row[3 * x]) | g | b


@_compiled
def _sum_columns(words: U64, first: U64, weights: U64, taps: int, start: np.uint64, sums: U64) -> None:
    """`start` and the weighted sum of `taps` words for each output."""
    if taps == 1:
        for x in range(len(sums)):
            sums[x] = start + weights[0, x] * words[first[x]]
        return
    for x in range(len(sums)):
        sums[x] = start + weights[0, x] * words[first[x]] + weights[1, x] * words[first[x] + np.uint64(1)]
    for tap in range(2, taps):
        for x in range(len(sums)):
            sums[x] += weights[tap, x] * words[first[x] + np.uint64(tap)]


@_compiled
def _sum_rows(rows: U64, first: int, weights: F64, taps: int, start: np.uint64, sums: U64) -> None:
    """`start` and the weighted sum of `taps` rows of words, of a ring of them."""
    for tap in range(taps):
        row, weight = rows[(first + tap) % len(rows)], np.uint64(np.int64(weights[tap]))
        if tap == 0:
            for x in range(len(sums)):
                sums[x] = start + weight * row[x]
        else:
            for x in range(len(sums)):
                sums[x] += weight * row[x]


@_compiled
def _level(total: np.uint64, lane: int, bits: int, bias: int) -> Any:
    """One channel of a sum: int32, 0..255."""
    level = np.int32((total >> np.uint64(lane * _LANE + bits)) & np.uint64((1 << (_LANE - bits)) - 1))
    return min(max(level - np.int32(bias >> bits), np.int32(0)), np.int32(255))


@_compiled
def _round(sums: U64, cubic: bool, words: U64) -> None:
    """Sums to words again."""
    if not cubic:
        for x in range(len(sums)):
            words[x] = (sums[x] >> np.uint64(_LINEAR_BITS)) & np.uint64(_LEVELS)
        return
    for x in range(len(sums)):
        words[x] = np.uint64(0)
    for lane in range(3):
        for x in range(len(sums)):
            level = _level(sums[x], lane, _CUBIC_BITS, _CUBIC_BIAS)
            words[x] |= np.uint64(level) << np.uint64(lane * _LANE)


@_compiled
def _unpack(sums: U64, lane: int, cubic: bool, mean: np.float32, factor: np.float32, row: Any) -> None:
    """One channel of the sums to a row of the output."""
    bits, bias = (_CUBIC_BITS, _CUBIC_BIAS) if cubic else (_LINEAR_BITS, _LINEAR_BIAS)
    for x in range(len(sums)):
        row[x] = (np.float32(_level(sums[x], lane, bits, bias)) - mean) * factor


@_kept
def resample(
    pictures: I64, windows: I64, regions: F64, flips: Bools, cubic: bool, mean: F32, factor: F32, out: Any
) -> None:
    """The region of each of N images to the size of the output, (level - mean) * factor.

    pictures: int64 (N, 7), where its pixels are: the address of uint8 (height, width, 3), height and width, bytes from
        row to row, where its first pixel stands in the stored image (top, left), and how many pixels of the stored
        image, along each side, are one of these. An address of 0: nothing is done.
    windows: int64 (N, 4), top, left, bottom, right in the stored image: what the filter may see.
    regions: float64 (N, 4), the same of what is stretched over the output.
    flips: bool (N, 2), top to bottom and left to right.
    cubic: whether the filter is bicubic, else bilinear. mean, factor: float32 (3,).
    out: float32 or uint8 (N, 3, height, width).
    """
    height, width = out.shape[2:]
    bits, bias = (_CUBIC_BITS, _CUBIC_BIAS) if cubic else (_LINEAR_BITS, _LINEAR_BIAS)
    start = np.uint64(bias + (1 << (bits - 1))) * np.uint64(_ONES)
    most_columns, most_taps = 1, 1
    for image in range(len(out)):
        tall, wide = regions[image, 2] - regions[image, 0], regions[image, 3] - regions[image, 1]
        step = max(tall / height, wide / width) / pictures[image, FACTOR]
        most_columns = max(most_columns, pictures[image, WIDTH])
        most_taps = max(most_taps, int(np.ceil(max(step, 1.0) * (4.0 if cubic else 2.0))) + 2)
    first_rows, row_taps, by_row = (
        np.empty(height, np.uint64),
        np.empty(height, np.int64),
        np.empty((most_taps, height)),
    )
    first_columns, column_taps, by_column = (
        np.empty(width, np.uint64),
        np.empty(width, np.int64),
        np.empty((most_taps, width)),
    )
    row_weights, column_weights = np.empty((height, most_taps)), np.empty((most_taps, width), np.uint64)
    all_words, sums = np.zeros(most_columns + most_taps, np.uint64), np.empty(width, np.uint64)
    ring, all_row_sums = np.empty((most_taps, max(width, most_columns)), np.uint64), np.empty(most_columns, np.uint64)
    for image in range(len(out)):
        address, rows, columns, stride, y, x, reduced = pictures[image]
        if address == 0:
            continue
        pixels = carray(_pointer(address), (rows * stride,))
        # At least one pixel, and none outside, whatever the index says of the image.
        top = min(max((windows[image, 0] - y) // reduced, 0), rows - 1)
        left = min(max((windows[image, 1] - x) // reduced, 0), columns - 1)
        bottom = max(min(-((y - windows[image, 2]) // reduced), rows), top + 1)
        right = max(min(-((x - windows[image, 3]) // reduced), columns), left + 1)
        begin_y, begin_x = (regions[image, 0] - y) / reduced, (regions[image, 1] - x) / reduced
        step_y = (regions[image, 2] - regions[image, 0]) / reduced / height
        step_x = (regions[image, 3] - regions[image, 1]) / reduced / width
        _weigh(begin_y, step_y, top, bottom, cubic, False, first_rows, row_taps, by_row)
        taps = _weigh(begin_x, step_x, left, right, cubic, flips[image, 1], first_columns, column_taps, by_column)
        row_weights[:] = by_row.T
        for column in range(width):
            first_columns[column] -= np.uint64(left)
        for tap in range(taps):
            for column in range(width):
                column_weights[tap, column] = np.uint64(np.int64(by_column[tap, column]))
        words, row_sums = all_words[: right - left], all_row_sums[: right - left]
        # The pass along the columns goes first where many pixels become few, which leaves fewer rows to the other one,
        # which has to gather: 1200 pixels to 224 take 0.43 ms so, 0.61 the other way. But single pixels are a level
        # apart then; so only of images that are not quite the stored ones anyway.
        rows_first = reduced > 1
        known = top  # the rows before this one are in the ring, or were
        for row in range(height):
            first = np.int64(first_rows[row])
            known = max(known, first)
            while known < first + row_taps[row]:
                if rows_first:
                    _pack(pixels, known * stride + 3 * left, ring[known % most_taps, : right - left])
                else:
                    _pack(pixels, known * stride + 3 * left, words)
                    _sum_columns(all_words, first_columns, column_weights, taps, start, sums)
                    _round(sums, cubic, ring[known % most_taps])
                known += 1
            if rows_first:
                _sum_rows(ring, first, row_weights[row], row_taps[row], start, row_sums)
                _round(row_sums, cubic, words)
                _sum_columns(all_words, first_columns, column_weights, taps, start, sums)
            else:
                _sum_rows(ring, first, row_weights[row], row_taps[row], start, sums)
            shown = height - 1 - row if flips[image, 0] else row
            for channel in range(3):
                _unpack(sums, channel, cubic, mean[channel], factor[channel], out[image, channel, shown])


@_kept
def place(pictures: I64, windows: I64, flips: Bools, fill: int, mean: F32, factor: F32, out: Any) -> None:
    """The same without scaling: a window of each image, of the size of the output, `fill` where it has no pixels."""
    height, width = out.shape[2:]
    for image in range(len(out)):
        address, rows, columns, stride, y, x, _ = pictures[image]
        if address == 0:
            continue
        pixels = carray(_pointer(address), (rows * stride,))
        for row in range(height):
            at_y = windows[image, 0] - y + (height - 1 - row if flips[image, 0] else row)
            for column in range(width):
                at_x = windows[image, 1] - x + (width - 1 - column if flips[image, 1] else column)
                inside = 0 <= at_y < rows and 0 <= at_x < columns
                for channel in range(3):
                    level = pixels[at_y * stride + 3 * at_x + channel] if inside else np.uint8(fill)
                    out[image, channel, row, column] = (np.float32(level) - mean[channel]) * factor[channel]
