"""Opens an image file: reads its header, decides who decodes it, and finds what Pillow would show wrong.

Pillow reads nearly all formats. What it reads wrong (see docs/pixels-and-encodings.md) is read here from what it gives,
or by tifffile and imagecodecs where these are installed, or refused by name.
"""

import io

import numpy as np
from PIL import Image

from gpuload.errors import DecodeError
from gpuload.formats import codecs, corrections
from gpuload.formats.conversion import PAGES, Conversion, Raster
from gpuload.formats.opened import SIXTEEN_BITS, OpenedFile, by_codec, raster_of_image
from gpuload.formats.tiffs import open_tiff
from gpuload.headers import jpeg, jpeg2000, png, tiff
from gpuload.types import Array

_AVIF = (b"avif", b"avis")
_CROP_BOX = b"\0\0\0\x28clap"
_BOXES_BYTES = 1 << 16  # in which the boxes about an AVIF's image are
_SINGLE = ("PSD",)  # formats whose further frames are layers


def open_file(data: bytes, conversion: Conversion) -> OpenedFile:
    """Reads the header of an encoded image.

    Raises:
        DecodeError: its pixels would not be what it says; the message names its kind. Exception: of many kinds, by
        Pillow.
    """
    if pages := tiff.read_pages(data):
        return open_tiff(data, pages, conversion)
    opened = _open_jpeg2000(data, conversion)
    if data.startswith(jpeg.START):
        opened = _open_odd_jpeg(data, conversion)
    elif data.startswith(png.START):
        opened = _open_odd_png(data, conversion)
    if opened is not None:
        return opened
    if (
        data[4:8] == b"ftyp"
        and data[8:12] in _AVIF
        and _CROP_BOX in data[:_BOXES_BYTES]
    ):
        raise DecodeError(
            "is an AVIF with a crop box (clap), which Pillow does not apply; convert it to PNG"
        )
    return _open_by_pillow(data, conversion)


def _open_by_pillow(data: bytes, conversion: Conversion) -> OpenedFile:
    image = Image.open(io.BytesIO(data))
    name = str(image.format).lower()
    if name == "fits":
        raise DecodeError(
            "is a FITS file, whose numbers Pillow does not read as they are; convert it to TIFF or .npy"
        )
    remarks: dict[str, int] = {}
    frames = 1 if image.format in _SINGLE else getattr(image, "n_frames", 1)
    if conversion.page is not None:
        if conversion.page >= frames:
            raise DecodeError(
                f"has {frames} pages or frames, and --page {conversion.page} counts from 0"
            )
        if conversion.page:
            image.seek(conversion.page)
    elif frames > 1:
        remarks[PAGES] = 1

    def load() -> Raster:
        if corrections.is_gray_bmp(data, image):
            return Raster(corrections.read_bmp(data))
        loaded = raster_of_image(image)
        raster = corrections.correct(data, image, loaded, conversion)
        raster.remarks.update(remarks)
        return raster

    exact = not corrections.are_needed(data, image) and not conversion.page
    return OpenedFile(name, image.size, image, load, exact, remarks)


def _open_jpeg2000(data: bytes, conversion: Conversion) -> OpenedFile | None:
    """A JPEG 2000 of other than 8 bits; None for others, which Pillow reads."""
    header = jpeg2000.read_header(data)
    if header is None or (header.bits <= 8 and not header.signed):
        return None
    kind = f"a JPEG 2000 of {header.bits} bits" + (
        " with a sign" if header.signed else ""
    )
    peak = 0 if header.signed else (1 << header.bits) - 1
    image = Image.open(io.BytesIO(data))
    if header.components == 1 and not header.signed and codecs.fault("imagecodecs"):
        # Pillow's values are those of the file, multiplied to 16 bits.
        shift = 16 - header.bits
        return OpenedFile(
            "jpeg2000",
            image.size,
            image,
            lambda: Raster(values=np.asarray(image)[..., None] >> shift, peak=peak),
            exact=False,
        )
    return by_codec(
        "jpeg2000",
        kind,
        conversion,
        image.size,
        peak,
        lambda: codecs.decode_jpeg2000(data),
    )


def _open_odd_jpeg(data: bytes, conversion: Conversion) -> OpenedFile | None:
    """A JPEG of 12 or 16 bits; None for others, which Pillow reads or refuses."""
    header = jpeg.read_header(data)
    bits = header.oddity.removeprefix("jpeg-").removesuffix("-bit")
    if not bits.isdecimal():
        return None
    size = header.width, header.height
    return by_codec(
        "jpeg",
        f"a JPEG of {bits} bits",
        conversion,
        size,
        (1 << int(bits)) - 1,
        lambda: codecs.decode_jpeg(data),
    )


def _open_odd_png(data: bytes, conversion: Conversion) -> OpenedFile | None:
    """A PNG of 16 bits of which 8 are not enough, or with a transparent colour of 16 bits; None for others."""
    header = png.read_header(data)
    if header.depth != 16:
        return None
    is_colored = header.color != 0
    has_key = header.color == 2 and png.has_chunk(data, b"tRNS")
    if not has_key and not (is_colored and conversion.needs_every_bit):
        return None
    kind = "a PNG of 16-bit colours" + (" with a transparent colour" if has_key else "")
    size = header.width, header.height
    has_alpha = has_key or header.color in (4, 6)
    with Image.open(io.BytesIO(data)) as image:
        profile = image.info.get("icc_profile") or b""
        turn = image.getexif().get(jpeg.ORIENTATION, 1)

    def decode() -> Array:
        return corrections.turned(codecs.decode_png(data), turn)

    return by_codec(
        "png", kind, conversion, size, SIXTEEN_BITS, decode, has_alpha, profile
    )
