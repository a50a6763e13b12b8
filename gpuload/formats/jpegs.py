"""JPEGs: Pillow reads those of 8 bits, imagecodecs those of 12 and 16."""

from importlib import import_module

from gpuload.formats.codec import Codec, OpenedFile, require
from gpuload.formats.pillows import open_by_pillow
from gpuload.formats.raster import Conversion, Raster
from gpuload.headers import jpeg


class JpegCodec(Codec):
    """Of 12 and 16 bits by imagecodecs, else Pillow."""

    title = "a JPEG"
    suffixes = (".jfif", ".jpe", ".jpeg", ".jpg")
    needs = ("imagecodecs",)
    reads_with = "Pillow; of 12 and 16 bits imagecodecs"
    pillow = "refuses 12 and 16 bits"

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return data.startswith(jpeg.START)

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        header = jpeg.read_header(data)
        bits = header.oddity.removeprefix("jpeg-").removesuffix("-bit")
        if not bits.isdecimal():
            return open_by_pillow(data, conversion)
        require(f"is a JPEG of {bits} bits", conversion, *self.needs)
        peak = (1 << int(bits)) - 1

        def load() -> Raster:
            values = import_module("imagecodecs").jpeg_decode(data)
            return Raster(values=values, peak=peak)

        size = header.width, header.height
        return OpenedFile("jpeg", size, load)
