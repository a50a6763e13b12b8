"""Fields that move with their images, sample by sample: what a function of the user's gets of them, and gives back."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from gpuload.fields.boxes import BoundBoxes, class_column, move_boxes
from gpuload.fields.keypoints import BoundKeypoints
from gpuload.fields.motion import crop_and_flip
from gpuload.fields.ragged import flat, lengths_of, rows_of
from gpuload.fields.rows import BoundField, View
from gpuload.types import I64, Array, HeightWidth

Entry = dict[str, Array]  # of a sample, by name


class MovingField(Protocol):
    """A bound field whose values are places in an image.

    name: of the field. columns: of the index, which `join` makes anew. points: of each instance; 0 for boxes.
    """

    name: str
    columns: tuple[str, ...]
    points: int

    def split(self, columns: Mapping[str, Any], view: View | None, size: HeightWidth) -> list[Entry]:
        """The entries of each of N samples, in pixels of the stored images, or with a view, which must not flip, of the
        cropped ones of this size."""

    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        """The columns of N samples, from their entries."""


def moving_fields(bound: Sequence[BoundField]) -> list[MovingField]:
    """Those of some bound fields that move."""
    found: list[MovingField] = []
    for field in bound:
        if isinstance(field, BoundBoxes):
            found.append(_Boxes(field))
        elif isinstance(field, BoundKeypoints):
            found.append(_Keypoints(field))
    return found


class _Boxes:
    def __init__(self, bound: BoundBoxes) -> None:
        self.columns, self.min_visible = bound.columns, bound.spec.min_visible
        self.name, self.classes, self.points = bound.field.name, class_column(bound.field), 0

    def split(self, columns: Mapping[str, Any], view: View | None, size: HeightWidth) -> list[Entry]:
        stored = columns[self.name]
        counts = lengths_of(stored)
        boxes, labels = flat(stored).reshape(-1, 4), flat(columns[self.classes]).astype(np.int64)
        if view is not None:
            images = rows_of(counts)
            moved, visible = move_boxes(boxes.astype(np.float64), images, view, size)
            kept = np.flatnonzero((visible >= self.min_visible) & (visible > 0))
            boxes, labels, counts = moved[kept], labels[kept], np.bincount(images[kept], minlength=len(counts))
        parts = zip(_parts(boxes.astype(np.float32), counts), _parts(labels.copy(), counts), strict=True)
        return [{self.name: some, self.classes: numbers} for some, numbers in parts]

    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        boxes = [sample[self.name] for sample in samples]
        labels = np.concatenate([sample[self.classes] for sample in samples], dtype=np.int64)
        offsets = _offsets(boxes)
        return {
            self.name: _lists(offsets, np.concatenate(boxes, dtype=np.float32), 4),
            self.classes: pa.ListArray.from_arrays(offsets, pa.array(labels)),
        }


class _Keypoints:
    def __init__(self, bound: BoundKeypoints) -> None:
        self.name, self.points = bound.columns[0], bound.points
        self.columns: tuple[str, ...] = bound.columns

    def split(self, columns: Mapping[str, Any], view: View | None, size: HeightWidth) -> list[Entry]:
        stored = columns[self.name]
        counts = lengths_of(stored)
        points = flat(stored).reshape(-1, self.points, 3).astype(np.float64)
        if view is not None:
            images = np.repeat(rows_of(counts), self.points)
            xy = crop_and_flip(points[..., :2].reshape(-1, 2), images, view, size)
            inside = ((xy >= 0) & (xy <= size[::-1])).all(axis=1).reshape(points.shape[:2])
            points = np.concatenate([xy.reshape(*points.shape[:2], 2), points[..., 2:]], axis=2)
            points[(points[..., 2] <= 0) | ~inside] = 0
        return [{self.name: some} for some in _parts(points.astype(np.float32), counts)]

    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        instances = [sample[self.name] for sample in samples]
        return {self.name: _lists(_offsets(instances), np.concatenate(instances), 3 * self.points)}


def _parts(values: Array, counts: I64) -> list[Array]:
    """The values of each sample. counts: int64 (N,)."""
    return np.split(values, np.cumsum(counts)[:-1]) if len(counts) else []


def _offsets(parts: Sequence[Array]) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int32))


def _lists(offsets: Any, values: Array, size: int) -> Any:
    flat_values = pa.array(values.reshape(-1).astype(np.float32))
    return pa.ListArray.from_arrays(offsets, pa.FixedSizeListArray.from_arrays(flat_values, size))
