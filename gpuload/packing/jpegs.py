"""JPEGs without Pillow: checked and shrunk by libjpeg-turbo, resized by torch (extra `cpu`), progressive ones made
baseline, and their seek points.

For 500x375 to 341x256 pixels on one core (2026-11): decoding takes 1.05 ms, bicubic resizing 0.26, encoding 0.27;
Pillow takes 1.16, 1.07 (Hamming) and 0.33. Reusing a buffer for decoding saves nothing: the allocator keeps the memory.
"""

import functools
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpuload.errors import DecodeError
from gpuload.fields.motion import Placement
from gpuload.machine.installed import fault_of, require
from gpuload.types import U8, WidthHeight

try:
    import simplejpeg
except ImportError:  # Pillow then decodes every image
    simplejpeg = None

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


def use_one_thread() -> None:
    """Limits torch to one thread in this process, since the other cores are for the other workers.

    Raises:
        MissingPackageError: what shrinks JPEGs cannot be used on this machine, which may be another than the packer's.
    """
    require("--resizer torch", "torch", "simplejpeg")
    import torch

    torch.set_num_threads(1)


def decode(data: bytes, gray: bool, size: WidthHeight, factor: int) -> U8 | None:
    """uint8 (height, width, 3), or (height, width) for a gray JPEG, at 1/factor of `size` (width, height), rounded up.

    None if the decoder reports any problem, even a warning, or finds a different size.
    """
    width, height = (-(-side // factor) for side in size)
    try:
        pixels: U8 = simplejpeg.decode_jpeg(
            data, "GRAY" if gray else "RGB", min_height=height, min_width=width, min_factor=factor
        )
    except ValueError:
        return None
    if pixels.shape[:2] != (height, width):
        return None
    return pixels[..., 0] if gray else pixels


def draft_factor(placement: Placement) -> int:
    """8, 4, 2 or 1: the factor by which an image may be decoded smaller and still be twice as large as `resized`.

    The rule, and the gap of 2, are those of Pillow's `draft`, which is used where Pillow resizes.
    """
    scale = min(side // (2 * wanted) for side, wanted in zip(placement.source, placement.resized, strict=True))
    return next((factor for factor in (8, 4, 2) if scale >= factor), 1)


def resize(pixels: U8, size: WidthHeight) -> U8:
    """Resizes uint8 (H, W, 3) or (H, W) to `size` (width, height), bicubic with antialiasing."""
    import torch
    from torch.nn import functional

    with torch.inference_mode():
        # (1, C, H, W) with the channels last in memory, as torch's vectorised code for uint8 requires.
        image = torch.from_numpy(pixels.reshape(1, *pixels.shape[:2], -1)).permute(0, 3, 1, 2)
        resized = functional.interpolate(image, size=size[::-1], mode="bicubic", antialias=True)
        found: U8 = resized[0].permute(1, 2, 0).contiguous().numpy()
    return found[..., 0] if pixels.ndim == 2 else found


def encode(pixels: U8, quality: int) -> bytes:
    """A baseline JPEG, 4:2:0 or gray, from uint8 (H, W, 3) RGB or (H, W)."""
    if pixels.ndim == 2:
        return bytes(simplejpeg.encode_jpeg(pixels[..., None], quality, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", "420"))
