"""Images as a person looks at them: RGB of any encoding, number of channels and type, small, and as text for a page."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from gpuload.headers.encodings import MAX_PIXELS
from gpuload.types import U8, Array


def as_rgb(pixels: Any) -> U8:
    """uint8 (..., height, width, 3), of uint8, uint16 or floats (..., height, width, channels).

    One or two channels become gray, by the first; of more the first three are shown. 16 bits lose the lower half.
    Floats have no range of their own: of each image the smallest value becomes black and the largest white.
    """
    shown = pixels[..., :3] if pixels.shape[-1] > 2 else np.repeat(pixels[..., :1], 3, axis=-1)
    if shown.dtype == np.uint16:
        shown = (shown >> 8).astype(np.uint8)
    elif shown.dtype != np.uint8:
        shown = np.rint(255 * stretched(shown)).astype(np.uint8)
    contiguous: U8 = np.ascontiguousarray(shown)
    return contiguous


def stretched(images: Array) -> Array:
    """float32 (..., height, width, channels) in 0..1: of each image the smallest value is 0 and the largest 1."""
    levels = np.nan_to_num(images.astype(np.float32), posinf=0, neginf=0)
    low, high = (reduce(levels, axis=(-3, -2, -1), keepdims=True) for reduce in (np.min, np.max))
    scaled: Array = (levels - low) / np.maximum(high - low, 1e-6)
    return scaled


def decode_image(content: bytes, most_px: int | None = None) -> Image.Image:
    """An encoded image, RGB, upright. most_px: a JPEG may be decoded smaller, but its sides not below this.

    Raises:
        Exception: of many kinds, by Pillow.
    """
    with Image.open(io.BytesIO(content)) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} × {image.height} pixels")
        if most_px is not None:
            image.draft("RGB", (most_px, most_px))
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
            return Image.fromarray(as_rgb(np.asarray(upright).astype(np.uint16)[..., None]))
        return upright.convert("RGB")


def thumbnail(image: Image.Image, width: int, height: int) -> Image.Image:
    """A copy that fits into so many pixels, RGB; a smaller image stays as it is."""
    copy = image.convert("RGB")
    copy.thumbnail((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return copy


def jpeg_uri(image: Image.Image, quality: int = 72) -> str:
    """A photo, as `data:image/jpeg;base64,…`."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=quality, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
