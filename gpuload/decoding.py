"""One stored image to pixels on the CPU: whole, at a part of its size, or a part of it."""

import io
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import ExifTags, Image, ImageOps

from gpuload import libturbojpeg
from gpuload.decoder import Request, Stored
from gpuload.reader import Bytes

try:
    from nvidia import nvimgcodec
except ImportError:  # it comes with DALI; without it, whole images are decoded
    nvimgcodec = None

Pixels = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Row = tuple[int, int, int, int, int, int, int]
Window = list[int]  # top, left, bottom, right, in pixels of the stored image

_JPEG_START = b"\xff\xd8"

# What libjpeg-turbo takes, in ns, on one core (AMD EPYC, 2026-11; 110 kB to 1.3 MB): for each byte, which the entropy
# decoder must read up to the last row that is wanted; for each pixel of the whole image, at 1/1, 1/2, 1/4 and 1/8
# of its size; and what the resize takes for each pixel it is given. With these, 12-megapixel photos, ImageNet-like
# images and those stored at 256 pixels take 1 % longer than by the faster way for each.
_NS_A_BYTE, _NS_RESIZED = 6.8, 0.6
_NS_A_PIXEL = {1: 0.98, 2: 0.60, 4: 0.42, 8: 0.36}
# nvImageCodec copies what libjpeg-turbo makes, and takes a while to begin with.
_NS_A_PART_PIXEL, _PART_NS = 1.8, 30_000
_SMALL_PIXELS = 200 * 200  # 2 % of crops of 128×128 would be faster in part, by less than the choice takes


class UndecodableError(Exception):
    """Neither libjpeg-turbo nor Pillow makes an image of these bytes."""


class Plan:
    """How the images of a batch are decoded, and where their pixels are.

    pictures: int64 (N, 7), as `gpuload.resampling.resample` takes them. Those of images that are stored as pixels are
    complete; the others have an address of 0, and the size of the stored image, until they are decoded.
    windows: int64 (N, 4), what is wanted of each: top, left, bottom, right in pixels of the stored image.
    factors: at most so much smaller. encoded: whether there is anything to decode.
    """

    def __init__(self, request: Request, windows: I64, factors: I64) -> None:
        self.images, self.spans, self.windows = request.images, request.spans, windows
        self.pictures: I64 = np.zeros((len(windows), 7), np.int64)
        self.pictures[:, 0] = request.spans[:, 0] * request.raw
        self.pictures[:, 1], self.pictures[:, 2] = request.heights, request.widths
        self.pictures[:, 3], self.pictures[:, 6] = 3 * request.widths, 1
        self.rooms: I64 = self.pictures[:, 1] * self.pictures[:, 3]
        self.factors, self.in_part = factors, np.zeros(len(factors), np.bool_)
        self.encoded = not request.raw.all()
        if self.encoded and nvimgcodec is not None and self.rooms.max(initial=0) > 3 * _SMALL_PIXELS:
            self._choose(request.spans[:, 1])

    def _choose(self, sizes_bytes: I64) -> None:
        """The faster way for each image.

        Of random crops of ImageNet-like images most are decoded in part, in 0.84 of the time of whole images.
        """
        windows, factors, pixels = self.windows, self.factors, self.rooms / 3
        wanted = (windows[:, 2] - windows[:, 0]) * (windows[:, 3] - windows[:, 1])
        a_pixel = np.select([factors == factor for factor in _NS_A_PIXEL], list(_NS_A_PIXEL.values()))
        whole = _NS_A_BYTE * sizes_bytes + a_pixel * pixels + _NS_RESIZED * wanted / factors**2
        part = _NS_A_BYTE * sizes_bytes * windows[:, 2] / self.pictures[:, 1]
        part += (_NS_A_PART_PIXEL + _NS_RESIZED) * wanted + _PART_NS
        self.in_part = part < whole
        self.factors = np.where(self.in_part, 1, factors)


class ImageDecoder:
    """Decodes some images at a time in each thread, into memory of that thread, which the next ones overwrite."""

    def __init__(self, stored: Stored) -> None:
        self._plain = stored.plain
        self._thread = _Thread(3 * stored.width * stored.height)

    def decode(self, plan: Plan, rows: slice) -> tuple[list[Any], list[int]]:
        """Completes the pictures of the images at these rows.

        Returns what holds the memory that is not the thread's, and the rows of those that do not decode.
        """
        kept: list[Any] = []
        broken: list[int] = []
        if not plan.encoded:
            return kept, broken
        pictures, thread = plan.pictures[rows], self._thread
        ends = np.cumsum(plan.rooms[rows])
        thread.reserve(int(ends[-1]))
        if self._plain and thread.turbo is not None:
            thread.turbo.decode(plan.spans[rows], plan.factors[rows], plan.in_part[rows], thread.address, pictures)
        for place in np.flatnonzero(pictures[:, 0] == 0).tolist():
            row = rows.start + place
            # No more memory than the index says: an image that is larger must not reach into the next one's.
            scratch = thread.scratch[ends[place] - plan.rooms[row] : ends[place]]
            try:
                pictures[place], holder = self._decode_one(plan, row, place, scratch)
            except UndecodableError:
                broken.append(row)
            else:
                kept.append(holder)
        return kept, broken

    def _decode_one(self, plan: Plan, row: int, place: int, scratch: Pixels) -> tuple[Row, Any]:
        """Its row of the pictures, and what holds its memory."""
        data = plan.images[row]
        try:
            if self._is_jpeg(data):
                window = plan.windows[row].tolist()
                if plan.in_part[row] and (part := self._thread.decode_part(data, window, place)) is not None:
                    return _row_of(part, window[0], window[1]), part
                height, width = plan.pictures[row, 1:3].tolist()
                factor = int(plan.factors[row])
                whole = _decode_whole(data, (height, width), factor, scratch)
                return _row_of(whole, factor=factor), whole
        except ValueError:  # faults some of which Pillow forgives, as DALI does
            pass
        other = _decode_other(data)
        return _row_of(other), other

    def _is_jpeg(self, data: Bytes) -> bool:
        """Whether libjpeg-turbo alone makes the right pixels of it."""
        return data[:2].tobytes() == _JPEG_START and (self._plain or _is_plain(data))


class _Thread(threading.local):
    """What a thread keeps from one call to the next: its decoders, and memory, for fresh pages cost more than copying.

    scratch: uint8 (bytes,), at `address`. turbo: None where the system has no libturbojpeg.
    """

    def __init__(self, scratch_bytes: int) -> None:
        self.scratch: Pixels = np.empty(scratch_bytes, np.uint8)
        self.address = self.scratch.ctypes.data
        library = libturbojpeg.find()
        self.turbo = None if library is None else libturbojpeg.TurboJpeg(library)
        self._part_decoder: Any = None
        self._parts: dict[int, Any] = {}

    def reserve(self, size: int) -> None:
        """At least `size` bytes of scratch."""
        if len(self.scratch) < size:
            self.scratch = np.empty(size, np.uint8)
            self.address = self.scratch.ctypes.data

    def decode_part(self, data: Bytes, window: Window, place: int) -> Pixels | None:
        """The window alone: libjpeg-turbo leaves out what lies below and beside it. The same pixels, bit for bit.

        place: calls with the same one write into the same memory.
        """
        if self._part_decoder is None:
            self._part_decoder = nvimgcodec.Decoder(
                device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY,
                backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)],
                max_num_cpu_threads=1,
            )
        stream = nvimgcodec.CodeStream(data).get_sub_code_stream(region=nvimgcodec.Region(*window))
        self._parts[place] = image = self._part_decoder.decode(stream, image=self._parts.get(place))
        return None if image is None else np.asarray(image)


def _row_of(pixels: Pixels, top: int = 0, left: int = 0, factor: int = 1) -> Row:
    height, width, _ = pixels.shape
    return pixels.ctypes.data, height, width, pixels.strides[0], top, left, factor


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
