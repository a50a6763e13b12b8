"""Converts the resize's rows of sums to rows of a batch.

Dtype and layout are looked up while it runs. If they were types, the whole resize would be compiled for each of them,
which took 5 of 15 s. The vectors are written out: LLVM takes longer for loops that it makes vectors of, and those check
for each row whether memory overlaps, which took 1.4 of 8.5 µs for 64×64 pixels.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from gpuload.decode.native.compiled import inlined
from gpuload.decode.native.intrinsics import INT8, INT32, INT64, Lanes, bytes_at, emitted, floats_at, longs_at
from gpuload.types import F32, F64, I64

# A word holds B, G and R from its top, 21 bits each: a level (8 bits) times weights that sum to 1 << 13. Those of a
# cubic filter sum to 1 << 12, and a bias keeps its overshoot above 0.
LANE = 21
LINEAR_BITS, LINEAR_BIAS = 13, 0
CUBIC_BITS, CUBIC_BIAS = 12, 1 << 19

PIXELS = 16  # at a time

# Columns of `pictures`.
ADDRESS, HEIGHT, WIDTH, STRIDE, TOP, LEFT, FACTOR = range(7)


class Bands(NamedTuple):
    """The kind of decoded pixels that are not RGB.

    kind: bytes of a value. channels: that are needed. step: values from one pixel to the next. peak: the largest value,
    to which integers are clamped. luma: whether the single channel is computed from RGB.
    """

    kind: int
    channels: int
    step: int
    peak: int
    luma: bool


class Target(NamedTuple):
    """The destination of views of images, as (level - mean) * factor.

    out: float32 (N, C, height, width), or uint8 for the levels themselves, then of uint8 pixels; contiguous in this
    order or with channels last. mean, factor: float32 (C,). bands: of the images; None for RGB.
    """

    out: npt.NDArray[Any]
    mean: F32
    factor: F32
    bands: Bands | None = None


class Output(NamedTuple):
    """The same for compiled functions.

    address: of the first value. planar: whether each channel is in one piece, else each pixel. floats: whether the
    values are float32, else uint8. mean, factor: addresses.
    """

    address: int
    height: int
    width: int
    planar: bool
    floats: bool
    mean: int
    factor: int


OUTPUT_FIELDS = len(Output._fields)


def as_levels(out: npt.NDArray[Any], bands: Bands | None = None) -> Target:
    """The levels themselves."""
    channels = out.shape[1]
    return Target(out, np.zeros(channels, np.float32), np.ones(channels, np.float32), bands)


def output_of(target: Target) -> Output:
    """A target for compiled functions."""
    out = target.out
    _, _, height, width = out.shape
    is_planar = out.strides[3] == out.itemsize
    constants = target.mean.ctypes.data, target.factor.ctypes.data
    return Output(out.ctypes.data, height, width, is_planar, out.itemsize == 4, *constants)


def settings_of(target: Target) -> tuple[int, ...]:
    """The same with the bands, if any, before it."""
    return *(target.bands or ()), *output_of(target)


@inlined
def output_at(arguments: int) -> Output:
    """The output whose fields are the int64 at this address."""
    of = longs_at(arguments)
    return Output(of[0], of[1], of[2], of[3] != 0, of[4] != 0, of[5], of[6])


@inlined
def constants_of(output: Output) -> Any:
    """mean and factor of three channels, as tuples."""
    mean, factor = floats_at(output.mean), floats_at(output.factor)
    return (mean[0], mean[1], mean[2]), (factor[0], factor[1], factor[2])


@inlined
def value_bytes(output: Output) -> int:
    return 4 if output.floats else 1


@inlined
def pixel_step(output: Output) -> int:
    """Bytes from one pixel to the next."""
    return value_bytes(output) * (1 if output.planar else 3)


@inlined
def channel_step(output: Output) -> int:
    """Bytes from one channel of a pixel to the next."""
    return value_bytes(output) * (output.height * output.width if output.planar else 1)


@inlined
def row_of(output: Output, image: int, row: int) -> int:
    """The address of the first value of a row."""
    pixels = image * 3 * output.height * output.width * value_bytes(output)
    return output.address + pixels + row * output.width * pixel_step(output)


@inlined
def word_at(pixels: Any, at: int) -> Any:
    """uint64: the pixel at this byte. pixels: an array of uint8 or a pointer to them."""
    at = np.uint64(at)
    g, b = np.uint64(pixels[at + np.uint64(1)]), np.uint64(pixels[at + np.uint64(2)])
    return np.uint64(pixels[at]) | g << np.uint64(LANE) | b << np.uint64(2 * LANE)


def _levels(sums: Lanes, lane: int, bits: int, bias: int) -> Lanes:
    """int32: one channel's levels, 0..255."""
    levels = (sums >> (lane + bits)).narrow(INT32)
    if bias == 0:
        return levels & 255
    return ((levels & 511) - (bias >> bits)).level()


def _interleaved(channels: Sequence[Lanes]) -> Lanes:
    red, green, blue = channels
    # Shuffled vectors must have equally many lanes; the second half of `blue` is never taken.
    two, three = red.shuffled(green, range(2 * PIXELS)), blue.shuffled(blue, range(2 * PIXELS))
    return two.shuffled(three, [pixel + PIXELS * channel for pixel in range(PIXELS) for channel in range(3)])


def _branch(builder: ir.IRBuilder, flags: Sequence[Any], emit: Callable[..., None], *known: bool) -> None:
    """Emits the same for each combination of flags, which are told apart while it runs."""
    if not flags:
        emit(*known)
        return
    with builder.if_else(flags[0]) as branches:
        for value, branch in zip((True, False), branches, strict=True):
            with branch:
                _branch(builder, flags[1:], emit, *known, value)


@emitted()
def _store(
    builder: ir.IRBuilder,
    words: Any,
    flags: Any,
    mean: Any,
    factor: Any,
    address: Any,
    apart: Any,
) -> None:
    """Stores the values of `PIXELS` words, each with the sums of three channels.

    flags: whether values are floats, planar, and sums those of a cubic filter. mean, factor: of each channel. address:
    of the first value. apart: bytes from channel to channel.
    """

    def emit(floats: bool, planar: bool, cubic: bool) -> None:
        bits, bias = (CUBIC_BITS, CUBIC_BIAS) if cubic else (LINEAR_BITS, LINEAR_BIAS)
        sums, at = Lanes.load(builder, words, INT64, PIXELS), address
        values = [_levels(sums, LANE * channel, bits, bias) for channel in range(3)]
        for channel, level in enumerate(values):
            less, times = (builder.extract_value(of, channel) for of in (mean, factor))
            values[channel] = level.as_floats().minus(less).times(times) if floats else level.narrow(INT8)
        for value in values if planar else [_interleaved(values)]:
            value.store(at)
            at = builder.add(at, apart)

    _branch(builder, [builder.extract_value(flags, number) for number in range(3)], emit)


SPARE_BYTES = 3 * PIXELS * 4


@inlined
def store_row(words: int, cubic: bool, mean: Any, factor: Any, output: Output, row: int, spare: int) -> None:
    """Stores the values of a row of words in the row of the output at this address.

    words: address of as many words as a row has pixels, and not fewer than PIXELS. mean, factor: of each channel, three
    float32; without effect on uint8. spare: address of SPARE_BYTES.
    """
    width, step, apart = output.width, pixel_step(output), channel_step(output)
    flags = output.floats, output.planar, cubic
    if width >= PIXELS:
        for x in range(0, width, PIXELS):
            begin = min(x, width - PIXELS)  # the last vector overlaps the previous one
            _store(words + 8 * begin, flags, mean, factor, row + begin * step, apart)
        return
    near = PIXELS * step if output.planar else value_bytes(output)
    _store(words, flags, mean, factor, spare, near)
    for channel in range(3):
        for x in range(width):
            source, target = bytes_at(spare + channel * near + x * step), bytes_at(row + channel * apart + x * step)
            for byte in range(value_bytes(output)):
                target[byte] = source[byte]


class Taps(NamedTuple):
    """The filter's weights along one axis.

    values: float64 (most taps,), scratch memory. first: (outputs,), the first input of each output. number: int64
    (outputs,), how many inputs have a weight. weights: (most taps, outputs), 0 beyond the taps of an output.
    """

    values: F64
    first: npt.NDArray[Any]
    number: I64
    weights: npt.NDArray[Any]


@inlined
def fill_taps(center: float, step: float, low: int, high: int, cubic: bool, values: F64) -> tuple[int, int, float]:
    """The filter around a center, using only inputs low..high-1.

    step: inputs from one output to the next. values: float64 (most taps,), set to each input's weight, not normalised.

    Returns the first input, the number of inputs, and the sum of the values.
    """
    stretch = max(step, 1.0)
    support, shrink = stretch * (2.0 if cubic else 1.0), 1.0 / stretch
    start = min(max(int(np.floor(center - support + 0.5)), low), high - 1)
    number = max(min(int(np.floor(center + support + 0.5)), high), start + 1) - start
    total = 0.0
    for tap in range(number):
        x = abs(start + tap + 0.5 - center) * shrink
        if not cubic:
            value = max(1.0 - x, 0.0)
        elif x < 1.0:
            value = (1.5 * x - 2.5) * x * x + 1.0
        elif x < 2.0:
            value = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
        else:
            value = 0.0
        values[tap] = value
        total += value
    if total == 0.0:  # the region is outside of its window
        values[0] = total = 1.0
    return start, number, total


@inlined
def room_for(
    pictures: I64, regions: F64, begin: int, end: int, height: int, width: int, cubic: bool
) -> tuple[int, int, int]:
    """The most columns of these pictures, the most taps (an even number) of filters that make regions of them height ×
    width, and the rows of a ring that holds so many: a power of two."""
    most_columns, most_taps, slots = 1, 1, 1
    for image in range(begin, end):
        tall, wide = regions[image, 2] - regions[image, 0], regions[image, 3] - regions[image, 1]
        step = max(tall / height, wide / width) / pictures[image, FACTOR]
        most_columns = max(most_columns, pictures[image, WIDTH])
        most_taps = max(most_taps, int(np.ceil(max(step, 1.0) * (4.0 if cubic else 2.0))) + 2)
    most_taps += most_taps % 2
    while slots < most_taps:
        slots *= 2
    return most_columns, most_taps, slots


@inlined
def span_of(
    window: I64, region: F64, axis: int, at: int, held: int, reduced: int, length: int
) -> tuple[int, int, float, float]:
    """Of a picture along an axis, which holds `held` pixels from `at` on, each of `reduced` pixels of the image: the
    first pixel of the window and the one after its last, where the region begins, and its pixels for each of
    `length`."""
    # At least one pixel, and none outside, whatever the index says of the image.
    low = min(max((window[axis] - at) // reduced, 0), held - 1)
    high = max(min(-((at - window[axis + 2]) // reduced), held), low + 1)
    return low, high, (region[axis] - at) / reduced, (region[axis + 2] - region[axis]) / reduced / length


@inlined
def _source_of(at: int, size: int, mode: int) -> int:
    """As `gpuload.augment.crops.source_of`; mode: index in PADDING_MODES, but not that of "constant"."""
    if mode == 1:
        return min(max(at, 0), size - 1)
    period = max(2 * size - (2 if mode == 2 else 0), 1)
    within = at % period
    return within if within < size else period - within - (0 if mode == 2 else 1)


@inlined
def place_of(at: int, first: int, held: int, size: int, mode: int) -> int:
    """The position in a line of a picture, which holds `held` pixels from `first` on, of pixel `at` of the image's
    line; -1 outside."""
    if mode == 0:
        return at - first if 0 <= at - first < held else -1
    return min(max(_source_of(at, size, mode) - first, 0), held - 1)  # none outside, whatever the index says
