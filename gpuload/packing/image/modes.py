"""Images and arrays in the mode that a set is packed in: what they are by themselves, and converted."""

import io
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from gpuload.errors import DecodeError
from gpuload.fields.pixels import DTYPES, GRAY, MOST_CHANNELS, RGB, Pixels
from gpuload.headers import npy, png
from gpuload.packing.image.pixels import SIXTEEN_BIT_MODES, to_upright_rgb_or_gray
from gpuload.packing.image.placement import Placement
from gpuload.types import Array

_SIXTEEN, _FLOAT, _ALPHA = Pixels(1, "uint16"), Pixels(1, "float32"), Pixels(4)
_OWN = {"1": GRAY, "L": GRAY, "F": _FLOAT, "LA": _ALPHA, "La": _ALPHA, "PA": _ALPHA, "RGBA": _ALPHA, "RGBa": _ALPHA}
# What can be converted without a loss, besides itself.
_WIDER = {GRAY: (RGB, _ALPHA, _FLOAT), RGB: (_ALPHA,), _SIXTEEN: (_FLOAT,)}


def pixels_of(data: bytes | Array) -> Pixels:
    """What an image or an array is by itself.

    Raises:
        DecodeError: it is in no format that is read, or of pixels that no mode has; the message is the reason alone.
    """
    if not isinstance(data, bytes):
        return _of_array(data)
    if data.startswith(npy.START):
        return _of_array(read_array(data))
    try:
        with Image.open(io.BytesIO(data)) as image:
            return of_image(data, image)
    except UnidentifiedImageError:
        raise DecodeError("not an image in a format that Pillow reads") from None
    except DecodeError:
        raise
    except Exception as error:  # Pillow's many parsers may raise anything
        raise DecodeError(f"cannot be decoded: {error or type(error).__name__}") from None


def of_image(data: bytes, image: Image.Image) -> Pixels:
    """What an opened image is by itself.

    Raises:
        DecodeError: Pillow would not show all of its bits, or its pixels are of no mode.
    """
    if image.mode in SIXTEEN_BIT_MODES or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return _SIXTEEN
    if image.mode == "I":
        raise DecodeError("its pixels are 32-bit integers; convert them to 16 bits or floats")
    bits = png.read_header(data).depth if data.startswith(png.START) else max(_bits(image))
    if bits > 8 and image.mode != "F":
        raise DecodeError(
            f"has {bits} bits for each of several channels, of which Pillow keeps 8; give it as an array, or a mode of "
            "8 bits"
        )
    return _OWN.get(image.mode) or (_ALPHA if image.has_transparency_data else RGB)


def _bits(image: Image.Image) -> tuple[int, ...]:
    """Bits of each channel of a TIFF."""
    found: Any = getattr(image, "tag_v2", {}).get(258, 8)
    return found if isinstance(found, tuple) else (int(found),)


def _of_array(array: Array) -> Pixels:
    channels = array.shape[2] if array.ndim == 3 else 1
    dtype = array.dtype.newbyteorder("=").name
    if array.ndim not in (2, 3) or not array.size or channels > MOST_CHANNELS or dtype not in DTYPES:
        raise DecodeError(
            "an image array must be (height, width) or (height, width, channels) of uint8, uint16 or float32, with up "
            f"to {MOST_CHANNELS} channels; found {array.dtype} {array.shape}"
        )
    return Pixels(channels, dtype)


def read_array(data: bytes) -> Array:
    """The array of an `.npy`.

    Raises:
        DecodeError: it is damaged.
    """
    try:
        return npy.read_array(data)
    except ValueError as error:
        raise DecodeError(f"cannot be read as .npy: {error}") from None


def array_in(array: Array, pixels: Pixels) -> Array:
    """The array as (height, width, channels) of these pixels, C order; types are widened where nothing is lost.

    Raises:
        DecodeError: it has other channels, or a type that does not fit.
    """
    whole = array[..., None] if array.ndim == 2 else array
    fits = whole.ndim == 3 and whole.size and whole.shape[2] == pixels.channels
    if not fits or not np.can_cast(array.dtype, np.dtype(pixels.dtype), "safe"):
        raise DecodeError(
            f"is an array {array.shape} of {array.dtype}; for mode {pixels.mode} it must be (height, width, "
            f"{pixels.channels}) of {pixels.dtype}"
        )
    return np.ascontiguousarray(whole, pixels.stored)


def image_in(data: bytes, image: Image.Image, pixels: Pixels, strict: bool) -> Image.Image:
    """An opened image in the mode of these pixels, upright.

    strict: nothing may be lost.

    Raises:
        DecodeError: something would be lost, or the conversion is not defined.
    """
    own = of_image(data, image) if strict else None
    if own is not None and own != pixels and pixels not in _WIDER.get(own, ()):
        raise DecodeError(f"is of mode {own.mode}, and the set of mode {pixels.mode}; --mode {pixels.mode} converts it")
    if pixels in (RGB, GRAY):
        upright = to_upright_rgb_or_gray(image)
        return upright if upright.mode in ("L", pixels.mode) else upright.convert(pixels.mode)
    sixteen_bits = image.mode in SIXTEEN_BIT_MODES or (image.mode == "I" and image.format in ("PNG", "PPM"))
    image.load()
    upright = ImageOps.exif_transpose(image)
    if pixels == _SIXTEEN and sixteen_bits:
        return Image.fromarray(np.asarray(upright).astype(np.uint16))
    if pixels == _FLOAT and (sixteen_bits or upright.mode in ("L", "F")):
        return Image.fromarray(np.asarray(upright).astype(np.float32))
    if pixels == _ALPHA and not sixteen_bits and upright.mode not in ("I", "F"):
        return upright if upright.mode == "RGBA" else upright.convert("RGBA")
    raise DecodeError(f"is of mode {image.mode}, which is not converted to {pixels.mode}")


def resample_array(array: Array, placement: Placement) -> Array:
    """Pixels (height, width, channels) resized, cropped and padded: each channel by itself, bicubic."""
    if not placement.changes:
        return array
    channels = [
        np.asarray(placement.resample(Image.fromarray(channel), Image.Resampling.BICUBIC))
        for channel in np.moveaxis(array.astype(array.dtype.newbyteorder("=")), 2, 0)
    ]
    return np.ascontiguousarray(np.stack(channels, axis=2), array.dtype)
