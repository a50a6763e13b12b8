"""Keypoints, which move with their image: those of a batch are computed all at once."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import COUNT, Rule, as_items, optional, settings, several, whole
from gpuload.errors import ArgumentError, DecodeError, SourceError
from gpuload.fields.cells import parse_list
from gpuload.fields.field import Field
from gpuload.fields.kind import NAME, FieldSpec, Kind, Origin, Parsed, read_each
from gpuload.fields.motion import Motion, Placement, place_boxes
from gpuload.fields.rows import (
    DatasetView,
    MovingField,
    Rows,
    Value,
    flat,
    joined_lists,
    lengths_of,
    pad_all,
    rows_of,
    split_rows,
)
from gpuload.pictures import draw_keypoints
from gpuload.types import F32, F64, I64, Array, Bools, ClassNames, WidthHeight

Pairs = tuple[tuple[int, int], ...]

_VISIBILITIES = _UNLABELLED, _HIDDEN, _VISIBLE = (
    0,
    1,
    2,
)  # as in COCO's keypoint annotations


def _as_pairs(value: Any) -> Pairs:
    pair = several(whole(0), "", count=2)
    pairs: Any = tuple(pair.read(entry) for entry in as_items(value))
    points = [point for both in pairs for point in both]
    if len(set(points)) < len(points):
        raise ValueError
    return pairs


_FLIP_PAIRS = Rule(
    "pairs of point numbers, each number at most once, such as ((1, 2), (3, 4))",
    _as_pairs,
)


@settings
class Keypoints(FieldSpec):
    """Keypoints as `PaddedKeypoints`, in pixels of the batch's images: moved by crop, resize, flips and transforms.

    A point outside the image becomes invisible: its x, y and visibility are 0, as those of a point that was never
    labelled. A horizontal flip swaps left and right points, so that, for example, point 5 remains a left shoulder.

    Attributes:
        name: Of the packed field.
        flip_pairs: Pairs of point numbers that a horizontal flip swaps; `()` for none. By default they are found by
            name: one name begins or ends with "left", the other with "right", and they are otherwise equal.
        min_visible: Instances with fewer points in the image are dropped; 0 keeps all.
        max_instances: M of every batch; of an image with more instances the first ones are kept. By default the largest
            number of instances in an image of the batch.

    Raises:
        ArgumentError: min_visible is below 0, max_instances is below 1, or flip_pairs is not a sequence of pairs that
            name each point at most once. When bound: a pair names a point that was not packed.
    """

    name: Annotated[str, NAME] = "keypoints"
    flip_pairs: Annotated[Pairs | None, optional(_FLIP_PAIRS)] = None
    min_visible: Annotated[int, whole(0)] = 1
    max_instances: Annotated[int | None, optional(COUNT)] = None

    kind = "keypoints"


class PaddedKeypoints(NamedTuple):
    """The keypoints of N images; M is the largest number of instances in an image, K the points of an instance.

    Attributes:
        keypoints: float32 (N, M, K, 3), padded with 0: x, y and visibility: 0 not labelled or not in the image, 1
            labelled but hidden, 2 visible. Coordinates are measured from the upper left corner, as those of boxes:
            pixel 0 lies between 0 and 1.
        counts: int64 (N,), the number of instances in each image.
    """

    keypoints: Any
    counts: Any


class BoundKeypoints(MovingField):
    """`PaddedKeypoints` of each view."""

    spec: Keypoints

    def prepare(self) -> None:
        spec = self.spec
        size = self.points
        pairs = (
            pairs_by_name(self.field.classes)
            if spec.flip_pairs is None
            else spec.flip_pairs
        )
        largest = max((point for pair in pairs for point in pair), default=-1)
        if largest >= size:
            raise ArgumentError(
                f"{spec}: flip_pairs={spec.flip_pairs!r} names point {largest}; {self.name!r} was "
                f"packed with {size} points, numbered from 0"
            )
        self._flipped_order = np.arange(size)
        for first, second in pairs:
            self._flipped_order[[first, second]] = (second, first)

    def values(self, rows: Rows) -> Value:
        points, images = self._stored(rows.columns)

        def points_in(motion: Motion) -> PaddedKeypoints:
            moved = self._move(points, images, motion)
            kept = np.flatnonzero(_labelled(moved).sum(axis=1) >= self.spec.min_visible)
            counts = np.bincount(images[kept], minlength=len(rows))
            return PaddedKeypoints(
                *pad_all(
                    counts, self.spec.max_instances, (moved[kept].astype(np.float32), 0)
                )
            )

        return rows.per_view(points_in)

    def move_all(self, rows: Rows, motion: Motion) -> F64:
        """float64 (T, K, 3): all instances of the batch in the view's images, also those without a visible point."""
        points, images = self._stored(rows.columns)
        return self._move(points, images, motion)

    def split(
        self, columns: Mapping[str, Any], motion: Motion | None
    ) -> list[dict[str, Array]]:
        points, images = self._stored(columns)
        if motion is not None:
            points = self._move(points, images, motion)
        counts = np.bincount(images, minlength=len(columns[self.name]))
        return [
            {self.name: of_image}
            for of_image in split_rows(points.astype(np.float32), counts)
        ]

    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        return {
            self.name: joined_lists(
                [sample[self.name] for sample in samples], 3 * self.points
            )
        }

    def _stored(self, columns: Mapping[str, Any]) -> tuple[F64, I64]:
        """float64 (T, K, 3) instances of all samples, and int64 (T,) the row of each one's sample."""
        stored = columns[self.name]
        return flat(stored).reshape(-1, self.points, 3).astype(np.float64), rows_of(
            stored
        )

    def _move(self, points: F64, images: I64, motion: Motion) -> F64:
        """float64 (T, K, 3): instances (T, K, 3) moved to the output images, left and right swapped where flipped."""
        xy = motion.crop_and_flip(points[..., :2], images)
        extent = motion.extents(images)
        # A point that was cropped off stays invisible even if the affine map moves its position back into the image.
        inside = _inside(xy, extent)
        if motion.affine is not None:
            xy = motion.warp(xy, images)
            inside &= _inside(xy, extent)
        moved = _visible_at(xy, inside, points)
        mirrored = motion.flips(images)[:, 0, 0]
        moved[mirrored] = moved[mirrored][:, self._flipped_order]
        return moved


class InstancePoints:
    """The keypoints of the instances of boxes.

    Args:
        boxes: The packed field of the boxes.
        name: Of the packed field of the keypoints.
        datasets: Those of the loader.

    Raises:
        ArgumentError: a set has no such keypoints, or two sets have different points.
    """

    def __init__(self, boxes: str, name: str, datasets: Sequence[DatasetView]) -> None:
        fields = [dataset.require_field(name) for dataset in datasets]
        for dataset, field in zip(datasets, fields, strict=True):
            if field.kind != KeypointsKind.name or (field.size, field.classes) != (
                fields[0].size,
                fields[0].classes,
            ):
                fault = f"{name!r} in {dataset.folder} is of kind {field.kind!r} with {field.size} points"
                raise ArgumentError(
                    f"Boxes({boxes!r}, keypoints={name!r}): {fault}. Name keypoints, alike in all sets"
                )
        self._boxes = boxes
        self._bound = BoundKeypoints(fields[0], (name,), Keypoints(name), datasets)

    def of(self, rows: Rows, numbers: I64, motion: Motion) -> F32:
        """float32 (n, K, 3), moved as the view's images: those of the boxes with these numbers in the batch.

        Raises:
            DecodeError: an image has another number of them than of boxes.
        """
        name = self._bound.name
        counts = lengths_of(rows.columns[name])
        expected = lengths_of(rows.columns[self._boxes])
        if (counts != expected).any():
            row = int(np.argmax(counts != expected))
            raise DecodeError(
                f"{rows.sample_name(self._bound.datasets, row)}: has {expected[row]} {self._boxes!r} and {counts[row]} "
                f"{name!r}, which do not belong together. Pack them again, or request Keypoints({name!r})"
            )
        points = self._bound.move_all(rows, motion)
        return points[numbers].astype(np.float32)


class KeypointsKind(Kind):
    """Any number of instances per sample, each of `Field.size` points x, y, visibility (COCO's) in pixels of the image.

    `Field.classes` are the names of the points. A sample's value in a source is a list of instances, each a nested or
    flat list of K triples x, y, visibility, or of K pairs x, y (taken to be visible).
    """

    name = "keypoints"
    specs = (Keypoints,)
    bound = BoundKeypoints
    keys = ("keypoints",)
    usual_names = ("keypoints",)
    in_tables = True
    entry_bytes = 18

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.list_(pa.list_(pa.float32(), 3 * field.size))}

    def field_fault(self, field: Field) -> str:
        return "" if field.size else "its instances have no points"

    def parse_cell(self, cell: Any) -> Any:
        return parse_list(cell)

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        """Raises SourceError if instances differ in their number of points, too."""
        expected = (
            "instances of equal points: x, y and perhaps visibility "
            "(0 not labelled, 1 hidden, 2 visible) of each"
        )
        arrays = read_each(
            where, name, values, lambda value: _instances(value, classes), expected
        )
        sizes = sorted(
            {array.shape[1] for array in arrays if len(array)}
            | ({len(classes)} if classes else set())
        )
        if len(sizes) != 1:
            numbers = (
                " and of ".join(map(str, sizes[:2]))
                or "none in any sample, so that their number is unknown"
            )
            raise SourceError(
                f"{where}: all instances of {name!r} must have the same points; found instances of {numbers}. Give "
                "points that are not labelled a visibility of 0, or leave the field out"
            )
        field = Field(name, self.name, f"{name}.json", classes, sizes[0])
        return field, [
            joined_lists(
                [array.reshape(-1, 3 * sizes[0]) for array in arrays], 3 * sizes[0]
            )
        ]

    def move(
        self, field: Field, value: Mapping[str, Any], placement: Placement
    ) -> Mapping[str, Any]:
        """Makes points outside the canvas invisible; instances are kept even if none of their points is left, but those
        of boxes that are dropped (see `Field.instances_of`).

        Raises:
            DecodeError: there is another number of instances than of their boxes.
        """
        points = _as_points(value[field.name], field)
        if field.instances_of is not None:
            boxes = value[field.instances_of]
            if len(boxes) != len(points):
                raise DecodeError(
                    f"has {len(points)} {field.name!r} for {len(boxes)} {field.instances_of!r}"
                )
            points = points[place_boxes(boxes, placement)[1]]
        moved = placement.move_points(points[..., :2])
        stored = _visible_at(moved, _inside(moved, placement.canvas), points).astype(
            np.float32
        )
        return {field.name: stored.reshape(-1, 3 * field.size).tolist()}

    def remarks(
        self, field: Field, value: Mapping[str, Any], placement: Placement
    ) -> Counter[str]:
        points = _as_points(value[field.name], field)
        outside = _labelled(points) & ~_inside(points[..., :2], placement.source)
        return Counter(
            {
                "keypoints that lie outside their images: {}, made invisible": int(
                    outside.sum()
                )
            }
        )

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        return {field.name: _as_points(row[field.name], field)}

    def look_at_batch(
        self, field: Field, spec: Any, value: Any, row: int
    ) -> dict[str, Any]:
        return {field.name: value.keypoints[row][: int(value.counts[row])]}

    def draw(
        self, field: Field, picture: Image.Image, found: Mapping[str, Any]
    ) -> Image.Image:
        draw_keypoints(picture, found[field.name])
        return picture


def pairs_by_name(names: ClassNames) -> Pairs:
    """Pairs of points whose names differ only in "left" and "right" at their beginning or end.

    ("nose", "left_eye", "right_eye") gives ((1, 2),).
    """
    number_of = {name.lower(): number for number, name in enumerate(names or ())}
    others = {
        name: re.sub(r"^left|left$", "right", name, count=1) for name in number_of
    }
    return tuple(
        (number_of[name], number_of[other])
        for name, other in others.items()
        if other in number_of and other != name
    )


def _instances(value: Any, names: ClassNames) -> F32:
    """float32 (instances, K, 3) from the value of a sample."""
    instances = [] if value is None else list(value)
    if not instances:
        return np.empty((0, 0, 3), np.float32)
    stacked = np.stack(
        [_triples(np.array(instance, np.float32), names) for instance in instances]
    )
    if (
        not stacked.shape[1]
        or not np.isfinite(stacked).all()
        or not np.isin(stacked[..., 2], _VISIBILITIES).all()
    ):
        raise ValueError(
            "there are no points, a number is not finite, or a visibility is none"
        )
    stacked[stacked[..., 2] == _UNLABELLED] = 0
    return stacked


def _triples(points: F32, names: ClassNames) -> F32:
    """float32 (K, 3) from (K, 3), (K, 2) or one of these flat: triples, unless the number of names implies pairs."""
    if points.ndim == 1:
        pairs = names is not None and len(points) == 2 * len(names)
        points = points.reshape(-1, 2 if pairs else 3)
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise ValueError("neither triples nor pairs")
    if points.shape[1] == 2:
        points = np.concatenate(
            [points, np.full((len(points), 1), _VISIBLE, np.float32)], axis=1
        )
    return points


def _as_points(instances: Any, field: Field) -> F32:
    return np.array(instances, np.float32).reshape(-1, field.size, 3)


def _visible_at(xy: F64, inside: Bools, points: F32 | F64) -> F64:
    """float64 (T, K, 3): points (T, K, 3) at other places xy (T, K, 2), all 0 where not labelled or not `inside`."""
    moved = np.concatenate([xy, points[..., 2:]], axis=2)
    moved[~_labelled(points) | ~inside] = 0
    return moved


def _labelled(points: F32 | F64) -> Bools:
    """bool (T, K): whether each of points (T, K, 3) has a visibility above 0."""
    return points[..., 2] > 0


def _inside(points: F32 | F64, size: WidthHeight | F64) -> Bools:
    """bool (T, K): whether each of points (T, K, 2) lies within (width, height), edges included."""
    return np.asarray(
        ((points >= 0) & (points <= np.array(size))).all(axis=-1), np.bool_
    )
