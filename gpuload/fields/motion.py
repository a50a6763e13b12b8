"""Values that are places in an image: how they move with it, and their form for functions of the user's."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuload.fields.rows import BoundField, Crops
from gpuload.types import F64, I64, Array, Bools, HeightWidth


def crop_edges(view: Crops, images: I64) -> tuple[F64, F64]:
    """Upper left and lower right corner, each float64 (T, 2) as (x, y), of the crop of each point's image.

    images: int64 (T,), the row in the batch of each point's image.
    """
    low, high = ((view.start + edge)[images, ::-1].astype(np.float64) for edge in (view.roi_start, view.roi_end))
    return low, high


def extents(view: Crops, size: HeightWidth, images: I64) -> F64:
    """float64 (2,), or (T, 2) where output images have their own sizes: width and height of each point's one.

    size: (height, width) of the batch. images: int64 (T,), the row in the batch of each point's image.
    """
    if view.sizes is None:
        return np.array(size[::-1], np.float64)
    return view.sizes[images, ::-1].astype(np.float64)


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


def flips(view: Crops, images: I64) -> Bools:
    """bool (T, 2): whether each point's image is flipped left to right, and top to bottom."""
    flipped: Bools = np.stack([view.mirror, view.mirror_y], axis=1)[images] != 0
    return flipped


def crop_and_flip(points: F64, images: I64, view: Crops, size: HeightWidth) -> F64:
    """float64 (T, 2): points (T, 2), given as x, y in pixels of the stored images, in pixels of the output images.

    images: int64 (T,), the row in the batch of each point's image. size: (height, width) of the output. Coordinates are
    measured from the upper left corner, so pixel 0 lies between 0 and 1; points may be outside the output image.
    """
    low, high = crop_edges(view, images)
    extent = extents(view, size, images)
    moved = (points - low) * (extent / (high - low))
    return np.where(flips(view, images), extent - moved, moved)


def apply_affine(points: F64, images: I64, affine: F64) -> F64:
    """float64 (T, 2): points of the cropped images after the map of each image, see `Rows.affines`."""
    moved: F64 = np.einsum("tij,tj->ti", affine[images, :, :2], points) + affine[images, :, 2]
    return moved if affine.shape[1] == 2 else moved[:, :2] / moved[:, 2:]


Entry = dict[str, Array]  # of a sample, by name


class MovingField(BoundField):
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
