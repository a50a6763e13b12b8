"""Decodes stored images on the CPU: whole, at a fraction of their size, or in part."""

import io
import threading
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from gpuload.decode.interface import Fault, Stored
from gpuload.decode.native import jpeg
from gpuload.decode.native.compiled import BackgroundCompilation, count_compiled
from gpuload.decode.native.steps import Step
from gpuload.decode.native.values import Bands
from gpuload.decode.pillow import UndecodableError, decode_pixels, refuse_other_size
from gpuload.fields.images import GRAY, POINTS, RGB, Pixels
from gpuload.headers import jpeg as jpegs
from gpuload.read.batch import EncodedBatch
from gpuload.types import I64, U8, HeightWidth

Picture = tuple[int, int, int, int, int, int, int]  # a row of DecodePlan.pictures


def bands_of(pixels: Pixels, step: int | None = None, luma: bool = False) -> Bands:
    """step: values from one pixel to the next, if more than the channels. luma: gray is computed from RGB."""
    kind = np.dtype(pixels.dtype).itemsize
    return Bands(kind, pixels.channels, step or pixels.channels, int(pixels.peak), luma)


def picture_kind(stored: Stored) -> Bands | None:
    """The kind of decoded pixels, from which the batch's are made; None if both are RGB."""
    is_rgb = stored.source == RGB
    step = 3 if is_rgb or (stored.source == GRAY and not stored.raw) else None
    return None if stored.pixels.is_rgb else bands_of(stored.pixels, step, is_rgb)


class DecodePlan:
    """The decoding of a batch's images, and the positions of their pixels.

    pictures: int64 (N, 7), as `gpuload.decode.native.resample.resample` takes them. Those of raw images are complete;
        the others have an address of 0 and the size of the stored image until they are decoded.
    windows: int64 (N, 4), the part needed of each: top, left, bottom, right in pixels of the stored image.
    factors: int64 (N,), the image may be decoded at 1/factor of its size.
    rooms: int64 (N,), bytes for each image while it is in use, plus `spare_bytes`.
    encoded: whether there is anything to decode. largest_bytes: of the pixels of one image.

    pixels: of the images.
    """

    def __init__(self, batch: EncodedBatch, windows: I64, factors: I64, pixels: Pixels = RGB) -> None:
        self.images, self.spans, self.windows, self.factors = batch.images, batch.spans, windows, factors
        points: I64 | None = batch.columns.get(POINTS)
        self.points = np.zeros_like(batch.spans) if points is None else points
        self.pictures: I64 = np.zeros((len(windows), 7), np.int64)
        self.pictures[:, 0] = batch.spans[:, 0] * batch.raw
        self.pictures[:, 1], self.pictures[:, 2] = batch.heights, batch.widths
        self.pictures[:, 3], self.pictures[:, 6] = pixels.bytes * batch.widths, 1
        self.encoded = not batch.raw.all()
        if self.encoded:
            self.rooms, self.spare_bytes = jpeg.room_for(windows, factors)
            self.largest_bytes = int(self.rooms.max(initial=1))
        else:
            self.largest_bytes = int((self.pictures[:, 1] * self.pictures[:, 3]).max(initial=1))


class ImageDecoder:
    """Decodes some images at a time in each thread, into memory of that thread, which later images overwrite.

    `gpuload.decode.native.jpeg` decodes nearly all JPEGs. Files that it does not support or finds faulty go to
    libjpeg-turbo, and then to Pillow. The first process on a machine compiles it for some seconds; until then
    libjpeg-turbo decodes everything, to the same pixels (except for coefficients that no 8-bit image has).
    """

    def __init__(self, stored: Stored) -> None:
        # Gray JPEGs are decoded as RGB, of which one channel is used: calling a library for each would cost more.
        self._plain, self._pixels = stored.plain, RGB if stored.source == GRAY else stored.source
        self._has_jpegs = stored.source in (RGB, GRAY)
        self._thread = _Thread()
        self._compilation = BackgroundCompilation(jpeg.load_compiled)

    def start(self) -> None:
        """Begins to load or compile what decodes JPEGs, at the first call. numba compiles one function at a time, and
        this takes longest: so what a batch cannot do without comes before it."""
        if self._has_jpegs and not self._compilation.is_done:
            # Where something else had to be compiled, this has to be, too, and would be waited for in vain.
            self._compilation.start(wait=count_compiled() == 0)

    def step(self, plan: DecodePlan) -> Step | None:
        """What completes pictures, in a thread with `own` arguments; None where nothing is compiled."""
        if not plan.encoded:
            return None
        self.start()
        if not self._compilation.is_done:
            return None
        files = plan.spans, plan.points, plan.windows, plan.factors
        return jpeg.decode(*files, self._plain, plan.rooms, plan.pictures)

    def own(self, plan: DecodePlan, most: int) -> I64:
        """The arguments of `step` for this thread, with memory for `most` images of a plan at a time."""
        return self._thread.own(most * plan.largest_bytes + plan.spare_bytes if plan.encoded else 0)

    def decode_others(self, plan: DecodePlan, rows: range) -> tuple[list[Any], dict[int, Fault]]:
        """Completes the pictures at these rows that `step` did not.

        Returns the owners of their memory, and the undecodable images by row.
        """
        owners: list[Any] = []
        broken: dict[int, Fault] = {}
        for row in rows:
            if plan.pictures[row, 0] != 0:
                continue
            try:
                plan.pictures[row], owner = self._decode_one(plan, row)
            except UndecodableError as error:
                broken[row] = Fault(str(error))
            else:
                owners.append(owner)
        return owners, broken

    def decode(self, plan: DecodePlan, row: int) -> tuple[list[Any], dict[int, Fault]]:
        """Completes the picture of one image, and returns what `decode_others` does."""
        if (step := self.step(plan)) is not None:
            step(row, row + 1, self.own(plan, 1))
        return self.decode_others(plan, range(row, row + 1))

    def _decode_one(self, plan: DecodePlan, row: int) -> tuple[Picture, Any]:
        """The picture, and the owner of its memory."""
        data, size = plan.images[row], (int(plan.pictures[row, 1]), int(plan.pictures[row, 2]))
        try:
            if self._has_jpegs and data[:2].tobytes() == jpegs.START:
                header = jpegs.read_header(data.tobytes())
                # libjpeg-turbo decodes it to the right pixels: a gray or RGB JPEG that is upright.
                if header.width and (self._plain or header.plain or _is_upright(data)):
                    refuse_other_size((header.height, header.width), size)
                    factor = int(plan.factors[row])
                    whole = _decode_whole(data, size, factor)
                    return _picture_of(whole, factor), whole
        except (ValueError, KeyError):  # Pillow tolerates some of these faults; KeyError: an unnamed sampling
            pass
        other = decode_pixels(data, size, self._pixels)
        return _picture_of(other), other


class _Thread(threading.local):
    """A thread's memory, kept between calls: fresh pages cost more than copying."""

    def __init__(self) -> None:
        self._scratch = jpeg.Scratch()
        self._memory: U8 = np.empty(0, np.uint8)
        self._own = jpeg.own_arguments(0, self._scratch)

    def own(self, size: int) -> I64:
        """What decodes JPEGs needs of this thread, with at least so many bytes."""
        if len(self._memory) < size:
            self._memory = np.empty(size, np.uint8)
            self._own = jpeg.own_arguments(self._memory.ctypes.data, self._scratch)
        return self._own


def _picture_of(pixels: Any, factor: int = 1) -> Picture:
    height, width, _ = pixels.shape
    return pixels.ctypes.data, height, width, pixels.strides[0], 0, 0, factor


def _is_upright(data: U8) -> bool:
    """Whether a JPEG is gray or RGB, and upright, as Pillow finds, which also decodes what is not."""
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            return image.mode != "CMYK" and image.getexif().get(jpegs.ORIENTATION, 1) == 1
    except Exception:  # Pillow raises many types
        return False


def _decode_whole(data: U8, size: HeightWidth, factor: int) -> Any:
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
