"""Pixels of any number of channels and any type as RGB that a person can look at."""

from typing import Any

import numpy as np

from gpuload.types import U8, Array


def as_rgb(pixels: Any) -> U8:
    """uint8 (..., height, width, 3), of uint8, uint16 or floats (..., height, width, channels).

    One or two channels become gray, by the first; of more the first three are shown. 16 bits lose the lower half.
    Floats have no range of their own: of each image the smallest value becomes black and the largest white.
    """
    shown = pixels[..., :3] if pixels.shape[-1] > 2 else np.repeat(pixels[..., :1], 3, axis=-1)
    if shown.dtype == np.uint16:
        shown = (shown >> 8).astype(np.uint8)
    elif shown.dtype != np.uint8:
        shown = np.rint(255 * stretched(shown)).astype(np.uint8)
    contiguous: U8 = np.ascontiguousarray(shown)
    return contiguous


def stretched(images: Array) -> Array:
    """float32 (..., height, width, channels) in 0..1: of each image the smallest value is 0 and the largest 1."""
    levels = np.nan_to_num(images.astype(np.float32), posinf=0, neginf=0)
    low, high = (reduce(levels, axis=(-3, -2, -1), keepdims=True) for reduce in (np.min, np.max))
    scaled: Array = (levels - low) / np.maximum(high - low, 1e-6)
    return scaled
