"""Moves pixels by a map of their coordinates: rotations, affine maps and perspectives.

Pixels are taken, and four of them weighted, as words of up to three channels, see `gpuload.decode.native.values`, with
13 bits for each direction. Around the image is a frame of one pixel with the fill, where all that is outside comes
from.
"""

from typing import Any

import numpy as np

from gpuload.decode.native.compiled import exact
from gpuload.decode.native.intrinsics import bytes_at, copy, floats_at, numbers_at, signed_at, words_at
from gpuload.decode.native.transforms.image import image_at, operation
from gpuload.decode.native.values import LANE, LINEAR_BITS
from gpuload.transforms.ops import MAP_ARGS, Op

F = np.float32
_AFFINE, _NEAREST, _AFFINE_BILINEAR = int(Op.AFFINE), int(Op.WARP_NEAREST), int(Op.AFFINE_BILINEAR)
_WHOLE = 1 << LINEAR_BITS
_HALF = (_WHOLE >> 1) * ((1 << 2 * LANE) | (1 << LANE) | 1)
_LEVEL = (1 << 8) - 1


@exact
def _frame(image: int, apart: int, height: int, width: int, outside: np.uint64, frame: int) -> None:
    """Three channels that are so many bytes apart, or thrice the same, as words, with the frame."""
    words, stride = words_at(frame), width + 2
    for x in range(stride):
        words[x] = words[(height + 1) * stride + x] = outside
    for y in range(height):
        row, begin = words_at(frame + 8 * (y + 1) * stride), image + y * width
        red, green, blue = bytes_at(begin), bytes_at(begin + apart), bytes_at(begin + 2 * apart)
        row[0] = row[width + 1] = outside
        for x in range(width):
            two = np.uint64(red[x]) | np.uint64(green[x]) << np.uint64(LANE)
            row[x + 1] = two | np.uint64(blue[x]) << np.uint64(2 * LANE)


@exact
def _kept(at: np.float32, size: int) -> np.float32:
    """A coordinate, or one on the frame; also where it is not a number."""
    return min(at, F(size)) if at > F(-1) else F(-1)


@exact
def _find(values: Any, affine: bool, bilinear: bool, row: int, height: int, width: int, places: int) -> None:
    """Where the pixels of a row come from: int32 (3, width) at `places`: the number of the pixel in the frame, and the
    parts of the way to its neighbours on the right and below, in parts of _WHOLE; 0 for the nearest pixel.

    values: of the step. Rounded as in torch, so that of two pixels that are equally near both take the same.
    """
    found, right, below = numbers_at(places), numbers_at(places + 4 * width), numbers_at(places + 8 * width)
    middle_x, middle_y = F((width - 1) / 2), F((height - 1) / 2)
    down = F(row) - middle_y
    row_x, row_y = down * values[1] + values[2], down * values[4] + values[5]
    along_x, along, last_x, last_y = F(0), F(1), F(0), F(0)
    if affine:
        row_x, row_y = row_x + middle_x, row_y + middle_y
    else:
        along_x, along, last_x, last_y = values[6], down * values[7] + values[8], middle_x, middle_y
    flat = along_x == 0 and along == 1
    for column in range(width):
        across = F(column) - middle_x
        x, y = across * values[0] + row_x, across * values[3] + row_y
        if not flat:
            far = across * along_x + along
            x, y = x / far, y / far
        x, y = x + last_x, y + last_y
        if not bilinear:
            x, y = np.rint(x), np.rint(y)
        x, y = _kept(x, width), _kept(y, height)
        left, top = np.floor(x), np.floor(y)
        found[column] = (np.int32(top) + 1) * (width + 2) + np.int32(left) + 1
        if bilinear:
            right[column] = np.int32((x - left) * F(_WHOLE) + F(0.5))
            below[column] = np.int32((y - top) * F(_WHOLE) + F(0.5))


@exact
def _weighted(frame: int, places: int, width: int, sums: int) -> None:
    """uint64 (width,) at `sums`: the words at the places of a row, weighted and rounded."""
    found, right, below = numbers_at(places), numbers_at(places + 4 * width), numbers_at(places + 8 * width)
    upper, lower, total = words_at(frame), words_at(frame + 8 * (width + 2)), words_at(sums)
    for x in range(width):
        at, both = found[x], (right[x] * below[x]) >> LINEAR_BITS
        first = upper[at] * np.uint64(_WHOLE - right[x] - below[x] + both) + upper[at + 1] * np.uint64(right[x] - both)
        second = lower[at] * np.uint64(below[x] - both) + lower[at + 1] * np.uint64(both)
        total[x] = (first + second + np.uint64(_HALF)) >> np.uint64(LINEAR_BITS)


@exact
def _shift(values: Any, fill: Any, row: int, lanes: int, height: int, width: int, source: int, to: int) -> bool:
    """Copies a row of an `AFFINE` whose rows come from one line each; false where rounding decides which pixels.

    source: address of the channels. to: of the row in the first of them.
    """
    middle = F((height - 1) / 2)
    down = F(row) - middle
    line, exactly = np.rint(down * values[4] + values[5] + middle), down * values[1] + values[2]
    right = np.rint(exactly)
    if not abs(exactly - right) < F(0.49):
        return False
    by, number = np.int64(min(max(right, F(-width)), F(width))), 0
    begin = max(-by, 0)
    if line >= F(0) and line < F(height):
        number = width - abs(by)
        source += np.int64(line) * width + begin + by
    for lane in range(lanes):
        apart = lane * height * width
        if number < width:
            levels = bytes_at(to + apart)
            for x in range(width):
                levels[x] = np.uint8(fill[lane])
        copy(to + apart + begin, source + apart, number)
    return True


@operation
def move(arguments: int, begin: int, end: int) -> int:
    """Each pixel from where it comes from, the nearest one or four weighted ones, or the fill."""
    image, result, channels, height, width, ops, args, scratch = image_at(arguments, begin)
    code, pixels, frame, values = signed_at(ops)[0], height * width, scratch, floats_at(args)
    affine, bilinear = code in (_AFFINE, _AFFINE_BILINEAR), code not in (_AFFINE, _NEAREST)
    fill, places = floats_at(args + 4 * (6 if affine else MAP_ARGS)), scratch + 8 * (height + 2) * (width + 2)
    sums = places + 16 * width
    words, total, found = words_at(frame), words_at(sums), numbers_at(places)
    lanes = 3 if channels == 3 else 1
    keeps_rows = code == _AFFINE and values[0] == F(1) and values[3] == F(0)
    for channel in range(0, channels, lanes):
        outside, is_framed = np.uint64(0), False
        for lane in range(lanes):
            outside |= np.uint64(fill[lane]) << np.uint64(LANE * lane)
        for row in range(height):
            to_row = result + channel * pixels + row * width
            if keeps_rows and _shift(values, fill, row, lanes, height, width, image + channel * pixels, to_row):
                continue
            if not is_framed:
                _frame(image + channel * pixels, pixels if lanes == 3 else 0, height, width, outside, frame)
                is_framed = True
            _find(values, affine, bilinear, row, height, width, places)
            if bilinear:
                _weighted(frame, places, width, sums)
            else:
                for x in range(width):
                    total[x] = words[found[x]]
            for lane in range(lanes):
                to = bytes_at(to_row + lane * pixels)
                for x in range(width):
                    to[x] = np.uint8((total[x] >> np.uint64(LANE * lane)) & np.uint64(_LEVEL))
    return 1
