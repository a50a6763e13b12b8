"""Stored images to pixels on the CPU: whole, at a part of their size, or a part of them."""

import io
import threading
from typing import Any

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageOps

from gpuload.decode.interface import Stored
from gpuload.decode.native import jpeg
from gpuload.read.batch import EncodedBatch
from gpuload.types import I64, U8

Row = tuple[int, int, int, int, int, int, int]

_JPEG_START = b"\xff\xd8"


class UndecodableError(Exception):
    """Neither libjpeg-turbo nor Pillow makes an image of these bytes."""


class Plan:
    """How the images of a batch are decoded, and where their pixels are.

    pictures: int64 (N, 7), as `gpuload.decode.native.resample.resample` takes them. Those of images that are stored as pixels are
    complete; the others have an address of 0, and the size of the stored image, until they are decoded.
    windows: int64 (N, 4), what is wanted of each: top, left, bottom, right in pixels of the stored image.
    factors: at most so much smaller. rooms: int64 (N,), bytes for each while it is needed, and `spare_bytes` more.
    encoded: whether there is anything to decode. largest_bytes: of the pixels of one image.
    """

    def __init__(self, encoded: EncodedBatch, windows: I64, factors: I64) -> None:
        self.images, self.spans, self.windows, self.factors = encoded.images, encoded.spans, windows, factors
        self.pictures: I64 = np.zeros((len(windows), 7), np.int64)
        self.pictures[:, 0] = encoded.spans[:, 0] * encoded.raw
        self.pictures[:, 1], self.pictures[:, 2] = encoded.heights, encoded.widths
        self.pictures[:, 3], self.pictures[:, 6] = 3 * encoded.widths, 1
        self.encoded = not encoded.raw.all()
        if self.encoded:
            self.rooms, self.spare_bytes = jpeg.room_for(windows, factors)
            self.largest_bytes = int(self.rooms.max(initial=1))
        else:
            self.largest_bytes = int((self.pictures[:, 1] * self.pictures[:, 3]).max(initial=1))


class ImageDecoder:
    """Decodes some images at a time in each thread, into memory of that thread, which the next ones overwrite.

    Nearly all JPEGs go to `gpuload.decode.native.jpeg`, which leaves those that it does not know, or that have a fault, to
    libjpeg-turbo, and that to Pillow.
    """

    def __init__(self, stored: Stored) -> None:
        self._plain = stored.plain
        self._thread = _Thread()
        if not stored.raw:
            jpeg.load_compiled()

    def decode(self, plan: Plan, rows: slice) -> tuple[list[Any], list[int]]:
        """Completes the pictures of the images at these rows.

        Returns what holds the memory that is not the thread's, and the rows of those that do not decode.
        """
        kept: list[Any] = []
        broken: list[int] = []
        if not plan.encoded:
            return kept, broken
        pictures, rooms, thread = plan.pictures[rows], plan.rooms[rows], self._thread
        memory = thread.reserve(int(rooms.sum()) + plan.spare_bytes)
        jpeg.decode(
            plan.spans[rows], plan.windows[rows], plan.factors[rows], self._plain, memory, rooms, thread.work, pictures
        )
        for place in np.flatnonzero(pictures[:, 0] == 0).tolist():
            try:
                pictures[place], holder = self._decode_one(plan, rows.start + place)
            except UndecodableError:
                broken.append(rows.start + place)
            else:
                kept.append(holder)
        return kept, broken

    def _decode_one(self, plan: Plan, row: int) -> tuple[Row, Any]:
        """Its row of the pictures, and what holds its memory."""
        data = plan.images[row]
        try:
            if self._is_jpeg(data):
                height, width = plan.pictures[row, 1:3].tolist()
                factor = int(plan.factors[row])
                whole = _decode_whole(data, (height, width), factor)
                return _row_of(whole, factor), whole
        except ValueError:  # faults some of which Pillow forgives, as DALI does
            pass
        other = _decode_other(data)
        return _row_of(other), other

    def _is_jpeg(self, data: U8) -> bool:
        """Whether libjpeg-turbo makes the right pixels of it, as it does of JPEGs that are gray or RGB, and upright."""
        return data[:2].tobytes() == _JPEG_START and (self._plain or _is_plain(data))


class _Thread(threading.local):
    """What a thread keeps from one call to the next: fresh pages cost more than copying."""

    def __init__(self) -> None:
        self.work = jpeg.Work()
        self._memory: U8 = np.empty(0, np.uint8)

    def reserve(self, size: int) -> int:
        """The address of at least so many bytes."""
        if len(self._memory) < size:
            self._memory = np.empty(size, np.uint8)
        return int(self._memory.ctypes.data)


def _row_of(pixels: U8, factor: int = 1) -> Row:
    height, width, _ = pixels.shape
    return pixels.ctypes.data, height, width, pixels.strides[0], 0, 0, factor


def _decode_whole(data: U8, size: tuple[int, int], factor: int) -> Any:
    """A JPEG at 1/factor of its size, or larger.

    Raises:
        ValueError: libjpeg-turbo finds a fault in it.
    """
    if factor == 1:
        return simplejpeg.decode_jpeg(data)
    height, width = size
    return simplejpeg.decode_jpeg(
        data, min_height=-(-height // factor), min_width=-(-width // factor), min_factor=factor
    )


def _is_plain(data: U8) -> bool:
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


def _decode_other(data: U8) -> U8:
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            return np.array(ImageOps.exif_transpose(image).convert("RGB"))
    except Exception as error:  # Pillow's decoders raise many kinds
        raise UndecodableError(str(error)) from None
