"""Places in an image: how they move with it while packing and loading, and their form for functions of the user's."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from gpuload.fields.rows import BoundField, Crops
from gpuload.types import F32, F64, I64, Array, Bools, HeightWidth, WidthHeight

Entry = dict[str, Array]  # of a sample, by name

Fit = Literal["shortest", "longest", "center-crop", "stretch", "pad"]

# Points move as float64 (T, P, 2), the x and y of P points of each of T things; `images`, int64 (T,), has the row in
# the batch of each thing's image. Coordinates are measured from the upper left corner: pixel 0 lies between 0 and 1.


def crop_edges(view: Crops, images: I64) -> tuple[F64, F64]:
    """Upper left and lower right corner of each thing's crop, each float64 (T, 1, 2) as (x, y)."""
    low, high = ((view.start + edge)[images, None, ::-1].astype(np.float64) for edge in (view.roi_start, view.roi_end))
    return low, high


def extents(view: Crops, size: HeightWidth, images: I64) -> F64:
    """float64 (1, 1, 2), or (T, 1, 2) where output images have their own sizes: width and height of each thing's one.

    size: (height, width) of the batch.
    """
    sizes = np.array([size]) if view.sizes is None else view.sizes[images]
    return sizes[:, None, ::-1].astype(np.float64)


def flips(view: Crops, images: I64) -> Bools:
    """bool (T, 1, 2): whether each thing's image is flipped left to right, and top to bottom."""
    return np.stack([view.mirror, view.mirror_y], axis=1)[images, None] != 0


def crop_and_flip(points: F64, images: I64, view: Crops, size: HeightWidth) -> F64:
    """float64 (T, P, 2): points in pixels of the stored images, in pixels of the output images or outside them.

    size: (height, width) of the output.
    """
    low, high = crop_edges(view, images)
    extent = extents(view, size, images)
    moved = (points - low) * (extent / (high - low))
    return np.where(flips(view, images), extent - moved, moved)


def apply_affine(points: F64, images: I64, affine: F64) -> F64:
    """float64 (T, P, 2): points of the cropped images after the map of each image, see `Rows.affines`."""
    maps = affine[images, None]
    # A tenth of einsum's time.
    moved: F64 = points[..., :1] * maps[..., 0] + points[..., 1:] * maps[..., 1] + maps[..., 2]
    return moved if affine.shape[1] == 2 else moved[..., :2] / moved[..., 2:]


def covered(view: Crops, size: HeightWidth, sources: I64) -> I64:
    """int64 (N, 4): top, left, bottom and right of the part of each output image that its stored image covers, at least
    a pixel; around it is padding.

    size: (height, width) of the batch. sources: (N, 2), height and width of the stored images.
    """
    own = np.broadcast_to(np.array(size), sources.shape) if view.sizes is None else view.sizes
    first, last = view.start + view.roi_start.astype(np.float64), view.start + view.roi_end.astype(np.float64)
    step = (last - first) / own
    low = np.clip(np.rint(-first / step), 0, own - 1)
    high = np.clip(np.rint((sources - first) / step), low + 1, own)
    flipped = np.stack([view.mirror_y, view.mirror], axis=1) > 0
    low, high = np.where(flipped, own - high, low), np.where(flipped, own - low, high)
    return np.concatenate([low, high], axis=1).astype(np.int64)


class MovingField(BoundField, ABC):
    """A bound field whose values are places in an image.

    stays: what of it a function of the user's cannot move; "" if that is nothing.
    """

    ahead, stays = True, ""

    @property
    def points(self) -> int:
        """Of each instance; 0 for boxes."""
        return self.field.size

    @abstractmethod
    def split(self, columns: Mapping[str, Any], view: Crops | None, size: HeightWidth) -> list[Entry]:
        """The entries of each of N samples, in pixels of the stored images, or with a view, which must not flip, of the
        cropped ones of this size."""

    @abstractmethod
    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        """The columns of N samples, from their entries."""


def moving_fields(bound: Sequence[BoundField]) -> list[MovingField]:
    """The bound fields whose values move."""
    return [field for field in bound if isinstance(field, MovingField)]


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
        return points * (np.array(self.resized, np.float64) / self.source) + self.corner

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
