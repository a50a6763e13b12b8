"""DICOM, by pydicom: values with their rescale, small ones bright where the file says so, and the window it states.

Frames that pydicom cannot decompress by itself (lossless JPEG, JPEG-LS, JPEGs of 12 bits) are decompressed by
imagecodecs, which becomes one of its plug-ins.
"""

import io
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from gpuload.errors import DecodeError
from gpuload.formats.codec import Codec, OpenedFile, fault
from gpuload.formats.raster import Conversion, Raster
from gpuload.types import Array

_PREAMBLE_BYTES = 128
_START = b"DICM"
_GRAY = ("MONOCHROME1", "MONOCHROME2")
_INVERTED = "MONOCHROME1"
_COLORS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
_PALETTE = "PALETTE COLOR"
_MOST_BYTE = 255
_LINEAR = ("", "LINEAR")
_EXACT_FLOATS = 1 << 24
# Transfer syntaxes, by their names in pydicom.
_BY_IMAGECODECS = (
    "JPEGExtended12Bit",
    "JPEGLossless",
    "JPEGLosslessSV1",
    "JPEGLSLossless",
    "JPEGLSNearLossless",
)
_JPEG_LS = "1.2.840.10008.1.2.4.8"
_PLUG_IN = "gpuload"
# For pydicom, which asks every plug-in for it.
DECODER_DEPENDENCIES: dict[str, tuple[str, ...]] = {}


class DicomCodec(Codec):
    """Frames are pages. Values are those of the modality, such as Hounsfield units; numbers are never inverted."""

    title = "a DICOM file"
    suffixes = (".dcm", ".dicom")
    needs = ("pydicom",)
    reads_with = "pydicom; lossless JPEG and JPEG-LS in it imagecodecs"
    pillow = "reads none"

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return data[_PREAMBLE_BYTES : _PREAMBLE_BYTES + 4] == _START

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        self.require(conversion)
        file = import_module("pydicom").dcmread(io.BytesIO(data), force=False)
        if "PixelData" not in file:
            raise DecodeError("is a DICOM file without pixels")
        kind = str(file.PhotometricInterpretation)
        if kind not in (*_GRAY, *_COLORS, _PALETTE):
            raise DecodeError(
                f"is a DICOM file of {kind}, which is not read; convert it to PNG"
            )
        frames = int(file.get("NumberOfFrames", 1) or 1)

        def load() -> Raster:
            return _load(file, conversion.page or 0)

        size = int(file.Columns), int(file.Rows)
        return OpenedFile("dicom", size, load, pages=frames)


def _load(file: Any, frame: int) -> Raster:
    _add_decoders()
    pixels = import_module("pydicom.pixels")
    try:
        stored: Array = pixels.pixel_array(file, index=frame)
    except (NotImplementedError, RuntimeError) as error:
        syntax = file.file_meta.TransferSyntaxUID.name
        reason = " ".join(str(error).split())
        raise DecodeError(f"is a DICOM file compressed as {syntax}: {reason}") from None
    if file.PhotometricInterpretation == _PALETTE:
        colors = _of_palette(pixels, file, stored)
        return Raster(values=colors, peak=int(np.iinfo(colors.dtype).max))
    if file.PhotometricInterpretation not in _GRAY:
        return Raster(values=stored, peak=(1 << file.BitsStored) - 1)
    values = _of_modality(pixels, file, stored)
    is_as_stored = values is stored and stored.dtype.kind == "u"
    return Raster(
        values=values,
        peak=(1 << file.BitsStored) - 1 if is_as_stored else 0,
        window=_window(file),
        is_inverted=file.PhotometricInterpretation == _INVERTED,
    )


def _of_palette(pixels: Any, file: Any, stored: Array) -> Array:
    """The colours of the numbers that are stored: uint8 or uint16 (height, width, 3).

    Numbers above the last colour are made that one first: pydicom 3.0.2 wraps them around where colours have 8 bits.
    """
    kind = f"is a DICOM file of {_PALETTE}"
    if any("AlphaPalette" in name for name in file.dir("AlphaPalette")):
        raise DecodeError(f"{kind} with transparency, which is not read")
    try:
        colors_number, first, _bits = file.RedPaletteColorLookupTableDescriptor
        last = first + (colors_number or 1 << 16) - 1
        colors: Array = pixels.apply_color_lut(
            np.minimum(stored.astype(np.int32), last), file
        )
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise DecodeError(f"{kind} that pydicom does not read: {error}") from None
    if colors.dtype == np.uint8 and last - first > _MOST_BYTE:
        raise DecodeError(
            f"{kind} that pydicom does not read: over 256 colours of 8 bits"
        )
    return colors


def _of_modality(pixels: Any, file: Any, stored: Array) -> Array:
    """The values as stored where there is nothing to rescale, else whole numbers where they are exact, else float32."""
    slope = float(file.get("RescaleSlope", 1))
    is_plain = slope == 1 and float(file.get("RescaleIntercept", 0)) == 0
    if is_plain and "ModalityLUTSequence" not in file:
        return stored
    rescaled = pixels.apply_modality_lut(stored, file)
    is_whole = bool((rescaled == np.round(rescaled)).all())
    is_small = bool(np.abs(rescaled).max(initial=0) <= _EXACT_FLOATS)
    return rescaled.astype(np.int32 if is_whole and is_small else np.float32)


def _window(file: Any) -> tuple[float, float] | None:
    """The first window of a file; None where it states none, or not as a line."""
    center = file.get("WindowCenter")
    width = file.get("WindowWidth")
    shape = str(file.get("VOILUTFunction", ""))
    if center is None or width is None or shape not in _LINEAR:
        return None
    return float(np.ravel(center)[0]), float(np.ravel(width)[0])


@cache
def _add_decoders() -> None:
    """Makes imagecodecs a plug-in of pydicom where that has none for a compression."""
    if fault("imagecodecs"):
        return
    uids = import_module("pydicom.uid")
    pixels = import_module("pydicom.pixels")
    for name in _BY_IMAGECODECS:
        decoder = pixels.get_decoder(getattr(uids, name))
        if not decoder.is_available or name == "JPEGExtended12Bit":
            decoder.add_plugin(_PLUG_IN, (__name__, "decode_frame"))


def is_available(uid: str) -> bool:
    """Asked by pydicom, of a transfer syntax that this is a plug-in for."""
    return True


def decode_frame(source: bytes, runner: Any) -> bytearray:
    """Called by pydicom: the values of a compressed frame, without their shape.

    Args:
        source: The frame.
        runner: Of pydicom, which is told how many bits a value has in memory.
    """
    library = import_module("imagecodecs")
    is_jpeg_ls = str(runner.transfer_syntax).startswith(_JPEG_LS)
    decode = library.jpegls_decode if is_jpeg_ls else library.jpeg_decode
    values: Array = decode(source)
    runner.set_option("bits_allocated", values.dtype.itemsize * 8)
    return bytearray(np.ascontiguousarray(values).tobytes())
