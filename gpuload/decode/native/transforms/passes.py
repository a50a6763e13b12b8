"""Images through their steps and into the batch, an operation after the other; compiled."""

from typing import Any

import numpy as np

from gpuload.decode.native.compiled import inlined
from gpuload.decode.native.pointers import bytes_at, call, floats_at, longs_at, signed_at
from gpuload.decode.native.steps import kept, step
from gpuload.decode.native.transforms.image import IMAGE_FIELDS, KEPT, scratch_bytes
from gpuload.decode.native.values import OUTPUT_FIELDS, Output, output_at
from gpuload.transforms.ops import ANY_CHANNELS, ARGS, FIRST_OWN, Op

# 1: operations that are tables; 2: those that need no statistics, and may follow others in the same table.
_IN_TABLES = np.zeros(FIRST_OWN, np.int8)
_IN_TABLES[[Op.CONTRAST, Op.AUTOCONTRAST, Op.EQUALIZE]] = 1
_IN_TABLES[[Op.NOTHING, Op.BRIGHTNESS, Op.SOLARIZE, Op.SOLARIZE_ADD, Op.POSTERIZE, Op.INVERT]] = 2
_ANY_CHANNELS = np.zeros(FIRST_OWN, np.bool_)
_ANY_CHANNELS[list(ANY_CHANNELS)] = True


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
    memory = np.empty((3 + KEPT) * size + scratch_bytes(output.height, output.width), np.uint8)
    numbers, image = np.empty(max(of[2], 1), np.int64), np.empty(IMAGE_FIELDS, np.int64)
    levels, image_at, _numbers_at = (
        np.int64(memory.ctypes.data),
        np.int64(image.ctypes.data),
        np.int64(numbers.ctypes.data),
    )
    given = longs_at(of[1])
    for index in range(of[2]):
        numbers[index] = given[index]
    for row in range(begin, end):
        image[0], image[1] = of[1] + row * size, levels + size
        if of[0] != 0:
            if longs_at(given[0])[7 * row] == 0:  # no picture
                continue
            image[0] = levels
            numbers[of[2] - OUTPUT_FIELDS] = levels - row * size
            if call(of[0], np.int64(numbers.ctypes.data), row, row + 1) == 0:
                return 0
        image[2], image[3], image[4] = of[3], output.height, output.width
        image[5], image[6], image[7] = of[4] + row * steps, of[5] + 4 * ARGS * row * steps, levels + (3 + KEPT) * size
        _store(_go_through(image_at, steps, of[7], levels + 2 * size), of[3], row, output)
    return kept(memory, image, numbers)
