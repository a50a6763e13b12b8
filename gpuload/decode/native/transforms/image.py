"""An image on its way through the operations that are done to it.

Each operation is compiled, and kept on the disk, by itself, so that a loader waits for those alone that it uses. Called
by its address as operation(address of an `Image`, begin, end), it does the steps begin..end-1 of the image at once, of
which it can do several.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from gpuload.decode.native.compiled import cached, exact, inlined
from gpuload.decode.native.intrinsics import bytes_at, call, emitted, floats_at, longs_at, signed_at
from gpuload.decode.native.steps import kept, step
from gpuload.decode.native.values import OUTPUT_FIELDS, Output, output_at
from gpuload.transforms.ops import ARGS, FIRST_OWN, Op

IMAGE_FIELDS = 8
_LEVELS_AT_ONCE = 200_000  # which stay in the cache
KEPT = 5  # for the image with which each chain of a mixture begins, and what is mixed so far, as float32

F = np.float32

_KEEP, _MIXED = int(Op.KEEP), int(Op.MIXED)

# By code, as in `Op`; doing nothing may follow in any table.
_IN_TABLES, _ANY_CHANNELS = np.zeros(FIRST_OWN, np.int8), np.zeros(FIRST_OWN, np.bool_)
for _op in Op:
    _IN_TABLES[_op], _ANY_CHANNELS[_op] = _op.table, _op.any_channels


class Image(NamedTuple):
    """source, result: addresses of uint8 (channels, height, width), which do not overlap. ops, args: of its steps, int8
    (K,) and float32 (K, ARGS). scratch: of `scratch_bytes`, behind `KEPT` times the image's, which stay from step to
    step."""

    source: int
    result: int
    channels: int
    height: int
    width: int
    ops: int
    args: int
    scratch: int


def operation(function: Callable[[int, int, int], int]) -> Callable[[int, int, int], int]:
    """Compiled by itself. Floats are rounded as it is written."""
    return cached(function, by_address=True, is_exact=True)


@exact
def image_at(arguments: int, step: int) -> Image:
    """The image whose fields are the int64 at this address, with its steps from this one on."""
    of = longs_at(arguments)
    return Image(of[0], of[1], of[2], of[3], of[4], of[5] + step, of[6] + 4 * ARGS * step, of[7])


@exact
def scratch_bytes(height: int, width: int) -> int:
    """What an operation may need beside the image and its result: a framed image of words, and some rows."""
    return 8 * (height + 2) * (width + 2) + 64 * (height + width) + 16_384


@emitted(*[types.float32] * 4)
def fused(builder: Any, factor: Any, value: Any, other: Any) -> Any:
    """factor * value + other, rounded once."""
    return builder.fma(factor, value, other)


@exact
def level(value: np.float32) -> Any:
    """uint8: clamped to 0..255 and truncated."""
    return np.uint8(np.int32(min(max(value, F(0)), F(255))))


@exact
def gray(red: np.float32, green: np.float32, blue: np.float32) -> Any:
    """int32."""
    return np.int32(fused(F(0.114), blue, fused(F(0.587), green, red * F(0.2989))))


@operation
def mix(arguments: int, begin: int, end: int) -> int:
    """Adds the image's share to the mixture; then comes the image kept, or the mixture."""
    image, result, channels, height, width, ops, args, scratch = image_at(arguments, begin)
    values, code, share = channels * height * width, signed_at(ops)[0], floats_at(args)[0]
    first, mixture = bytes_at(scratch - KEPT * values), floats_at(scratch - 4 * values)
    source, to = bytes_at(image), bytes_at(result)
    for at in range(values):
        part = share * np.float32(source[at])
        if code == _KEEP:
            mixture[at], first[at] = part, source[at]
        else:
            mixture[at] += part
        to[at] = level(mixture[at]) if code == _MIXED else first[at]
    return 1


@inlined
def _store(image: int, channels: int, number: int, output: Output) -> None:
    """The levels of an image as its values in the batch."""
    pixels = output.height * output.width
    begin = number * channels * pixels
    for channel in range(channels):
        levels = bytes_at(image + channel * pixels)
        mean, factor = floats_at(output.mean)[channel], floats_at(output.factor)[channel]
        first, apart = (begin + channel * pixels, 1) if output.planar else (begin + channel, channels)
        if output.floats:
            values = floats_at(output.address + 4 * first)
            for at in range(pixels):
                values[at * apart] = (np.float32(levels[at]) - mean) * factor
        else:
            bytes_ = bytes_at(output.address + first)
            for at in range(pixels):
                bytes_[at * apart] = levels[at]


@inlined
def _go_through(image: int, steps: int, operations: int, spare: int) -> Any:
    """The address of an image after its steps. image: address of an `Image`, whose result goes to two places in turn,
    this and `spare`. operations: address of int64, the address of each code's."""
    of, addresses = longs_at(image), longs_at(operations)
    codes, step = signed_at(of[5]), 0
    while step < steps:
        code, end = codes[step], step + 1
        if code > 0 and (of[2] == 3 or _ANY_CHANNELS[code]):
            while end < steps and _IN_TABLES[code] > 0 and _IN_TABLES[codes[end]] > 1:
                end += 1
            call(addresses[code], image, step, end)
            of[0], of[1], spare = of[1], spare, of[1]
        step = end
    return of[0]


@step
def transform_rows(arguments: int, begin: int, end: int) -> int:
    """The views of images after their steps.

    arguments: int64; of a `Step` that makes the levels of images, the addresses of its function and of its arguments,
    and how many these are, the last of which are an `Output`; channels; addresses of the steps' codes, int8 (N, K), and
    numbers, float32 (N, K, ARGS); K; address of int64, the address of each code's operation; then the `Output`. With a
    function of 0, the second is the address of the levels.
    """
    of, output = longs_at(arguments), output_at(arguments + 8 * 8)
    size, steps = of[3] * output.height * output.width, of[6]
    # Small images are made several at a time, since what makes them begins each call with memory for its weights.
    some = max(_LEVELS_AT_ONCE // size, 1)
    memory = np.empty((some + 2 + KEPT) * size + scratch_bytes(output.height, output.width), np.uint8)
    numbers, image = np.empty(max(of[2], 1), np.int64), np.empty(IMAGE_FIELDS, np.int64)
    levels, fields, _numbers_at = (
        np.int64(memory.ctypes.data),
        np.int64(image.ctypes.data),
        np.int64(numbers.ctypes.data),
    )
    given, places = longs_at(of[1]), levels + some * size
    for index in range(of[2]):
        numbers[index] = given[index]
    source, made = of[1], begin if of[0] != 0 else end
    for row in range(begin, end):
        if row == made:
            source, made = levels - row * size, min(row + some, end)
            numbers[of[2] - OUTPUT_FIELDS] = source
            if call(of[0], np.int64(numbers.ctypes.data), row, made) == 0:
                return 0
        if of[0] != 0 and longs_at(given[0])[7 * row] == 0:  # no picture
            continue
        image[0] = source + row * size
        image[1], image[2], image[3], image[4] = places, of[3], output.height, output.width
        image[5], image[6], image[7] = of[4] + row * steps, of[5] + 4 * ARGS * row * steps, places + (2 + KEPT) * size
        _store(_go_through(fields, steps, of[7], places + size), of[3], row, output)
    return kept(memory, image, numbers)
