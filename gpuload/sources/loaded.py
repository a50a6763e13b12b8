"""Files of the PIL images and arrays that rows hold: those that they were read from, or new ones of the same values."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from gpuload.errors import DecodeError
from gpuload.formats import Raster, refuse_lost_numbers
from gpuload.machine.untrusted import open_regular
from gpuload.types import Array

REFUSED = b"\0refused: "  # begins what stands for an image that cannot be converted


def blob_of_raster(raster: Raster) -> bytes:
    """The values of a PIL image for a set whose mode is not known yet.

    A file, which the packer converts as any other; an array where no file of Pillow's holds the values.
    """
    if raster.image is not None:
        return _file_of_levels(raster.image, raster.profile)
    values = raster.values
    assert values is not None
    if values.shape[2] == 1:
        return tiff_of(Image.fromarray(values.squeeze(2)), raster.profile)
    return npy_bytes(values)


def _file_of_levels(image: Image.Image, profile: bytes) -> bytes:
    """A file with all values of a PIL image of 8 bits or fewer, and its transparency."""
    if image.mode in ("La", "RGBa", "PA"):
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    file = io.BytesIO()
    if image.has_transparency_data or image.mode in ("1", "P"):
        image.save(file, "PNG", icc_profile=profile or None, compress_level=1)
        return file.getvalue()
    if profile:  # PNM has no place for it
        is_held = image.mode in ("L", "CMYK")
        return tiff_of(image if is_held else image.convert("RGB"), profile)
    (image if image.mode == "L" else image.convert("RGB")).save(file, "PPM")
    return file.getvalue()


def tiff_of(image: Image.Image, profile: bytes) -> bytes:
    file = io.BytesIO()
    image.save(file, "TIFF", icc_profile=profile or None)
    return file.getvalue()


def file_of(picture: Image.Image) -> bytes | None:
    """The bytes of the file from which a PIL image was opened, where nothing was done with it yet; else None."""
    file = getattr(picture, "fp", None)
    if file is None or not getattr(picture, "tile", None) or picture.tell() != 0:
        return None
    try:
        position = file.tell()
        file.seek(0)
        data: bytes = file.read()
        file.seek(position)
        with Image.open(io.BytesIO(data)) as again:
            is_same = (again.format, again.mode, again.size) == (
                picture.format,
                picture.mode,
                picture.size,
            )
    except (OSError, ValueError):
        return None
    return data if is_same else None


def _file_of_loaded(picture: Image.Image) -> bytes | None:
    """The bytes of the file from which a PIL image was loaded, where that can still be read and has the same pixels."""
    for read in (_read_again, _read_by_name):
        try:
            data = read(picture)
            with Image.open(io.BytesIO(data)) as again:
                is_same = again.mode == picture.mode and again.size == picture.size
                if is_same and again.tobytes() == picture.tobytes():
                    return data
        except (
            Exception
        ):  # it is closed, gone or another; Pillow's parsers may raise anything
            continue
    return None


def _read_again(picture: Image.Image) -> bytes:
    """All of the open file that Pillow keeps of a loaded PNG."""
    file = picture._fp  # type: ignore[attr-defined]  # of its plugins
    file.seek(0)
    data: bytes = file.read()
    return data


def _read_by_name(picture: Image.Image) -> bytes:
    with open_regular(Path(picture.filename)) as file:  # type: ignore[attr-defined]  # of its plugins
        return file.read()


def file_with(picture: Image.Image) -> bytes:
    """A file with all values of a PIL image."""
    file = io.BytesIO()
    picture.save(file, "TIFF" if picture.mode in ("I", "F", "CMYK") else "PNG")
    return file.getvalue()


def blob_of_mask(picture: Image.Image) -> bytes:
    """A mask as a TIFF, which has each of Pillow's modes with one number for a pixel, its palette and orientation; or
    the reason why its numbers are not those of its file."""
    stored = _file_of_loaded(picture) if picture.format == "PNG" else None
    if stored is not None:
        return stored
    try:
        refuse_lost_numbers(picture)
    except DecodeError as error:
        return REFUSED + str(error).encode()
    file = io.BytesIO()
    picture.save(file, "PNG" if picture.mode in ("P", "RGBA", "LA") else "TIFF")
    return file.getvalue()


def npy_bytes(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    return file.getvalue()
