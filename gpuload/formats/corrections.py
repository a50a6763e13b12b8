"""What Pillow reads wrong from files that it opens, made right from the file: the transparent level of a PNG of few
bits, the scale of a PGM, a BMP's palette of grays."""

import re
from dataclasses import replace

import numpy as np
from PIL import Image

from gpuload.errors import DecodeError
from gpuload.formats.opened import as_numbers
from gpuload.formats.raster import SIXTEEN_BITS, Conversion, Raster
from gpuload.headers import png
from gpuload.types import Array

_FEW_BITS = (2, 4)
_PNM = re.compile(
    rb"(P[56])(?:\s|#[^\n]*\n)+\d+(?:\s|#[^\n]*\n)+\d+(?:\s|#[^\n]*\n)+(\d+)\s"
)
_GRAY_PNM = b"P5"
_HEADER_BYTES = 4_096  # in which a PNM's header lies, comments included
_EIGHT_BITS = 255

_BMP_HEADER = 54
_UNCOMPRESSED = 0

# By the Exif orientation: whether rows and columns change places, and then which axes are reversed.
_TURNS = {
    2: (False, (1,)),
    3: (False, (0, 1)),
    4: (False, (0,)),
    5: (True, ()),
    6: (True, (1,)),
    7: (True, (0, 1)),
    8: (True, (0,)),
}


def are_needed(data: bytes, image: Image.Image) -> bool:
    """Whether Pillow's pixels of this file, of which the header was read, are not what the file says."""
    kind, peak = _pnm(data)
    is_scaled = kind == _GRAY_PNM and peak > _EIGHT_BITS and peak != SIXTEEN_BITS
    return _few_bits(data) > 0 or is_gray_bmp(data, image) or is_scaled


def correct(
    data: bytes, image: Image.Image, raster: Raster, conversion: Conversion
) -> Raster:
    """Pixels as their file says, where Pillow reads them otherwise.

    Args:
        data: Content of the file.
        image: What Pillow made of it, loaded.
        raster: The pixels of that.
        conversion: What every image becomes.

    Raises:
        DecodeError: it cannot be had from what Pillow gives.
    """
    if data.startswith(png.START):
        return _correct_png(data, raster, conversion)
    kind, peak = _pnm(data)
    if not peak or peak == _EIGHT_BITS:
        return raster
    if kind == _GRAY_PNM and (peak > _EIGHT_BITS or not conversion.is_levels):
        return _unscaled(data, raster, peak)
    if peak < _EIGHT_BITS and not conversion.is_levels:
        raise DecodeError(
            f"is a PPM whose largest value is {peak}, which Pillow scales to 255; give an array of its values"
        )
    return replace(raster, deep=peak > _EIGHT_BITS)


def _correct_png(data: bytes, raster: Raster, conversion: Conversion) -> Raster:
    if bits := _few_bits(data):
        return _with_scaled_level(raster, bits)
    header = png.read_header(data)
    if header.color == 0 and header.depth in _FEW_BITS and not conversion.is_levels:
        return as_numbers(raster, header.depth)
    return replace(raster, deep=raster.image is not None and header.depth == 16)


def turned(values: Array, orientation: int) -> Array:
    """An array (height, width, …) turned upright, as Exif's orientation says."""
    is_transposed, reversed_axes = _TURNS.get(orientation, (False, ()))
    upright = values.swapaxes(0, 1) if is_transposed else values
    return np.ascontiguousarray(np.flip(upright, reversed_axes))


def _few_bits(data: bytes) -> int:
    """The bits of a gray PNG of 2 or 4 bits with a transparent level, which Pillow compares unscaled; else 0."""
    if not data.startswith(png.START):
        return 0
    header = png.read_header(data)
    has_level = (
        header.color == 0 and header.depth in _FEW_BITS and png.has_chunk(data, b"tRNS")
    )
    return header.depth if has_level else 0


def _with_scaled_level(raster: Raster, bits: int) -> Raster:
    image = raster.image
    level = image.info.get("transparency") if image is not None else None
    if image is None or not isinstance(level, int):
        return raster
    scaled = image.copy()
    scaled.info["transparency"] = level * 255 // ((1 << bits) - 1)
    return replace(raster, image=scaled)


def _pnm(data: bytes) -> tuple[bytes, int]:
    """The kind of a PNM of whole bytes, and the largest value that it states; b"" and 0 for other files."""
    header = _PNM.match(data[:_HEADER_BYTES])
    peak = int(header[2]) if header else 0
    if header is None or not 0 < peak <= SIXTEEN_BITS:
        return b"", 0
    return header[1], peak


def _unscaled(data: bytes, raster: Raster, peak: int) -> Raster:
    """The numbers in a gray PNM, which states their peak."""
    values = raster.values
    if values is None:
        values = np.asarray(raster.image)[..., None]
    return replace(raster, image=None, values=stored_numbers(data, values), peak=peak)


def stored_numbers(data: bytes, values: Array) -> Array:
    """The numbers in a file out of what Pillow gives: it scales those of a gray PNM to 8 or 16 bits."""
    kind, peak = _pnm(data)
    if kind != _GRAY_PNM or peak in (_EIGHT_BITS, SIXTEEN_BITS):
        return values
    scale = SIXTEEN_BITS if peak > _EIGHT_BITS else _EIGHT_BITS
    stored = (values.astype(np.uint64) * peak + scale // 2) // scale
    numbers: Array = stored.astype(np.uint16)
    return numbers


def is_gray_bmp(data: bytes, image: Image.Image) -> bool:
    """Whether Pillow takes a BMP of 4 or 8 bits for one of 1 or 8 bits, since its palette is gray."""
    if image.format != "BMP" or len(data) < _BMP_HEADER:
        return False
    bits = int.from_bytes(data[28:30], "little")
    return (bits in (4, 8) and image.mode == "1") or (bits == 4 and image.mode == "L")


def read_bmp(data: bytes) -> Image.Image:
    """Gray, of a BMP of 4 or 8 bits without compression."""
    if int.from_bytes(data[30:34], "little") != _UNCOMPRESSED:
        raise DecodeError(
            "is a compressed BMP with a palette of grays, which Pillow reads wrong; convert it to PNG"
        )
    begin = int.from_bytes(data[10:14], "little")
    head = int.from_bytes(data[14:18], "little")
    width = int.from_bytes(data[18:22], "little", signed=True)
    height = int.from_bytes(data[22:26], "little", signed=True)
    bits = int.from_bytes(data[28:30], "little")
    stride = (width * bits + 31) // 32 * 4
    rows = np.frombuffer(data, np.uint8, stride * abs(height), begin).reshape(
        abs(height), stride
    )
    if bits == 4:
        rows = np.stack([rows >> 4, rows & 15], axis=2).reshape(abs(height), -1)
    palette = np.zeros(256, np.uint8)
    blues = np.frombuffer(data[14 + head : begin], np.uint8)[::4][
        :256
    ]  # equal to reds and greens
    palette[: len(blues)] = blues
    levels = palette[rows[:, :width]]
    return Image.fromarray(levels if height < 0 else np.ascontiguousarray(levels[::-1]))
