"""Keypoints, such as people's joints, which move with their images; a batch's keypoints are computed all at once."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import COUNT, FLAG, Rule, as_items, choice, optional, settings, several, whole
from gpuload.errors import ArgumentError, SourceError
from gpuload.fields.field import Field
from gpuload.fields.kind import NAME, BadRows, FieldSpec, Kind, Member, Parsed, describe, shortest
from gpuload.fields.motion import Entry, MovingField, Placement, apply_affine, crop_and_flip, extents, flips
from gpuload.fields.parsing import parse_list
from gpuload.fields.rows import Crops, Rows, Value, flat, joined_lists, lengths_of, pad_all, rows_of, split_rows
from gpuload.types import F32, F64, I64, Array, Bools, ClassNames, HeightWidth, WidthHeight

KeypointFormat = Literal["xyv", "xy"]
Pairs = tuple[tuple[int, int], ...]

_UNLABELLED, _HIDDEN, _VISIBLE = 0, 1, 2  # visibility, as in COCO's keypoint annotations


def _as_pairs(value: Any) -> Pairs:
    pair = several(whole(0), "", count=2)
    pairs: Any = tuple(pair.read(entry) for entry in as_items(value))
    points = [point for both in pairs for point in both]
    if len(set(points)) < len(points):
        raise ValueError
    found: Pairs = pairs
    return found


_FLIP_PAIRS = Rule("pairs of point numbers, each number at most once, such as ((1, 2), (3, 4))", _as_pairs)


@settings
class Keypoints(FieldSpec):
    """Keypoints as `PaddedKeypoints`, in pixels of the batch's images: moved by crop, resize, flips and transforms.

    A point outside the image becomes invisible: its x, y and visibility are 0, as those of a point that was never
    labelled. A horizontal flip swaps left and right points, so that, for example, point 5 remains a left shoulder.

    name: of the packed field.
    format: "xyv" (x, y, visibility: 0 not labelled or not in the image, 1 labelled but hidden, 2 visible) or "xy".
        Coordinates are measured from the upper left corner, as those of boxes: pixel 0 lies between 0 and 1.
    normalized: divides x and y by the width and height of the batch's images, so that they are in 0..1.
    flip_pairs: pairs of point numbers that a horizontal flip swaps; `()` for none. By default they are found by name:
        one name begins or ends with "left", the other with "right", and they are otherwise equal.
    min_visible: instances with fewer points in the image are dropped; 0 keeps all.
    max_instances: M of every batch; of an image with more instances the first ones are kept. By default the largest
        number of instances in an image of the batch.

    Raises:
        ArgumentError: the format is unknown, min_visible is below 0, max_instances is below 1, or flip_pairs is not a
            sequence of pairs that name each point at most once. When bound: a pair names a point that was not packed.
    """

    name: Annotated[str, NAME] = "keypoints"
    format: Annotated[KeypointFormat, choice(*get_args(KeypointFormat))] = "xyv"
    normalized: Annotated[bool, FLAG] = False
    flip_pairs: Annotated[Pairs | None, optional(_FLIP_PAIRS)] = None
    min_visible: Annotated[int, whole(0)] = 1
    max_instances: Annotated[int | None, optional(COUNT)] = None

    kind = "keypoints"


class PaddedKeypoints(NamedTuple):
    """The keypoints of N images; M is the largest number of instances in an image, K the points of an instance.

    keypoints: float32 (N, M, K, 3), or (N, M, K, 2) with format "xy", padded with 0.
    counts: int64 (N,), the number of instances in each image.
    """

    keypoints: Any
    counts: Any


class BoundKeypoints(MovingField):
    """`PaddedKeypoints` of each view."""

    spec: Keypoints

    def prepare(self) -> None:
        spec, size = self.spec, self.points
        pairs = pairs_by_name(self.field.classes) if spec.flip_pairs is None else spec.flip_pairs
        largest = max((point for pair in pairs for point in pair), default=-1)
        if largest >= size:
            raise ArgumentError(
                f"{describe(spec)[:-1]}, flip_pairs={spec.flip_pairs!r}): names point {largest}; {self.name!r} was "
                f"packed with {size} points, numbered from 0"
            )
        self._flipped_order = np.arange(size)
        for one, other in pairs:
            self._flipped_order[[one, other]] = other, one

    def values(self, rows: Rows) -> Value:
        points, counts_before = self._stored(rows.columns)
        images = rows_of(counts_before)

        def points_in(view: Crops, size: HeightWidth, affine: F64 | None) -> PaddedKeypoints:
            moved = self._move(points, images, view, size, affine)
            kept = np.flatnonzero(_labelled(moved).sum(axis=1) >= self.spec.min_visible)
            instances = moved[kept]
            if self.spec.normalized:
                instances[..., :2] /= np.atleast_2d(extents(view, size, images[kept]))[:, None]
            counts = np.bincount(images[kept], minlength=len(rows))
            values = instances[..., : len(self.spec.format)].astype(np.float32)
            return PaddedKeypoints(*pad_all(counts, self.spec.max_instances, (values, 0)))

        return rows.per_view(points_in)

    def split(self, columns: Mapping[str, Any], view: Crops | None, size: HeightWidth) -> list[Entry]:
        points, counts = self._stored(columns)
        if view is not None:
            images = np.repeat(rows_of(counts), self.points)
            xy = crop_and_flip(points[..., :2].reshape(-1, 2), images, view, size)
            points = _visible_at(xy, _inside(xy, extents(view, size, images)), points)
        return [{self.name: some} for some in split_rows(points.astype(np.float32), counts)]

    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        return {self.name: joined_lists([sample[self.name] for sample in samples], 3 * self.points)}

    def _stored(self, columns: Mapping[str, Any]) -> tuple[F64, I64]:
        """float64 (T, K, 3) instances of all samples, and int64 (N,) how many each sample has."""
        stored = columns[self.name]
        return flat(stored).reshape(-1, self.points, 3).astype(np.float64), lengths_of(stored)

    def _move(self, points: F64, images: I64, view: Crops, size: HeightWidth, affine: F64 | None) -> F64:
        """float64 (T, K, 3): instances (T, K, 3) moved to the output images, left and right swapped where flipped."""
        images_of_points = np.repeat(images, self.points)
        xy = crop_and_flip(points[..., :2].reshape(-1, 2), images_of_points, view, size)
        # A point that was cropped off stays invisible even if the affine map moves its position back into the image.
        extent = extents(view, size, images_of_points)
        inside = _inside(xy, extent)
        if affine is not None:
            xy = apply_affine(xy, images_of_points, affine)
            inside &= _inside(xy, extent)
        moved = _visible_at(xy, inside, points)
        mirrored = flips(view, images)[:, 0]
        moved[mirrored] = moved[mirrored][:, self._flipped_order]
        return moved


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

    def parse(self, where: str, name: str, values: Sequence[Any], classes: ClassNames, detail: str) -> Parsed:
        """Raises SourceError if instances differ in their number of points, or a value is not a finite number."""
        arrays = [_instances(where, name, row, value, classes) for row, value in enumerate(values)]
        sizes = sorted({array.shape[1] for array in arrays if len(array)} | ({len(classes)} if classes else set()))
        if len(sizes) > 1:
            raise SourceError(
                f"{where}: all instances of {name!r} must have the same points; found instances of {sizes[0]} and of "
                f"{sizes[1]}. Give points that are not labelled a visibility of 0"
            )
        if not sizes:
            raise SourceError(
                f"{where}: {name!r} is empty in every sample, so the number of its points is unknown. Leave it out"
            )
        field = Field(name, self.name, f"{name}.json", classes, sizes[0])
        rows = [array.reshape(-1, 3 * sizes[0]).tolist() for array in arrays]
        return field, [pa.array(rows, self.columns(field)[name])]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        """Makes points outside the canvas invisible; instances are kept even if none of their points is left."""
        points = _as_points(value[field.name], field)
        moved = np.where(_labelled(points)[..., None], placement.move_points(points[..., :2]), 0)
        stored = np.concatenate([moved, points[..., 2:]], axis=2).astype(np.float32)
        stored[~_inside(moved, placement.canvas)] = 0
        instances = shortest(stored.reshape(-1, 3 * field.size))
        return Member(json.dumps(instances).encode(), 0, {field.name: instances})

    def remarks(self, field: Field, value: Mapping[str, Any], placement: Placement) -> Counter[str]:
        points = _as_points(value[field.name], field)
        outside = _labelled(points) & ~_inside(points[..., :2], placement.source)
        return Counter({"keypoints that lie outside their images: {}, made invisible": int(outside.sum())})

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        return {field.name: _as_points(row[field.name], field)}

    def look_at_batch(self, field: Field, spec: Any, value: Any, row: int, size: WidthHeight) -> dict[str, Any]:
        points = value.keypoints[row][: int(value.counts[row])].astype(np.float64)
        if isinstance(spec, Keypoints) and spec.normalized:
            points[..., :2] *= size
        return {field.name: points}

    def draw(self, field: Field, picture: Image.Image, found: Mapping[str, Any]) -> Image.Image:
        from gpuload.pictures import draw_keypoints  # Pillow's fonts

        draw_keypoints(picture, found[field.name])
        return picture

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        instances = rows.column(field.name)
        yield BadRows(
            rows_of(3 * field.size * lengths_of(instances))[~np.isfinite(flat(instances))],
            lambda row: f"its {field.name!r} as {str(instances[row].as_py())[:60]}, expected finite numbers",
        )


def _visible_at(xy: F64, inside: Bools, points: F64) -> F64:
    """float64 (T, K, 3): points (T, K, 3) at other places xy (T·K, 2), all 0 where not labelled or not `inside`."""
    moved = np.concatenate([xy.reshape(*points.shape[:2], 2), points[..., 2:]], axis=2)
    moved[~_labelled(points) | ~inside.reshape(points.shape[:2])] = 0
    return moved


def pairs_by_name(names: ClassNames) -> Pairs:
    """Pairs of points whose names differ only in "left" and "right" at their beginning or end.

    ("nose", "left_eye", "right_eye") gives ((1, 2),).
    """
    number_of = {name.lower(): number for number, name in enumerate(names or ())}
    pairs = []
    for name, number in number_of.items():
        if name.startswith("left"):
            other = "right" + name[len("left") :]
        elif name.endswith("left"):
            other = name[: -len("left")] + "right"
        else:
            continue
        if other in number_of:
            pairs.append((number, number_of[other]))
    return tuple(pairs)


def _instances(where: str, name: str, row: int, value: Any, names: ClassNames) -> F32:
    """float32 (instances, K, 3) from the value of sample number `row`."""
    try:
        instances = [] if value is None else list(value)
        if not instances:
            return np.empty((0, 0, 3), np.float32)
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused below
            found = np.stack([_triples(np.array(instance, np.float32), names) for instance in instances])
        if not found.shape[1]:
            raise ValueError("no points")
    except (TypeError, ValueError, OverflowError):
        raise SourceError(
            f"{where}: an instance must be a list of x, y, visibility (or x, y) for each point, with the same points "
            f"in all instances; {name!r} of sample {row} is {str(value)[:60]}"
        ) from None
    if not np.isfinite(found).all() or not np.isin(found[..., 2], (_UNLABELLED, _HIDDEN, _VISIBLE)).all():
        raise SourceError(
            f"{where}: {name!r} of sample {row} must hold finite numbers and a visibility of 0 (not labelled), 1 "
            f"(hidden) or 2 (visible); found {str(value)[:60]}. Correct that"
        )
    found[found[..., 2] == _UNLABELLED] = 0
    return found


def _triples(points: F32, names: ClassNames) -> F32:
    """float32 (K, 3) from (K, 3), (K, 2) or one of these flat: triples, unless the number of names implies pairs."""
    if points.ndim == 1:
        pairs = names is not None and len(points) == 2 * len(names)
        points = points.reshape(-1, 2 if pairs else 3)
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise ValueError("neither triples nor pairs")
    if points.shape[1] == 2:
        points = np.concatenate([points, np.full((len(points), 1), _VISIBLE, np.float32)], axis=1)
    return points


def _as_points(instances: Any, field: Field) -> F32:
    points: F32 = np.array(instances, np.float32).reshape(-1, field.size, 3)
    return points


def _labelled(points: F32 | F64) -> Bools:
    """bool (T, K): whether each of points (T, K, 3) has a visibility above 0."""
    labelled: Bools = points[..., 2] > 0
    return labelled


def _inside(points: F32 | F64, size: tuple[int, int] | F64) -> Bools:
    """bool (T, K): whether each of points (T, K, 2) lies within (width, height), edges included; of (T, 2) also within
    sizes (T, 2) of their own."""
    return np.asarray(((points >= 0) & (points <= np.array(size))).all(axis=-1), np.bool_)
