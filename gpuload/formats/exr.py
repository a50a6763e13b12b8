"""OpenEXR, by its own library: values in proportion to light, of which 1 need not be the largest."""

import io
from importlib import import_module
from typing import Any

import numpy as np

from gpuload.errors import DecodeError
from gpuload.formats.codec import Codec, OpenedFile, check_page
from gpuload.formats.raster import Conversion, Raster
from gpuload.types import Array

_START = b"\x76\x2f\x31\x01"
# Channels that come first, in this order; others follow by their names, and transparency is last.
_COLORS = ("R", "G", "B", "Y")
_ALPHA = "A"
_DEEP = "deep"


class ExrCodec(Codec):
    """Channels R, G, B or Y first, then others by name, A last; of a file of several parts, one is a page."""

    title = "an OpenEXR file"
    suffixes = (".exr",)
    needs = ("OpenEXR",)
    reads_with = "OpenEXR"
    pillow = "reads none"

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return data.startswith(_START)

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        self.require(conversion)
        library = import_module("OpenEXR")
        parts = library.File(io.BytesIO(data), header_only=True).parts
        check_page(conversion, len(parts))
        header = parts[conversion.page or 0].header
        if _DEEP in str(header["type"]):
            raise DecodeError(
                "is an OpenEXR file of deep pixels, several of one place; flatten it"
            )
        low, high = header["dataWindow"]
        size = int(high[0] - low[0]) + 1, int(high[1] - low[1]) + 1
        is_whole = np.array_equal(header["dataWindow"], header["displayWindow"])
        if not is_whole:
            raise DecodeError(
                "is an OpenEXR file whose pixels are not all that is shown, or more; crop it to its display window"
            )

        def load() -> Raster:
            file = library.File(io.BytesIO(data), separate_channels=True)
            channels = file.parts[conversion.page or 0].channels
            names = _ordered(channels)
            values = np.stack([_of_channel(channels[name]) for name in names], axis=2)
            # Colours are multiplied by it, so it is a band, and left out where all is opaque.
            is_opaque = names[-1] == _ALPHA and bool((values[..., -1] == 1).all())
            if is_opaque and values.shape[2] == conversion.channels + 1:
                values = values[..., :-1]
            return Raster(values=values)

        return OpenedFile("exr", size, load, pages=len(parts))


def _ordered(channels: dict[str, Any]) -> list[str]:
    colors = [name for name in _COLORS if name in channels]
    alpha = [_ALPHA] if _ALPHA in channels else []
    others = sorted(channels.keys() - {*colors, *alpha})
    return [*colors, *others, *alpha]


def _of_channel(channel: Any) -> Array:
    if (channel.xSampling, channel.ySampling) != (1, 1):
        raise DecodeError(
            "is an OpenEXR file with channels of fewer pixels than others; convert it to RGB"
        )
    values: Array = channel.pixels
    return values
