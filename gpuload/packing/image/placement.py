"""Where an image comes to lie when it is made smaller: numbers only, so that boxes and masks follow it."""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.types import F32, WidthHeight

Fit = Literal["shortest", "longest", "center-crop", "stretch", "pad"]


_ROUNDING_PX = 0.5  # a box that reaches so far over an edge was rounded, nobody drew it wrong


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

    def move_boxes(self, boxes: F32) -> tuple[F32, npt.NDArray[np.intp]]:
        """Boxes (M, 4) x0 y0 x1 y1 in pixels of the source, as they lie on the canvas, clipped to it.

        Those with nothing left on it are left out; the second value says which stayed.
        """
        scale = np.array(self.resized, np.float64) / self.source
        moved = boxes.reshape(-1, 2, 2) * scale + self.corner
        moved = np.clip(moved, 0, self.canvas).reshape(-1, 4)
        kept = np.flatnonzero((moved[:, 2] > moved[:, 0]) & (moved[:, 3] > moved[:, 1]))
        return moved[kept].astype(np.float32), kept

    def count_astray(self, boxes: F32) -> tuple[int, int]:
        """Of boxes (M, 4) x0 y0 x1 y1 in pixels of the source: with nothing of them on it, and reaching over its edge.

        What the canvas cuts off does not count: that was asked for.
        """
        corners = boxes.reshape(-1, 2, 2)
        inside = np.clip(corners, 0, self.source)
        there = (inside[:, 1] > inside[:, 0]).all(axis=1)
        over = (np.abs(inside - corners) > _ROUNDING_PX).any(axis=(1, 2))
        return int((~there).sum()), int((there & over).sum())


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
