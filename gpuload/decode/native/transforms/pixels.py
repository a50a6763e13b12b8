"""What several operations do to a pixel. Each operation on floats is rounded by itself, or fused where torch's is, so
that pixels are the same on every machine."""

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from gpuload.decode.native.compiled import exact

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
