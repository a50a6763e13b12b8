"""JPEG XL, by imagecodecs."""

from importlib import import_module

import numpy as np
from PIL import Image

from gpuload.errors import DecodeError
from gpuload.formats.codec import Codec, OpenedFile, check_page
from gpuload.formats.raster import PAGES, Conversion, Raster
from gpuload.headers import jpegxl
from gpuload.types import Array, WidthHeight

_WITH_ALPHA = (2, 4)  # bands


class JxlCodec(Codec):
    """8 and 16 bits, and floats. Frames of an animation are pages."""

    title = "a JPEG XL"
    suffixes = (".jxl",)
    needs = ("imagecodecs",)
    reads_with = "imagecodecs"
    pillow = "reads none"

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return data.startswith(jpegxl.STARTS)

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        self.require(conversion)
        size = jpegxl.read_size(data)
        if size is None:
            raise DecodeError("is a JPEG XL whose size cannot be read")

        def load() -> Raster:
            values = import_module("imagecodecs").jpegxl_decode(data)
            frames = _frames(values, size)
            check_page(conversion, len(frames))
            is_cut = conversion.page is None and len(frames) > 1
            is_whole = values.dtype.kind == "u"
            bands = frames[conversion.page or 0]
            remarks = {PAGES: 1} if is_cut else {}
            if bands.dtype == np.uint8:
                return Raster(Image.fromarray(bands), remarks=remarks)
            return Raster(
                values=bands,
                peak=np.iinfo(values.dtype).max if is_whole else 1,
                has_alpha=bands.ndim == 3 and bands.shape[2] in _WITH_ALPHA,
                remarks=remarks,
            )

        return OpenedFile("jxl", size, load, pages=None)


def _frames(values: Array, size: WidthHeight) -> list[Array]:
    """(height, width) or (height, width, bands) of each frame.

    Args:
        size: (width, height), or turned.
    """
    is_single = values.ndim == 2 or values.shape[:2] in (size, size[::-1])
    return [values] if is_single else list(values)
