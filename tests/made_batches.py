"""Batches for a decoder, made without a data set."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuload import Augment
from gpuload.draws import make_key
from gpuload.read.batch import Batch, EncodedBatch


def make_batch(
    augment: Augment | Sequence[Augment],
    images: Sequence[np.ndarray],
    sizes: Sequence[tuple[int, int]],
    *,
    seed: int = 0,
    masks: Sequence[Sequence[np.ndarray]] = (),
) -> Batch:
    """images: encoded, or of shape (height, width, 3). sizes: (width, height) of each image."""
    widths, heights = np.array(sizes, np.int32).reshape(-1, 2).T
    augments = [augment] if isinstance(augment, Augment) else augment
    samples = np.arange(len(images))
    views = tuple(a.draw(seed, 0, samples, widths, heights, number) for number, a in enumerate(augments))
    raw = np.array([data.ndim == 3 for data in images], np.bool_)
    encoded = EncodedBatch(samples, images, spans_of(images), raw, widths, heights, {}, {})
    keys = np.full(len(images), make_key(seed), np.uint64)
    return Batch(encoded, masks, views, np.zeros(len(images), np.int64), keys, len(images), 0.0)


def with_images(batch: Batch, images: Sequence[np.ndarray]) -> Batch:
    """The same batch with these bytes in place of its images'; the index still describes the former ones."""
    return replace(batch, encoded=replace(batch.encoded, images=images, spans=spans_of(images)))


def no_spare(position: int) -> Batch:
    """For a `FaultHandler` that needs no sample beyond its batches."""
    raise AssertionError(f"a spare sample was asked for, at {position}")


def spans_of(images: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([(data.ctypes.data, data.nbytes) for data in images], np.int64).reshape(-1, 2)
