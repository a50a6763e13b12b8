"""Opens an image file by the codec that reads it."""

from gpuload.formats.codec import OpenedFile, check_page
from gpuload.formats.raster import PAGES, Conversion
from gpuload.formats.registry import codec_of


def open_file(data: bytes, conversion: Conversion) -> OpenedFile:
    """Reads the header of an encoded image.

    Raises:
        DecodeError: its pixels would not be what it says, or it is of a format that is not read; the message names its
            kind. Exception: of many kinds, by the libraries that decode.
    """
    codec = codec_of(data, own_alone=not conversion.codecs)
    opened = codec.open(data, conversion)
    if opened.pages is not None:
        check_page(conversion, opened.pages)
        if conversion.page is None and opened.pages > 1:
            opened.remarks[PAGES] = 1
    return opened
