"""Images and masks decoded by Pillow, for both decoders: images that they do not decode themselves, upright and in the
mode of the set, and masks, which hold the class of each pixel as gray PNG."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from gpuload.augment import Form, View
from gpuload.augment.crops import source_of
from gpuload.fields.images import GRAY, RGB, Pixels
from gpuload.headers import png
from gpuload.pictures import MAX_PIXELS, reason_of
from gpuload.types import U8, Array, HeightWidth

_ALPHA = Pixels(4)
_MASK_PIXELS = 1 << 20  # decoded regardless of the image's size, so that damage is reported before a wrong size


class UndecodableError(Exception):
    """No decoder decodes these bytes; the message is the reason, in one line that is the same for the same file."""


def refuse_larger(found: HeightWidth, told: HeightWidth, most: int = 0) -> None:
    """Raises UndecodableError for many more pixels than the index says, before memory for them is allocated. most: are
    accepted whatever the index says; by default MAX_PIXELS."""
    if found[0] * found[1] > max(told[0] * told[1], most or MAX_PIXELS):
        raise UndecodableError(f"{found[1]} × {found[0]} pixels, and the index says {told[1]} × {told[0]}")


def refuse_other_size(found: HeightWidth, told: HeightWidth) -> None:
    """Raises UndecodableError for an image that has not the size that the index says: crops were drawn for that."""
    if found != told:
        raise UndecodableError(png.OTHER_SIZE)


def decode_pixels(data: U8, size: HeightWidth, pixels: Pixels = RGB) -> Array:
    """(height, width, channels), upright, C order. size: as the index says.

    Raises:
        UndecodableError: it is damaged, of another size than the index says, or not of the mode.
    """
    with _opened(data, size) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.size != image.size and image.size == size[::-1]:
            raise UndecodableError(
                f"it is turned to {upright.width} × {upright.height} pixels, and the index says {size[1]} × {size[0]}: "
                "index its shards again"
            )
        refuse_other_size(upright.size[::-1], size)
        return _in_mode(upright, pixels)


def decode_mask(data: U8, size: HeightWidth) -> U8:
    """uint8 (height, width). size: of its image.

    Raises:
        UndecodableError: it is of another size; a large one is not decoded then. Or it is damaged.
    """
    with _opened(data, size, _MASK_PIXELS) as image:
        mask = np.array(image.convert("L") if image.mode != "L" else image)
    if mask.shape != size:
        raise UndecodableError("it is not of its image's size")
    return mask


@contextmanager
def _opened(data: U8, size: HeightWidth, most: int = 0) -> Iterator[Image.Image]:
    """The decoded image in Pillow's own mode; all errors within become UndecodableError. most: as for
    `refuse_larger`."""
    try:
        # If the end of a PNG is damaged, Pillow silently shows the rest black.
        if data[: len(png.START)].tobytes() == png.START and (fault := png.find_fault(data.data)) is not None:
            raise UndecodableError(fault)
        with Image.open(io.BytesIO(data.tobytes())) as image:
            refuse_larger(image.size[::-1], size, most)
            image.load()
            yield image
    except UndecodableError:
        raise
    except Exception as error:  # Pillow's decoders raise many types
        raise UndecodableError(reason_of(error)) from None


def _in_mode(image: Any, pixels: Pixels) -> Array:
    if pixels in (RGB, GRAY):
        found = np.array(image if image.mode == pixels.mode else image.convert(pixels.mode))
    elif pixels == _ALPHA and image.mode == "RGBA":
        found = np.array(image)
    elif pixels.dtype == "uint16" and image.mode.startswith("I;16"):
        found = np.asarray(image).astype(np.uint16)
    else:
        raise ValueError(f"it is of mode {image.mode}, and the set of mode {pixels.mode}")
    return found.reshape(image.height, image.width, pixels.channels)


def crop_and_resize_mask(mask: U8, view: View, row: int, fill: int, form: Form) -> U8:
    """uint8 (height, width) of the batch: cropped, resized to the nearest pixel and flipped as image `row` is.

    An output pixel takes the class at its centre, ⌊(pixel + 0.5) · region / size⌋, as DALI's and torch's nearest-exact
    do. fill: the class outside the image. form: of the view.
    """
    crops, own = view.crops, view.own_size(row)
    source = []
    for axis in range(2):
        start, low = int(crops.start[row, axis]), float(crops.roi_start[row, axis])
        region = float(crops.roi_end[row, axis]) - low
        # Multiplied first: if a centre lies between two pixels, a rounded step might choose either.
        at = np.floor(low + (np.arange(own[axis]) + 0.5) * region / own[axis]).astype(np.int64)
        within = at if form.places else np.clip(at, 0, crops.shape[row, axis] - 1)
        source.append(source_of(start + within, mask.shape[axis], form.padding_mode))
    y, x = source
    result: U8 = mask[y[:, None], x]
    result[y < 0] = fill
    result[:, x < 0] = fill
    if crops.mirror[row]:
        result = result[:, ::-1]
    if crops.mirror_y[row]:
        result = result[::-1]
    if own == view.size:
        return result
    padded = np.full(view.size, fill, np.uint8)
    padded[: own[0], : own[1]] = result
    return padded
