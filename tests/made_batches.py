"""Batches for a decoder, made without a data set."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuload import Augment
from gpuload.augment.pictures import DrawnViews, MovedMask
from gpuload.draws import make_key
from gpuload.read.batch import Batch, StoredPictures

IMAGE = "image"


def make_batch(
    augment: Augment | Sequence[Augment],
    images: Sequence[np.ndarray],
    sizes: Sequence[tuple[int, int]],
    *,
    seed: int = 0,
    masks: Mapping[str, Sequence[np.ndarray]] | None = None,
    fill: int = 0,
) -> Batch:
    """images: encoded, or of shape (height, width, 3). sizes: (width, height) of each image. masks: encoded, by name;
    fill: the class outside of them."""
    widths, heights = np.array(sizes, np.int32).reshape(-1, 2).T
    augments = [augment] if isinstance(augment, Augment) else augment
    samples = np.arange(len(images))
    views = {
        IMAGE: tuple(a.draw(seed, 0, samples, widths, heights, number) for number, a in enumerate(augments)),
    }
    pictures = {IMAGE: stored_pictures(images, widths, heights)}
    for name, files in (masks or {}).items():
        drawn = DrawnViews(seed, 0, samples, None, augments, views, {})
        views[name] = MovedMask(name, IMAGE, fill).move(drawn)
        pictures[name] = stored_pictures(files, widths, heights)
    keys = np.full(len(images), make_key(seed), np.uint64)
    return Batch(samples, pictures, {}, {}, np.zeros(len(images), np.int64), keys, views, stop=len(images))


def stored_pictures(files: Sequence[np.ndarray], widths: np.ndarray, heights: np.ndarray) -> StoredPictures:
    """Pictures without seek points."""
    raw = np.array([data.ndim == 3 for data in files], np.bool_)
    return StoredPictures(files, spans_of(files), raw, widths, heights, np.zeros((len(files), 2), np.int64))


def with_images(batch: Batch, images: Sequence[np.ndarray], name: str = IMAGE) -> Batch:
    """The same batch with these bytes in place of those of a picture; the index still describes the former ones."""
    stored = replace(batch.pictures[name], contents=images, spans=spans_of(images))
    pictures = {**batch.pictures, name: stored}
    return replace(batch, pictures=pictures)


def no_spare(position: int) -> Batch:
    """For a `FaultHandler` that needs no sample beyond its batches."""
    raise AssertionError(f"a spare sample was asked for, at {position}")


def spans_of(images: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([(data.ctypes.data, data.nbytes) for data in images], np.int64).reshape(-1, 2)
