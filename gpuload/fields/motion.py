"""How what is in an image moves with it: in a batch by crop, resize, flips and transforms, and in the packer."""

from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from gpuload.types import F32, F64, I32, I64, Bools, HeightWidth, WidthHeight

_LEAST_OVERLAP = 1e-3  # of an output pixel; what is less comes of rounding

Fit = Literal["shortest", "longest", "center-crop", "stretch", "pad"]


class Crops(NamedTuple):
    """The crop of each image of a batch of N, in pixels of the decoded image, (y, x).

    The region of an image that is `placed` may extend beyond the image, although the window does not.

    Attributes:
        start: int32 (N, 2), the upper left corner of the window to decode. The window lies within the image, except
            that of a crop with a `Geometry.fill`, which may extend beyond the image on all sides; what is outside is
            padding.
        shape: int32 (N, 2), the height and width of the window.
        roi_start: float32 (N, 2), relative to `start`: where the region of the window begins that becomes the output.
            The window is larger where the resize filter may use pixels beyond the region's edge.
        roi_end: float32 (N, 2), relative to `start`: where that region ends.
        mirror: int32 (N,), 1 where the output is flipped left to right.
        mirror_y: int32 (N,), 1 where the output is flipped top to bottom.
        sizes: int64 (N, 2), the height and width of each output, where they differ; None where the batch has one size.
        padded: Whether outputs of their own sizes are padded to the largest, instead of in a list.
    """

    start: I32
    shape: I32
    roi_start: F32
    roi_end: F32
    mirror: I32
    mirror_y: I32
    sizes: I64 | None = None
    padded: bool = False

    @property
    def edges(self) -> tuple[F64, F64]:
        """Each float64 (N, 2): where the region that becomes the output begins and ends in the decoded image."""
        start = self.start.astype(np.float64)
        return start + self.roi_start, start + self.roi_end

    @property
    def flipped(self) -> Bools:
        """bool (N, 2): whether an image is flipped top to bottom, and left to right."""
        return np.stack([self.mirror_y, self.mirror], axis=1) != 0

    def widened(self, sizes: I64) -> "Crops":
        """These with windows that hold what images have of their regions, where a region reaches beyond its window.

        Args:
            sizes: int64 (N, 2), height and width of the images.
        """
        first, last = self.edges
        low = self.start.astype(np.int64)
        high = low + self.shape
        wide_low = np.minimum(low, np.clip(np.floor(first), 0, sizes).astype(np.int64))
        wide_high = np.maximum(high, np.clip(np.ceil(last), 0, sizes).astype(np.int64))
        return self.within(wide_low, wide_high)

    def within(self, low: I64, high: I64) -> "Crops":
        """These with other windows, of which the same regions become the output.

        Args:
            low: int64 (N, 2), the upper left corner of each window.
            high: int64 (N, 2), the lower right one.
        """
        shift = (low - self.start).astype(np.float32)
        return self._replace(
            start=low.astype(np.int32),
            shape=(high - low).astype(np.int32),
            roi_start=self.roi_start - shift,
            roi_end=self.roi_end - shift,
        )

    def scaled(self, size: HeightWidth) -> Bools:
        """bool (N,): whether an image is scaled, or moved by part of a pixel.

        Args:
            size: (height, width) of the batch.
        """
        first, last = self.edges
        is_moved = (first != np.rint(first)) | (last - first != self.own_sizes(size))
        moved: Bools = is_moved.any(axis=1)
        return moved

    def own_sizes(self, size: HeightWidth) -> I64:
        """The height and width of each output, int64 (N, 2).

        Args:
            size: (height, width) of the batch, where all are alike.
        """
        return (
            np.broadcast_to(np.array(size), self.start.shape)
            if self.sizes is None
            else self.sizes
        )

    def covered(self, size: HeightWidth, sources: I64) -> I64:
        """The part of each output image that its stored image covers, int64 (N, 4): top, left, bottom and right.

        Around it is padding. It is at least a pixel, but nothing where the stored image lies wholly in the padding.

        Args:
            size: (height, width) of the batch.
            sources: (N, 2), height and width of the stored images.
        """
        sides = self.own_sizes(size)
        first, last = self.edges
        step = (last - first) / sides
        low = np.clip(np.rint(-first / step), 0, sides - 1)
        high = np.clip(np.rint((sources - first) / step), low + 1, sides)
        overlap = (np.minimum(last, sources) - np.maximum(first, 0)) / step
        is_outside = (overlap < _LEAST_OVERLAP).any(axis=1)
        high[is_outside] = low[is_outside]
        begin = np.where(self.flipped, sides - high, low)
        end = np.where(self.flipped, sides - low, high)
        return np.concatenate([begin, end], axis=1).astype(np.int64)


class Motion(NamedTuple):
    """How a view moves what is in the images of a batch of N.

    Points move as float64 (T, P, 2), the x and y of P points of each of T things; `images`, int64 (T,), has the row in
    the batch of each thing's image. Coordinates are measured from the upper left corner: pixel 0 lies between 0 and 1.

    Attributes:
        crops: How each image is cropped, resized and flipped.
        size: (height, width) of the batch.
        affine: float64 (N, 2, 3), which maps (x, y, 1) in the cropped, resized and flipped image to (x, y) in the final
            one; or (N, 3, 3) where a perspective is among them, whose last row gives what the first two are divided by;
            or None if no transform moves pixels.
    """

    crops: Crops
    size: HeightWidth
    affine: F64 | None = None

    def edges(self, images: I64) -> tuple[F64, F64]:
        """Upper left and lower right corner of each thing's crop, each float64 (T, 1, 2) as (x, y)."""
        low, high = (edge[images, None, ::-1] for edge in self.crops.edges)
        return low, high

    def extents(self, images: I64) -> F64:
        """float64 (1, 1, 2), or (T, 1, 2) where outputs have their own sizes: width and height of each thing's one."""
        sizes = (
            np.array([self.size])
            if self.crops.sizes is None
            else self.crops.sizes[images]
        )
        return sizes[:, None, ::-1].astype(np.float64)

    def flips(self, images: I64) -> Bools:
        """bool (T, 1, 2): whether each thing's image is flipped left to right, and top to bottom."""
        return self.crops.flipped[images, None, ::-1]

    def crop_and_flip(self, points: F64, images: I64) -> F64:
        """float64 (T, P, 2): points in pixels of the stored images, in pixels of the cropped ones or outside them."""
        low, high = self.edges(images)
        extent = self.extents(images)
        moved = (points - low) * (extent / (high - low))
        return np.where(self.flips(images), extent - moved, moved)

    def warp(self, points: F64, images: I64) -> F64:
        """float64 (T, P, 2): points of the cropped images after the transforms."""
        if self.affine is None:
            return points
        maps = self.affine[images, None]
        # A tenth of einsum's time.
        moved: F64 = (
            points[..., :1] * maps[..., 0]
            + points[..., 1:] * maps[..., 1]
            + maps[..., 2]
        )
        return moved if self.affine.shape[1] == 2 else moved[..., :2] / moved[..., 2:]


_Transpose = Image.Transpose
# How Exif's orientations that exchange width and height turn an image.
_TURNS = {
    5: _Transpose.TRANSPOSE,
    6: _Transpose.ROTATE_270,
    7: _Transpose.TRANSVERSE,
    8: _Transpose.ROTATE_90,
}


class Placement(NamedTuple):
    """Where an image lies in the stored one: resized, then placed on a canvas. Sizes are (width, height).

    Sizes are (width, height), the corner is (x, y). A negative corner crops, a positive one pads.

    Attributes:
        source: Size of the image in its file.
        resized: Size to which it is scaled.
        corner: (x, y) of its upper left corner on the canvas: a negative one crops, a positive one pads.
        canvas: Size of the stored image.
        turn: An orientation of Exif, 5 to 8, by which the image is turned before it is resized; 1: it is not.
        exif: The orientation by which the image was turned when it was decoded.
    """

    source: WidthHeight
    resized: WidthHeight
    corner: tuple[int, int]
    canvas: WidthHeight
    turn: int = 1
    exif: int = 1

    @property
    def changes(self) -> bool:
        return (
            self.source != self.canvas
            or self.resized != self.canvas
            or self.corner != (0, 0)
            or self.turn != 1
        )

    def move_points(self, points: F32) -> F64:
        """float64: points (..., 2), given as x, y in pixels of the source, in pixels of the canvas or outside it."""
        upright = self.source
        if self.turn != 1:
            points = _turn_points(points, self.source, self.turn)
            upright = self.source[::-1]
        return points * (np.array(self.resized, np.float64) / upright) + self.corner

    def resample(self, image: Image.Image, filter: Image.Resampling) -> Image.Image:
        """Resizes an image of any size, then crops or pads it with black (0) to the canvas."""
        if self.turn != 1:
            image = image.transpose(_TURNS[self.turn])
        if image.size != self.resized:
            image = image.resize(self.resized, filter, reducing_gap=2.0)
        if self.canvas == self.resized and self.corner == (0, 0):
            return image
        if min(self.corner) >= 0:
            canvas = Image.new(image.mode, self.canvas)
            canvas.paste(image, self.corner)
            return canvas
        x = -self.corner[0]
        y = -self.corner[1]
        return image.crop((x, y, x + self.canvas[0], y + self.canvas[1]))


def _turn_points(points: F32, source: WidthHeight, turn: int) -> F32:
    """Points (..., 2) of an image of size `source`, as x, y, in the image that Exif's orientation makes of it."""
    x = points[..., 0]
    y = points[..., 1]
    width, height = source
    along = x if turn in (5, 6) else width - x
    across = y if turn in (5, 8) else height - y
    return np.stack([across, along], axis=-1)


def place_boxes(boxes: Any, placement: Placement) -> tuple[F64, I64]:
    """float64 (M, 4): the boxes moved with their image and clipped to the canvas; and the numbers of those of which
    something is left on it."""
    corners = np.array(boxes, np.float32).reshape(-1, 2, 2)
    turned = np.sort(
        placement.move_points(corners), axis=1
    )  # another corner may be the upper left one
    moved = np.clip(turned, 0, placement.canvas).reshape(-1, 4)
    return moved, np.flatnonzero(
        (moved[:, 2] > moved[:, 0]) & (moved[:, 3] > moved[:, 1])
    )


def place(
    source: WidthHeight, size: WidthHeight | None, fit: Fit, enlarge: bool
) -> Placement:
    """How an image is resized and placed when it is packed.

    500x375, 256: shortest 341x256, longest 256x192, center-crop 256x256 out of 341x256, pad 256x192 in 256x256.

    Args:
        source: (width, height) of the image in pixels.
        size: (width, height) in pixels; None keeps the image's size.
        fit: "shortest" or "longest" scales that side to `size`; "center-crop" is "shortest", then a crop of `size` from
            the centre; "pad" is "longest", centred on a canvas of `size`; "stretch" scales both sides.
        enlarge: Whether images smaller than `size` are scaled up.
    """
    if size is None:
        return Placement(source, source, (0, 0), source)
    wide = size[0] / source[0]
    high = size[1] / source[1]
    if fit == "stretch":
        resized = (
            size if enlarge else (min(size[0], source[0]), min(size[1], source[1]))
        )
        return Placement(source, resized, (0, 0), resized)
    scale = min(wide, high) if fit in ("longest", "pad") else max(wide, high)
    if not enlarge:
        scale = min(scale, 1.0)
    resized = (max(1, round(source[0] * scale)), max(1, round(source[1] * scale)))
    if fit in ("shortest", "longest"):
        return Placement(source, resized, (0, 0), resized)
    canvas = (
        size if fit == "pad" else (min(size[0], resized[0]), min(size[1], resized[1]))
    )
    corner = ((canvas[0] - resized[0]) // 2, (canvas[1] - resized[1]) // 2)
    return Placement(source, resized, corner, canvas)
