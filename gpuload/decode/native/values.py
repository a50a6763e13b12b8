"""Where kernels write: the memory of a batch, and what becomes of levels there."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.kernels.structs import Bands, OutputMemory
from gpuload.types import F32


class PixelTarget(NamedTuple):
    """The destination of views of images, as (level - mean) * factor.

    Attributes:
        out: float32 (N, C, height, width), or uint8 for the levels themselves, then of uint8 pixels; contiguous in this
            order or with channels last.
        mean: float32 (C,), subtracted from the levels.
        factor: float32 (C,), by which the difference is multiplied.
        bands: Of the images; None for RGB.
    """

    out: npt.NDArray[Any]
    mean: F32
    factor: F32
    bands: Bands | None = None


def as_levels(out: npt.NDArray[Any], bands: Bands | None = None) -> PixelTarget:
    """A target for the levels themselves."""
    channels = out.shape[1]
    return PixelTarget(
        out, np.zeros(channels, np.float32), np.ones(channels, np.float32), bands
    )


def output_of(target: PixelTarget) -> OutputMemory:
    """A target for kernels."""
    out = target.out
    _, _, height, width = out.shape
    is_planar = out.strides[3] == out.itemsize
    is_float = out.itemsize == 4
    return OutputMemory(
        out.ctypes.data,
        height,
        width,
        is_planar,
        is_float,
        target.mean.ctypes.data,
        target.factor.ctypes.data,
    )
