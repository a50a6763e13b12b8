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
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Window = tuple[int, int, int, int]  # top, left, bottom, right, in pixels of the stored image

_JPEG_START = (0xFF, 0xD8)

# What libjpeg-turbo takes, in ns, on one core (AMD EPYC, 2026-11; 115 kB to 1.3 MB): for each byte, which the entropy
# decoder must read up to the last row that is wanted; for each pixel that it makes, at 1/1, 1/2, 1/4 and 1/8; and what
# the resize takes for each pixel it is given: torch's, and Pillow's for regions of reduced images, whose edges fall
# between pixels. nvImageCodec takes 15 µs an image to begin with.
_NS_A_BYTE, _NS_BY_TORCH, _NS_BY_PILLOW, _PART_NS = 8.0, 0.57, 4.5, 15_000
_NS_A_PART_PIXEL = 2.2  # nvImageCodec copies what libjpeg-turbo makes
_NS_A_PIXEL = {1: 0.83, 2: 0.37, 4: 0.14, 8: 0.0}  # of the whole image's


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


class Ways(NamedTuple):
    """How each image of a batch is decoded: at 1/factor of its size, or only the part that is wanted."""

    factors: list[int]
    parts: list[bool]


def choose_ways(sizes_bytes: I64, heights: I32, widths: I32, windows: I64, factors: I64) -> Ways:
    """The faster way for each image. windows: int64 (N, 4), what is wanted. factors: at most so much smaller.

    Of random crops of ImageNet-like images most are decoded in part, in 0.84 of the time of whole images; of tiny
    images none.
    """
    wanted = (windows[:, 2] - windows[:, 0]) * (windows[:, 3] - windows[:, 1])
    a_pixel = np.select([factors == factor for factor in _NS_A_PIXEL], list(_NS_A_PIXEL.values()))
    resized = np.where(factors > 1, _NS_BY_PILLOW, _NS_BY_TORCH) * wanted / factors**2
    whole = _NS_A_BYTE * sizes_bytes + a_pixel * heights * widths + resized
    part = _NS_A_BYTE * sizes_bytes * windows[:, 2] / heights
    part += (_NS_A_PART_PIXEL + _NS_BY_TORCH) * wanted + _PART_NS
    in_part = (part < whole) if nvimgcodec is not None else np.zeros(len(whole), np.bool_)
    return Ways(np.where(in_part, 1, factors).tolist(), in_part.tolist())


class ImageDecoder:
    """Decodes one image at a time in each thread, into memory of that thread, which the next image overwrites."""

    def __init__(self, stored: Stored) -> None:
        self._plain = stored.plain
        self._scratch_bytes = 3 * stored.width * stored.height
        self._thread = threading.local()

    def decode(self, data: Bytes, height: int, width: int, window: Window, factor: int, in_part: bool) -> Picture:
        """At least this window of an image of (height, width), at 1/factor of its size (1, 2, 4 or 8) or larger.

        in_part: nothing but the window is wanted.

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
            if in_part and (part := self._decode_part(data, window)) is not None:
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

    def _decode_part(self, data: Bytes, window: Window) -> Pixels | None:
        """The window alone: libjpeg-turbo leaves out what lies below and beside it. The same pixels, bit for bit."""
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
