"""How the values of an image become those of a set: 16 bits to 8, transparency over white, bands and types.

The conversion is the same for files, bytes, Pillow's images and shards that are read in place.
"""

import numpy as np
from PIL import Image

from gpuload.errors import DecodeError
from gpuload.formats.raster import (
    EIGHT_BITS,
    NARROW,
    OVER_WHITE,
    SIXTEEN_BITS,
    TO_8_BITS,
    TO_FLOAT32,
    Conversion,
    Raster,
)
from gpuload.formats.scaling import picked_and_scaled
from gpuload.types import Array

_BY_SCALE = "--scale LOW:HIGH says which values are black and white"
_NARROW_DEPTHS = (10, 12, 14)
_EXACT_FLOATS = 1 << 24  # up to here float32 holds every whole number


def converted(raster: Raster, conversion: Conversion) -> Image.Image | Array:
    """The image in the mode of the set; of an RGB set also in mode L.

    Pillow's image where the mode has one of Pillow's, else an array (height, width, channels). Remarks are added to
    those of the raster.

    Raises:
        DecodeError: the conversion is not defined, or would lose what the set keeps.
    """
    if conversion.changes_values:
        before = raster
        raster = picked_and_scaled(before, conversion)
        before.remarks.update(raster.remarks)
    if raster.image is None:
        return _of_values(raster, conversion)
    keeps_alpha = conversion.mode == "RGBA" and raster.image.mode not in ("I", "F")
    if conversion.is_plain or keeps_alpha:
        if raster.deep:
            _remark_on_depth(raster, _largest_level(raster.image) << 8)
        if keeps_alpha:
            return _in_mode(raster.image, "RGBA")
        plain = _plain(raster, conversion)
        return plain if plain.mode == "L" else _in_mode(plain, conversion.mode)
    values = np.asarray(raster.image)
    bands = values.reshape(*values.shape[:2], -1)
    is_whole = raster.image.mode in ("L", "LA", "RGB", "RGBA") and not raster.deep
    has_key = raster.image.mode in ("L", "RGB") and raster.image.has_transparency_data
    fits = bands.shape[2] == conversion.channels and not has_key
    if conversion.dtype in ("float32", "uint8") and is_whole and fits:
        return _as_stored(bands, conversion, raster.remarks)
    raise DecodeError(
        f"is of mode {raster.image.mode}, which is not converted to {conversion.mode}"
    )


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


def _of_values(raster: Raster, conversion: Conversion) -> Image.Image | Array:
    values = raster.values
    assert values is not None
    if not conversion.is_plain:
        return _as_stored(values, conversion, raster.remarks)
    levels = _levels(raster, conversion)
    if raster.is_inverted:
        levels = EIGHT_BITS - levels
    bands = levels.shape[2]
    if raster.has_alpha and bands in (2, 4):
        levels = _flat(levels, conversion)
        bands -= 1
    if bands not in (1, 3):
        raise DecodeError(
            f"has {bands} bands, which are not converted to {conversion.mode}; --bands picks some, counted from 1"
        )
    image = Image.fromarray(levels.squeeze(2) if bands == 1 else levels)
    return (
        image
        if image.mode in ("L", conversion.mode)
        else image.convert(conversion.mode)
    )


def _levels(raster: Raster, conversion: Conversion) -> Array:
    """uint8: the values scaled to 0..255.

    Raises:
        DecodeError: they are numbers of unknown range.
    """
    values = raster.values
    assert values is not None
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "f":
        return _levels_of_floats(values)
    if not raster.peak:
        by_window = ", and --window file takes the window that it states"
        raise DecodeError(
            f"its pixels are {values.dtype.itemsize * 8}-bit integers of unknown range; {_BY_SCALE}"
            f"{by_window if raster.window else ''}{_by_floats(values)}"
        )
    peak = raster.peak
    if conversion.depth is not None:
        peak = (1 << conversion.depth) - 1
    largest = int(values.max(initial=0))
    if largest > peak:
        raise DecodeError(
            f"holds the value {largest}, above {peak}, the largest of --depth {conversion.depth}"
        )
    _remark_on_depth(raster, largest if peak == SIXTEEN_BITS else SIXTEEN_BITS)
    scaled: Array = (
        (values.astype(np.uint32) * EIGHT_BITS + peak // 2) // peak
    ).astype(np.uint8)
    return scaled


def unknown_range(values: Array) -> DecodeError:
    """The error for floats, (height, width) or (height, width, bands), that do not tell what is white."""
    return DecodeError(
        f"its pixels are floating-point numbers of unknown range; {_BY_SCALE}{_by_floats(values)}"
    )


def _by_floats(values: Array) -> str:
    """The options that keep numbers of unknown range, for messages."""
    bands = values.shape[2] if values.ndim > 2 else 1
    mode = "F" if bands == 1 else f"float32x{bands}"
    return f", and --mode {mode} --encode raw keeps the numbers"


def _remark_on_depth(raster: Raster, largest: int) -> None:
    """Notes how bits were lost.

    Args:
        largest: Of the values of 16 bits that become 8.
    """
    raster.remarks[TO_8_BITS] = 1
    depth = next((bits for bits in _NARROW_DEPTHS if 0 < largest < 1 << bits), None)
    if depth is not None:
        raster.remarks[NARROW.format("{}", f"{(1 << depth) - 1:,}", depth)] = 1


def _largest_level(image: Image.Image) -> int:
    """Of the colours of an image of mode RGB or RGBA."""
    colors = image.convert("RGB") if image.mode == "RGBA" else image
    return int(np.asarray(colors).max(initial=0))


def _levels_of_floats(values: Array) -> Array:
    if not (float(values.min(initial=0)) >= 0 and float(values.max(initial=0)) <= 1):
        raise unknown_range(values)
    scaled: Array = np.round(values.astype(np.float64) * EIGHT_BITS).astype(np.uint8)
    return scaled


def _flat(levels: Array, conversion: Conversion) -> Array:
    """The colours without their transparency, which is the last band."""
    colors = levels[..., :-1]
    if conversion.alpha == "drop":
        return np.ascontiguousarray(colors)
    alpha = levels[..., -1:].astype(np.uint32)
    laid: Array = ((colors * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return laid


def _as_stored(
    values: Array, conversion: Conversion, remarks: dict[str, int]
) -> Image.Image | Array:
    """The same numbers in the type of the set.

    Args:
        remarks: Get one, where floats are rounded.

    Raises:
        DecodeError: the set has another number of channels, or its type does not hold a value.
    """
    bands = values.shape[2]
    if bands != conversion.channels:
        plural = "band" if bands == 1 else "bands"
        raise DecodeError(
            f"has {bands} {plural} of {values.dtype}, which are not converted to {conversion.mode}; "
            "--bands picks some, counted from 1"
        )
    if values.dtype.kind == "f" and conversion.dtype == "float32":
        if values.dtype.itemsize > 4:
            remarks[TO_FLOAT32] = 1
    elif not np.can_cast(values.dtype, conversion.dtype, "safe"):
        _refuse_loss(values, conversion)
    stored = np.ascontiguousarray(values, np.dtype(conversion.dtype))
    if conversion.mode in ("I;16", "F"):
        return Image.fromarray(stored.squeeze(2))
    if conversion.mode == "RGBA":
        return Image.fromarray(stored)
    return stored


def _refuse_loss(values: Array, conversion: Conversion) -> None:
    """Raises DecodeError unless whole numbers keep their values in the type of the set."""
    low = values.min(initial=0)
    high = values.max(initial=0)
    if values.dtype.kind in "iu":
        if (
            conversion.dtype == "float32"
            and low >= -_EXACT_FLOATS
            and high <= _EXACT_FLOATS
        ):
            return
        if conversion.dtype == "uint16" and low >= 0 and high <= SIXTEEN_BITS:
            return
    raise DecodeError(
        f"its values of {values.dtype}, {low} to {high}, are not converted to {conversion.mode}, which does not hold "
        "all of them exactly"
    )


def _plain(raster: Raster, conversion: Conversion) -> Image.Image:
    """Mode "RGB" or "L", of an image of 8 bits or fewer. A remark counts it where transparency is lost."""
    image = raster.image
    assert image is not None
    if image.mode in ("I", "F"):
        raise DecodeError(
            f"its pixels are of mode {image.mode}, of unknown range; {_BY_SCALE}"
        )
    mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
    if image.has_transparency_data:
        image = (
            image.convert("LA").convert("RGBA")
            if image.mode == "La"
            else image.convert("RGBA")
        )
        if conversion.alpha == "drop":
            image = image.convert("RGB")
        else:
            if image.getchannel("A").getextrema() != (EIGHT_BITS, EIGHT_BITS):
                raster.remarks[OVER_WHITE] = 1
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)


def channels_last(array: Array) -> Array:
    """(H, W, C) of an image with 1 or 3 channels, which may come first; any other array as it is."""
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        return array.transpose(1, 2, 0)
    return array


def as_levels(array: Array) -> Array:
    """uint8 (H, W, C) out of uint8 or float in 0..1, with the channels first or last.

    Anything else is returned as it is, and the packer rejects it with its type and shape.
    """
    array = channels_last(array)
    if (
        array.dtype.kind == "f"
        and array.size
        and float(array.min()) >= 0
        and float(array.max()) <= 1
    ):
        array = np.round(array.astype(np.float64) * EIGHT_BITS).astype(np.uint8)
    return array
