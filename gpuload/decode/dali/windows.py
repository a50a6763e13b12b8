"""The windows that DALI cuts where an image's padding shows its own pixels, for which DALI has no operator.

    DALI ─► a window that holds all pixels which the crop shows ─► gathered, and flipped (`padding`) ─► the crop

The windows of a batch are of one size, that of the largest needed, so that they leave the graph as one array.
"""

import numpy as np

from gpuload.augment import Form, View
from gpuload.augment.crops import Crops, unscaled
from gpuload.augment.padding import source_of, source_range
from gpuload.read.batch import Batch
from gpuload.types import I64, HeightWidth


def covering(view: View, form: Form, batch: Batch) -> tuple[Crops, HeightWidth]:
    """Windows of one size, and that size, which hold what the view's crops show of their images."""
    low, high = _ranges(view, form, batch)
    height, width = (high - low).max(axis=0, initial=1).tolist()
    return unscaled(low.astype(np.float64), (height, width)), (height, width)


def _ranges(view: View, form: Form, batch: Batch) -> tuple[I64, I64]:
    start = view.crops.start.astype(np.int64)
    return source_range(start, start + view.size, _sizes(batch), form.padding_mode)


def _sizes(batch: Batch) -> I64:
    return np.stack([batch.encoded.heights, batch.encoded.widths], axis=1).astype(np.int64)


def places_in_windows(view: View, form: Form, batch: Batch) -> list[I64]:
    """int64 (N, height) and (N, width): where each row and column of the output is in its window."""
    low, _ = _ranges(view, form, batch)
    sizes, places = _sizes(batch), []
    for axis, flipped in enumerate((view.crops.mirror_y, view.crops.mirror)):
        at = view.crops.start[:, axis, None].astype(np.int64) + np.arange(view.size[axis])
        shown = source_of(at, sizes[:, axis, None], form.padding_mode) - low[:, axis, None]
        places.append(np.where(flipped[:, None] != 0, shown[:, ::-1], shown))
    return places
