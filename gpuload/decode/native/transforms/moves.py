"""Moves pixels by a map of their coordinates: rotations, affine maps and perspectives.

Nearest pixels are taken as words of up to three levels, and those from outside from one word with the fill. Four
weighted ones are words of up to three channels, see `gpuload.decode.native.values`, with 13 bits for each direction;
around the image is a frame of one pixel with the fill, where all that is outside comes from. Where pixels keep their
neighbours in whole rows or columns (shears, translations), they are copied.
"""

from typing import Any

import numpy as np

from gpuload.decode.native.compiled import exact
from gpuload.decode.native.intrinsics import (
    SOME_BYTES,
    bytes_at,
    copy_some,
    entries_at,
    floats_at,
    numbers_at,
    signed_at,
    words_at,
)
from gpuload.decode.native.transforms.image import image_at, operation
from gpuload.decode.native.values import LANE, LINEAR_BITS
from gpuload.transforms.ops import MAP_ARGS, Op

F = np.float32
_AFFINE, _NEAREST, _AFFINE_BILINEAR = int(Op.AFFINE), int(Op.WARP_NEAREST), int(Op.AFFINE_BILINEAR)
_WHOLE = 1 << LINEAR_BITS
_HALF = (_WHOLE >> 1) * ((1 << 2 * LANE) | (1 << LANE) | 1)
_LEVEL, _LOW = (1 << 8) - 1, (1 << 32) - 1


@exact
def _pack(image: int, apart: int, pixels: int, words: int) -> None:
    """Three channels that are so many bytes apart, or thrice the same, as uint32."""
    red, green, blue, packed = bytes_at(image), bytes_at(image + apart), bytes_at(image + 2 * apart), entries_at(words)
    for at in range(pixels):
        packed[at] = np.uint32(red[at]) | np.uint32(green[at]) << np.uint32(8) | np.uint32(blue[at]) << np.uint32(16)


@exact
def _frame(image: int, apart: int, height: int, width: int, outside: np.uint64, frame: int) -> None:
    """The same as uint64, with the frame."""
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
    """Where the pixels of a row come from: int32 (width,) at `places`, the number of the nearest pixel, that after the
    last for all outside; or int32 (3, width), the number of the pixel in the frame, and the parts of the way to its
    neighbours on the right and below, in parts of _WHOLE.

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
            is_inside = (x >= F(0)) & (x < F(width)) & (y >= F(0)) & (y < F(height))
            found[column] = np.int32(np.int32(y) * width + np.int32(x)) if is_inside else np.int32(height * width)
        else:
            x, y = _kept(x, width), _kept(y, height)
            left, top = np.floor(x), np.floor(y)
            found[column] = (np.int32(top) + 1) * (width + 2) + np.int32(left) + 1
            right[column] = np.int32((x - left) * F(_WHOLE) + F(0.5))
            below[column] = np.int32((y - top) * F(_WHOLE) + F(0.5))


@exact
def _weighted(frame: int, places: int, width: int, lanes: int, pixels: int, row: int) -> None:
    """A row of channels that are so many pixels apart: the words at its places, weighted and rounded."""
    found, right, below = numbers_at(places), numbers_at(places + 4 * width), numbers_at(places + 8 * width)
    upper, lower, total = words_at(frame), words_at(frame + 8 * (width + 2)), words_at(places + 16 * width)
    for x in range(width):
        at, both = found[x], (right[x] * below[x]) >> LINEAR_BITS
        first = upper[at] * np.uint64(_WHOLE - right[x] - below[x] + both) + upper[at + 1] * np.uint64(right[x] - both)
        second = lower[at] * np.uint64(below[x] - both) + lower[at + 1] * np.uint64(both)
        total[x] = (first + second + np.uint64(_HALF)) >> np.uint64(LINEAR_BITS)
    for lane in range(lanes):
        to = bytes_at(row + lane * pixels)
        for x in range(width):
            to[x] = np.uint8((total[x] >> np.uint64(LANE * lane)) & np.uint64(_LEVEL))


@exact
def _is_decided(offset: np.float32, added: np.float32, size: int) -> Any:
    """bool: whether all pixels with an offset, which is a product and `added`, are moved by the whole number nearest to
    it. Else it is halfway between two as far as float32 tells, and how each pixel's place is rounded decides."""
    return abs(offset - np.rint(offset)) < F(0.5) - (abs(offset) + abs(added) + F(size + 1)) * F(2**-22)


@exact
def _copy_runs(values: Any, fill: Any, lanes: int, height: int, width: int, image: int, result: int) -> bool:
    """An `AFFINE` that moves each row by some columns, or each column by some rows, as many as others next to it; false
    for others, and where rounding decides by how many."""
    by_rows, most, pixels = values[3] == F(0), max(height, width), height * width
    if values[0] != F(1) or values[4] != F(1) or not (by_rows or values[1] == F(0)) or width < SOME_BYTES:
        return False
    number, slope, added, other = (
        (height, values[1], values[2], values[5]) if by_rows else (width, values[3], values[5], values[2])
    )
    if not _is_decided(other, other, most):
        return False
    for lane in range(lanes):
        levels = bytes_at(result + lane * pixels)
        for at in range(pixels):
            levels[at] = np.uint8(fill[lane])
    rows, middle, same = 1 if by_rows else 0, F((number - 1) / 2), np.int64(np.rint(other))
    columns, first, shift = 1 - rows, 0, np.rint(-middle * slope + added)
    for index in range(number + 1):
        offset = (F(index) - middle) * slope + added
        if not _is_decided(offset, added, most):
            return False
        if index < number and np.rint(offset) == shift:
            continue
        along = np.int64(shift)
        right, down = along * rows + same * columns, same * rows + along * columns
        if abs(right) > width - SOME_BYTES:
            return False
        top, begin = max(first * rows, -down), max(first * columns, -right)
        bottom, end = min(index if rows else height, height - down), min(index if columns else width, width - right)
        for lane in range(lanes):
            row, stop = result + lane * pixels + top * width, result + lane * pixels + bottom * width
            for x in range(begin, end, SOME_BYTES):
                at = min(x, width - SOME_BYTES - max(right, 0))
                to, last = row + at, min(end - at, SOME_BYTES)
                while to < stop:  # LLVM would unroll a loop by numbers
                    copy_some(to, to + image - result + down * width + right, x - at, last)
                    to += width
        first, shift = index, np.rint(offset)
    return True


@exact
def _take(words: int, places: int, pixels: int, lanes: int, image: int) -> None:
    """One channel or three of the words at these places. `words` and `places` are scratch memory afterwards."""
    of, taken, pairs = entries_at(words), entries_at(places), words_at(places)
    for at in range(pixels // 2):  # two at a time are one load and one store less
        low, high = pairs[at] & np.uint64(_LOW), pairs[at] >> np.uint64(32)
        pairs[at] = np.uint64(of[low]) | np.uint64(of[high]) << np.uint64(32)
    if pixels % 2 == 1:
        taken[pixels - 1] = of[taken[pixels - 1]]
    others = image + pixels if lanes == 3 else words
    red, green, blue = bytes_at(image), bytes_at(others), bytes_at(others + pixels)
    for at in range(pixels):
        red[at], green[at] = np.uint8(taken[at]), np.uint8(taken[at] >> np.uint32(8))
        blue[at] = np.uint8(taken[at] >> np.uint32(16))


@operation
def move(arguments: int, begin: int, end: int) -> int:
    """Each pixel from where it comes from, the nearest one or four weighted ones, or the fill."""
    image, result, channels, height, width, ops, args, scratch = image_at(arguments, begin)
    code, values, pixels, lanes = signed_at(ops)[0], floats_at(args), height * width, 3 if channels == 3 else 1
    affine, bilinear = code in (_AFFINE, _AFFINE_BILINEAR), code not in (_AFFINE, _NEAREST)
    fill, bits = floats_at(args + 4 * (6 if affine else MAP_ARGS)), LANE if bilinear else 8
    places = scratch + (8 * (height + 2) * (width + 2) if bilinear else 4 * pixels + 8)
    for channel in range(0, channels, lanes):
        source, target, apart = image + channel * pixels, result + channel * pixels, pixels if lanes == 3 else 0
        if code == _AFFINE and _copy_runs(values, fill, lanes, height, width, source, target):
            continue
        outside = np.uint64(0)
        for lane in range(lanes):
            outside |= np.uint64(fill[lane]) << np.uint64(bits * lane)
        if bilinear:
            _frame(source, apart, height, width, outside, scratch)
        else:
            _pack(source, apart, pixels, scratch)
            entries_at(scratch)[pixels] = outside
        for row in range(height):
            _find(values, affine, bilinear, row, height, width, places if bilinear else places + 4 * row * width)
            if bilinear:
                _weighted(scratch, places, width, lanes, pixels, target + row * width)
        if not bilinear:
            _take(scratch, places, pixels, lanes, target)
    return 1
