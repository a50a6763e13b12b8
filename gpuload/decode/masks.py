"""Masks: the class of each pixel of an image, as gray PNG."""

import io
import struct
from collections.abc import Sequence

import numpy as np
from PIL import Image

from gpuload.augment import View
from gpuload.read.batch import Batch
from gpuload.types import U8, HeightWidth

OTHER_SIZE = "it is not of its image's size"

# The first chunk of a PNG, after its signature and length: its type, width and height (W3C PNG, 11.2.1).
_HEADER, _HEADER_BYTES = struct.Struct(">4sII"), slice(12, 24)


def find_other_sizes(batch: Batch, masks: Sequence[U8]) -> list[int]:
    """Rows of the batch whose mask is not of its image's size. Only PNG headers are read."""
    rows = []
    sizes = zip(batch.encoded.widths.tolist(), batch.encoded.heights.tolist(), strict=True)
    for row, (data, size) in enumerate(zip(masks, sizes, strict=True)):
        header = data[_HEADER_BYTES].tobytes()
        if header.startswith(b"IHDR") and _HEADER.unpack(header)[1:] != size:
            rows.append(row)
    return rows


class OtherSizeError(ValueError):
    """A mask is not of its image's size; the message is `OTHER_SIZE`."""


_ANY_SIZE_PIXELS = 1 << 20  # decoded whatever the image's size, so that damage is told before a wrong size


def decode_mask(data: U8, size: HeightWidth) -> U8:
    """uint8 (height, width). size: of its image.

    Raises:
        OtherSizeError: it is of another size; a large one is not decoded then.
        Exception: Pillow does not decode it.
    """
    with Image.open(io.BytesIO(data.tobytes())) as image:
        if image.width * image.height > max(size[0] * size[1], _ANY_SIZE_PIXELS):
            raise OtherSizeError(OTHER_SIZE)
        mask = np.array(image.convert("L") if image.mode != "L" else image)
    if mask.shape != size:
        raise OtherSizeError(OTHER_SIZE)
    return mask


def crop_and_resize_mask(mask: U8, view: View, row: int, fill: int) -> U8:
    """uint8 (height, width) of the output: cropped, resized to the nearest pixel and flipped as image `row` is.

    An output pixel takes the class at its centre, ⌊(pixel + 0.5) · region / size⌋, as DALI's and torch's nearest-exact
    do. fill: the class outside of the image.
    """
    crops = view.crops
    source = []
    for axis in range(2):
        start, low = int(crops.start[row, axis]), float(crops.roi_start[row, axis])
        region = float(crops.roi_end[row, axis]) - low
        # Multiplied first: where a centre lies between two pixels, a rounded step would choose either.
        at = np.floor(low + (np.arange(view.size[axis]) + 0.5) * region / view.size[axis]).astype(np.int64)
        source.append(start + np.clip(at, 0, crops.shape[row, axis] - 1))
    y, x = source
    height, width = mask.shape
    result: U8 = mask[np.clip(y, 0, height - 1)[:, None], np.clip(x, 0, width - 1)]
    result[(y < 0) | (y >= height)] = fill
    result[:, (x < 0) | (x >= width)] = fill
    if crops.mirror[row]:
        result = result[:, ::-1]
    if crops.mirror_y[row]:
        result = result[::-1]
    return result
