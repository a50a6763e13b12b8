"""JPEG 2000 and HTJ2K: Pillow reads 8 bits, imagecodecs all else."""

import io
from importlib import import_module

import numpy as np
from PIL import Image

from gpuload.formats.codec import Codec, OpenedFile, fault, require
from gpuload.formats.pillows import open_by_pillow
from gpuload.formats.raster import Conversion, Raster
from gpuload.headers import jpeg2000


class Jpeg2000Codec(Codec):
    """Of more than 8 bits, or with a sign, by imagecodecs; else Pillow."""

    title = "a JPEG 2000"
    suffixes = (".j2c", ".j2k", ".jhc", ".jp2", ".jpc", ".jpf", ".jph", ".jpx")
    needs = ("imagecodecs",)
    reads_with = "Pillow; of more than 8 bits imagecodecs"
    pillow = "makes the white of more than 8 bits black, scales gray to 16 bits, and holds the lock"

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return jpeg2000.read_header(data) is not None

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        header = jpeg2000.read_header(data)
        assert header is not None
        if header.bits <= 8 and not header.signed:
            return open_by_pillow(data, conversion)
        peak = 0 if header.signed else (1 << header.bits) - 1
        image = Image.open(io.BytesIO(data))
        if header.components == 1 and not header.signed and fault(*self.needs):
            # Pillow's values are those of the file, multiplied to 16 bits.
            def load_scaled() -> Raster:
                values = np.asarray(image) >> (16 - header.bits)
                return Raster(values=values, peak=peak)

            return OpenedFile("jpeg2000", image.size, load_scaled, image)
        kind = f"is a JPEG 2000 of {header.bits} bits"
        kind += " with a sign" if header.signed else ""
        require(kind, conversion, *self.needs)

        def load() -> Raster:
            values = import_module("imagecodecs").jpeg2k_decode(data)
            return Raster(values=values, peak=peak)

        return OpenedFile("jpeg2000", image.size, load)
