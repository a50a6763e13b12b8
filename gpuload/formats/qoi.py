"""QOI, by imagecodecs: Pillow's decoder is a loop in Python, two hundred times slower (2026-11)."""

from importlib import import_module

from PIL import Image

from gpuload.formats.codec import Codec, OpenedFile, fault
from gpuload.formats.pillows import open_by_pillow
from gpuload.formats.raster import Conversion, Raster

_START = b"qoif"
_HEADER_BYTES = 14


class QoiCodec(Codec):
    """By imagecodecs, or where it is missing by Pillow, with the same pixels."""

    title = "a QOI"
    suffixes = (".qoi",)
    reads_with = "imagecodecs, else Pillow"
    pillow = "takes two hundred times as long"

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return data.startswith(_START)

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        is_short = len(data) < _HEADER_BYTES
        if is_short or not conversion.codecs or fault("imagecodecs"):
            return open_by_pillow(data, conversion)
        width = int.from_bytes(data[4:8], "big")
        height = int.from_bytes(data[8:12], "big")

        def load() -> Raster:
            values = import_module("imagecodecs").qoi_decode(data)
            return Raster(Image.fromarray(values))

        return OpenedFile("qoi", (width, height), load)
