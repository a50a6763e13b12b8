"""Where an image's pixels go when the packer resizes it, and what lies on it: masks, boxes and keypoints."""

from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from gpuload.types import F32, F64, WidthHeight

Fit = Literal["shortest", "longest", "center-crop", "stretch", "pad"]


class Placement(NamedTuple):
    """An image of `source` pixels is resized to `resized`, whose upper left corner then lies at `corner` of `canvas`.

    A negative corner cuts, a positive one pads.
    """

    source: WidthHeight
    resized: WidthHeight
    corner: tuple[int, int]
    canvas: WidthHeight

    @property
    def changes(self) -> bool:
        return self.source != self.canvas or self.resized != self.canvas or self.corner != (0, 0)

    def move_points(self, points: F32) -> F64:
        """Points (..., 2), x and y in pixels of the source, in pixels of the canvas; they may lie outside of it."""
        moved: F64 = points * (np.array(self.resized, np.float64) / self.source) + self.corner
        return moved

    def resample(self, image: Image.Image, filter: Image.Resampling) -> Image.Image:
        """An image of any size, resized, cropped and padded to the canvas; black (0) where it is padded."""
        if image.size != self.resized:
            image = image.resize(self.resized, filter, reducing_gap=2.0)
        if self.canvas == self.resized and self.corner == (0, 0):
            return image
        if min(self.corner) >= 0:
            canvas = Image.new(image.mode, self.canvas)
            canvas.paste(image, self.corner)
            return canvas
        left, top = -self.corner[0], -self.corner[1]
        return image.crop((left, top, left + self.canvas[0], top + self.canvas[1]))


def place(source: WidthHeight, size: WidthHeight | None, fit: Fit, enlarge: bool) -> Placement:
    """Where an image of `source` pixels comes to lie.

    size: None leaves it as it is. fit: "shortest" or "longest" side becomes the size; "center-crop" is "shortest", then
    the middle of that size; "pad" is "longest", in the middle of a canvas of that size; "stretch" is the size itself.
    enlarge: else an image smaller than the size keeps its pixels.

    500x375, 256: shortest 341x256, longest 256x192, center-crop 256x256 out of 341x256, pad 256x192 in 256x256.
    """
    if size is None:
        return Placement(source, source, (0, 0), source)
    wide, high = size[0] / source[0], size[1] / source[1]
    if fit == "stretch":
        resized = size if enlarge else (min(size[0], source[0]), min(size[1], source[1]))
        return Placement(source, resized, (0, 0), resized)
    scale = min(wide, high) if fit in ("longest", "pad") else max(wide, high)
    if not enlarge:
        scale = min(scale, 1.0)
    resized = (max(1, round(source[0] * scale)), max(1, round(source[1] * scale)))
    if fit in ("shortest", "longest"):
        return Placement(source, resized, (0, 0), resized)
    canvas = size if fit == "pad" else (min(size[0], resized[0]), min(size[1], resized[1]))
    corner = ((canvas[0] - resized[0]) // 2, (canvas[1] - resized[1]) // 2)
    return Placement(source, resized, corner, canvas)
