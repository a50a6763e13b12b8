"""Operations on single pixels: by their levels alone, one table for all in a row; and those that mix channels."""

from typing import Any

import numpy as np

from gpuload.decode.native.compiled import exact
from gpuload.decode.native.intrinsics import TABLE_BYTES, bytes_at, floats_at, look_up, numbers_at, signed_at, words_at
from gpuload.decode.native.transforms.image import fused, gray, image_at, level, operation
from gpuload.transforms.ops import ARGS, Op

F = np.float32
_LEVELS = 256
_ALTERNATE, _ONES = 0x00FF00FF00FF00FF, 0x0001000100010001

_GRAYSCALE = int(Op.GRAYSCALE)

_BRIGHTNESS, _CONTRAST, _SOLARIZE_ADD, _POSTERIZE, _AUTOCONTRAST, _EQUALIZE = (
    int(op) for op in (Op.BRIGHTNESS, Op.CONTRAST, Op.SOLARIZE_ADD, Op.POSTERIZE, Op.AUTOCONTRAST, Op.EQUALIZE)
)


@exact
def _mean(image: int, channels: int, pixels: int) -> Any:
    """Of the gray image, in levels."""
    red, green, blue = bytes_at(image), bytes_at(image + pixels), bytes_at(image + 2 * pixels)
    total = np.int64(0)
    for begin in range(0, pixels, 4096):
        some = np.int32(0)
        for at in range(begin, min(begin + 4096, pixels)):
            if channels == 3:
                some += gray(F(red[at]), F(green[at]), F(blue[at]))
            else:
                some += np.int32(red[at])
        total += some
    return total / pixels


@exact
def _count(plane: int, pixels: int, counts: int) -> None:
    """How many pixels have each level: int32 (256,) at `counts`, before 2,048 bytes of scratch memory.

    Each level has eight counts, one after the other, since one would wait for the pixel before where neighbours are
    alike; and of a byte, to be in few lines of the cache.
    """
    totals, bytes_, eights = numbers_at(counts), bytes_at(counts + 4 * _LEVELS), words_at(counts + 4 * _LEVELS)
    levels, all_, begin = bytes_at(plane), words_at(counts), 0
    for at in range(_LEVELS // 2 + _LEVELS):
        all_[at] = np.uint64(0)
    while begin < pixels:
        end = min(begin + 2040, pixels)
        for at in range(begin, end):
            bytes_[8 * levels[at] + (at & 7)] += 1
        for value in range(_LEVELS):
            word = eights[value]
            four = (word & np.uint64(_ALTERNATE)) + (word >> np.uint64(8) & np.uint64(_ALTERNATE))
            totals[value] += np.int32((four * np.uint64(_ONES)) >> np.uint64(48))
            eights[value] = np.uint64(0)
        begin = end


@exact
def _equalizing(plane: int, pixels: int, table: int, counts_at: int) -> None:
    """Pillow's ImageOps.equalize. counts_at: as of `_count`."""
    result, counts, highest = bytes_at(table), numbers_at(counts_at), 0
    _count(plane, pixels, counts_at)
    for value in range(_LEVELS):
        if counts[value] > 0:
            highest = value
    step = (pixels - counts[highest]) // 255
    below, each = step // 2, 1 / max(step, 1)
    for value in range(_LEVELS):
        counts[value], below = below, below + counts[value]
    for value in range(_LEVELS):  # half more is divided, so that rounding does not decide
        result[value] = np.uint8(min(np.int32((counts[value] + 0.5) * each), 255)) if step > 0 else np.uint8(value)


@exact
def _extremes(plane: int, pixels: int) -> tuple[np.uint8, np.uint8]:
    levels, low, high = bytes_at(plane), np.uint8(255), np.uint8(0)
    for at in range(pixels):
        low, high = min(low, levels[at]), max(high, levels[at])
    return low, high


@exact
def _append(op: int, number: np.float32, mean: np.float32, low: np.uint8, high: np.uint8, table: int) -> None:
    """A table after which one more operation comes. All are made of the same, of which each needs some."""
    levels, first, scale, factor, shift, kept, inverted = bytes_at(table), F(0), F(1), F(1), F(0), 255, F(_LEVELS)
    added = np.uint8(0)
    if op == _BRIGHTNESS:
        factor = number
    elif op == _CONTRAST:
        factor, shift = number, mean * (F(1) - number)
    elif op == _POSTERIZE:
        kept = 256 - (1 << (8 - int(number + F(0.5))))
    elif op == _AUTOCONTRAST:
        if high > low:
            first, scale = F(low), (F(high) - F(low)) * F(1 / 255)
    elif op == _SOLARIZE_ADD:
        added = np.uint8(number)
    else:
        inverted = number  # 0 of `INVERT`
    for value in range(_LEVELS):
        before = F(levels[value])
        after = np.int32(level((before - first) / scale * factor + shift)) & kept
        after += added if before < F(128) else np.uint8(0)
        levels[value] = 255 - after if before >= inverted else after


@operation
def points(arguments: int, begin: int, end: int) -> int:
    """Steps of which only the first depends on the image's statistics, if any."""
    image, result, channels, height, width, ops, args, scratch = image_at(arguments, begin)
    pixels, codes, numbers, mean = height * width, signed_at(ops), floats_at(args), F(0)
    if codes[0] == _CONTRAST:
        mean = F(_mean(image, channels, pixels))
    own = codes[0] == _AUTOCONTRAST or codes[0] == _EQUALIZE
    for channel in range(channels):
        plane, levels, low, high = image + channel * pixels, bytes_at(scratch), np.uint8(0), np.uint8(0)
        source, target = bytes_at(plane), bytes_at(result + channel * pixels)
        if codes[0] == _EQUALIZE:
            _equalizing(plane, pixels, scratch, scratch + _LEVELS)
        elif codes[0] == _AUTOCONTRAST:
            low, high = _extremes(plane, pixels)
        for value in range(_LEVELS if (channel == 0 or own) and codes[0] != _EQUALIZE else 0):
            levels[value] = value
        for step in range(end - begin if channel == 0 or own else 0):
            if codes[step] != 0 and codes[step] != _EQUALIZE:
                _append(codes[step], numbers[step * ARGS], mean, low, high, scratch)
        for at in range(0, pixels - TABLE_BYTES + 1, TABLE_BYTES):
            look_up(scratch, plane + at, result + channel * pixels + at)
        for at in range(pixels & -TABLE_BYTES, pixels):
            target[at] = levels[source[at]]
    return 1


@operation
def saturation(arguments: int, begin: int, end: int) -> int:
    """Also grayscale, which is a saturation of 0."""
    image, result, _channels, height, width, ops, args, _scratch = image_at(arguments, begin)
    pixels = height * width
    factor = F(0) if signed_at(ops)[0] == _GRAYSCALE else floats_at(args)[0]
    rest = F(1) - factor
    red, green, blue = bytes_at(image), bytes_at(image + pixels), bytes_at(image + 2 * pixels)
    to_red, to_green, to_blue = bytes_at(result), bytes_at(result + pixels), bytes_at(result + 2 * pixels)
    for at in range(pixels):
        r, g, b = F(red[at]), F(green[at]), F(blue[at])
        whole = F(gray(r, g, b))
        to_red[at] = level(fused(whole, rest, r * factor))
        to_green[at] = level(fused(whole, rest, g * factor))
        to_blue[at] = level(fused(whole, rest, b * factor))
    return 1


@exact
def _corner(turn: np.float32, middle: np.float32) -> np.float32:
    """How far a hue is from a channel's middle, 0..1: 1 from two sixths on."""
    return min(max(abs(turn - middle) - F(1), F(0)), F(1))


@operation
def hue(arguments: int, begin: int, end: int) -> int:
    """Turns the hexagon of HSV, as `gpuload.transforms.apply.hue`."""
    image, result, _channels, height, width, _ops, args, _scratch = image_at(arguments, begin)
    pixels, shift, scale = height * width, F(6) * floats_at(args)[0], F(255.999 / 255)
    red, green, blue = bytes_at(image), bytes_at(image + pixels), bytes_at(image + 2 * pixels)
    to_red, to_green, to_blue = bytes_at(result), bytes_at(result + pixels), bytes_at(result + 2 * pixels)
    for at in range(pixels):
        r, g, b = np.int32(red[at]), np.int32(green[at]), np.int32(blue[at])
        high, low = max(max(r, g), b), min(min(r, g), b)
        chroma, least = F(high - low), F(low)
        apart = g - b if high == r else (b - r if high == g else r - g)
        base = F(0) if high == r else (F(2) if high == g else F(4))
        turn = F(apart) / max(chroma, F(1)) + base + shift
        turn -= F(6) * np.floor(turn * F(1 / 6))  # 0..6: red, yellow, green, cyan, blue, magenta
        to_red[at] = level((_corner(turn, F(3)) * chroma + least) * scale)
        to_green[at] = level(((F(1) - _corner(turn, F(2))) * chroma + least) * scale)
        to_blue[at] = level(((F(1) - _corner(turn, F(4))) * chroma + least) * scale)
    return 1
