"""Pictures as a page and a contact sheet show them: any pixels as RGB, thumbnails, data URIs, and images in a grid."""

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from gpuload.headers.encodings import MAX_PIXELS
from gpuload.pictures.marks import font_of, shorten
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


_GAP_PX, _FONT_PX = 8, 13
_PAPER, _INK = (255, 255, 255), (40, 40, 45)
_MOST_COLUMNS, _WIDTH_PX = 8, 1_400


class Cell(NamedTuple):
    """A picture and what is written under it."""

    picture: Image.Image
    caption: str


def draw_sheet(cells: Sequence[Cell], columns: int | None = None) -> Image.Image:
    """All pictures in rows, RGB; a sheet of nothing is a small white picture.

    columns: pictures in a row; by default as many as make the sheet about as wide as high, and at most 1,400 pixels.
    """
    if not cells:
        return Image.new("RGB", (2 * _GAP_PX, 2 * _GAP_PX), _PAPER)
    width = max(cell.picture.width for cell in cells)
    height = max(cell.picture.height for cell in cells)
    if columns is None:
        fitting = max(1, (_WIDTH_PX - _GAP_PX) // (width + _GAP_PX))
        columns = min(_MOST_COLUMNS, fitting, max(1, round((len(cells) * height / width) ** 0.5 + 0.49)))
    columns = min(columns, len(cells))
    cell_width, cell_height = width + _GAP_PX, height + _FONT_PX + 2 * _GAP_PX
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * cell_width + _GAP_PX, rows * cell_height + _GAP_PX), _PAPER)
    draw, font = ImageDraw.Draw(sheet), font_of(_FONT_PX)
    for number, (picture, caption) in enumerate(cells):
        left = _GAP_PX + number % columns * cell_width + (width - picture.width) // 2
        top = _GAP_PX + number // columns * cell_height
        sheet.paste(picture, (left, top + height - picture.height))
        text = shorten(caption, width, font)
        middle = _GAP_PX + number % columns * cell_width + width / 2
        draw.text((middle, top + height + 2), text, fill=_INK, font=font, anchor="ma")
    return sheet
