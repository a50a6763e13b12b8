"""Images and masks decoded by Pillow, for both decoders: images that they do not decode themselves, upright and in the
mode of the set, and masks, which hold the class of each pixel as gray PNG."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image

from gpuload.augment import Form, View
from gpuload.augment.crops import source_of
from gpuload.errors import DecodeError
from gpuload.fields.images import GRAY, RGB, Pixels, refuse_other_numbers
from gpuload.formats import Conversion, converted, open_file
from gpuload.headers import png
from gpuload.pictures import MAX_PIXELS, reason_of
from gpuload.types import I64, U8, Array, HeightWidth

# Decoded regardless of the image's size, so that damage is reported before a wrong size.
_MASK_PIXELS = 1 << 20


class UndecodableError(Exception):
    """No decoder decodes these bytes; the message is the reason, in one line that is the same for the same file."""


def refuse_larger(found: HeightWidth, told: HeightWidth, most: int = 0) -> None:
    """Raises UndecodableError for many more pixels than the index says, before memory for them is allocated.

    Args:
        found: (height, width) by the file's header.
        told: (height, width) by the index.
        most: Pixels that are accepted whatever the index says; by default MAX_PIXELS.
    """
    if found[0] * found[1] > max(told[0] * told[1], most or MAX_PIXELS):
        raise UndecodableError(
            f"{found[1]} × {found[0]} pixels, and the index says {told[1]} × {told[0]}"
        )


def refuse_other_size(found: HeightWidth, told: HeightWidth) -> None:
    """Raises UndecodableError for an image that has not the size that the index says: crops were drawn for that."""
    if found != told:
        raise UndecodableError(png.OTHER_SIZE)


def decode_pixels(data: U8, size: HeightWidth, pixels: Pixels = RGB) -> Array:
    """The pixels of an encoded image: (height, width, channels), upright, C order.

    Args:
        data: The bytes of the file.
        size: (height, width) as the index says.
        pixels: What the set stores: mode and dtype.

    Raises:
        UndecodableError: it is damaged, of another size than the index says, or not of the mode.
    """
    conversion = Conversion(pixels.channels, pixels.dtype, pixels.mode, codecs=False)
    with _refusing():
        content = data.tobytes()
        _refuse_damaged_png(content)
        opened = open_file(content, conversion)
        refuse_larger(opened.size[::-1], size)
        image = converted(opened.load(), conversion)
        if isinstance(image, Image.Image) and pixels in (RGB, GRAY):
            image = image if image.mode == pixels.mode else image.convert(pixels.mode)
        values = np.array(image)
    upright = values.shape[:2]
    if upright != size and upright == size[::-1] and opened.size == (size[1], size[0]):
        raise UndecodableError(
            f"it is turned to {upright[1]} × {upright[0]} pixels, and the index says {size[1]} × {size[0]}: "
            "index its shards again"
        )
    refuse_other_size(upright, size)
    return values.reshape(*upright, pixels.channels)


def decode_mask(data: U8, size: HeightWidth) -> U8:
    """The class numbers of an encoded mask: uint8 (height, width).

    Args:
        data: The bytes of the file.
        size: (height, width) of its image.

    Raises:
        UndecodableError: it is of another size; a large one is not decoded then. Or it is damaged, or is not gray of 8
            bits.
    """
    with _refusing():
        content = data.tobytes()
        _refuse_damaged_png(content)
        with Image.open(io.BytesIO(content)) as image:
            refuse_larger(image.size[::-1], size, _MASK_PIXELS)
            mask = np.array(image)
            if mask.shape[:2] != size:
                raise UndecodableError("it is not of its image's size")
            refuse_other_numbers(content, image)
    return mask


@contextmanager
def _refusing() -> Iterator[None]:
    """All errors within become UndecodableError."""
    try:
        yield
    except UndecodableError:
        raise
    except DecodeError as error:
        raise UndecodableError(f"it {error}") from None
    except Exception as error:  # Pillow's decoders raise many types
        raise UndecodableError(reason_of(error)) from None


def _refuse_damaged_png(content: bytes) -> None:
    """If the end of a PNG is damaged, Pillow silently shows the rest black."""
    if (
        content.startswith(png.START)
        and (fault := png.find_fault(memoryview(content))) is not None
    ):
        raise UndecodableError(fault)


def crop_and_resize_mask(mask: U8, view: View, row: int, fill: int, form: Form) -> U8:
    """A mask cropped, resized to the nearest pixel and flipped as its image is: uint8 (height, width) of the batch.

    An output pixel takes the class at its centre, ⌊(pixel + 0.5) · region / size⌋, as DALI's and torch's nearest-exact
    do.

    Args:
        mask: uint8 (height, width), as stored.
        view: Of the images of a batch.
        row: The number of its image in the batch.
        fill: The class outside the image.
        form: Of the view.
    """
    y = source_of(_nearest(view, row, 0, form), mask.shape[0], form.padding_mode)
    x = source_of(_nearest(view, row, 1, form), mask.shape[1], form.padding_mode)
    resized: U8 = mask[y[:, None], x]
    resized[y < 0] = fill
    resized[:, x < 0] = fill
    if view.crops.mirror[row]:
        resized = resized[:, ::-1]
    if view.crops.mirror_y[row]:
        resized = resized[::-1]
    height, width = view.own_size(row)
    if (height, width) == view.size:
        return resized
    padded = np.full(view.size, fill, np.uint8)
    padded[:height, :width] = resized
    return padded


def _nearest(view: View, row: int, axis: int, form: Form) -> I64:
    """int64: for each output pixel along an axis, the nearest pixel of the picture, which may lie outside of it."""
    crops = view.crops
    start = int(crops.start[row, axis])
    low = float(crops.roi_start[row, axis])
    region = float(crops.roi_end[row, axis]) - low
    size = view.own_size(row)[axis]
    # Multiplied first: if a centre lies between two pixels, a rounded step might choose either.
    centers = low + (np.arange(size) + 0.5) * region / size
    nearest = np.floor(centers).astype(np.int64)
    if not form.places:
        nearest = np.clip(nearest, 0, crops.shape[row, axis] - 1)
    return start + nearest
