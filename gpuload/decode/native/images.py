"""Decodes stored images on the CPU: whole, at a fraction of their size, or in part."""

import io
import threading
from typing import Any

import numpy as np
from PIL import Image

from gpuload.decode.interface import Stored
from gpuload.decode.native.steps import DecodeStep, ThreadMemory
from gpuload.decode.pillow import (
    UndecodableError,
    decode_mask,
    decode_pixels,
    refuse_other_size,
)
from gpuload.fields.images import GRAY, RGB, Pixels
from gpuload.headers import jpeg as headers
from gpuload.kernels.images import CLASSES, EncodedImages, new_scratch
from gpuload.kernels.structs import PICTURE, Bands
from gpuload.read.batch import StoredPictures
from gpuload.types import I64, U8, Array


def bands_of(pixels: Pixels, step: int | None = None, luma: bool = False) -> Bands:
    """What kernels are told of pixels.

    Args:
        pixels: Of the batch.
        step: Values from one pixel to the next, if more than the channels.
        luma: Whether gray is computed from RGB.
    """
    value_bytes = np.dtype(pixels.dtype).itemsize
    return Bands(
        value_bytes, pixels.channels, step or pixels.channels, int(pixels.peak), luma
    )


def picture_kind(stored: Stored) -> Bands | None:
    """The kind of decoded pixels, from which the batch's are made; None if both are RGB."""
    is_rgb = stored.source == RGB
    step = 3 if is_rgb or (stored.source == GRAY and not stored.raw) else None
    return None if stored.pixels.is_rgb else bands_of(stored.pixels, step, is_rgb)


class DecodePlan:
    """The decoding of one picture of each sample of a batch, and the positions of their pixels.

    Args:
        stored: The pictures.
        windows: int64 (N, 4), the part needed of each: top, left, bottom, right in pixels of the stored image.
        factors: int64 (N,), the image may be decoded at 1/factor of its size.
        pixels: Of the images.
        plain: As `Stored.plain`.
        is_mask: As `Stored.is_mask`.

    Attributes:
        pictures: (N,) of `PICTURE`. Those of raw images are complete; the others have the size of the stored image
            until they are decoded.
        files: These, for kernels; None where there is nothing to decode.
        largest_bytes: Of the pixels of one image.
    """

    def __init__(
        self,
        stored: StoredPictures,
        windows: I64,
        factors: I64,
        pixels: Pixels = RGB,
        plain: bool = False,
        is_mask: bool = False,
    ) -> None:
        self.contents = stored.contents
        self.spans = np.ascontiguousarray(stored.spans)
        self.windows = np.ascontiguousarray(windows)
        self.factors = factors
        self.points = np.ascontiguousarray(stored.points)
        self.pictures: Array = np.zeros(len(windows), PICTURE)
        self.pictures["pixels"] = self.spans[:, 0] * stored.raw
        self.pictures["height"] = stored.heights
        self.pictures["width"] = stored.widths
        self.pictures["stride"] = pixels.bytes * self.pictures["width"]
        self.pictures["factor"] = 1
        self.files: EncodedImages | None = None
        if not stored.raw.all():
            decoded = RGB if pixels == GRAY else pixels
            self.files = EncodedImages(
                self.spans,
                self.points,
                self.windows,
                factors,
                self.pictures,
                CLASSES if is_mask else decoded.mode,
                plain,
            )
            self.largest_bytes = int(self.files.room.max(initial=1))
        else:
            largest = self.pictures["height"] * self.pictures["stride"]
            self.largest_bytes = int(largest.max(initial=1))


class ImageDecoder:
    """Decodes some images at a time in each thread, into memory of that thread, which later images overwrite.

    Kernels decode nearly all JPEGs and PNGs; files that they do not support or find faulty go to Pillow.
    """

    def __init__(self, stored: Stored) -> None:
        # Gray JPEGs are decoded as RGB, of which one channel is used: calling a library for each would cost more.
        self._plain = stored.plain
        self._is_mask = stored.is_mask
        self._pixels = RGB if stored.source == GRAY else stored.source
        self._has_jpegs = stored.source in (RGB, GRAY)
        self._thread = _ThreadLocalMemory()

    def step(self, plan: DecodePlan) -> DecodeStep | None:
        """What completes pictures; None where there is nothing to decode."""
        return None if plan.files is None else DecodeStep(plan.files)

    def thread_memory(self, plan: DecodePlan, images: int) -> ThreadMemory:
        """What this thread decodes with: memory for so many images of a plan at a time."""
        if plan.files is None:
            return self._thread.of_size(0)
        return self._thread.of_size(
            images * plan.largest_bytes + plan.files.spare_bytes
        )

    def decode_others(
        self, plan: DecodePlan, rows: range
    ) -> tuple[list[Any], dict[int, str]]:
        """Completes the pictures at these rows that `step` did not.

        Returns the owners of their memory, and why some do not decode, by row.
        """
        owners: list[Any] = []
        broken: dict[int, str] = {}
        for row in rows:
            if plan.pictures["pixels"][row] != 0:
                continue
            try:
                pixels, factor = self._decode_one(plan, row)
            except UndecodableError as error:
                broken[row] = str(error)
                continue
            height, width, _ = pixels.shape
            plan.pictures[row] = (
                pixels.ctypes.data,
                height,
                width,
                pixels.strides[0],
                0,
                0,
                factor,
            )
            owners.append(pixels)
        return owners, broken

    def decode(self, plan: DecodePlan, row: int) -> tuple[list[Any], dict[int, str]]:
        """Completes the picture of one image, and returns what `decode_others` does."""
        step = self.step(plan)
        if step is not None:
            step(row, row + 1, self.thread_memory(plan, 1))
        return self.decode_others(plan, range(row, row + 1))

    def _decode_one(self, plan: DecodePlan, row: int) -> tuple[Array, int]:
        """The pixels of an image, and how many of the stored image along each side make one of them."""
        data = plan.contents[row]
        size = int(plan.pictures["height"][row]), int(plan.pictures["width"][row])
        if self._is_mask:
            return decode_mask(data, size)[:, :, None], 1
        if self._has_jpegs and data[:2].tobytes() == headers.START:
            header = headers.read_header(data.tobytes())
            if header.width and (self._plain or header.plain or _is_upright(data)):
                refuse_other_size((header.height, header.width), size)
                # An image may be smaller than the index says, down to no pixels at 1/factor of its size.
                factor = (
                    int(plan.factors[row])
                    if min(header.height, header.width) >= plan.factors[row]
                    else 1
                )
                pixels = _decode_reduced(data, factor)
                if pixels is not None:
                    return pixels, factor
        return decode_pixels(data, size, self._pixels), 1


class _ThreadLocalMemory(threading.local):
    """A thread's memory, kept between calls: fresh pages cost more than copying."""

    def __init__(self) -> None:
        self._scratch = new_scratch()
        self._memory = ThreadMemory(np.empty(0, np.uint8), self._scratch)

    def of_size(self, size: int) -> ThreadMemory:
        """The memory, with at least so many bytes for pixels."""
        if self._memory.size < size:
            self._memory = ThreadMemory(np.empty(size, np.uint8), self._scratch)
        return self._memory


def _is_upright(data: U8) -> bool:
    """Whether a JPEG is gray or RGB, and upright, as Pillow finds, which also decodes what is not."""
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            return (
                image.mode != "CMYK"
                and image.getexif().get(headers.ORIENTATION, 1) == 1
            )
    except Exception:  # Pillow raises many types
        return False


def _decode_reduced(data: U8, factor: int) -> Array | None:
    """A gray or RGB JPEG at 1/factor of its size, rounded up, as RGB; None where it has a fault.

    Its pixels are libjpeg's, so those that the kernels have of other JPEGs.
    """
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            if factor > 1:
                image.draft("RGB", (image.width // factor, image.height // factor))
            return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except Exception:  # Pillow raises many types
        return None
