"""Black images in place of those that do not decode, for a decoder that takes whole batches only."""

import io
from collections.abc import Collection
from dataclasses import replace

import numpy as np
from PIL import Image

from gpuload.read.batch import Batch
from gpuload.types import U8, HeightWidth


def with_placeholders(batch: Batch, rows: Collection[int]) -> Batch:
    """The batch with black images and masks at these rows, of the sizes that the index says: crops stay valid."""
    encoded = batch.encoded
    images, spans, masks = list(encoded.images), encoded.spans.copy(), [list(field) for field in batch.masks]
    for row in rows:
        data = _black_png((int(encoded.heights[row]), int(encoded.widths[row])))
        images[row], spans[row] = data, (data.ctypes.data, data.nbytes)
        for field in masks:
            field[row] = data
    return replace(
        batch, encoded=replace(encoded, images=images, spans=spans), masks=tuple(masks), placeholders=frozenset(rows)
    )


def _black_png(size: HeightWidth) -> U8:
    file = io.BytesIO()
    Image.new("L", size[::-1]).save(file, "PNG")
    return np.frombuffer(file.getvalue(), np.uint8)
