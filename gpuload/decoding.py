"""One stored image to pixels on the CPU: whole, at a part of its size, or a part of it."""

import io
import threading
from collections.abc import Sequence
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
Row = tuple[int, int, int, int, int, int, int]
Window = tuple[int, int, int, int]  # top, left, bottom, right, in pixels of the stored image

_JPEG_START = b"\xff\xd8"
_NOTHING: Row = (0, 0, 0, 0, 0, 0, 1)

# What libjpeg-turbo takes, in ns, on one core (AMD EPYC, 2026-11; 110 kB to 1.3 MB): for each byte, which the entropy
# decoder must read up to the last row that is wanted; for each pixel of the whole image, at 1/1, 1/2, 1/4 and 1/8
# of its size; and what the resize takes for each pixel it is given. With these, 12-megapixel photos, ImageNet-like
# images and those stored at 256 pixels take 1 % longer than by the faster way for each.
_NS_A_BYTE, _NS_RESIZED = 6.8, 0.6
_NS_A_PIXEL = {1: 0.98, 2: 0.60, 4: 0.42, 8: 0.36}
# nvImageCodec copies what libjpeg-turbo makes, and takes a while to begin with.
_NS_A_PART_PIXEL, _PART_NS = 1.8, 30_000


class UndecodableError(Exception):
    """Neither libjpeg-turbo nor Pillow makes an image of these bytes."""


class Pictures(NamedTuple):
    """Decoded images, or parts of them, as `gpuload.resampling.resample` takes them.

    table: int64 (N, 7), an address of 0 where an image does not decode. kept: what holds the memory that is not of the
    decoder's own. broken: which do not decode.
    """

    table: I64
    kept: list[Any]
    broken: list[int]


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
    whole = _NS_A_BYTE * sizes_bytes + a_pixel * heights * widths + _NS_RESIZED * wanted / factors**2
    part = _NS_A_BYTE * sizes_bytes * windows[:, 2] / heights
    part += (_NS_A_PART_PIXEL + _NS_RESIZED) * wanted + _PART_NS
    in_part = (part < whole) if nvimgcodec is not None else np.zeros(len(whole), np.bool_)
    return Ways(np.where(in_part, 1, factors).tolist(), in_part.tolist())


class ImageDecoder:
    """Decodes some images at a time in each thread, into memory of that thread, which the next ones overwrite."""

    def __init__(self, stored: Stored) -> None:
        self._plain = stored.plain
        self._scratch_bytes = 3 * stored.width * stored.height
        self._thread = threading.local()

    def decode(
        self,
        images: Sequence[Bytes],
        addresses: Sequence[int],
        sizes: Sequence[tuple[int, int]],
        windows: Sequence[Window],
        ways: Ways,
    ) -> Pictures:
        """At least these windows of images of these sizes (height, width).

        addresses: of those that are pixels already; 0 of encoded ones.
        """
        self._reserve(sum(3 * height * width for height, width in sizes))
        rows: list[Row] = []
        kept, broken, used = [], [], 0
        for number, (data, address, size, window, factor, in_part) in enumerate(
            zip(images, addresses, sizes, windows, ways.factors, ways.parts, strict=True)
        ):
            height, width = size
            if address:
                rows.append((address, height, width, 3 * width, 0, 0, 1))
                continue
            try:
                row, holder = self._decode_one(number, data, size, window if in_part else None, factor, used)
            except UndecodableError:
                row, holder = _NOTHING, None
                broken.append(number)
            rows.append(row)
            kept.append(holder)
            used += 3 * height * width
        return Pictures(np.array(rows, np.int64), kept, broken)

    def _decode_one(
        self, number: int, data: Bytes, size: tuple[int, int], part: Window | None, factor: int, used: int
    ) -> tuple[Row, Any]:
        """Its row of the table, and what holds its memory if that is not the thread's, from byte `used` on."""
        try:
            if self._is_jpeg(data):
                if part is not None and (pixels := self._decode_part(data, part, number)) is not None:
                    return _row_of(pixels, part[0], part[1]), pixels
                # No more of the memory than the index says: an image that is larger must not reach into the next one's.
                scratch = self._thread.scratch[used : used + 3 * size[0] * size[1]]
                height, width, _ = _decode_whole(data, size, factor, scratch).shape
                return (self._thread.address + used, height, width, 3 * width, 0, 0, factor), None
        except ValueError:  # faults some of which Pillow forgives, as DALI does
            pass
        other = _decode_other(data)
        return _row_of(other, 0, 0), other

    def _is_jpeg(self, data: Bytes) -> bool:
        """Whether libjpeg-turbo alone makes the right pixels of it."""
        return data[:2].tobytes() == _JPEG_START and (self._plain or _is_plain(data))

    def _decode_part(self, data: Bytes, window: Window, number: int) -> Pixels | None:
        """The window alone: libjpeg-turbo leaves out what lies below and beside it. The same pixels, bit for bit."""
        decoder = getattr(self._thread, "decoder", None)
        if decoder is None:
            decoder = self._thread.decoder = nvimgcodec.Decoder(
                device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
                backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)],
                max_num_cpu_threads=1,
            )
            self._thread.images = {}
        stream = nvimgcodec.CodeStream(data).get_sub_code_stream(region=nvimgcodec.Region(*window))
        image: Any = decoder.decode(stream, image=self._thread.images.get(number))
        self._thread.images[number] = image
        return None if image is None else np.asarray(image)

    def _reserve(self, size: int) -> None:
        """At least `size` bytes, the same memory each time: fresh pages would cost more than the copying."""
        found: Pixels | None = getattr(self._thread, "scratch", None)
        if found is None or len(found) < size:
            found = self._thread.scratch = np.empty(max(size, self._scratch_bytes), np.uint8)
            self._thread.address = found.ctypes.data


def _row_of(pixels: Pixels, top: int, left: int) -> Row:
    height, width, _ = pixels.shape
    return pixels.ctypes.data, height, width, pixels.strides[0], top, left, 1


def raw_pictures(addresses: I64, heights: I32, widths: I32) -> Pictures:
    """Images that are stored as pixels, which begin at these addresses."""
    nothing = np.zeros_like(addresses)
    table = np.stack([addresses, heights, widths, 3 * widths, nothing, nothing, nothing + 1], axis=1, dtype=np.int64)
    return Pictures(table, [], [])


def _decode_whole(data: Bytes, size: tuple[int, int], factor: int, scratch: Pixels) -> Any:
    """A JPEG at 1/factor of its size, or larger; its pixels are at the beginning of `scratch`.

    Raises:
        ValueError: libjpeg-turbo finds a fault in it.
    """
    if factor == 1:
        return simplejpeg.decode_jpeg(data, buffer=scratch)
    height, width = size
    return simplejpeg.decode_jpeg(
        data, min_height=-(-height // factor), min_width=-(-width // factor), min_factor=factor, buffer=scratch
    )


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
