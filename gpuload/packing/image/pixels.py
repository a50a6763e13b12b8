"""Converts pixels with Pillow: any image to upright RGB or gray, arrays to images; tells gray images."""

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms, ImageOps

from gpuload.errors import DecodeError

SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N")


def to_upright_rgb_or_gray(image: Image.Image) -> Image.Image:
    """The first frame, upright, in mode "RGB" or "L": transparency over white, 16 bits scaled to 8.

    Raises:
        DecodeError: its pixels are numbers of unknown range (32 bits or floating point).
    """
    sixteen_bits = image.mode in SIXTEEN_BIT_MODES or (image.mode == "I" and image.format in ("PNG", "PPM"))
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode in ("RGB", "L"):
        if "transparency" not in image.info:
            return image
    elif sixteen_bits:
        return Image.fromarray(((np.asarray(image).astype(np.uint32) * 255 + 32_767) // 65_535).astype(np.uint8))
    elif image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "floating-point numbers"
        raise DecodeError(f"its pixels are {kind} of unknown range; convert it to 8 or 16 bits")
    elif image.mode == "1":
        return image.convert("L")
    elif image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        return ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB") or image
    if image.has_transparency_data:
        gray = image.mode in ("LA", "La", "L")
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
        return image.convert("L" if gray else "RGB")
    return image.convert("RGB")


def from_array(pixels: npt.NDArray[np.generic]) -> Image.Image:
    """An image from uint8 (H, W), (H, W, 1) or (H, W, 3) RGB.

    Raises:
        DecodeError: the array has another dtype or shape.
    """
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)) or not pixels.size:
        raise DecodeError(
            f"an image array must be uint8 (height, width) or (height, width, 3); found {pixels.dtype} {pixels.shape}"
        )
    return Image.fromarray(np.ascontiguousarray(pixels))


def is_gray(image: Image.Image) -> bool:
    """Whether an image has no colour: reduced to about 64x64 pixels, its channels differ by at most 8 of 255."""
    if image.mode == "L":
        return True
    small = image.reduce((max(1, image.width // 64), max(1, image.height // 64))).convert("RGB")
    return int(np.ptp(np.asarray(small), axis=2).max()) <= 8
