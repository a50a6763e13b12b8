"""An image on its way through the operations that are done to it.

Each operation is compiled, and kept on the disk, by itself, so that a loader waits for those alone that it uses. Called
by its address as operation(address of an `Image`, begin, end), it does the steps begin..end-1 of the image at once, of
which it can do several.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from gpuload.decode.native.compiled import cached, exact
from gpuload.decode.native.intrinsics import longs_at
from gpuload.transforms.ops import ARGS

IMAGE_FIELDS = 8
KEPT = 5  # for the image with which each chain of a mixture begins, and what is mixed so far, as float32


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


F = np.float32


def _fused(_: Any, factor: Any, value: Any, other: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), generate


fused: Any = intrinsic(_fused)  # factor * value + other, rounded once


@exact
def level(value: np.float32) -> Any:
    """uint8: clamped to 0..255 and truncated."""
    return np.uint8(np.int32(min(max(value, F(0)), F(255))))


@exact
def gray(red: np.float32, green: np.float32, blue: np.float32) -> Any:
    """int32."""
    return np.int32(fused(F(0.114), blue, fused(F(0.587), green, red * F(0.2989))))
