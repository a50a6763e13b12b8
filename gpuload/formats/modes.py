"""The mode of a picture that holds every value of its file, and files that only vision research knows."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gpuload.errors import DecodeError
from gpuload.formats.files import open_file
from gpuload.formats.raster import Conversion, Raster
from gpuload.headers import npy
from gpuload.types import Array

FLO_START = b"PIEH"  # the float32 202021.25, by which Middlebury's .flo begins

_MODES_OF_IMAGES = {"1": "L", "L": "L", "P": "RGB", "RGBA": "RGBA", "LA": "RGBA"}
_NAMES = {("uint8", 1): "L", ("uint8", 3): "RGB", ("uint8", 4): "RGBA"}
_NAMES |= {("uint16", 1): "I;16", ("float32", 1): "F"}
_MOST_FLO_PIXELS = 1 << 28


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
    return _in_stored_type(data)


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


def _values_of(raster: Raster) -> Array:
    assert raster.values is not None
    return raster.values


def common_mode(modes: Iterable[str]) -> str:
    """The mode that holds all values of pictures of these modes; "" if there is none: RGB holds gray of 8 bits."""
    different = set(modes)
    if different == {"L", "RGB"}:
        return "RGB"
    return different.pop() if len(different) == 1 else ""
