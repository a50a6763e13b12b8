"""Files decoded by the compiled decoders alone."""

from typing import NamedTuple

import numpy as np

from gpuload.decode.native.steps import DecodeStep, ThreadMemory
from gpuload.fields.images import GRAY, Pixels
from gpuload.kernels.images import CLASSES, EncodedImages, new_scratch
from gpuload.kernels.structs import PICTURE

Window = tuple[int, int, int, int]
_GUARD = 171


class Part(NamedTuple):
    """pixels: (height, width, channels). place: row and column of the first one in the decoded image."""

    pixels: np.ndarray
    place: tuple[int, int]


def decode_all(
    files: list[bytes],
    size: tuple[int, int],
    window: Window | None = None,
    factor: int = 1,
    upright: bool = True,
    points: bytes = b"",
    mode: str = "RGB",
) -> list[Part | None]:
    """What is wanted of images of (width, height); None for what is left to others."""
    width, height = size
    number = len(files)
    pixels = GRAY if mode == CLASSES else Pixels.of_mode(mode)
    arrays = [np.frombuffer(data or b"\0", np.uint8) for data in (*files, points)]
    sizes = map(len, (*files, points))
    spans = np.array([(array.ctypes.data, size) for array, size in zip(arrays, sizes, strict=True)], np.int64)
    windows = np.tile(np.array([window or (0, 0, height, width)], np.int64), (number, 1))
    factors = np.full(number, factor, np.int64)
    before = np.array((0, height, width, pixels.bytes * width, 0, 0, 1), PICTURE)
    pictures = np.full(number, before)
    seek = np.repeat(spans[number:], number, axis=0)
    images = EncodedImages(spans[:number].copy(), seek, windows, factors, pictures, mode, upright)
    needed = int(images.room.sum()) + images.spare_bytes
    memory = np.full(needed + 64, _GUARD, np.uint8)  # the last bytes are not the decoder's
    DecodeStep(images)(0, number, ThreadMemory(memory, new_scratch()))
    assert (memory[needed:] == _GUARD).all()
    return [_part(picture, before, memory, pixels) for picture in pictures]


def _part(picture: np.ndarray, before: np.ndarray, memory: np.ndarray, pixels: Pixels) -> Part | None:
    address, rows, columns, stride, top, left, factor = picture.tolist()
    if address == 0:
        assert picture == before
        return None
    assert stride == pixels.bytes * columns and top % factor == left % factor == 0
    values = memory[address - memory.ctypes.data :][: rows * stride].view(pixels.dtype)
    return Part(values.reshape(rows, columns, pixels.channels), (top // factor, left // factor))
