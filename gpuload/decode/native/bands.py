"""The resize of the CPU decoder for pixels that are not 8-bit RGB: any number of channels, 8 or 16 bits, or floats.

The filters, and the order of the two passes, are those of `gpuload.decode.native.resample`; sums are float32. Integers
are rounded after each pass, as in Pillow; floats never, as in torch. It is a separate module so that RGB loaders do not
compile it.
"""

import numpy as np

from gpuload.decode.native.compiled import inlined
from gpuload.decode.native.intrinsics import array_at, bytes_at, doubles_at, floats_at, halves_at, longs_at
from gpuload.decode.native.steps import step
from gpuload.decode.native.values import Bands, Output, Taps, fill_taps, output_at, place_of, room_for, span_of
from gpuload.types import F32

_BYTES, _HALVES, _FLOATS = 1, 2, 4  # kinds of values, by their size


@inlined
def _bands_at(arguments: int) -> Bands:
    """The bands whose fields are the int64 at this address."""
    of = longs_at(arguments)
    return Bands(of[0], of[1], of[2], of[3], of[4] != 0)


@inlined
def _weigh(begin: float, step: float, low: int, high: int, cubic: bool, flipped: bool, taps: Taps) -> int:
    """The filter's weights for each output, using only inputs low..high-1. Returns the largest number of taps."""
    most, values, first, weights = 1, taps.values, taps.first, taps.weights
    for index in range(len(first)):
        output = len(first) - 1 - index if flipped else index
        start, number, total = fill_taps(begin + step * (index + 0.5), step, low, high, cubic, values)
        for tap in range(number):
            weights[tap, output] = np.float32(values[tap]) / total
        for tap in range(number, len(weights)):
            weights[tap, output] = 0.0
        first[output], taps.number[output] = start, number
        most = max(most, number)
    return most


@inlined
def _load(address: int, bands: Bands, begin: int, number: int, line: F32) -> None:
    """`number` values of a row, every step-th, as float32."""
    kind, step = bands.kind, bands.step
    if bands.luma:  # Pillow's weights
        levels = bytes_at(address)
        for x in range(number):
            at = begin + x * step
            line[x] = (19595 * levels[at] + 38470 * levels[at + 1] + 7471 * levels[at + 2] + 32768) >> 16
    elif kind == _BYTES:
        levels = bytes_at(address)
        for x in range(number):
            line[x] = levels[begin + x * step]
    elif kind == _HALVES:
        numbers = halves_at(address)
        for x in range(number):
            line[x] = numbers[begin + x * step]
    else:
        values = floats_at(address)
        for x in range(number):
            line[x] = values[begin + x * step]


@inlined
def _round(values: F32, peak: np.float32) -> None:
    for x in range(len(values)):
        values[x] = min(max(np.floor(values[x] + np.float32(0.5)), np.float32(0)), peak)


@inlined
def _store(values: F32, channels: int, to: Output, at: int, channel: int) -> None:
    """Stores a row of one channel. at: number of the row across all images."""
    mean, factor = floats_at(to.mean)[channel], floats_at(to.factor)[channel]
    row = at % to.height
    if to.planar:
        begin, step = ((at // to.height * channels + channel) * to.height + row) * to.width, 1
    else:
        begin, step = at * to.width * channels + channel, channels
    if not to.floats:
        levels = bytes_at(to.address)
        for x in range(len(values)):
            levels[begin + x * step] = np.uint8(values[x])
    else:
        numbers = floats_at(to.address)
        for x in range(len(values)):
            numbers[begin + x * step] = (values[x] - mean) * factor


@step
def resample_rows(arguments: int, begin: int, end: int) -> int:
    of, bands, to = longs_at(arguments), _bands_at(arguments + 5 * 8), output_at(arguments + 10 * 8)
    pictures, windows = array_at(longs_at(of[0]), (end, 7)), array_at(longs_at(of[1]), (end, 4))
    regions, flips, cubic = array_at(doubles_at(of[2]), (end, 4)), array_at(bytes_at(of[3]), (end, 2)), of[4] != 0
    height, width, channels = to.height, to.width, bands.channels
    peak, whole = np.float32(bands.peak), bands.kind != _FLOATS
    most_columns, most_taps, slots = room_for(pictures, regions, begin, end, height, width, cubic)
    first_rows, row_taps = np.empty(height, np.int64), np.empty(height, np.int64)
    first_columns, column_taps = np.empty(width, np.int64), np.empty(width, np.int64)
    row_weights, column_weights = np.empty((most_taps, height), np.float32), np.empty((most_taps, width), np.float32)
    values = np.empty(most_taps)
    line, sums = np.zeros(most_columns + most_taps, np.float32), np.empty(width, np.float32)
    ring = np.empty((slots * channels, width), np.float32)
    for image in range(begin, end):
        stored, rows, columns, stride, y, x, reduced = pictures[image]
        if stored == 0:
            continue
        top, bottom, begin_y, step_y = span_of(windows[image], regions[image], 0, y, rows, reduced, height)
        left, right, begin_x, step_x = span_of(windows[image], regions[image], 1, x, columns, reduced, width)
        _weigh(begin_y, step_y, top, bottom, cubic, False, Taps(values, first_rows, row_taps, row_weights))
        flipped = flips[image, 1] != 0
        across = Taps(values, first_columns, column_taps, column_weights)
        taps = _weigh(begin_x, step_x, left, right, cubic, flipped, across)
        known = top  # the rows before this one are, or have been, in the ring
        for row in range(height):
            first = first_rows[row]
            known = max(known, first)
            while known < first + row_taps[row]:
                for channel in range(channels):
                    begin = left * bands.step + channel
                    _load(stored + known * stride, bands, begin, right - left, line)
                    filled = ring[(known & (slots - 1)) * channels + channel]
                    for column in range(width):
                        filled[column] = column_weights[0, column] * line[first_columns[column] - left]
                    for tap in range(1, taps):
                        for column in range(width):
                            filled[column] += column_weights[tap, column] * line[first_columns[column] - left + tap]
                    if whole:
                        _round(filled, peak)
                known += 1
            shown = height - 1 - row if flips[image, 0] != 0 else row
            for channel in range(channels):
                sums[:] = 0.0
                for tap in range(row_taps[row]):
                    filled = ring[((first + tap) & (slots - 1)) * channels + channel]
                    weight = row_weights[tap, row]
                    for column in range(width):
                        sums[column] += weight * filled[column]
                if whole:
                    _round(sums, peak)
                _store(sums, channels, to, image * height + shown, channel)
    return 1


@step
def crop_or_pad_rows(arguments: int, begin: int, end: int) -> int:
    of, bands, to = longs_at(arguments), _bands_at(arguments + 6 * 8), output_at(arguments + 11 * 8)
    pictures, windows = array_at(longs_at(of[0]), (end, 7)), array_at(longs_at(of[1]), (end, 4))
    flips, sizes, mode = array_at(bytes_at(of[2]), (end, 2)), array_at(longs_at(of[3]), (end, 2)), of[5]
    fill, places = doubles_at(of[4])[0], np.empty(to.width, np.int64)
    most_columns = 1
    for image in range(begin, end):
        most_columns = max(most_columns, pictures[image, 2])
    values, line = np.empty(to.width, np.float32), np.empty(most_columns, np.float32)
    for image in range(begin, end):
        stored, rows, columns, stride, y, x, _ = pictures[image]
        if stored == 0:
            continue
        low, high = columns, 0  # what is shown of each row
        for column in range(to.width):
            at_x = windows[image, 1] + (to.width - 1 - column if flips[image, 1] != 0 else column)
            at = places[column] = place_of(at_x, x, columns, sizes[image, 1], mode)
            if at >= 0:
                low, high = min(low, at), max(high, at + 1)
        for row in range(to.height):
            at_y = windows[image, 0] + (to.height - 1 - row if flips[image, 0] != 0 else row)
            shown = place_of(at_y, y, rows, sizes[image, 0], mode)
            for channel in range(bands.channels):
                if shown >= 0 and low < high:
                    _load(stored + shown * stride, bands, low * bands.step + channel, high - low, line)
                for column in range(to.width):
                    at = places[column]
                    values[column] = line[at - low] if shown >= 0 and at >= 0 else fill
                _store(values, bands.channels, to, image * to.height + row, channel)
    return 1
