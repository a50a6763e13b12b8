"""Boxes, masks and keypoints drawn on an image."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from gpuload.types import ClassNames

# Fifteen colours that differ from one another and from most photos; class number n has colour n modulo 15.
_COLORS = (
    (230, 85, 75),
    (66, 135, 245),
    (72, 190, 110),
    (245, 170, 50),
    (165, 95, 220),
    (50, 190, 200),
    (240, 120, 185),
    (150, 175, 60),
    (110, 110, 235),
    (225, 130, 80),
    (60, 165, 150),
    (205, 70, 130),
    (130, 150, 190),
    (200, 170, 90),
    (100, 200, 70),
)
_MASK_SHARE = 0.45  # of a mask's colour in what it covers
_LABEL_PX = 11
_VISIBLE = 2  # a keypoint's visibility, as in COCO


def color_of(number: int) -> tuple[int, int, int]:
    """The colour of a class number."""
    return _COLORS[number % len(_COLORS)]


def name_of(number: int, names: ClassNames) -> str:
    """The name of a class number, or "class 3" where there is none."""
    return names[number] if names is not None and 0 <= number < len(names) else f"class {number}"


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

    mask: uint8 (height, width), of the image's size.
    """
    pixels = np.asarray(image.convert("RGB"), np.float32)
    colors = np.array([color_of(number) for number in range(256)], np.float32)[mask]
    share = np.where(mask > 0, _MASK_SHARE, 0).astype(np.float32)[..., None]
    return Image.fromarray(np.rint(pixels * (1 - share) + colors * share).astype(np.uint8))


def draw_boxes(image: Image.Image, boxes: npt.ArrayLike, numbers: Sequence[int], names: ClassNames) -> None:
    """Draws boxes (M, 4), as x0, y0, x1, y1 in pixels of the image, each with the name of its class."""
    draw, font = ImageDraw.Draw(image), font_of(_LABEL_PX)
    line = max(1, round(min(image.size) / 110))
    for (x0, y0, x1, y1), number in zip(np.asarray(boxes, float).reshape(-1, 4).tolist(), numbers, strict=True):
        color = color_of(number)
        right, bottom = max(x0, x1 - 1), max(y0, y1 - 1)
        draw.rectangle((x0, y0, right, bottom), outline=color, width=line)
        text = shorten(name_of(number, names), max(16.0, image.width - x0 - 4), font)
        left, top = max(0.0, x0), max(0.0, y0 - _LABEL_PX - 3) if y0 > _LABEL_PX else max(0.0, y0)
        draw.rectangle((left, top, left + font.getlength(text) + 4, top + _LABEL_PX + 3), fill=color)
        draw.text((left + 2, top), text, fill="white" if sum(color) < 450 else "black", font=font)


def draw_keypoints(image: Image.Image, instances: npt.ArrayLike) -> None:
    """Draws instances of points (M, K, 2 or 3), as x, y and visibility in pixels of the image.

    A point of visibility 0, or at 0, 0 where there is none, is left out; one that is labelled but hidden is a ring.
    """
    draw, radius = ImageDraw.Draw(image), max(2.0, min(image.size) / 70)
    for number, points in enumerate(np.asarray(instances, float)):
        for point in points.tolist():
            x, y, visibility = (*point, _VISIBLE)[:3]
            if visibility == 0 or (x == 0 and y == 0):
                continue
            spot = (x - radius, y - radius, x + radius, y + radius)
            color = color_of(number)
            if visibility >= _VISIBLE:
                draw.ellipse(spot, fill=color, outline="white")
            else:
                draw.ellipse(spot, outline=color, width=2)
