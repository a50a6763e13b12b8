"""Encoded images in memory, as kernels decode them: JPEGs and PNGs, each batch to pixels of one layout."""

from typing import Any

import numpy as np

from gpuload.kernels.jpeg import Scratch, ThreadScratch
from gpuload.kernels.loading import kernel
from gpuload.kernels.structs import PICTURE, ImageBatch, ImageThread, address
from gpuload.types import I64, U8, Array

CLASSES = "classes"  # the mode of masks: a byte for each pixel
# How decoded pixels lie in memory, by Pillow's mode: png.h has the same.
LAYOUTS = {"RGB": 0, "RGBA": 1, "I;16": 2, CLASSES: 3}
NOT_DECODED = -1  # of other modes


class EncodedImages:
    """The encoded images of a batch, for kernels.

    Args:
        files: int64 (N, 2), address and size in bytes of each.
        points: int64 (N, 2), the same of its seek points; size 0: none.
        windows: int64 (N, 4), top, left, bottom, right of the part needed, in pixels of the stored image.
        factors: int64 (N,), 1, 2, 4 or 8: a JPEG may be decoded at 1/factor of its size.
        pictures: (N,) of `PICTURE`, with the sizes of the stored images.
        mode: Of the pixels, Pillow's or the set's.
        upright: Whether all are known to be upright, whatever the Exif data of JPEGs say.

    Attributes:
        room: int64 (N,), bytes for the pixels of each.
        spare_bytes: That the decoding of one needs beside.
    """

    def __init__(
        self,
        files: I64,
        points: I64,
        windows: I64,
        factors: I64,
        pictures: Array,
        mode: str = "RGB",
        upright: bool = False,
    ) -> None:
        self.room: I64 = factors.copy()
        arrays: list[Any] = [files, points, windows, factors, self.room, pictures]
        addresses = [array.ctypes.data for array in arrays]
        layout = LAYOUTS.get(mode, NOT_DECODED)
        self._held = arrays
        self._struct = ImageBatch(*addresses, upright, layout)
        self.address = address(self._struct)
        self.spare_bytes = int(kernel("image_room")(self.address, len(files)))


def new_scratch() -> Scratch:
    """What a thread decodes images with."""
    return Scratch("image_scratch_bytes")


_thread = ThreadScratch("image_scratch_bytes")


def decode_rgb(data: bytes, height: int, width: int) -> U8 | None:
    """uint8 (height, width, 3), of a JPEG or PNG of this size; None where kernels do not decode it, or it has a fault.

    Args:
        data: The file.
        height: As its header says.
        width: As its header says.
    """
    content = np.frombuffer(data, np.uint8)
    pictures = np.zeros(1, PICTURE)
    pictures["height"] = height
    pictures["width"] = width
    pictures["factor"] = 1
    images = EncodedImages(
        files=np.array([[content.ctypes.data, len(content)]], np.int64),
        points=np.zeros((1, 2), np.int64),
        windows=np.array([[0, 0, height, width]], np.int64),
        factors=np.ones(1, np.int64),
        pictures=pictures,
    )
    memory = np.empty(int(images.room[0]) + images.spare_bytes, np.uint8)
    thread = ImageThread(memory.ctypes.data, _thread.scratch.address)
    kernel("decode_rows")(images.address, address(thread), 0, 1)
    picture = pictures[0]
    if not picture["pixels"]:
        return None
    first = int(picture["pixels"]) - memory.ctypes.data
    strides = (int(picture["stride"]), 3, 1)
    shape = (height, width, 3)
    view = np.lib.stride_tricks.as_strided(memory[first:], shape, strides)
    return np.ascontiguousarray(view)
