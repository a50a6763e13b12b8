"""Images and arrays in the mode that a set is packed in: what they are, kept as they are, or converted."""

import io
from collections.abc import Collection
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from gpuload.errors import DecodeError
from gpuload.fields.images import DTYPES, GRAY, MOST_CHANNELS, RGB, Pixels
from gpuload.fields.motion import Placement
from gpuload.headers import encodings, jpeg, npy, png
from gpuload.headers.jpeg import ORIENTATION
from gpuload.types import Array

Member = Literal["jpg", "png", "webp", "avif", "tif"]

# Bit depth and colour type of PNGs by the mode, and Pillow's modes of other files.
_PNG = {"RGB": ((8, 0), (8, 2)), "L": ((8, 0),), "RGBA": ((8, 6),), "I;16": ((16, 0),)}
_OTHERS = {"RGB": ("RGB", "L"), "L": ("L",), "RGBA": ("RGBA",), "I;16": ("I;16", "I;16B")}
SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
_SIXTEEN, _FLOAT, _ALPHA = Pixels(1, "uint16"), Pixels(1, "float32"), Pixels(4)
_OWN = {"1": GRAY, "L": GRAY, "F": _FLOAT, "LA": _ALPHA, "La": _ALPHA, "PA": _ALPHA, "RGBA": _ALPHA, "RGBa": _ALPHA}
# What can be converted without a loss, besides itself.
_WIDER = {GRAY: (RGB, _ALPHA, _FLOAT), RGB: (_ALPHA,), _SIXTEEN: (_FLOAT,)}


def pixels_of(data: bytes | Array) -> Pixels:
    """The pixels that an image or an array has by itself.

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
    """The pixels that an opened image has by itself.

    Raises:
        DecodeError: Pillow would not show all of its bits, or its pixels are of no mode.
    """
    if _has_sixteen_bits(image):
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


def _has_sixteen_bits(image: Image.Image) -> bool:
    return image.mode in SIXTEEN_BIT_MODES or (image.mode == "I" and image.format in ("PNG", "PPM"))


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
    sixteen_bits = _has_sixteen_bits(image)
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


def kept_member(data: bytes, image: Image.Image, pixels: Pixels, keep: Collection[str]) -> Member | None:
    """The extension under which an opened image is stored unchanged; None if it must be re-encoded.

    keep: of other encodings than JPEG and PNG.
    """
    if data.startswith(jpeg.START) and pixels in (RGB, GRAY):
        header = jpeg.read_header(data)
        same = image.size == (header.width, header.height) and (header.gray or pixels == RGB)
        return "jpg" if header.plain and same else None
    if data.startswith(png.START):
        found = png.read_header(data)
        return "png" if found.alike and (found.depth, found.color) in _PNG.get(pixels.mode, ()) else None
    if (other := encodings.read_header(memoryview(data))) is None:
        return None
    extension, header_ = other
    # Pillow alone decides what is damaged.
    if {"tif": "tiff"}.get(extension, extension) not in keep or header_.fault:
        return None
    upright = header_.upright and image.getexif().get(ORIENTATION, 1) == 1
    same = image.size == (header_.width, header_.height) and image.mode in _OTHERS.get(pixels.mode, ())
    if not (upright and same and header_.single and getattr(image, "n_frames", 1) == 1):
        return None
    return None if "transparency" in image.info else extension  # type: ignore[return-value]


def to_upright_rgb_or_gray(image: Image.Image) -> Image.Image:
    """The first frame, upright, in mode "RGB" or "L": transparency over white, 16 bits scaled to 8.

    Raises:
        DecodeError: its pixels are numbers of unknown range (32 bits or floating point).
    """
    sixteen_bits = _has_sixteen_bits(image)
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode in ("RGB", "L"):
        if "transparency" not in image.info:
            return image
    elif sixteen_bits:
        return Image.fromarray(((np.asarray(image).astype(np.uint32) * 255 + 32_767) // 65_535).astype(np.uint8))
    elif image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "floating-point numbers"
        raise DecodeError(f"its pixels are {kind} of unknown range; convert it to 8 or 16 bits")
    elif image.mode == "1":
        return image.convert("L")
    elif image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB") or image
    if image.has_transparency_data:
        gray = image.mode in ("LA", "La", "L")
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
        return image.convert("L" if gray else "RGB")
    return image.convert("RGB")


def from_array(pixels: Array) -> Image.Image:
    """An image from uint8 (H, W), (H, W, 1) or (H, W, 3) RGB.

    Raises:
        DecodeError: the array has another dtype or shape.
    """
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)) or not pixels.size:
        raise DecodeError(
            f"an image array must be uint8 (height, width) or (height, width, 3); found {pixels.dtype} {pixels.shape}"
        )
    return Image.fromarray(np.ascontiguousarray(pixels))


def is_gray(image: Image.Image) -> bool:
    """Whether an image has no colour: reduced to about 64x64 pixels, its channels differ by at most 8 of 255."""
    if image.mode == "L":
        return True
    small = image.reduce((max(1, image.width // 64), max(1, image.height // 64))).convert("RGB")
    return int(np.ptp(np.asarray(small), axis=2).max()) <= 8
