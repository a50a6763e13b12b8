"""Crops padded with the image's own pixels (edge, reflect, symmetric), for which DALI has no operator.

    DALI ─► a window that holds all pixels the crop shows ─► gathered and flipped (`finish`) ─► the crop

The windows of a batch have one size, the largest needed, so that they leave the graph as one array.
"""

import numpy as np

from gpuload.augment import Form, View
from gpuload.augment.crops import Crops, unscaled
from gpuload.augment.placed import source_of, source_range
from gpuload.read.batch import Batch
from gpuload.types import I64, HeightWidth


def covering(view: View, form: Form, batch: Batch) -> tuple[Crops, HeightWidth]:
    """Windows of one size that hold all pixels shown by the view's crops, and that size."""
    low, high = _ranges(view, form, batch)
    height, width = (high - low).max(axis=0, initial=1).tolist()
    return unscaled(low.astype(np.float64), (height, width)), (height, width)


def places_in_windows(view: View, form: Form, batch: Batch) -> list[I64]:
    """int64 (N, height) and (N, width): the position in its window of each row and column of the output."""
    low, _ = _ranges(view, form, batch)
    sizes, places = batch.encoded.sizes, []
    for axis, flipped in enumerate((view.crops.mirror_y, view.crops.mirror)):
        at = view.crops.start[:, axis, None].astype(np.int64) + np.arange(view.size[axis])
        shown = source_of(at, sizes[:, axis, None], form.padding_mode) - low[:, axis, None]
        places.append(np.where(flipped[:, None] != 0, shown[:, ::-1], shown))
    return places


def _ranges(view: View, form: Form, batch: Batch) -> tuple[I64, I64]:
    start = view.crops.start.astype(np.int64)
    return source_range(start, start + view.size, batch.encoded.sizes, form.padding_mode)
