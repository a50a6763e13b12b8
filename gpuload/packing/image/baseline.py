"""Progressive JPEGs to baseline without loss: the same coefficients, coded in another order.

Every fast decoder of parts takes baseline alone. Pixels are the same bit for bit, since the coefficients are; jpeglib
reads and writes them by libjpeg, file by file.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from gpuload.errors import DecodeError

_MEMORY = Path("/dev/shm")


def to_baseline(data: bytes, bare: bool = False) -> bytes:
    """A progressive JPEG as baseline. bare: without Exif data, ICC profile, XMP and comments.

    Raises:
        DecodeError: it has a fault.
    """
    import jpeglib

    with TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "image.jpg"
        path.write_bytes(data)
        try:
            image = jpeglib.read_dct(str(path))
            image.load()
            image.progressive_mode = False
            if bare:
                image.markers = []
            image.write_dct(str(path))
        except Exception as error:  # jpeglib raises OSError and others
            raise DecodeError(f"cannot be stored as baseline: {error}") from None
        return path.read_bytes()
