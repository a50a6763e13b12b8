"""The inverse DCT of a block, to 8×8, 4×4 or 2×2 samples, in vectors.

The arithmetic is that of libjpeg's accurate integer method, so the samples are those of libjpeg-turbo, bit for bit,
except where it overflows, with coefficients that no 8-bit image has:
C. Loeffler, A. Ligtenberg and G. Moschytz, "Practical Fast 1-D DCT Algorithms with 11 Multiplications" (ICASSP 1989),
with 13 fractional bits, in a pass along the columns, whose results keep two of them, and a pass along the rows. To 4×4
and 2×2 samples, the same transform computes only that many outputs, each the mean of its neighbours.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpuload.decode.native.vectors import INT32, Lanes

_BITS, _KEPT_BITS = 13, 2


def _fix(number: float) -> int:
    return round(number * (1 << _BITS))


def _transform_8(rows: Sequence[Lanes]) -> list[Lanes]:
    a, b, c, d, e, f, g, h = rows
    turned = (c + g) * _fix(0.541196100)
    low, high = turned - g * _fix(1.847759065), turned + c * _fix(0.765366865)
    first, second = (a + e) << _BITS, (a - e) << _BITS
    even = first + high, second + low, second - low, first - high
    both = (h + d + f + b) * _fix(1.175875602)
    outer, inner = (h + b) * _fix(-0.899976223), (f + d) * _fix(-2.562915447)
    left, right = (h + d) * _fix(-1.961570560) + both, (f + b) * _fix(-0.390180644) + both
    odd = (
        b * _fix(1.501321110) + outer + right,
        d * _fix(3.072711026) + inner + left,
        f * _fix(2.053119869) + inner + right,
        h * _fix(0.298631336) + outer + left,
    )
    return [x + y for x, y in zip(even, odd, strict=True)] + [
        x - y for x, y in zip(reversed(even), reversed(odd), strict=True)
    ]


def _transform_4(rows: Sequence[Lanes]) -> list[Lanes]:
    a, b, c, d, _, f, g, h = rows
    mean, turned = a << (_BITS + 1), c * _fix(1.847759065) + g * _fix(-0.765366865)
    inner = h * _fix(-0.211164243) + f * _fix(1.451774981) + d * _fix(-2.172734803) + b * _fix(1.061594337)
    outer = h * _fix(-0.509795579) + f * _fix(-0.601344887) + d * _fix(0.899976223) + b * _fix(2.562915447)
    return [mean + turned + outer, mean - turned + inner, mean - turned - inner, mean + turned - outer]


def _transform_2(rows: Sequence[Lanes]) -> list[Lanes]:
    a, b, _, d, _, f, _, h = rows
    mean = a << (_BITS + 2)
    odd = h * _fix(-0.720959822) + f * _fix(0.850430095) + d * _fix(-1.272758580) + b * _fix(3.624509785)
    return [mean + odd, mean - odd]


def _transpose(rows: Sequence[Lanes]) -> list[Lanes]:
    low, high = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
    ones = [rows[i].shuffled(rows[i + 1], order) for i in (0, 2, 4, 6) for order in (low, high)]
    low, high = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)
    twos = [ones[i].shuffled(ones[i + 2], order) for i in (0, 1, 4, 5) for order in (low, high)]
    low, high = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)
    return [twos[i].shuffled(twos[i + 4], order) for order in (low, high) for i in (0, 1, 2, 3)]


def _make(transform: Callable[[Sequence[Lanes]], list[Lanes]], size: int) -> Any:
    """A function of the address of int32 (8, 8), coefficients by row, and of samples, and their bytes per row."""
    less = {8: 0, 4: 1, 2: 2}[size]

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        coefficients, pixels, stride = args
        rows = [Lanes.load(builder, coefficients, INT32, 8, 32 * row) for row in range(8)]
        kept = [row.rounded(_BITS - _KEPT_BITS + less) for row in transform(rows)]
        kept += [kept[0].all(0)] * (8 - size)
        columns = transform(_transpose(kept))
        levels = [(column.rounded(_BITS + _KEPT_BITS + 3 + less) + 128).level() for column in columns]
        # A lane is a row now: up to four columns, side by side, make one word of it.
        step = min(size, 4)
        words = [
            reduce(or_, (levels[first + column] << 8 * column for column in range(step)))
            for first in range(0, size, step)
        ]
        for row in range(size):
            for number, word in enumerate(words):
                word.store_lane(row, ir.IntType(8 * step), pixels, step * number)
            pixels = builder.add(pixels, stride)
        return context.get_dummy_value()

    def make(_: Any, coefficients: Any, pixels: Any, stride: Any) -> Any:
        return types.void(coefficients, pixels, stride), generate

    return intrinsic(make)


to_8: Any = _make(_transform_8, 8)
to_4: Any = _make(_transform_4, 4)
to_2: Any = _make(_transform_2, 2)
