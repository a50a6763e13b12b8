"""Bands that the user chooses, and values that become others in proportion: `--bands`, `--scale` and `--window`."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpuload.errors import DecodeError
from gpuload.formats.raster import (
    CLIPPED,
    EIGHT_BITS,
    SIXTEEN_BITS,
    Conversion,
    Raster,
)
from gpuload.types import Array

# The largest value of each type that a mode has; that of floats is 1.
_WHITE = {"uint8": EIGHT_BITS, "uint16": SIXTEEN_BITS, "float32": 1}


class _Range(NamedTuple):
    """The values that become black and white.

    Attributes:
        option: That sets them, for messages.
    """

    low: float
    high: float
    option: str


def picked_and_scaled(raster: Raster, conversion: Conversion) -> Raster:
    """The bands that are asked for, their values scaled to the range of the mode, if that is asked for.

    Values beyond the range become its ends, which a remark counts.

    Raises:
        DecodeError: there is no such band; there are values that are no numbers, for a mode of whole numbers; the file
            states no window.
    """
    numbers = _as_values(raster)
    if conversion.bands is not None:
        numbers = _picked(numbers, conversion.bands)
    wanted = _range_of(raster, conversion)
    return numbers if wanted is None else _scaled(numbers, wanted, conversion)


def window_range(center: float, width: float) -> tuple[float, float]:
    """The values that a window shows black and white, by DICOM's function LINEAR (PS3.3, C.11.2.1.2.1)."""
    half = (width - 1) / 2
    return center - 0.5 - half, center - 0.5 + half


def _range_of(raster: Raster, conversion: Conversion) -> _Range | None:
    if conversion.scale is not None:
        low, high = conversion.scale
        return _Range(low, high, f"--scale {low:g}:{high:g}")
    if conversion.window is None:
        return None
    if conversion.window != "file":
        center, width = conversion.window
        return _Range(*window_range(center, width), f"--window {center:g}:{width:g}")
    if raster.window is None:
        raise DecodeError(
            "states no window, as --window file asks; give --window CENTER:WIDTH or --scale LOW:HIGH"
        )
    return _Range(*window_range(*raster.window), "the window of their file")


def _as_values(raster: Raster) -> Raster:
    """With the values of Pillow's image."""
    image = raster.image
    if image is None:
        return raster
    has_alpha = image.has_transparency_data
    if has_alpha:
        image = image.convert("LA" if image.mode in ("1", "L", "LA") else "RGBA")
    elif image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    values = np.asarray(image)
    return replace(
        raster, image=None, values=values, peak=EIGHT_BITS, has_alpha=has_alpha
    )


def _picked(raster: Raster, bands: tuple[int, ...]) -> Raster:
    values = raster.values
    assert values is not None
    count = values.shape[2]
    if max(bands) > count:
        raise DecodeError(
            f"has {count} {'band' if count == 1 else 'bands'}, and --bands asks for band {max(bands)}, counted from 1"
        )
    chosen = values[..., [number - 1 for number in bands]]
    return replace(raster, values=chosen, has_alpha=False)


def _scaled(raster: Raster, wanted: _Range, conversion: Conversion) -> Raster:
    values = raster.values
    assert values is not None
    white = _WHITE[conversion.dtype]
    colors = values[..., :-1] if raster.has_alpha else values
    if conversion.dtype != "float32" and not np.isfinite(colors).all():
        raise DecodeError(
            f"holds values that are no numbers, which {conversion.mode} has none for"
        )
    remarks = dict(raster.remarks)
    if colors.min() < wanted.low or colors.max() > wanted.high:
        remarks[CLIPPED.format(wanted.option, "{}")] = 1
    shares = (colors.astype(np.float64) - wanted.low) / (wanted.high - wanted.low)
    shares = np.clip(shares, 0, 1)
    if raster.is_inverted:
        shares = 1 - shares
    levels = _as_type(shares * white, conversion.dtype)
    if raster.has_alpha and raster.peak:
        alpha = values[..., -1:].astype(np.float64) / raster.peak
        levels = np.concatenate(
            [levels, _as_type(alpha * white, conversion.dtype)], axis=2
        )
    return Raster(
        values=levels,
        peak=white,
        has_alpha=raster.has_alpha and bool(raster.peak),
        profile=raster.profile,
        turned=raster.turned,
        remarks=remarks,
    )


def _as_type(values: Array, dtype: str) -> Array:
    numbers = values if dtype == "float32" else np.round(values)
    return numbers.astype(dtype)
