"""Masks: the class of each pixel of an image, as gray PNG."""

import io
import re

import numpy as np
from PIL import Image, UnidentifiedImageError

from gpuload.augment import View
from gpuload.augment.padding import PaddingMode, source_of
from gpuload.headers import png, sound_png
from gpuload.types import U8, HeightWidth

OTHER_SIZE = "it is not of its image's size"


def reason_of(error: Exception) -> str:
    """Why Pillow does not decode a file: one line, the same for the same file."""
    if isinstance(error, UnidentifiedImageError):
        return "it is in no image format that Pillow reads"
    return re.sub(r" ?<[^>]*0x[0-9a-f]+>", "", " ".join(str(error).split())) or type(error).__name__


def refuse_damaged_png(data: U8) -> None:
    """Raises OSError for a damaged PNG; where its end is damaged, Pillow shows the rest black, without a word."""
    if data[: len(png.START)].tobytes() == png.START and (fault := sound_png.find_fault(data.data)) is not None:
        raise OSError(fault)


class OtherSizeError(ValueError):
    """A mask is not of its image's size; the message is `OTHER_SIZE`."""


_ANY_SIZE_PIXELS = 1 << 20  # decoded whatever the image's size, so that damage is told before a wrong size


def decode_mask(data: U8, size: HeightWidth) -> U8:
    """uint8 (height, width). size: of its image.

    Raises:
        OtherSizeError: it is of another size; a large one is not decoded then.
        OSError: it is damaged, or Pillow does not decode it.
    """
    refuse_damaged_png(data)
    with Image.open(io.BytesIO(data.tobytes())) as image:
        if image.width * image.height > max(size[0] * size[1], _ANY_SIZE_PIXELS):
            raise OtherSizeError(OTHER_SIZE)
        mask = np.array(image.convert("L") if image.mode != "L" else image)
    if mask.shape != size:
        raise OtherSizeError(OTHER_SIZE)
    return mask


def crop_and_resize_mask(mask: U8, view: View, row: int, fill: int, mode: PaddingMode = "constant") -> U8:
    """uint8 (height, width) of the output: cropped, resized to the nearest pixel and flipped as image `row` is.

    An output pixel takes the class at its centre, ⌊(pixel + 0.5) · region / size⌋, as DALI's and torch's nearest-exact
    do. fill: the class outside of the image. mode: what is there, in the words of `RandomCrop`.
    """
    crops = view.crops
    source = []
    for axis in range(2):
        start, low = int(crops.start[row, axis]), float(crops.roi_start[row, axis])
        region = float(crops.roi_end[row, axis]) - low
        # Multiplied first: where a centre lies between two pixels, a rounded step would choose either.
        at = np.floor(low + (np.arange(view.size[axis]) + 0.5) * region / view.size[axis]).astype(np.int64)
        source.append(source_of(start + np.clip(at, 0, crops.shape[row, axis] - 1), mask.shape[axis], mode))
    y, x = source
    result: U8 = mask[y[:, None], x]
    result[y < 0] = fill
    result[:, x < 0] = fill
    if crops.mirror[row]:
        result = result[:, ::-1]
    if crops.mirror_y[row]:
        result = result[::-1]
    return result
