"""The mode of a picture that holds every value of its file, and files that only vision research knows."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.errors import DecodeError
from gpuload.formats.conversion import as_levels, channels_last
from gpuload.formats.files import open_file
from gpuload.formats.raster import Conversion, Raster
from gpuload.formats.registry import codec_of
from gpuload.formats.tiffs import TiffCodec, count_bands
from gpuload.headers import jpeg, npy, png
from gpuload.types import Array

FLO_START = b"PIEH"  # the float32 202021.25, by which Middlebury's .flo begins

_MODES_OF_IMAGES = {"1": "L", "L": "L", "P": "RGB", "RGBA": "RGBA", "LA": "RGBA"}
_NAMES = {("uint8", 1): "L", ("uint8", 3): "RGB", ("uint8", 4): "RGBA"}
_NAMES |= {("uint16", 1): "I;16", ("float32", 1): "F"}
_MODES_OF_PNGS = {(8, 0): "L", (8, 2): "RGB", (8, 6): "RGBA", (16, 0): "I;16"}
_MOST_COLORS = 4  # channels of an array that come first in some programs
_MOST_CHANNELS_LAST = 16  # of an array whose first side may be channels
_MOST_FLO_PIXELS = 1 << 28
_DEEP_PNG = 16  # bits
_MOST_BANDS = 256  # of a mode
# The type of a set that holds all values of another one, of arrays. Whole numbers of 32 and 64 bits are what programs
# have where nothing is known of their range; in files they are meant, and packing refuses those that float32 rounds.
_ARRAY_TYPES = {"uint8": "uint8", "uint16": "uint16"} | dict.fromkeys(
    ("int8", "int16", "float16", "float32", "float64"), "float32"
)
_FILE_TYPES = _ARRAY_TYPES | dict.fromkeys(("int32", "uint32"), "float32")


def read_flo(data: bytes) -> npt.NDArray[np.float32]:
    """The flow in a `.flo` file of Middlebury's benchmark: little-endian width and height, then u, v by pixel.

    Returns:
        float32 (height, width, 2), in pixels.

    Raises:
        DecodeError: it is not as long as its header says.
    """
    width, height = np.frombuffer(data[4:12].ljust(8, b"\0"), "<i4").tolist()
    is_sound = min(width, height) > 0 and width * height <= _MOST_FLO_PIXELS
    if not is_sound or len(data) != 12 + 8 * width * height:
        raise DecodeError("is not as long as a .flo of its size")
    values = np.frombuffer(data, "<f4", offset=12).reshape(height, width, 2)
    return values.astype(np.float32)


def as_stored_array(data: bytes | Array) -> bytes | Array:
    """The values of an `.npy`, a `.flo` or an array in a type that pictures have; any other file as it is.

    Raises:
        DecodeError: no such type holds all of its values.
    """
    if isinstance(data, bytes) and data.startswith(npy.START):
        data = npy.read_array(data)
    elif isinstance(data, bytes) and data.startswith(FLO_START):
        data = read_flo(data)
    if isinstance(data, bytes):
        return data
    _refuse_channels_first(data)
    return _in_stored_type(data)


def _refuse_channels_first(array: Array) -> None:
    """Raises DecodeError for an array (channels, height, width), whose rows would be taken for channels."""
    if array.ndim != 3:
        return
    first, height, width = array.shape
    is_short = 1 <= first <= _MOST_COLORS
    is_square = first < height == width
    if min(height, width) > _MOST_CHANNELS_LAST and (is_short or is_square):
        raise DecodeError(
            f"is an array {array.shape}, whose channels come first: give (height, width, channels), as "
            "array.transpose(1, 2, 0) is"
        )


def _in_stored_type(array: Array) -> Array:
    kind = array.dtype.kind
    size = array.dtype.itemsize
    if kind == "f":
        return array.astype(np.float32)
    if kind == "b":
        return array.astype(np.uint8)
    if kind == "u" and size <= 2:
        return array.astype(f"u{size}")
    if kind in "iu" and (
        not array.size or (array.min() >= 0 and array.max() < 1 << 16)
    ):
        return array.astype(np.uint16)
    raise DecodeError(
        f"has values of {array.dtype}; pictures hold uint8, uint16 and float32"
    )


def mode_of(data: bytes | Array) -> str:
    """The mode that holds every value of a picture, such as "RGB", "I;16" or "float32x2".

    Raises:
        DecodeError: there is none. Exception: of many kinds, by Pillow, for a file that it cannot read.
    """
    values = as_stored_array(data)
    if isinstance(values, bytes):
        raster = open_file(values, Conversion(1, "uint16", "I;16")).load()
        if raster.image is not None:
            return _MODES_OF_IMAGES.get(raster.image.mode, "RGB")
        values = _in_stored_type(_values_of(raster))
    channels = 1 if values.ndim == 2 else values.shape[-1]
    return _NAMES.get((values.dtype.name, channels), f"{values.dtype.name}x{channels}")


def mode_by_header(content: bytes) -> str:
    """The mode of an encoded image, by its header where that tells it.

    Raises:
        Exception: as `mode_of`.
    """
    if content.startswith(jpeg.START):
        header = jpeg.read_header(content)
        if header.plain:
            return "L" if header.gray else "RGB"
    if content.startswith(png.START):
        read = png.read_header(content)
        if read.alike and (read.depth, read.color) in _MODES_OF_PNGS:
            return _MODES_OF_PNGS[read.depth, read.color]
    return mode_of(content)


class FollowedMode(NamedTuple):
    """What a set takes from one of its images.

    Attributes:
        mode: "RGB" where 8 bits hold its gray or colours, else such as "I;16" or "uint16x13".
        is_inverted: Whether small values are bright, which counts where they stay as they are.
    """

    mode: str
    is_inverted: bool = False


def followed_mode(
    data: bytes | Array,
    asked: Conversion,
    max_pixels: int,
    floats_are_levels: bool = True,
) -> FollowedMode:
    """The mode that holds all values of an image of a set.

    Transparency of 8 bits is laid over white, floats of an array in 0..1 are levels, and photos for displays (AVIF,
    HEIC) become 8 bits, so that all these are "RGB".

    Args:
        data: An encoded image, or an array.
        asked: Which page and which bands are packed.
        max_pixels: Images with more are not decoded.
        floats_are_levels: Whether floats of an array in 0..1 are levels.

    Raises:
        DecodeError: it cannot be told. Exception: of many kinds, by the libraries that decode.
    """
    if isinstance(data, bytes) and data.startswith(npy.START):
        data = npy.read_array(data)
    if isinstance(data, np.ndarray):
        if asked.bands is None:
            _refuse_channels_first(channels_last(data))
        array = as_levels(data) if floats_are_levels else data
        bands = 1 if array.ndim == 2 else array.shape[-1]
        return FollowedMode(_name_of(array.dtype, bands, asked, _ARRAY_TYPES))
    told = _told_by_header(data)
    if told is None:
        return _told_by_values(data, asked, max_pixels)
    return FollowedMode(_name_of(np.dtype(told[0]), told[1], asked, _ARRAY_TYPES))


def _told_by_header(data: bytes) -> tuple[str, int] | None:
    """Type and number of bands of a file whose first bytes tell them; None of others."""
    if data.startswith(jpeg.START):
        has_8_bits = not jpeg.read_header(data).oddity.endswith("-bit")
        return ("uint8", 3) if has_8_bits else None
    if data.startswith(png.START):
        header = png.read_header(data)
        if header.depth != _DEEP_PNG:
            return "uint8", 3
        has_key = header.color in (0, 2) and png.has_chunk(data, b"tRNS")
        return "uint16", png.SAMPLES[header.color] + has_key
    return ("uint8", 3) if codec_of(data).for_display else None


def _told_by_values(data: bytes, asked: Conversion, max_pixels: int) -> FollowedMode:
    """The mode of a file by what it decodes to."""
    is_tiff = isinstance(codec_of(data), TiffCodec)
    bands = count_bands(data, asked) if is_tiff else 0
    wide = replace(
        asked, channels=bands or 3, dtype="float32", mode=f"float32x{bands or 3}"
    )
    # Of a TIFF of colours it is asked what its further bands are.
    conversion = asked if is_tiff and not bands else wide
    opened = open_file(data, replace(conversion, bands=None))
    if opened.size[0] * opened.size[1] > max_pixels:
        raise DecodeError("has too many pixels")
    raster = opened.load()
    if raster.values is None:
        return FollowedMode(_name_of(np.dtype("uint8"), 3, asked, _FILE_TYPES))
    values = raster.values
    is_flat = raster.has_alpha and values.dtype == np.uint8
    mode = _name_of(values.dtype, values.shape[2] - is_flat, asked, _FILE_TYPES)
    return FollowedMode(mode, raster.is_inverted and mode != "RGB")


def _name_of(
    dtype: np.dtype[Any], bands: int, asked: Conversion, types: Mapping[str, str]
) -> str:
    """The name of a mode.

    Args:
        dtype: Of the values.
        bands: How many there are.
        asked: Which of them are packed.
        types: Those of sets, by the types that they hold.
    """
    bands = bands if asked.bands is None else len(asked.bands)
    if dtype.name not in types or not 1 <= bands <= _MOST_BANDS:
        raise DecodeError(f"has {bands} bands of {dtype}, for which there is no mode")
    held = types[dtype.name]
    if held == "uint8" and bands in (1, 3):
        return "RGB"
    return _NAMES.get((held, bands), f"{held}x{bands}")


def _values_of(raster: Raster) -> Array:
    assert raster.values is not None
    return raster.values


def common_mode(modes: Iterable[str]) -> str:
    """The mode of a field of pictures of these modes; "" if there is none.

    RGB holds gray of 8 bits, and colours whose transparency is laid over white, since others have none.
    """
    different = set(modes)
    if len(different) > 1 and different <= {"L", "RGB", "RGBA"}:
        return "RGB"
    return different.pop() if len(different) == 1 else ""
