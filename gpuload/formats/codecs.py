"""What tifffile and imagecodecs decode, from the extra `codecs`: values of more than 8 bits, and many bands."""

import io
from importlib import import_module
from typing import Any

import numpy as np

from gpuload.errors import DecodeError
from gpuload.formats.conversion import Conversion
from gpuload.machine.installed import fault_of
from gpuload.types import Array

_ORIENTATION = 274
_PROFILE = 34_675


def fault(*packages: str) -> str:
    """Why one of these cannot be used, with the remedy; "" if all can."""
    for package in packages:
        package_fault = fault_of(package)
        if package_fault is not None:
            return f"{package_fault.reason}: {package_fault.remedy}"
    return ""


def require(kind: str, conversion: Conversion, *packages: str) -> None:
    """Raises DecodeError if imagecodecs, or one of these packages, cannot be used. kind: begins the message."""
    if not conversion.codecs:
        raise DecodeError(f"{kind}, which Pillow does not read right")
    if reason := fault(*packages or ("imagecodecs",)):
        raise DecodeError(f"{kind}, which Pillow does not read right, and {reason}")


def decode_jpeg2000(data: bytes) -> Array:
    """(height, width, bands), as stored."""
    return _bands(import_module("imagecodecs").jpeg2k_decode(data))


def decode_jpeg(data: bytes) -> Array:
    """(height, width, bands): gray, or RGB."""
    return _bands(import_module("imagecodecs").jpeg_decode(data))


def decode_png(data: bytes) -> Array:
    """(height, width, bands), with transparency as the last one, if there is any."""
    return _bands(import_module("imagecodecs").png_decode(data))


def decode_tiff(data: bytes, number: int | None, size: tuple[int, int]) -> Array:
    """(height, width, bands) of a page, as stored.

    number: in the chain of pages; None for the first page below another one that has this size, (width, height).
    """
    with import_module("tifffile").TiffFile(io.BytesIO(data)) as file:
        page = file.pages[number] if number is not None else _below(file, size)
        values: Any = page.asarray()
        if values.ndim == 3 and page.planarconfig == 2:
            values = np.moveaxis(values, 0, 2)
    return _bands(np.asarray(values))


def read_tags(data: bytes, number: int | None) -> tuple[int, bytes]:
    """The Exif orientation of a page and its ICC profile; of the first page where the page is below another."""
    with import_module("tifffile").TiffFile(io.BytesIO(data)) as file:
        tags = file.pages[number or 0].tags
        turn = tags.valueof(_ORIENTATION, 1)
        profile = tags.valueof(_PROFILE, b"")
    return (turn if isinstance(turn, int) else 1), bytes(profile)


def _below(file: Any, size: tuple[int, int]) -> Any:
    for page in file.pages:
        for inner in page.pages or ():
            if (inner.imagewidth, inner.imagelength) == size:
                return inner
    raise DecodeError("its full image cannot be found")


def _bands(values: Array) -> Array:
    native: Array = np.asarray(values)
    native = native.astype(native.dtype.newbyteorder("="), copy=False)
    return native[..., None] if native.ndim == 2 else native
