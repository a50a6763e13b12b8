"""What Pillow's images hold, and what those that are loaded no longer tell of their files."""

from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from gpuload.errors import DecodeError
from gpuload.formats.raster import SIXTEEN_BITS, Conversion, Raster
from gpuload.headers.jpeg import ORIENTATION
from gpuload.headers.tiff import IS_INKS, PLANES, SIGNED, UNSIGNED, WHITE_IS_ZERO

_EIGHT_BITS = 255
_LOSSY = ("JPEG", "MPO", "JPEG2000", "WEBP", "AVIF")
_STEPS = {2: 85, 4: 17}  # of the levels to which Pillow stretches gray of so many bits

# Tags of TIFF.
_SUBFILE = 254
_BITS = 258
_COMPRESSION = 259
_PHOTOMETRIC = 262
_SAMPLES = 277
_PLANAR = 284
_EXTRA = 338
_FORM = 339
_DNG = 50_706

_UNCOMPRESSED = 1

# Exif orientations that turn an image.
TURNS = range(2, 9)


def raster_of_image(image: Image.Image) -> Raster:
    """What an image of Pillow, loaded or not, holds: upright."""
    turn = (
        image.getexif().get(ORIENTATION, 1) if image.format == "TIFF" else 1
    )  # loading a TIFF turns it
    image.load()
    turn = turn if turn in TURNS else image.getexif().get(ORIENTATION, 1)
    turn = turn if turn in TURNS else 1
    name = str(image.format).lower()
    upright = ImageOps.exif_transpose(image)
    profile = upright.info.get("icc_profile") or b""
    mode = upright.mode
    if mode.startswith("I;16") or mode in ("I", "F"):
        values = np.asarray(upright)[..., None]
        values = values.astype(values.dtype.newbyteorder("="))
        is_sixteen_bits = mode.startswith("I;16") or (
            mode == "I" and name in ("png", "ppm")
        )
        if is_sixteen_bits:
            values = values.astype(np.uint16)
        raster = Raster(
            values=values,
            peak=SIXTEEN_BITS if is_sixteen_bits else 0,
            profile=profile,
            turned=turn,
        )
        return with_transparent_level(raster, upright.info.get("transparency"))
    if image.format == "BMP":
        upright = without_empty_alpha(upright)
    return Raster(upright, profile=profile, turned=turn)


def refuse_lost_meaning(image: Image.Image, conversion: Conversion) -> None:
    """Raises DecodeError for a loaded image whose file says what Pillow has read wrong, and has not kept."""
    if getattr(image, "tile", None):
        return  # it is not loaded yet
    tags = getattr(image, "tag_v2", None)
    keeps_no_bits = image.format in ("PNG", "PPM") and not conversion.is_levels
    if tags is not None and _has_lost_type(tags, conversion):
        kind = "from a TIFF that it reads wrong"
    elif tags is not None and _has_lost_bands(image, tags):
        kind = (
            "from a TIFF with bands of unknown meaning, or a page that is not its image"
        )
    elif image.format == "FITS" or (image.format == "BMP" and image.mode == "1"):
        kind = f"from a {image.format} that it reads wrong"
    elif image.format == "JPEG2000" and image.mode != "L":
        kind = "from a JPEG 2000, of which it keeps no depth, and reads more than 8 bits wrong"
    elif keeps_no_bits and image.mode not in ("I;16", "P", "1"):
        kind = "with no word of how many bits its values had"
    elif _has_lost_level(image):
        kind = "with a transparent level or colour that counts in the bits of its file, which it does not keep"
    else:
        return
    raise DecodeError(
        f"was loaded by Pillow {kind}; give the path or bytes of the file"
    )


def refuse_lost_numbers(mask: Image.Image) -> None:
    """Raises DecodeError for a loaded mask whose numbers are not those that its file stores, as is known."""
    if getattr(mask, "tile", None):
        return  # it is not loaded yet
    if mask.format in _LOSSY:
        raise DecodeError(
            f"the mask was loaded by Pillow from a {mask.format}, which may have been compressed with losses; give the "
            "path or bytes of the file"
        )
    if mask.format == "PPM":
        raise DecodeError(
            "the mask was loaded by Pillow from a PNM, whose numbers it may have scaled; give the path or bytes of the "
            "file"
        )
    if mask.format == "PNG" and mask.mode == "L" and _may_be_stretched(mask):
        raise DecodeError(
            "the mask was loaded by Pillow from a PNG, of 2 or 4 bits by its numbers, which it has multiplied then; "
            "give the path or bytes of the file"
        )
    tags = getattr(mask, "tag_v2", None)
    if tags is None:
        return
    has_others = bool(tags.get(_EXTRA)) or tags.get(_SAMPLES, 1) > 1
    is_stretched = max(tags.get(_BITS, (1,))) in _STEPS and mask.mode != "P"
    is_inverted = tags.get(_PHOTOMETRIC) == WHITE_IS_ZERO
    if has_others or is_stretched or is_inverted or _has_lost_type(tags, Conversion()):
        raise DecodeError(
            "the mask was loaded by Pillow from a TIFF whose numbers it has changed; give the path or bytes of the file"
        )


def _may_be_stretched(mask: Image.Image) -> bool:
    """Whether all numbers of a gray image of 8 bits are what Pillow makes of 4 or 2 bits, and not of 1 bit alone."""
    numbers = np.unique(np.asarray(mask))
    return not (numbers % 17).any() and not np.isin(numbers, (0, 255)).all()


def is_swapped(bits: int, form: int, compression: int) -> bool:
    """Whether Pillow 13 takes big-endian values of a TIFF for little-endian ones (2026-11), or opens none."""
    is_plain = compression == _UNCOMPRESSED
    return (bits > 8 and form != UNSIGNED and not is_plain) or (
        bits == 32 and form == UNSIGNED
    )


def _has_lost_type(tags: Any, conversion: Conversion) -> bool:
    """Whether the TIFF that an image was loaded from has values that Pillow takes for others."""
    bits = max(tags.get(_BITS, (1,)))
    form = max(tags.get(_FORM, (UNSIGNED,)))
    is_gray = tags.get(_SAMPLES, 1) == 1
    is_stretched = bits < 8 if is_gray else bits > 8
    if is_stretched and not conversion.is_levels:
        return True
    if bits == 12 or (bits, form) in ((8, SIGNED), (32, UNSIGNED)):
        return True
    if bits > 8:
        is_inverted = tags.get(_PHOTOMETRIC) in (WHITE_IS_ZERO, IS_INKS)
        if is_inverted or tags.get(_PLANAR) == PLANES:
            return True
    return tags.prefix == b"MM" and is_swapped(bits, form, tags.get(_COMPRESSION, 1))


def _has_lost_bands(image: Image.Image, tags: Any) -> bool:
    """Whether a loaded TIFF has bands beside its colours that are not all opaque, or its page is a thumbnail."""
    if tags.get(_SUBFILE, 0) & 1 or _DNG in tags:
        return True
    if not tags.get(_EXTRA):
        return False
    if image.mode not in ("LA", "RGBA"):
        return True
    return image.getchannel("A").getextrema() != (_EIGHT_BITS, _EIGHT_BITS)


def _has_lost_level(image: Image.Image) -> bool:
    """Whether what is transparent may be named in other bits than the 8 that Pillow has made of each value.

    Of a PNG of 2 or 4 bits, the values are stretched to multiples of 85 or 17, the transparent level is not. Where no
    pixel has the level that it would be then, the bits do not matter.
    """
    key = image.info.get("transparency")
    if image.mode == "RGB" and isinstance(key, tuple):
        return max(key, default=0) > _EIGHT_BITS
    if image.mode != "L" or not isinstance(key, int) or not 0 < key < 16:
        return False
    levels = {level for level, count in enumerate(image.histogram()) if count}
    return any(
        key < 1 << bits and levels <= {*range(0, 256, step)} and key * step in levels
        for bits, step in _STEPS.items()
    )


def as_numbers(raster: Raster, bits: int) -> Raster:
    """The numbers of gray of fewer than 8 bits, which Pillow has stretched to levels."""
    if raster.image is None or raster.image.has_transparency_data:
        return raster
    peak = (1 << bits) - 1
    levels = np.asarray(raster.image.convert("L"))[..., None]
    return replace(
        raster, image=None, values=levels // (_EIGHT_BITS // peak), peak=peak
    )


def without_empty_alpha(image: Image.Image) -> Image.Image:
    """A BMP whose alpha is 0 everywhere has none: programs that write none leave the byte 0."""
    is_empty = image.mode == "RGBA" and image.getchannel("A").getextrema() == (0, 0)
    return image.convert("RGB") if is_empty else image


def with_transparent_level(raster: Raster, level: object) -> Raster:
    """Gray of more than 8 bits in which one level is transparent, as a PNG may name it: with a second band."""
    if (
        not isinstance(level, int)
        or raster.values is None
        or raster.values.dtype != np.uint16
    ):
        return raster
    gray = raster.values[..., :1]
    opaque = np.where(gray == level, 0, SIXTEEN_BITS).astype(np.uint16)
    return replace(
        raster, values=np.concatenate([gray, opaque], axis=2), has_alpha=True
    )
