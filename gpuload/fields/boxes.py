"""Boxes, which move with their image: those of a batch are computed all at once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from gpuload.checks import COUNT, FLAG, choice, number, optional, settings
from gpuload.errors import ArgumentError
from gpuload.fields.cells import parse_list
from gpuload.fields.class_values import number_classes
from gpuload.fields.field import Field
from gpuload.fields.keypoints import InstancePoints
from gpuload.fields.kind import NAME, FieldSpec, Kind, Origin, Parsed, read_each
from gpuload.fields.motion import Motion, Placement, place_boxes
from gpuload.fields.rows import (
    DatasetView,
    Each,
    MovingField,
    Rows,
    Value,
    flat,
    joined_lists,
    pad_all,
    rows_of,
    split_rows,
)
from gpuload.machine.untrusted import parse_json
from gpuload.pictures import draw_boxes
from gpuload.types import F32, F64, I64, Array, ClassNames

_IMAGE_ID = "image_id"  # of a set that was packed from COCO's JSON
BoxFormat = Literal[
    "xyxy", "xywh", "cxcywh"
]  # as torchvision.ops.box_convert names them
TargetNumbers = Literal["from 1", "from 0", "coco"]

_ROUNDING_PX = 0.5  # a box that reaches this far over an edge was only rounded, not drawn incorrectly


@settings
class Boxes(FieldSpec):
    """Boxes as `PaddedBoxes`, in pixels of the batch's images: moved by crop, resize and flips, and clipped.

    Attributes:
        name: Of the packed field.
        format: "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height) or "cxcywh" (centre, width,
            height). Coordinates are those of pixel edges: the box of a whole image is 0, 0, width, height.
        min_visible: Boxes with less than this fraction of their area in the image are dropped; boxes of which nothing
            is visible are always dropped.
        max_boxes: M of every batch; of an image with more boxes the first ones are kept. By default the largest number
            of boxes in an image of the batch.
        as_targets: Gives what torchvision's detection models train with instead: a list of N dicts with "boxes",
            float32 (n, 4), "labels", int64 (n,), see `numbers`, "area", float32 (n,), "iscrowd", int64 (n,), and
            "image_id": COCO's, where the set was packed from its JSON, else the sample's index. The area is the packed
            one, scaled as the box: COCO's of the instance, else that of the box.
        masks: Adds "masks" to these, uint8 (n, height, width), 1 where an instance is; of each image's own size where
            images come as a list.
        crowds: Keeps boxes that COCO marks as crowds, with "iscrowd" 1, for evaluation. For training they are left out.
        numbers: The "labels" of these targets: "from 1" are the class numbers plus 1, since torchvision's models have
            their background at 0; "from 0" the class numbers themselves; "coco" the numbers of COCO's categories, of a
            set that was packed from its JSON, which models trained on COCO use.
        keypoints: Name of the packed keypoints of the same instances, in the order of the boxes, as COCO's JSON gives
            them: adds "keypoints" to these, float32 (n, K, 3), those of each box, also where none of them is visible.

    Raises:
        ArgumentError: the format is unknown, min_visible is outside 0..1, max_boxes is below 1, or masks, crowds,
            keypoints or other numbers are asked for without as_targets. When bound: the boxes were packed without
            masks, crowds or COCO's numbers, or the keypoints are of another kind.
        DecodeError: while iterating, where an image has another number of keypoints than of boxes.
    """

    name: Annotated[str, NAME] = "boxes"
    format: Annotated[BoxFormat, choice(*get_args(BoxFormat))] = "xyxy"
    min_visible: Annotated[
        float, number(0, 1, "a fraction of a box's area, in 0..1")
    ] = 0.1
    max_boxes: Annotated[int | None, optional(COUNT)] = None
    as_targets: Annotated[bool, FLAG] = False
    masks: Annotated[bool, FLAG] = False
    crowds: Annotated[bool, FLAG] = False
    numbers: Annotated[TargetNumbers, choice(*get_args(TargetNumbers))] = "from 1"
    keypoints: Annotated[str | None, optional(NAME)] = None

    kind = "boxes"
    other_kinds = ("instances",)

    def __post_init__(self) -> None:
        if (self.masks or self.crowds) and not self.as_targets:
            raise ArgumentError(
                f"Boxes(masks={self.masks}, crowds={self.crowds}): are in targets alone. Use as_targets=True"
            )
        if self.keypoints is not None and not self.as_targets:
            fault = "are in targets alone. Use as_targets=True, or request Keypoints"
            raise ArgumentError(f"Boxes(keypoints={self.keypoints!r}): {fault}")
        if self.numbers != "from 1" and not self.as_targets:
            fault = "are those of targets alone; padded boxes have the class numbers, from 0. Use as_targets=True"
            raise ArgumentError(f"Boxes(numbers={self.numbers!r}): {fault}")


class PaddedBoxes(NamedTuple):
    """The boxes of N images; M is the largest number of boxes in an image.

    Attributes:
        boxes: float32 (N, M, 4), padded with 0.
        labels: int64 (N, M), their class numbers, padded with -1.
        counts: int64 (N,), the number of boxes in each image.
    """

    boxes: Any
    labels: Any
    counts: Any


class Instances(NamedTuple):
    """The T boxes of N samples.

    Attributes:
        boxes: float64 (T, 4), x0, y0, x1, y1 in pixels.
        labels: int64 (T,), their classes.
        areas: float64 (T,), in square pixels.
        crowds: int64 (T,), 1 for those of crowds.
        numbers: int64 (T,), the number of each among all that are stored.
        images: int64 (T,), the row of its sample.
    """

    boxes: F64
    labels: I64
    areas: F64
    crowds: I64
    numbers: I64
    images: I64

    def take(self, kept: I64) -> "Instances":
        """The instances with these numbers."""
        columns: Any = [column[kept] for column in self]
        return Instances(*columns)


class BoundBoxes(MovingField):
    """`PaddedBoxes` of each view.

    An image with 20 boxes takes 4 µs, or 8 µs with an affine (batches of 256, one core, 2026-11).
    """

    spec: Boxes
    _points: InstancePoints | None = None

    def prepare(self) -> None:
        ids = [dataset.fields.get(_IMAGE_ID) for dataset in self.datasets]
        if (
            self.spec.as_targets
            and ids
            and all(field is not None and field.kind == "json" for field in ids)
        ):
            self.columns = (*self.columns, _IMAGE_ID)
        if self.field.kind == "boxes" and (self.spec.masks or self.spec.crowds):
            raise ArgumentError(
                f"{self.spec}: were packed without masks and crowds. Pack them again from COCO's JSON with "
                f"segmentations, or with {self.name}_masks"
            )
        if self.spec.as_targets:
            self._target_numbers = _target_numbers(self.spec, self.name, self.datasets)
        if self.spec.keypoints is not None:
            self._points = InstancePoints(self.name, self.spec.keypoints, self.datasets)
            self.columns = (*self.columns, self.spec.keypoints)
            self.stays = "keypoints"

    def values(self, rows: Rows) -> Value:
        stored = self._stored(rows.columns)

        def boxes_in(motion: Motion) -> Any:
            seen = self._visible(stored, motion)
            seen = seen._replace(
                boxes=convert_boxes(seen.boxes, self.spec.format).astype(np.float32)
            )
            counts = np.bincount(seen.images, minlength=len(rows))
            if self.spec.as_targets:
                return self._targets(rows, seen, counts, motion)
            return PaddedBoxes(
                *pad_all(
                    counts, self.spec.max_boxes, (seen.boxes, 0), (seen.labels, -1)
                )
            )

        return rows.per_view(boxes_in)

    def _targets(
        self, rows: Rows, seen: Instances, counts: I64, motion: Motion
    ) -> Each:
        texts = rows.columns[_IMAGE_ID].to_pylist() if _IMAGE_ID in self.columns else ()
        ids = [parse_json(text) for text in texts] or rows.columns["index"].tolist()
        columns: dict[str, Array] = {
            "boxes": seen.boxes,
            "labels": self._labels(seen.labels),
            "area": seen.areas.astype(np.float32),
            "iscrowd": seen.crowds,
        }
        if self._points is not None:
            columns["keypoints"] = self._points.of(rows, seen.numbers, motion)
        parts = zip(
            *(split_rows(column, counts) for column in columns.values()), strict=True
        )
        return Each(
            {
                name: part[: self.spec.max_boxes]
                for name, part in zip(columns, of_sample, strict=True)
            }
            | {"image_id": i}
            for of_sample, i in zip(parts, ids, strict=True)
        )

    def _labels(self, classes: I64) -> I64:
        """The labels of targets, of these class numbers."""
        if self._target_numbers is None:
            return classes + int(self.spec.numbers == "from 1")
        wrong = classes[classes >= len(self._target_numbers)]
        if len(wrong):
            count = len(self._target_numbers)
            raise ArgumentError(
                f"{self.spec}: a box has class {wrong[0]}, the set has {count} classes. Pack it again"
            )
        return self._target_numbers[classes]

    def split(
        self, columns: Mapping[str, Any], motion: Motion | None
    ) -> list[dict[str, Array]]:
        stored = self._stored(columns)
        visible = stored if motion is None else self._visible(stored, motion)
        counts = np.bincount(visible.images, minlength=len(columns[self.name]))
        parts = [
            split_rows(column, counts)
            for column in (visible.boxes.astype(np.float32), visible.labels)
        ]
        return [
            dict(zip(self.columns, part, strict=False))
            for part in zip(*parts, strict=True)
        ]

    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        name, classes = self.columns[:2]
        labels = [sample[classes].astype(np.int64, copy=False) for sample in samples]
        return {
            name: joined_lists([sample[name] for sample in samples], 4),
            classes: joined_lists(labels),
        }

    def _stored(self, columns: Mapping[str, Any]) -> Instances:
        lists, labels = (columns[name] for name in self.columns[:2])
        boxes = flat(lists).reshape(-1, 4).astype(np.float64)
        numbers = np.arange(len(boxes))
        images = rows_of(lists)
        return Instances(
            boxes,
            flat(labels).astype(np.int64),
            areas_of(boxes),
            np.zeros_like(numbers),
            numbers,
            images,
        )

    def _visible(self, stored: Instances, motion: Motion) -> Instances:
        """The boxes of which enough is visible, in pixels of the view's images."""
        moved, visible = move_boxes(stored.boxes, stored.images, motion)
        grown = _fraction(areas_of(moved), areas_of(stored.boxes))
        kept = np.flatnonzero((visible >= self.spec.min_visible) & (visible > 0))
        return stored._replace(boxes=moved, areas=stored.areas * grown).take(kept)


class BoxesKind(Kind):
    """Any number of boxes per sample, x0 y0 x1 y1 in pixels of the stored image, each with a class number.

    A sample's value in a source is a pair: the boxes, and a class (number or name) for each box.
    """

    name = "boxes"
    specs = (Boxes,)
    keys: ClassVar[tuple[str, ...]] = ("boxes",)
    bound = BoundBoxes
    usual_names: ClassVar[tuple[str, ...]] = ("boxes", "bboxes")
    in_tables = True
    json_names: ClassVar[tuple[str, ...]] = ("boxes", "classes")
    companion_suffixes: ClassVar[tuple[str, ...]] = ("class",)
    entry_bytes = 48

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {
            field.name: pa.list_(pa.list_(pa.float32(), 4)),
            self.class_column(field): pa.list_(pa.int64()),
        }

    def class_column(self, field: Field) -> str:
        """The class number of each box."""
        return f"{field.name}_class"

    def with_others(self, name: str, sample: Mapping[str, Any]) -> str:
        return "instances" if f"{name}_masks" in sample else self.name

    def pick(self, name: str, sample: Mapping[str, Any]) -> Any:
        boxes = sample[name]
        with suppress(TypeError, ValueError):  # what is none, `parse` names
            boxes = np.asarray(boxes, np.float64).reshape(-1, 4).tolist()
        count = len(boxes) if isinstance(boxes, Sequence) else 0
        classes = sample.get(f"{name}_class", [0] * count)
        return [boxes, [] if classes is None else list(classes)]

    def parse_cell(self, cell: Any) -> Any:
        rows = [list(box) for box in parse_list(cell)]
        return [box[:4] for box in rows], [
            box[4] if len(box) > 4 else 0 for box in rows
        ]

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        boxes = read_each(
            where,
            name,
            values,
            _read_boxes,
            "boxes x0 y0 x1 y1 in pixels, each with a class",
        )
        counts = list(map(len, boxes))
        places = np.repeat(np.arange(len(boxes)), counts).tolist()
        every = [value for _, of_row, *_ in values for value in of_row]
        numbers, names = number_classes(where, name, every, classes, places)
        return Field(name, self.name, f"{name}.json", names), [
            joined_lists(boxes, 4),
            joined_lists(split_rows(numbers, counts)),
        ]

    def move(
        self, field: Field, value: Mapping[str, Any], placement: Placement
    ) -> Mapping[str, Any]:
        """Clips the boxes to the canvas and drops those of which nothing is left on it."""
        moved, kept = place_boxes(value[field.name], placement)
        classes = value[self.class_column(field)]
        return {
            field.name: moved[kept].astype(np.float32).tolist(),
            self.class_column(field): [classes[number] for number in kept.tolist()],
        }

    def remarks(
        self, field: Field, value: Mapping[str, Any], placement: Placement
    ) -> Counter[str]:
        """Counts boxes that lie outside their images, and boxes that reach over an edge.

        Boxes that the canvas cuts off are not counted: the user requested the crop.
        """
        corners = np.array(value[field.name], np.float32).reshape(-1, 2, 2)
        inside = np.clip(corners, 0, placement.source)
        overlaps = (inside[:, 1] > inside[:, 0]).all(axis=1)
        over = (np.abs(inside - corners) > _ROUNDING_PX).any(axis=(1, 2))
        return Counter(
            {
                "boxes that are empty or lie outside their images: {}, dropped": int(
                    (~overlaps).sum()
                ),
                "boxes that reach over an edge of their images: {}, clipped": int(
                    (overlaps & over).sum()
                ),
            }
        )

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        classes = self.class_column(field)
        boxes = np.array(row[field.name], np.float32).reshape(-1, 4)
        return {field.name: boxes, classes: np.array(row[classes], np.int64)}

    def look_at_batch(
        self, field: Field, spec: Any, value: Any, row: int
    ) -> dict[str, Any]:
        wanted = spec if isinstance(spec, Boxes) else Boxes(field.name)
        if wanted.as_targets:
            boxes = value[row]["boxes"]
            labels = _classes_of(field, wanted, value[row]["labels"])
        else:
            count = int(value.counts[row])
            boxes = value.boxes[row][:count]
            labels = value.labels[row][:count]
        if wanted.format != "xyxy":
            low = boxes[:, :2] - (boxes[:, 2:] / 2 if wanted.format == "cxcywh" else 0)
            boxes = np.concatenate([low, low + boxes[:, 2:]], axis=1)
        return {field.name: boxes, self.class_column(field): labels}

    def draw(
        self, field: Field, picture: Image.Image, found: Mapping[str, Any]
    ) -> Image.Image:
        draw_boxes(
            picture,
            found[field.name],
            found[self.class_column(field)].tolist(),
            field.classes,
        )
        return picture


def _target_numbers(
    spec: Boxes, name: str, datasets: Sequence[DatasetView]
) -> I64 | None:
    """COCO's number of each class, where targets have these.

    Raises:
        ArgumentError: a set has none, or two sets have different ones.
    """
    if spec.numbers != "coco":
        return None
    every = [
        (dataset.folder, dataset.fields[name].category_ids) for dataset in datasets
    ]
    first = every[0][1]
    for folder, ids in every:
        if ids is None:
            fault = "was packed without the numbers of COCO's categories. Pack it from its JSON again"
            raise ArgumentError(f"{spec}: numbers='coco': {folder} {fault}")
        if ids != first:
            fault = f"has other numbers than {every[0][0]} for the same classes. Use numbers='from 0'"
            raise ArgumentError(f"{spec}: numbers='coco': {folder} {fault}")
    return np.array(first, np.int64)


def _classes_of(field: Field, spec: Boxes, labels: Any) -> Any:
    """The class numbers of the labels of targets."""
    if spec.numbers != "coco":
        return labels - int(spec.numbers == "from 1")
    number_of = {
        of_coco: number for number, of_coco in enumerate(field.category_ids or ())
    }
    return np.array([number_of[label] for label in labels.tolist()], np.int64)


def _read_boxes(value: Sequence[Any]) -> F32:
    """float32 (n, 4) of one sample."""
    boxes: F32 = np.array(list(value[0]), np.float32).reshape(len(value[0]), 4)
    if not (np.isfinite(boxes).all() and (boxes[:, 2:] >= boxes[:, :2]).all()):
        raise ValueError(
            "a number is not finite, or x1 < x0 or y1 < y0, as in boxes of x y width height"
        )
    if len(boxes) != len(value[1]):
        raise ValueError(f"for {len(boxes)} boxes there are {len(value[1])} classes")
    return boxes


def move_boxes(boxes: F64, images: I64, motion: Motion) -> tuple[F64, F64]:
    """Moves a batch's boxes to its output images and clips them.

    Returns the boxes, float64 (T, 4) in pixels of the output images, and the visible fraction of each box's area,
    float64 (T,), which is 0 for an empty box. A rotated box becomes the smallest upright box around it, as in
    torchvision and Albumentations; its fraction is that of the crop times that of the upright box.

    Args:
        boxes: float64 (T, 4) x0, y0, x1, y1 in pixels of the stored images.
        images: int64 (T,), the row in the batch of each box's image.
        motion: How the view moves what is in its images.
    """
    clipped = np.clip(boxes.reshape(-1, 2, 2), *motion.edges(images))
    visible = _fraction(areas_of(clipped), areas_of(boxes))
    moved = motion.crop_and_flip(clipped, images)
    if motion.affine is not None:
        four = np.stack([moved[:, [0, 0, 1, 1], 0], moved[:, [0, 1, 0, 1], 1]], axis=2)
        moved = motion.warp(four, images)
    # Flips and maps change which corner is the upper left one.
    points = moved.swapaxes(0, 1)
    moved = np.stack([reduce(np.minimum, points), reduce(np.maximum, points)], axis=1)
    inside = np.clip(moved, 0, motion.extents(images))
    if motion.affine is not None:
        visible *= _fraction(areas_of(inside), areas_of(moved))
    # Needed without an affine too: rounding may have moved a side outside by less than a thousandth of a pixel.
    return inside.reshape(-1, 4), visible


def convert_boxes(boxes: npt.NDArray[Any], format: BoxFormat) -> npt.NDArray[Any]:
    """Converts boxes (T, 4) from x0, y0, x1, y1 to a format, with the arithmetic of torchvision.ops.box_convert."""
    if format == "xyxy":
        return boxes
    low = boxes[:, :2]
    high = boxes[:, 2:]
    return np.concatenate(
        [low if format == "xywh" else (low + high) / 2, high - low], axis=1
    )


def areas_of(boxes: F64) -> F64:
    """float64 (T,), of boxes (T, 4)."""
    corners = boxes.reshape(-1, 2, 2)
    return np.prod(corners[:, 1] - corners[:, 0], axis=1)


def _fraction(part: F64, whole: F64) -> F64:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
