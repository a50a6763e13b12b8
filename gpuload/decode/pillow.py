"""Images decoded by Pillow, for either decoder: what they do not decode themselves, upright, in the mode of the set."""

import io
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from gpuload.decode.masks import reason_of, refuse_damaged_png
from gpuload.fields.pixels import GRAY, RGB, Pixels
from gpuload.headers import encodings
from gpuload.headers.limits import MAX_PIXELS
from gpuload.types import U8, Array, HeightWidth

_ALPHA = Pixels(4)


class UndecodableError(Exception):
    """No decoder decodes these bytes; the message is the reason."""


def refuse_larger(found: HeightWidth, told: HeightWidth) -> None:
    """Raises UndecodableError where there are many more pixels than the index says, before there is memory for them."""
    if found[0] * found[1] > max(told[0] * told[1], MAX_PIXELS):
        raise UndecodableError(f"{found[1]} × {found[0]} pixels, and the index says {told[1]} × {told[0]}")


def decode_pixels(data: U8, size: HeightWidth, pixels: Pixels = RGB) -> Array:
    """(height, width, channels), upright, C order. size: as the index says.

    Raises:
        UndecodableError: it is damaged, has many more pixels than the index says, or is not of the mode.
    """
    try:
        return _in_mode(decode_upright(data, size), pixels)
    except UndecodableError:
        raise
    except Exception as error:
        raise UndecodableError(reason_of(error)) from None


def decode_upright(data: U8, size: HeightWidth) -> Image.Image:
    """The image in Pillow's own mode. size: as the index says.

    Raises:
        UndecodableError: it is damaged, or has many more pixels than the index says.
    """
    try:
        refuse_damaged_png(data)
        if (other := encodings.read_header(data.data)) is not None:
            if other[1].fault:
                raise OSError(other[1].fault)
            refuse_larger((other[1].height, other[1].width), size)
        with Image.open(io.BytesIO(data.tobytes())) as image:
            refuse_larger(image.size[::-1], size)
            image.load()
            return ImageOps.exif_transpose(image)
    except UndecodableError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds
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
