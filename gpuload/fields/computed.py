"""Fields that are computed for every batch: what models are told of an image's size and crop."""

from dataclasses import dataclass

import numpy as np

from gpuload.fields.rows import Rows, Value, View
from gpuload.types import F64, I64, HeightWidth


@dataclass(frozen=True)
class BoundBucket:
    """int64 (N,): the number of the batch's bucket."""

    name: str = "bucket"
    columns: tuple[str, ...] = ()
    members: tuple[str, ...] = ()

    def values(self, rows: Rows) -> I64:
        assert rows.bucket is not None  # checked when the loader was constructed
        return np.full(len(rows), rows.bucket)


@dataclass(frozen=True)
class BoundOriginalSize:
    """int64 (N, 2): height and width of the stored image in pixels."""

    name: str = "original_size"
    columns: tuple[str, ...] = ("height", "width")
    members: tuple[str, ...] = ()

    def values(self, rows: Rows) -> I64:
        return _sizes(rows)


@dataclass(frozen=True)
class BoundTopLeft:
    """int64 (N, 2): where the output begins, y and x, in the whole image, scaled and flipped as the output is.

    So it is counted in pixels of the output; negative where the image is padded.
    """

    name: str = "crop_top_left"
    columns: tuple[str, ...] = ("height", "width")
    members: tuple[str, ...] = ()

    def values(self, rows: Rows) -> Value:
        sizes = _sizes(rows)

        def of(view: View, size: HeightWidth, affine: F64 | None) -> I64:
            begin, end = view.start + view.roi_start.astype(np.float64), view.start + view.roi_end.astype(np.float64)
            flipped = np.stack([view.mirror_y, view.mirror], axis=1) > 0
            before = np.where(flipped, sizes - end, begin)
            places: I64 = np.rint(before * size / np.maximum(end - begin, 1e-6)).astype(np.int64)
            return places

        return rows.per_view(of)


def _sizes(rows: Rows) -> I64:
    return np.stack([rows.columns["height"], rows.columns["width"]], axis=1).astype(np.int64)
