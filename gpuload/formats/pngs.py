"""PNGs: Pillow reads 8 bits of each colour, imagecodecs all 16."""

import io
from importlib import import_module

from PIL import Image

from gpuload.formats import corrections
from gpuload.formats.codec import Codec, OpenedFile, require
from gpuload.formats.pillows import open_by_pillow
from gpuload.formats.raster import SIXTEEN_BITS, Conversion, Raster
from gpuload.headers import jpeg, png


class PngCodec(Codec):
    """Of 16-bit colours by imagecodecs, where 8 bits are not enough; else Pillow."""

    title = "a PNG"
    suffixes = (".png",)
    needs = ("imagecodecs",)
    reads_with = "Pillow; all 16 bits of colours imagecodecs"
    pillow = (
        "cuts 16-bit colours to 8 bits, and compares transparent levels of few or 16 bits with "
        "others"
    )

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return data.startswith(png.START)

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        header = png.read_header(data)
        is_colored = header.color != 0
        has_key = header.color == 2 and png.has_chunk(data, b"tRNS")
        is_needed = has_key or (is_colored and conversion.needs_every_bit)
        if header.depth != 16 or not is_needed:
            return open_by_pillow(data, conversion)
        kind = "is a PNG of 16-bit colours"
        kind += " with a transparent colour" if has_key else ""
        require(kind, conversion, *self.needs)
        with Image.open(io.BytesIO(data)) as image:
            profile = image.info.get("icc_profile") or b""
            turn = image.getexif().get(jpeg.ORIENTATION, 1)
        has_alpha = has_key or header.color in (4, 6)

        def load() -> Raster:
            values = import_module("imagecodecs").png_decode(data)
            upright = corrections.turned(values, turn)
            return Raster(None, upright, SIXTEEN_BITS, has_alpha, profile=profile)

        size = header.width, header.height
        return OpenedFile("png", size, load)
