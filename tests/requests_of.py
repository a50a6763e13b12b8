"""Batches for a decoder, made without a data set."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.augment import Augment, View
from gpuload.draws import uniform
from gpuload.types import U8


@dataclass(frozen=True)
class Request:
    images: Sequence[U8]
    spans: np.ndarray
    raw: np.ndarray
    widths: np.ndarray
    heights: np.ndarray
    views: Sequence[View]
    masks: Sequence[Sequence[U8]] = ()

    def draws(self, number: int) -> np.ndarray:
        return uniform(number, np.arange(len(self.images)))


def make_request(
    augment: Augment | Sequence[Augment],
    images: Sequence[U8],
    sizes: Sequence[tuple[int, int]],
    *,
    seed: int = 0,
    masks: Sequence[Sequence[U8]] = (),
) -> Request:
    """images: encoded, or of shape (height, width, 3). sizes: (width, height) of each image."""
    widths, heights = np.array(sizes, np.int32).reshape(-1, 2).T
    augments = [augment] if isinstance(augment, Augment) else augment
    views = [a.draw(seed, 0, np.arange(len(images)), widths, heights, number) for number, a in enumerate(augments)]
    spans = np.array([(data.ctypes.data, data.nbytes) for data in images], np.int64).reshape(-1, 2)
    raw = np.array([data.ndim == 3 for data in images], np.bool_)
    return Request(images, spans, raw, widths, heights, views, masks)
