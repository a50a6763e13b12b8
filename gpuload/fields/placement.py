"""How the packer resizes, crops and pads an image, and with it masks, boxes and keypoints."""

from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from gpuload.types import F32, F64, WidthHeight

Fit = Literal["shortest", "longest", "center-crop", "stretch", "pad"]


class Placement(NamedTuple):
    """An image of size `source` is resized to `resized`, and its upper left corner placed at `corner` of `canvas`.

    Sizes are (width, height), the corner is (x, y). A negative corner crops, a positive one pads.
    """

    source: WidthHeight
    resized: WidthHeight
    corner: tuple[int, int]
    canvas: WidthHeight

    @property
    def changes(self) -> bool:
        return self.source != self.canvas or self.resized != self.canvas or self.corner != (0, 0)

    def move_points(self, points: F32) -> F64:
        """float64: points (..., 2), given as x, y in pixels of the source, in pixels of the canvas or outside it."""
        moved: F64 = points * (np.array(self.resized, np.float64) / self.source) + self.corner
        return moved

    def resample(self, image: Image.Image, filter: Image.Resampling) -> Image.Image:
        """Resizes an image of any size, then crops or pads it with black (0) to the canvas."""
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
    """The placement of an image of `source` pixels, (width, height).

    size: None keeps the image's size.
    fit: "shortest" or "longest" scales that side to `size`; "center-crop" is "shortest", then a crop of `size` from the
        centre; "pad" is "longest", centred on a canvas of `size`; "stretch" scales both sides.
    enlarge: whether images smaller than `size` are scaled up.

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
