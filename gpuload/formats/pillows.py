"""What Pillow reads: all formats that have no codec of their own, and the plain files of those that have one."""

import io

from PIL import Image

from gpuload.formats import corrections
from gpuload.formats.codec import Codec, OpenedFile, check_page
from gpuload.formats.opened import raster_of_image
from gpuload.formats.raster import Conversion, Raster

_SINGLE = ("PSD",)  # formats whose further frames are layers


class PillowCodec(Codec):
    """BMP, GIF, WebP, PNM and all else; PNM's scale and BMP's grays are mended from the file."""

    title = "an image"
    suffixes = (
        *(".bmp", ".dib", ".gif", ".icns", ".ico", ".mpo", ".pbm", ".pcx", ".pgm"),
        *(".pnm", ".ppm", ".psd", ".sgi", ".tga", ".webp"),
    )
    reads_with = "Pillow"
    pillow = "scales PNM to 8 or 16 bits, and takes BMPs of two grays for two colours: both mended"

    @classmethod
    def recognise(cls, data: bytes) -> bool:
        return True

    def open(self, data: bytes, conversion: Conversion) -> OpenedFile:
        return open_by_pillow(data, conversion)


def open_by_pillow(data: bytes, conversion: Conversion) -> OpenedFile:
    """A file that Pillow reads, with what it reads wrong of some formats made right.

    Raises:
        DecodeError: it has no such page. Exception: of many kinds, by Pillow.
    """
    image = Image.open(io.BytesIO(data))
    frames = 1 if image.format in _SINGLE else getattr(image, "n_frames", 1)
    check_page(conversion, frames)
    if conversion.page:
        image.seek(conversion.page)

    def load() -> Raster:
        if corrections.is_gray_bmp(data, image):
            return Raster(corrections.read_bmp(data))
        loaded = raster_of_image(image)
        return corrections.correct(data, image, loaded, conversion)

    exact = not corrections.are_needed(data, image) and not conversion.page
    name = str(image.format).lower()
    return OpenedFile(name, image.size, load, image, exact, frames)
