"""Headers of the encodings besides JPEG and PNG that are stored unchanged: WebP, AVIF and TIFF."""

from gpuload.headers import avif, tiff, webp
from gpuload.headers.sized import Sized
from gpuload.types import HeightWidth

OTHER_SIZE = "it is not of the size that the index says"

_READERS = (
    ("webp", webp.is_webp, webp.read_header),
    ("avif", avif.is_avif, avif.read_header),
    ("tif", tiff.is_tiff, tiff.read_header),
)
# Extensions of members, by the first of them, which the packer gives.
EXTENSIONS = {"webp": ("webp",), "avif": ("avif",), "tif": ("tif", "tiff")}


def read_header(data: memoryview) -> tuple[str, Sized] | None:
    """The extension of a WebP, AVIF or TIFF and its header; None of any other file. Nothing is decompressed."""
    for extension, is_it, read in _READERS:
        if is_it(data):
            return extension, read(data)
    return None


def find_fault(data: memoryview, size: HeightWidth) -> str | None:
    """What is wrong with a file that `read_header` reads, or None; None of any other file.

    size: of the stored pixels, as the index says; one that lies on its side may have them exchanged.
    """
    if (found := read_header(data)) is None:
        return None
    header = found[1]
    if header.fault:
        return header.fault
    told = (header.height, header.width)
    return None if size in (told, told[::-1] if not header.upright else told) else OTHER_SIZE
