"""Luma and chroma to RGB (ITU-T T.871), 16 pixels at a time: the pixels of libjpeg-turbo, bit for bit.

Chroma of half the width or height is interpolated between its two or four nearest samples, 3 to 1 along each side.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpuload.decode.native.vectors import INT8, INT16, INT32, Lanes

PIXELS = 16  # at a time

_BITS = 16
_RED_OF_RED, _GREEN_OF_BLUE, _GREEN_OF_RED, _BLUE_OF_BLUE = (
    round(part * (1 << _BITS)) for part in (1.402, -0.34414, -0.71414, 1.772)
)
_TWICE = [number // 2 for number in range(PIXELS)]
_BY_TURNS = [number // 2 + number % 2 * (PIXELS // 2) for number in range(PIXELS)]

_Chroma = Callable[[ir.IRBuilder, Any, Any], Lanes]


def _half(builder: ir.IRBuilder, address: Any, after: int = 0) -> Lanes:
    """The chroma of `PIXELS` pixels, where it has half the width."""
    return Lanes.load(builder, address, INT8, PIXELS // 2, after).wide(INT16)


def _same(builder: ir.IRBuilder, near: Any, far: Any) -> Lanes:
    return Lanes.load(builder, near, INT8, PIXELS).wide(INT32)


def _repeated(builder: ir.IRBuilder, near: Any, far: Any) -> Lanes:
    half = _half(builder, near)
    return half.shuffled(half, _TWICE).wide(INT32)


def _between_two(builder: ir.IRBuilder, near: Any, far: Any) -> Lanes:
    before, here, after = (_half(builder, near, x) for x in (-1, 0, 1))
    left, right = (here * 3 + before + 1) >> 2, (here * 3 + after + 2) >> 2
    return left.shuffled(right, _BY_TURNS).wide(INT32)


def _between_four(builder: ir.IRBuilder, near: Any, far: Any) -> Lanes:
    before, here, after = (_half(builder, near, x) * 3 + _half(builder, far, x) for x in (-1, 0, 1))
    left, right = (here * 3 + before + 8) >> 4, (here * 3 + after + 7) >> 4
    return left.shuffled(right, _BY_TURNS).wide(INT32)


def _store_rgb(red: Lanes, green: Lanes, blue: Lanes, address: Any) -> None:
    red, green, blue = (part.narrow(INT8) for part in (red, green, blue))
    two = red.shuffled(green, range(2 * PIXELS))
    # Shuffled vectors must have equally many lanes; the second half of `blue` is never taken.
    order = [pixel + PIXELS * channel for pixel in range(PIXELS) for channel in range(3)]
    two.shuffled(blue.shuffled(blue, range(2 * PIXELS)), order).store(address)


def _make(chroma: _Chroma) -> Any:
    """A function of addresses: luma of the first pixel; Cb of its row and of the next nearest row; Cr likewise; RGB."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        luma, near_blue, far_blue, near_red, far_red, rgb = args
        level = Lanes.load(builder, luma, INT8, PIXELS).wide(INT32)
        b, r = chroma(builder, near_blue, far_blue) - 128, chroma(builder, near_red, far_red) - 128
        red = level + (r * _RED_OF_RED).rounded(_BITS)
        green = level + (b * _GREEN_OF_BLUE + r * _GREEN_OF_RED).rounded(_BITS)
        blue = level + (b * _BLUE_OF_BLUE).rounded(_BITS)
        _store_rgb(red.level(), green.level(), blue.level(), rgb)
        return context.get_dummy_value()

    def make(_: Any, luma: Any, near_blue: Any, far_blue: Any, near_red: Any, far_red: Any, rgb: Any) -> Any:
        return types.void(luma, near_blue, far_blue, near_red, far_red, rgb), generate

    return intrinsic(make)


def _make_gray(_: Any, luma: Any, rgb: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        level = Lanes.load(builder, args[0], INT8, PIXELS)
        _store_rgb(level, level, level, args[1])
        return context.get_dummy_value()

    return types.void(luma, rgb), generate


same: Any = _make(_same)
repeated: Any = _make(_repeated)
between_two: Any = _make(_between_two)
between_four: Any = _make(_between_four)
gray: Any = intrinsic(_make_gray)
