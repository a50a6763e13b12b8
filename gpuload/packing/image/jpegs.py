"""JPEGs that stay JPEGs: checked by libjpeg-turbo alone, progressive ones made baseline, and their seek points."""

import functools
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpuload.errors import DecodeError
from gpuload.machine.installed import fault_of

# Of smaller images, what a crop does not show costs less than the rest of a batch: random crops of 64×64 pixels became
# 1.03 times as fast, of 500×375 1.4 times (2026-11).
_LEAST_PIXELS = 100_000

_MEMORY = Path("/dev/shm")


def find_points(data: bytes, width: int, height: int) -> bytes | None:
    """The points of a JPEG of this size, b"" where it has none.

    None where it is not known whether it is sound: it is too small, of a kind that is not read here or has a fault, or
    numba is not installed.
    """
    if width * height < _LEAST_PIXELS or fault_of("numba") is not None:
        return None
    found: bytes | None = _reader().find_points(data, height, width)
    return found


@functools.cache
def _reader() -> Any:
    """The one reader of coded bits, which both halves have. Compiling it takes none of an image's limit of time."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    from gpuload.decode.native import jpeg

    jpeg.find_points(b"", 1, 1)
    signal.setitimer(signal.ITIMER_REAL, left)
    return jpeg


try:
    import simplejpeg
except ImportError:  # Pillow then decodes every image
    simplejpeg = None


def decodes_cleanly(data: bytes) -> bool:
    """Whether a JPEG decodes without a warning; also False without simplejpeg, so that Pillow decides.

    All entropy-coded data is read, but only one pixel in 64 is computed: 0.70 ms for 110 kB, where Pillow takes 0.78,
    and computing all pixels takes 1.2 (one core, 2026-11).
    """
    if simplejpeg is None:
        return False
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=8)
    except ValueError:  # raised for libjpeg-turbo's warnings too
        return False
    return True


def to_baseline(data: bytes, bare: bool = False) -> bytes:
    """A progressive JPEG as baseline, without loss: the same coefficients in another order, so the same pixels.

    Every fast decoder of parts takes baseline alone. bare: without Exif data, ICC profile, XMP and comments.

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
