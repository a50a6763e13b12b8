"""One stored image to pixels on the CPU: whole, at a part of its size, or a part of it."""

import io
import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps

from gpuload.decoder import Stored
from gpuload.errors import MissingPackageError
from gpuload.reader import Bytes

try:
    import simplejpeg
except ImportError:
    raise MissingPackageError(
        "decoder='turbo': simplejpeg is not installed. `pip install 'gpuload[cpu]'` brings it, or use decoder='dali'"
    ) from None
try:
    from nvidia import nvimgcodec
except ImportError:  # it comes with DALI; without it, whole images are decoded
    nvimgcodec = None

Pixels = npt.NDArray[np.uint8]
Window = tuple[int, int, int, int]  # top, left, bottom, right, in pixels of the stored image

_JPEG_START = (0xFF, 0xD8)

# Smaller JPEGs are decoded whole: nvImageCodec takes 15 µs an image to begin with, and decoding windows of random crops
# 0.84 of the time of whole images (879 µs for 1,040 at 115 kB, 30 for 17 at 3 kB; 2026-11).
_PART_BYTES = 20_000


class UndecodableError(Exception):
    """Neither libjpeg-turbo nor Pillow makes an image of these bytes."""


class Picture(NamedTuple):
    """Pixels of an image, or of a part of it.

    pixels: uint8 (height, width, 3). top, left: where the first pixel stands in the stored image.
    factor: pixels of the stored image to one of these, along each side, also where the last are not whole.
    """

    pixels: Pixels
    top: int
    left: int
    factor: int


class ImageDecoder:
    """Decodes one image at a time in each thread, into memory of that thread, which the next image overwrites."""

    def __init__(self, stored: Stored) -> None:
        self._plain = stored.plain
        self._scratch_bytes = 3 * stored.width * stored.height
        self._thread = threading.local()

    def decode(self, data: Bytes, height: int, width: int, window: Window, factor: int) -> Picture:
        """At least this window of an image of (height, width), at 1/factor of its size (1, 2, 4 or 8) or larger.

        Raises:
            UndecodableError: it does not decode.
        """
        if data.ndim == 3:
            return Picture(data, 0, 0, 1)
        if (data[0], data[1]) != _JPEG_START if len(data) > 1 else True:
            return Picture(_decode_other(data), 0, 0, 1)
        try:
            if not self._plain and not _is_plain(data):
                return Picture(_decode_other(data), 0, 0, 1)
            if factor == 1 and (part := self._decode_part(data, height, width, window)) is not None:
                return Picture(part, window[0], window[1], 1)
            pixels = simplejpeg.decode_jpeg(
                data,
                min_height=-(-height // factor),
                min_width=-(-width // factor),
                min_factor=factor,
                buffer=self._scratch(3 * height * width),
            )
        except ValueError:  # faults some of which Pillow forgives, as DALI does
            return Picture(_decode_other(data), 0, 0, 1)
        return Picture(pixels, 0, 0, factor)

    def _decode_part(self, data: Bytes, height: int, width: int, window: Window) -> Pixels | None:
        """The window alone, where that is worth while: libjpeg-turbo then leaves out what lies below and beside it.

        The same pixels, bit for bit.
        """
        top, left, bottom, right = window
        if nvimgcodec is None or len(data) < _PART_BYTES or (bottom - top) * (right - left) > 0.85 * height * width:
            return None
        decoder = getattr(self._thread, "decoder", None)
        if decoder is None:
            decoder = self._thread.decoder = nvimgcodec.Decoder(
                device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
                backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)],
                max_num_cpu_threads=1,
            )
        stream = nvimgcodec.CodeStream(data).get_sub_code_stream(region=nvimgcodec.Region(*window))
        image: Any = decoder.decode(stream, image=getattr(self._thread, "image", None))
        self._thread.image = image
        return None if image is None else np.asarray(image)

    def _scratch(self, size: int) -> Pixels:
        """At least `size` bytes, the same memory for each image: fresh pages would cost more than the copying."""
        found: Pixels | None = getattr(self._thread, "scratch", None)
        if found is None or len(found) < size:
            found = self._thread.scratch = np.empty(max(size, self._scratch_bytes), np.uint8)
        return found


def _is_plain(data: Bytes) -> bool:
    """Whether a JPEG is gray or RGB, and to be shown as it is stored. EXIF data stands among the first segments.

    Raises:
        ValueError: it is no JPEG.
    """
    _, _, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    if colorspace in ("CMYK", "YCCK"):
        return False
    if b"Exif\0\0" not in data[:65536].tobytes():
        return True
    with Image.open(io.BytesIO(data.tobytes())) as image:
        return bool(image.getexif().get(ExifTags.Base.Orientation, 1) == 1)


def _decode_other(data: Bytes) -> Pixels:
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            return np.array(ImageOps.exif_transpose(image).convert("RGB"))
    except Exception as error:  # Pillow's decoders raise many kinds
        raise UndecodableError(str(error)) from None
