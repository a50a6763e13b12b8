"""Pictures of samples: boxes, masks and keypoints drawn on images, any pixels as RGB, thumbnails and data URIs for a
page, and contact sheets.

Works on Pillow's images and NumPy arrays; knows neither data sets nor decoders.
"""

import base64
import io
import math
import re
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError

from gpuload.formats import Conversion, converted, open_file
from gpuload.headers.jpeg import LOSSLESS_FRAME
from gpuload.types import F32, U8, Array, ClassNames

MAX_PIXELS = 178_956_970  # Pillow's: 0.5 GB as RGB
EIGHT_BIT_MODES = ("L", "RGB", "RGBA")  # of Pillow

# Fifteen colours that differ from one another and from most photos; class number n has colour n modulo 15.
_COLORS = "E6554B 4287F5 48BE6E F5AA32 A55FDC 32BEC8 F078B9 96AF3C"
_COLORS += " 6E6EEB E18250 3CA596 CD4682 8296BE C8AA5A 64C846"
_MASK_SHARE = 0.45  # of a mask's colour in what it covers
_LABEL_PX = 11
_VISIBLE = 2  # a keypoint's visibility, as in COCO

# Of a contact sheet.
_GAP_PX = 8
_FONT_PX = 13
_PAPER = (255, 255, 255)
_INK = (40, 40, 45)
_MOST_COLUMNS = 8
_WIDTH_PX = 1_400


def color_of(number: int) -> tuple[int, int, int]:
    """The colour of a class number."""
    red, green, blue = bytes.fromhex(_COLORS)[number % 15 * 3 :][:3]
    return red, green, blue


def name_of(number: int, names: ClassNames) -> str:
    """The name of a class number, or "class 3" where there is none."""
    return (
        names[number]
        if names is not None and 0 <= number < len(names)
        else f"class {number}"
    )


def shorten(text: str, width: float, font: Any) -> str:
    """A text in one line, truncated with an ellipsis to this many pixels; unprintable characters become spaces."""
    shown = "".join(char if char.isprintable() else " " for char in text[:400])
    if font.getlength(shown) <= width:
        return shown
    while shown and font.getlength(f"{shown}…") > width:
        shown = shown[: max(0, min(len(shown) - 1, int(len(shown) * 0.9)))]
    return f"{shown}…"


@cache
def font_of(size_px: int) -> Any:
    """Pillow's own font, which needs no files of the system."""
    return ImageFont.load_default(size_px)


def draw_mask(image: Image.Image, mask: npt.NDArray[np.uint8]) -> Image.Image:
    """The image with each class of a mask in its colour; class 0, mostly the background, stays as it is.

    Args:
        image: RGB.
        mask: uint8 (height, width), of the image's size.
    """
    pixels = np.asarray(image.convert("RGB"), np.float32)
    colors = np.array([color_of(number) for number in range(256)], np.float32)[mask]
    share = np.where(mask > 0, _MASK_SHARE, 0).astype(np.float32)[..., None]
    return Image.fromarray(
        np.rint(pixels * (1 - share) + colors * share).astype(np.uint8)
    )


def draw_boxes(
    image: Image.Image, boxes: npt.ArrayLike, numbers: Sequence[int], names: ClassNames
) -> None:
    """Draws boxes (M, 4), as x0, y0, x1, y1 in pixels of the image, each with the name of its class."""
    draw = ImageDraw.Draw(image)
    font = font_of(_LABEL_PX)
    line = max(1, round(min(image.size) / 110))
    for (x0, y0, x1, y1), number in zip(
        np.asarray(boxes, float).reshape(-1, 4).tolist(), numbers, strict=True
    ):
        color = color_of(number)
        edge = (x0, y0, max(x0, x1 - 1), max(y0, y1 - 1))
        draw.rectangle(edge, outline=color, width=line)
        name = shorten(name_of(number, names), max(16.0, image.width - x0 - 4), font)
        label_top = y0 - _LABEL_PX - 3 if y0 > _LABEL_PX else y0
        _draw_label(draw, (max(0.0, x0), max(0.0, label_top)), name, color)


def _draw_label(
    draw: ImageDraw.ImageDraw,
    corner: tuple[float, float],
    text: str,
    color: tuple[int, int, int],
) -> None:
    """Draws a text on a rectangle of a colour.

    Args:
        corner: x and y of its upper left corner, in pixels.
    """
    x, y = corner
    font = font_of(_LABEL_PX)
    draw.rectangle((x, y, x + font.getlength(text) + 4, y + _LABEL_PX + 3), fill=color)
    ink = "white" if sum(color) < 450 else "black"
    draw.text((x + 2, y), text, fill=ink, font=font)


def draw_keypoints(image: Image.Image, instances: npt.ArrayLike) -> None:
    """Draws instances of points (M, K, 3), as x, y and visibility in pixels of the image.

    A point of visibility 0 is left out; one that is labelled but hidden is a ring.
    """
    draw = ImageDraw.Draw(image)
    radius = max(2.0, min(image.size) / 70)
    for number, points in enumerate(np.asarray(instances, float)):
        for x, y, visibility in points.tolist():
            if visibility == 0:
                continue
            spot = (x - radius, y - radius, x + radius, y + radius)
            color = color_of(number)
            if visibility >= _VISIBLE:
                draw.ellipse(spot, fill=color, outline="white")
            else:
                draw.ellipse(spot, outline=color, width=2)


_STRETCHED = (2, 98)  # percentiles of an image
STRETCH = "of each image, its 2nd percentile is black and its 98th is white"


def as_rgb(pixels: Any) -> U8:
    """uint8 (..., height, width, 3), of uint8, uint16 or floats (..., height, width, channels).

    One or two channels become gray, by the first; of more the first three are shown. 16 bits and floats seldom use all
    of their range: they are stretched, as `STRETCH` says.
    """
    shown = (
        pixels[..., :3]
        if pixels.shape[-1] > 2
        else np.repeat(pixels[..., :1], 3, axis=-1)
    )
    if shown.dtype != np.uint8:
        shown = np.rint(255 * _stretched_between(shown)).astype(np.uint8)
    return np.ascontiguousarray(shown)


def _stretched_between(images: Array) -> F32:
    """(..., height, width, channels) in 0..1, as `STRETCH` says. What is no number is black."""
    levels = np.asarray(images, np.float32)
    known = np.where(np.isfinite(levels), levels, np.nan)
    axes = (-3, -2, -1)
    dark, bright = _STRETCHED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of an image of no number
        low = np.nanpercentile(known, dark, axes, keepdims=True, method="lower")
        high = np.nanpercentile(known, bright, axes, keepdims=True, method="higher")
    shares: F32 = (known - low) / np.maximum(high - low, 1e-6)
    return np.nan_to_num(np.clip(shares, 0, 1))


def stretched(images: Array) -> Array:
    """float32 (..., height, width, channels) in 0..1: of each image the smallest value is 0 and the largest 1."""
    levels = np.nan_to_num(images.astype(np.float32), posinf=0, neginf=0)
    low = np.min(levels, axis=(-3, -2, -1), keepdims=True)
    high = np.max(levels, axis=(-3, -2, -1), keepdims=True)
    return (levels - low) / np.maximum(high - low, 1e-6)


def as_picture(values: Any) -> Image.Image:
    """A picture of Pillow of values (height, width, channels), stretched from the smallest to the largest if they are
    not of 8 bits; of two channels, such as of a flow, the length of the vector. Pictures stay what they are."""
    if isinstance(values, Image.Image):
        return values
    array = np.asarray(values)
    if array.shape[-1] == 2:
        array = np.sqrt(np.square(array.astype(np.float32)).sum(axis=-1, keepdims=True))
    if array.dtype != np.uint8:
        array = stretched(array)
        array = np.rint(255 * array).astype(np.uint8)
    return Image.fromarray(as_rgb(array))


def decode_image(
    content: bytes, conversion: Conversion, most_px: int | None = None
) -> Image.Image | Array:
    """An encoded image in the mode of its set, upright: a picture of Pillow where the mode is one of its modes of 8
    bits, else an array (height, width, channels).

    Args:
        content: The bytes of the file.
        conversion: To the mode of the set.
        most_px: A JPEG may be decoded smaller, but its sides not below this; None: it is not.

    Raises:
        Exception: of many kinds, by Pillow.
    """
    with Image.open(io.BytesIO(content)) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} × {image.height} pixels")
        is_plain = conversion.mode in ("RGB", "L")
        if image.format == "JPEG" and is_plain:
            if most_px is not None and LOSSLESS_FRAME not in content:
                image.draft("RGB", (most_px, most_px))
            upright = ImageOps.exif_transpose(image)
            return upright.convert("RGB").convert(conversion.mode)
    values = converted(open_file(content, conversion).load(), conversion)
    if conversion.mode in EIGHT_BIT_MODES:
        assert isinstance(values, Image.Image)
        return values.convert(conversion.mode)
    pixels = np.array(values)
    return pixels.reshape(*pixels.shape[:2], conversion.channels)


def for_eyes(values: Image.Image | Array) -> Image.Image:
    """An image as `decode_image` gives it, or values (height, width, channels), as people look at it: RGB, as `as_rgb`
    shows them."""
    if isinstance(values, Image.Image):
        return values.convert("RGB")
    return Image.fromarray(as_rgb(values))


def reason_of(error: Exception) -> str:
    """Why Pillow does not read an image; without memory addresses, so that the same image gives the same reason."""
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image in a format that Pillow reads"
    reason = re.sub(r" ?<[^>]*0x[0-9a-f]+>", "", " ".join(str(error).split()))
    return reason or type(error).__name__


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


class Cell(NamedTuple):
    """A picture and what is written under it."""

    picture: Image.Image
    caption: str


def side_by_side(pictures: Sequence[Image.Image]) -> Image.Image:
    """All pictures in rows of a square, RGB; of none a small white picture."""
    columns = math.ceil(math.sqrt(len(pictures))) or 1
    rows = -(-len(pictures) // columns) or 1
    width = max((picture.width for picture in pictures), default=_GAP_PX)
    height = max((picture.height for picture in pictures), default=_GAP_PX)
    sheet = Image.new("RGB", (columns * width, rows * height), _PAPER)
    for number, picture in enumerate(pictures):
        row, column = divmod(number, columns)
        sheet.paste(picture, (column * width, row * height))
    return sheet


def draw_sheet(cells: Sequence[Cell]) -> Image.Image:
    """All pictures in rows, RGB: about as wide as high, and at most 1,400 pixels wide. A sheet of nothing is a small
    white picture."""
    if not cells:
        return Image.new("RGB", (2 * _GAP_PX, 2 * _GAP_PX), _PAPER)
    width = max(cell.picture.width for cell in cells)
    height = max(cell.picture.height for cell in cells)
    columns = _count_columns(len(cells), width, height)
    rows = -(-len(cells) // columns)
    column_px = width + _GAP_PX
    row_px = height + _FONT_PX + 2 * _GAP_PX
    sheet = Image.new(
        "RGB", (columns * column_px + _GAP_PX, rows * row_px + _GAP_PX), _PAPER
    )
    for number, cell in enumerate(cells):
        row, column = divmod(number, columns)
        corner = (_GAP_PX + column * column_px, _GAP_PX + row * row_px)
        _draw_cell(sheet, cell, corner, (width, height))
    return sheet


def _count_columns(cells: int, width: int, height: int) -> int:
    """The columns of a sheet of so many cells, whose largest picture has this width and height."""
    fitting = max(1, (_WIDTH_PX - _GAP_PX) // (width + _GAP_PX))
    square = max(1, round((cells * height / width) ** 0.5 + 0.49))
    return min(_MOST_COLUMNS, fitting, square, cells)


def _draw_cell(
    sheet: Image.Image, cell: Cell, corner: tuple[int, int], size: tuple[int, int]
) -> None:
    """Draws a picture, in the middle above its caption.

    Args:
        corner: x and y of its place, in pixels.
        size: Width and height of its place, in pixels.
    """
    x, y = corner
    width, height = size
    picture = cell.picture
    beside = (width - picture.width) // 2
    sheet.paste(picture, (x + beside, y + height - picture.height))
    font = font_of(_FONT_PX)
    ImageDraw.Draw(sheet).text(
        (x + width / 2, y + height + 2),
        shorten(cell.caption, width, font),
        fill=_INK,
        font=font,
        anchor="ma",
    )
