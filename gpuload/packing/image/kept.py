"""Which files are kept byte for byte: those that every decoder of ours decodes to the same pixels of the set's mode."""

from collections.abc import Collection
from typing import Literal

from PIL import Image

from gpuload.fields.pixels import GRAY, RGB, Pixels
from gpuload.headers import encodings, jpeg, png
from gpuload.headers.exif import ORIENTATION

Member = Literal["jpg", "png", "webp", "avif", "tif"]

# Bit depth and colour type of PNGs by the mode, and Pillow's modes of other files.
_PNG = {"RGB": ((8, 0), (8, 2)), "L": ((8, 0),), "RGBA": ((8, 6),), "I;16": ((16, 0),)}
_OTHERS = {"RGB": ("RGB", "L"), "L": ("L",), "RGBA": ("RGBA",), "I;16": ("I;16", "I;16B")}


def kept_member(data: bytes, image: Image.Image, pixels: Pixels, keep: Collection[str]) -> Member | None:
    """The extension under which an opened image is stored as it is; None where it is to be encoded anew.

    keep: of other encodings than JPEG and PNG.
    """
    if data.startswith(jpeg.START) and pixels in (RGB, GRAY):
        header = jpeg.read_header(data)
        plain = not header.oddity and header.orientation == 1 and not header.xmp_orientation
        same = image.size == (header.width, header.height) and (header.gray or pixels == RGB)
        return "jpg" if plain and same else None
    if data.startswith(png.START):
        found = png.read_header(data)
        return "png" if found.alike and (found.depth, found.color) in _PNG.get(pixels.mode, ()) else None
    if (other := encodings.read_header(memoryview(data))) is None:
        return None
    extension, header_ = other
    # What is damaged, Pillow alone decides.
    if {"tif": "tiff"}.get(extension, extension) not in keep or header_.fault:
        return None
    upright = header_.upright and image.getexif().get(ORIENTATION, 1) == 1
    same = image.size == (header_.width, header_.height) and image.mode in _OTHERS.get(pixels.mode, ())
    if not (upright and same and header_.single and getattr(image, "n_frames", 1) == 1):
        return None
    return None if "transparency" in image.info else extension  # type: ignore[return-value]
