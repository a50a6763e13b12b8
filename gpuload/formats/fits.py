"""FITS, by astropy: numbers with their scale and offset. The first row is the first in the file, as astropy has it."""

import io
from importlib import import_module
from typing import Any

import numpy as np

from gpuload.errors import DecodeError
from gpuload.formats.codec import Codec, OpenedFile, check_page
from gpuload.formats.raster import EIGHT_BITS, SIXTEEN_BITS, Conversion, Raster

_START = b"SIMPLE  ="
_PEAKS = {"uint8": EIGHT_BITS, "uint16": SIXTEEN_BITS}
_BANDED = 3  # axes of a cube, whose first is bands


class FitsCodec(Codec):
    """Each image of a file is a page, compressed ones too. The planes of a cube are bands."""

    title = "a FITS file"
    suffixes = (".fit", ".fits", ".fts")
    needs = ("astropy",)
    reads_with = "astropy"
    pillow = "ignores BZERO and BSCALE, exchanges bytes, and turns the rows"

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return data.startswith(_START)

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        self.require(conversion)
        with _file(data) as file:
            shapes = [unit.shape for unit in file if _is_picture(unit)]
        if not shapes:
            raise DecodeError("is a FITS file without an image of two or three axes")
        check_page(conversion, len(shapes))
        number = conversion.page or 0
        shape = shapes[number]

        def load() -> Raster:
            with _file(data) as again:
                values = [unit for unit in again if _is_picture(unit)][number].data
            bands = np.moveaxis(values, 0, 2) if values.ndim == _BANDED else values
            # Which value is white is not said, but whole numbers that use all bits are counts of a sensor.
            return Raster(values=bands, peak=_PEAKS.get(values.dtype.name, 0))

        return OpenedFile("fits", (shape[-1], shape[-2]), load, pages=len(shapes))


def _file(data: bytes) -> Any:
    return import_module("astropy.io.fits").open(io.BytesIO(data), memmap=False)


def _is_picture(unit: Any) -> bool:
    return bool(unit.is_image) and len(unit.shape) in (2, _BANDED)
