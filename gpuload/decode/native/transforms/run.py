"""What transforms on the CPU: each image in the cache, in the thread that decodes, without Python's lock."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.decode.native import steps as compiled
from gpuload.decode.native.compiled import address_of, inlined
from gpuload.decode.native.intrinsics import bytes_at, call, floats_at, longs_at, signed_at
from gpuload.decode.native.steps import kept, step
from gpuload.decode.native.transforms.image import IMAGE_FIELDS, KEPT, image_at, level, operation, scratch_bytes
from gpuload.decode.native.transforms.moves import move
from gpuload.decode.native.transforms.points import hue, points, saturation
from gpuload.decode.native.transforms.stencils import blur, sharpness
from gpuload.decode.native.values import OUTPUT_FIELDS, Output, Target, output_at, output_of
from gpuload.machine.installed import paused_collector
from gpuload.transforms.ops import ANY_CHANNELS, ARGS, FIRST_OWN, Op
from gpuload.transforms.steps import Steps
from gpuload.types import F32, U8

_KEEP, _MIXED = int(Op.KEEP), int(Op.MIXED)


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


_OPERATIONS: dict[Op, Any] = {
    **dict.fromkeys((Op.BRIGHTNESS, Op.SOLARIZE, Op.SOLARIZE_ADD, Op.POSTERIZE, Op.INVERT), points),
    **dict.fromkeys((Op.CONTRAST, Op.AUTOCONTRAST, Op.EQUALIZE), points),
    **dict.fromkeys((Op.SATURATION, Op.GRAYSCALE), saturation),
    Op.HUE: hue,
    Op.GAUSSIAN_BLUR: blur,
    Op.SHARPNESS: sharpness,
    **dict.fromkeys((Op.KEEP, Op.MIX, Op.MIXED), mix),
    **dict.fromkeys((Op.AFFINE, Op.WARP_NEAREST, Op.WARP_BILINEAR, Op.AFFINE_BILINEAR), move),
}
_addresses = np.zeros(FIRST_OWN, np.int64)  # of the operations that are loaded, by code


def load_operations(ops: npt.NDArray[np.int8]) -> None:
    """Loads, or compiles, what steps with these codes need."""
    missing = [code for code in set(ops.ravel().tolist()) if 0 < code < FIRST_OWN and not _addresses[code]]
    with paused_collector() if missing else nullcontext():
        for code in missing:
            _addresses[code] = address_of(_OPERATIONS[Op(code)])


def load_all() -> None:
    """Loads, or compiles, all operations."""
    address_of(transform_rows)
    load_operations(np.array(list(_OPERATIONS), np.int8))


def transform(steps: Steps, target: Target, levels: compiled.Step) -> compiled.Step:
    """What makes views after their steps. levels: what makes them before, as uint8 (N, C, height, width)."""
    return _step(steps, target, *levels.call, len(levels.numbers), held=levels)


def run(images: U8, steps: Steps, out: npt.NDArray[Any], mean: F32, factor: F32) -> None:
    """The images after their steps, less `mean` (C,) and times `factor`, as values of a batch.

    images: uint8 (N, C, height, width), contiguous, which stay as they are. out: as in `Target`, of N images.
    """
    _step(steps, Target(out, mean, factor), 0, images.ctypes.data, 0, held=images)(0, len(images))


def _step(steps: Steps, target: Target, function: int, arguments: int, number: int, held: Any) -> compiled.Step:
    ops, args = np.ascontiguousarray(steps.ops), np.ascontiguousarray(steps.args)
    load_operations(ops)
    source, channels, count = (function, arguments, number), target.out.shape[1], ops.shape[1]
    settings = (channels, ops, args, count, _addresses, *output_of(target))
    return compiled.Step(transform_rows, *source, *settings, held=(held, target))
