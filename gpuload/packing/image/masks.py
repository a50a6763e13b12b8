"""One mask: a class number (0..255) for each pixel, stored as a gray 8-bit PNG that lies on its image as before."""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from gpuload.errors import DecodeError
from gpuload.headers import png
from gpuload.packing.image.pixels import move
from gpuload.packing.image.placement import Placement

_GRAY = 0  # PNG colour type


def store_mask(data: bytes | npt.NDArray[np.generic], placement: Placement) -> bytes:
    """The mask as PNG, resized with its image, by nearest pixel; a plain gray PNG is kept untouched.

    Class numbers are the indices of a palette (as in Pascal VOC), or the values of 8 or 16 bits of gray up to 255.

    Raises:
        DecodeError: it does not decode, is of another size than its image, or has colours or numbers above 255.
    """
    plain = False
    try:
        if isinstance(data, np.ndarray):
            numbers = data[..., 0] if data.ndim == 3 and data.shape[-1] == 1 else data
        else:
            plain = data.startswith(png.START) and data[25] == _GRAY and png.read_header(data).plain
            image = Image.open(io.BytesIO(data))
            if image.mode not in ("L", "P", "1", "I", "I;16", "I;16B"):
                raise DecodeError(f"the mask has colours (mode {image.mode}), expected a class number for each pixel")
            numbers = np.asarray(image)
    except DecodeError:
        raise
    except Exception as error:
        raise DecodeError(f"the mask does not decode: {str(error).split(' <')[0] or type(error).__name__}") from None
    if numbers.ndim != 2 or numbers.shape[::-1] != placement.source:
        shape = " x ".join(map(str, numbers.shape[1::-1]))
        raise DecodeError(f"the mask is {shape} pixels, its image {placement.source[0]} x {placement.source[1]}")
    if numbers.size and (numbers.min() < 0 or numbers.max() > 255):
        raise DecodeError(f"the mask has class number {int(numbers.max())}; a mask holds 0 to 255")
    if plain and not placement.changes and isinstance(data, bytes):
        return data
    moved = move(Image.fromarray(numbers.astype(np.uint8)), placement, Image.Resampling.NEAREST)
    file = io.BytesIO()
    moved.save(file, "PNG")
    return file.getvalue()
