"""Black images in place of those that do not decode, for a decoder that takes whole batches only."""

import io
from collections.abc import Collection
from dataclasses import replace

import numpy as np
from PIL import Image

from gpuload.fields.pixels import GRAY, RGB, Pixels
from gpuload.read.batch import Batch
from gpuload.types import U8, HeightWidth


def with_placeholders(batch: Batch, rows: Collection[int], pixels: Pixels = RGB) -> Batch:
    """The batch with black images and masks at these rows, of the sizes that the index says: crops stay valid."""
    encoded = batch.encoded
    images, spans, masks = list(encoded.images), encoded.spans.copy(), [list(field) for field in batch.masks]
    for row in rows:
        size = (int(encoded.heights[row]), int(encoded.widths[row]))
        gray = black_png(size)
        images[row] = data = gray if pixels in (RGB, GRAY) else black_png(size, pixels)
        spans[row] = (data.ctypes.data, data.nbytes)
        for field in masks:
            field[row] = gray
    return replace(
        batch, encoded=replace(encoded, images=images, spans=spans), masks=tuple(masks), placeholders=frozenset(rows)
    )


def black_png(size: HeightWidth, pixels: Pixels = GRAY) -> U8:
    """uint8 (bytes,): a PNG of such pixels, which must have a PNG."""
    file = io.BytesIO()
    Image.new(pixels.mode, size[::-1]).save(file, "PNG")
    return np.frombuffer(file.getvalue(), np.uint8)
