"""Bounding boxes with class numbers, which move with their images; a batch's boxes are computed all at once."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from gpuload.checks import COUNT, FLAG, choice, number, optional, settings
from gpuload.counted import counted
from gpuload.errors import ArgumentError, SourceError
from gpuload.fields.field import Field
from gpuload.fields.kind import NAME, BadRows, FieldSpec, Kind, Member, Parsed, describe, shortest
from gpuload.fields.motion import Entry, MovingField, Placement, crop_edges, extents, flips
from gpuload.fields.parsing import names_of, number_classes, parse_list
from gpuload.fields.rows import Crops, Each, Rows, Value, flat, joined_lists, lengths_of, pad_all, rows_of, split_rows
from gpuload.machine.untrusted import parse_json
from gpuload.types import F32, F64, I64, Array, ClassNames, HeightWidth, WidthHeight

_IMAGE_ID = "image_id"  # of a set that was packed from COCO's JSON
BoxFormat = Literal["xyxy", "xywh", "cxcywh"]  # as torchvision.ops.box_convert names them

_BOX = pa.list_(pa.float32(), 4)
_ROUNDING_PX = 0.5  # a box that reaches this far over an edge was only rounded, not drawn incorrectly


@settings
class Boxes(FieldSpec):
    """Boxes as `PaddedBoxes`, in pixels of the batch's images: moved by crop, resize and flips, and clipped.

    name: of the packed field.
    format: "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height) or "cxcywh" (centre, width, height).
        Coordinates are those of pixel edges: the box of a whole image is 0, 0, width, height.
    normalized: divides the coordinates by the width and height of the batch's images, so that they are in 0..1.
    min_visible: boxes with less than this fraction of their area in the image are dropped; boxes of which nothing is
        visible are always dropped.
    max_boxes: M of every batch; of an image with more boxes the first ones are kept. By default the largest number of
        boxes in an image of the batch.
    as_targets: gives what torchvision's detection models train with instead: a list of N dicts with "boxes", float32
        (n, 4), "labels", int64 (n,), the class numbers plus 1, since 0 is their background, "area", float32 (n,),
        "iscrowd", int64 (n,), and "image_id": COCO's, where the set was packed from its JSON, else the sample's index.
        The area is the packed one, scaled as the box: COCO's of the instance, else that of the box.
    masks: adds "masks" to these, uint8 (n, height, width), 1 where an instance is; of each image's own size where
        images come as a list.
    crowds: keeps boxes that COCO marks as crowds, with "iscrowd" 1, for evaluation. For training they are left out.

    Raises:
        ArgumentError: the format is unknown, min_visible is outside 0..1, max_boxes is below 1, or masks or crowds are
            asked for without as_targets. When bound: the boxes were packed without masks or crowds.
    """

    name: Annotated[str, NAME] = "boxes"
    format: Annotated[BoxFormat, choice(*get_args(BoxFormat))] = "xyxy"
    normalized: Annotated[bool, FLAG] = False
    min_visible: Annotated[float, number(0, 1, "a fraction of a box's area, in 0..1")] = 0.1
    max_boxes: Annotated[int | None, optional(COUNT)] = None
    as_targets: Annotated[bool, FLAG] = False
    masks: Annotated[bool, FLAG] = False
    crowds: Annotated[bool, FLAG] = False

    kind = "boxes"
    other_kinds = ("instances",)

    def __post_init__(self) -> None:
        if (self.masks or self.crowds) and not self.as_targets:
            raise ArgumentError(
                f"Boxes(masks={self.masks}, crowds={self.crowds}): are in targets alone. Use as_targets=True"
            )


class PaddedBoxes(NamedTuple):
    """The boxes of N images; M is the largest number of boxes in an image.

    boxes: float32 (N, M, 4), padded with 0. labels: int64 (N, M), their class numbers, padded with -1.
    counts: int64 (N,), the number of boxes in each image.
    """

    boxes: Any
    labels: Any
    counts: Any


class Instances(NamedTuple):
    """The T boxes of N samples.

    boxes: float64 (T, 4). labels: int64 (T,), their classes. counts: int64 (N,), how many each sample has. areas:
    float64 (T,). crowds: int64 (T,), 1 for those of crowds. numbers: int64 (T,), of each among all that are stored.
    """

    boxes: F64
    labels: I64
    counts: I64
    areas: F64
    crowds: I64
    numbers: I64

    @property
    def images(self) -> I64:
        """int64 (T,): the row of each one's sample."""
        return rows_of(self.counts)

    def take(self, kept: I64) -> "Instances":
        """The instances with these numbers."""
        counts = np.bincount(self.images[kept], minlength=len(self.counts))
        columns: Any = [column[kept] for column in self._replace(counts=self.images)]
        return Instances(*columns)._replace(counts=counts)


class BoundBoxes(MovingField):
    """`PaddedBoxes` of each view.

    An image with 20 boxes takes 4 µs, or 8 µs with an affine (batches of 256, one core, 2026-11).
    """

    spec: Boxes

    def prepare(self) -> None:
        ids = [dataset.fields.get(_IMAGE_ID) for dataset in self.datasets]
        if self.spec.as_targets and ids and all(field is not None and field.kind == "json" for field in ids):
            self.columns = (*self.columns, _IMAGE_ID)
        if self.field.kind == "boxes" and (self.spec.masks or self.spec.crowds):
            raise ArgumentError(
                f"{describe(self.spec)}: were packed without masks and crowds. Pack them again from COCO's JSON with "
                f"segmentations, or with {self.name}_masks"
            )

    def values(self, rows: Rows) -> Value:
        stored = self._stored(rows.columns)
        ids = [parse_json(text) for text in rows.columns[_IMAGE_ID].to_pylist()] if _IMAGE_ID in self.columns else ()

        def boxes_in(view: Crops, size: HeightWidth, affine: F64 | None) -> Any:
            seen = self._visible(stored, view, size, affine)
            boxes = convert_boxes(seen.boxes, self.spec.format)
            if self.spec.normalized:
                boxes /= np.tile(extents(view, size, seen.images), 2)
            boxes = boxes.astype(np.float32)
            if not self.spec.as_targets:
                return PaddedBoxes(*pad_all(seen.counts, self.spec.max_boxes, (boxes, 0), (seen.labels, -1)))
            columns = boxes, seen.labels + 1, seen.areas.astype(np.float32), seen.crowds, seen.numbers
            parts = zip(*(split_rows(column, seen.counts) for column in columns), strict=True)
            some = [[part[: self.spec.max_boxes] for part in of_sample] for of_sample in parts]
            targets = Each(
                {"boxes": b, "labels": c, "area": a, "iscrowd": z, "image_id": i}
                for (b, c, a, z, _), i in zip(some, ids or rows.columns["index"].tolist(), strict=True)
            )
            if self.spec.masks:
                masks = self._draw(rows, [numbers for *_, numbers in some], view, size, affine)
                targets[:] = [{**target, "masks": drawn} for target, drawn in zip(targets, masks, strict=True)]
            return targets

        return rows.per_view(boxes_in)

    def split(self, columns: Mapping[str, Any], view: Crops | None, size: HeightWidth) -> list[Entry]:
        stored = self._stored(columns)
        some = stored if view is None else self._visible(stored, view, size)
        parts = [split_rows(column, some.counts) for column in (some.boxes.astype(np.float32), some.labels)]
        return [dict(zip(self.columns, part, strict=False)) for part in zip(*parts, strict=True)]

    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        name, classes = self.columns[:2]
        labels = [sample[classes].astype(np.int64, copy=False) for sample in samples]
        return {name: joined_lists([sample[name] for sample in samples], 4), classes: joined_lists(labels)}

    def _stored(self, columns: Mapping[str, Any]) -> Instances:
        lists, labels = (columns[name] for name in self.columns[:2])
        boxes = flat(lists).reshape(-1, 4).astype(np.float64)
        areas, numbers = _areas(boxes.reshape(-1, 2, 2)), np.arange(len(boxes))
        return Instances(
            boxes, flat(labels).astype(np.int64), lengths_of(lists), areas, np.zeros_like(numbers), numbers
        )

    def _visible(self, stored: Instances, view: Crops, size: HeightWidth, affine: F64 | None = None) -> Instances:
        """The boxes of which enough is visible, in pixels of the view's images."""
        moved, visible = move_boxes(stored.boxes, stored.images, view, size, affine)
        grown = _fraction(_areas(moved.reshape(-1, 2, 2)), _areas(stored.boxes.reshape(-1, 2, 2)))
        kept = np.flatnonzero((visible >= self.spec.min_visible) & (visible > 0))
        return stored._replace(boxes=moved, areas=stored.areas * grown).take(kept)

    def _draw(
        self, rows: Rows, numbers: Sequence[I64], view: Crops, size: HeightWidth, affine: F64 | None
    ) -> Sequence[Array]:
        """uint8 (n, height, width): the masks of the instances with these numbers, for each sample."""
        raise NotImplementedError  # of boxes without masks


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
    entry_bytes = 48

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.list_(_BOX), self.class_column(field): pa.list_(pa.int64())}

    def class_column(self, field: Field) -> str:
        """The class number of each box."""
        return f"{field.name}_class"

    def companions(self, name: str) -> tuple[str, ...]:
        return (f"{name}_class",)

    def with_others(self, name: str, sample: Mapping[str, Any]) -> str:
        return "instances" if f"{name}_masks" in sample else self.name

    def pick(self, name: str, sample: Mapping[str, Any]) -> Any:
        boxes = np.asarray(sample[name], np.float64).reshape(-1, 4).tolist()
        return [boxes, list(sample.get(f"{name}_class", [0] * len(boxes)))]

    def parse_cell(self, cell: Any) -> Any:
        rows = [list(box) for box in parse_list(cell)]
        return [box[:4] for box in rows], [box[4] if len(box) > 4 else 0 for box in rows]

    def parse(self, where: str, name: str, values: Sequence[Any], classes: ClassNames, detail: str) -> Parsed:
        """Raises SourceError if a box does not have four numbers, or its corners are in the wrong order."""
        checked = [_check_boxes(where, name, row, *pair) for row, pair in enumerate(values)]
        numbers, names = number_classes(where, name, [box_classes for _, box_classes in values], classes)
        field = Field(name, self.name, f"{name}.json", names)
        types = self.columns(field)
        return field, [pa.array(checked, types[name]), pa.array(numbers, types[self.class_column(field)])]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        """Clips the boxes to the canvas and drops those of which nothing is left on it."""
        moved, kept = place_boxes(value[field.name], placement)
        boxes = shortest(moved[kept].astype(np.float32))
        classes = [value[self.class_column(field)][number] for number in kept.tolist()]
        content = json.dumps({"boxes": boxes, "classes": classes})
        return Member(content.encode(), 0, {field.name: boxes, self.class_column(field): classes})

    def remarks(self, field: Field, value: Mapping[str, Any], placement: Placement) -> Counter[str]:
        """Counts boxes that lie outside their images, and boxes that reach over an edge.

        Boxes that the canvas cuts off are not counted: the user requested the crop.
        """
        corners = np.array(value[field.name], np.float32).reshape(-1, 2, 2)
        inside = np.clip(corners, 0, placement.source)
        overlaps = (inside[:, 1] > inside[:, 0]).all(axis=1)
        over = (np.abs(inside - corners) > _ROUNDING_PX).any(axis=(1, 2))
        return Counter(
            {
                "boxes that are empty or lie outside their images: {}, dropped": int((~overlaps).sum()),
                "boxes that reach over an edge of their images: {}, clipped": int((overlaps & over).sum()),
            }
        )

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        found = parse_json(content)
        return {field.name: found["boxes"], self.class_column(field): found["classes"]}

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        boxes, classes = row[field.name], row[self.class_column(field)]
        return {
            field.name: np.array(boxes, np.float32).reshape(-1, 4),
            self.class_column(field): np.array(classes, np.int64),
        }

    def look_at_batch(self, field: Field, spec: Any, value: Any, row: int, size: WidthHeight) -> dict[str, Any]:
        wanted = spec if isinstance(spec, Boxes) else Boxes(field.name)
        if wanted.as_targets:
            found, labels = value[row]["boxes"], value[row]["labels"] - 1
        else:
            count = int(value.counts[row])
            found, labels = value.boxes[row][:count], value.labels[row][:count]
        boxes = found.astype(np.float64) * (size * 2 if wanted.normalized else 1)
        if wanted.format != "xyxy":
            low = boxes[:, :2] - (boxes[:, 2:] / 2 if wanted.format == "cxcywh" else 0)
            boxes = np.concatenate([low, low + boxes[:, 2:]], axis=1)
        return {field.name: boxes, self.class_column(field): labels}

    def draw(self, field: Field, picture: Image.Image, found: Mapping[str, Any]) -> Image.Image:
        from gpuload.pictures import draw_boxes  # Pillow's fonts

        draw_boxes(picture, found[field.name], found[self.class_column(field)].tolist(), field.classes)
        return picture

    def texts(self, field: Field, found: Mapping[str, Any], classes: ClassNames) -> dict[str, str]:
        numbers = found[self.class_column(field)].tolist()
        return super().texts(field, found, classes) | {self.class_column(field): names_of(numbers, classes)}

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        boxes, classes = rows.column(field.name), rows.column(self.class_column(field))
        count, class_count = lengths_of(boxes), lengths_of(classes)
        yield BadRows(
            np.flatnonzero(count != class_count),
            lambda row: f"{count[row]} boxes in {field.name!r} and {class_count[row]} class numbers of them",
        )
        yield BadRows(
            rows_of(4 * count)[~np.isfinite(flat(boxes))],
            lambda row: f"its {field.name!r} as {boxes[row].as_py()}, expected finite numbers",
        )


def place_boxes(boxes: Any, placement: Placement) -> tuple[F64, I64]:
    """float64 (M, 4): the boxes moved with their image and clipped to the canvas; and the numbers of those of which
    something is left on it."""
    corners = np.array(boxes, np.float32).reshape(-1, 2, 2)
    moved = np.clip(placement.move_points(corners), 0, placement.canvas).reshape(-1, 4)
    return moved, np.flatnonzero((moved[:, 2] > moved[:, 0]) & (moved[:, 3] > moved[:, 1]))


def _check_boxes(where: str, name: str, row: int, boxes: Any, box_classes: Any) -> list[list[float]]:
    """The boxes of one sample, as float32 numbers."""
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused below
            array: F32 = np.array(list(boxes), np.float32).reshape(len(boxes), 4)
    except (TypeError, ValueError, OverflowError):
        raise SourceError(
            f"{where}: a box must be four numbers, x0 y0 x1 y1; {name!r} of sample {row} is {str(boxes)[:60]}"
        ) from None
    if not (np.isfinite(array).all() and (array[:, 2:] >= array[:, :2]).all()):
        raise SourceError(
            f"{where}: {name!r} of sample {row} has a box with x1 < x0, y1 < y0 or a number that is not finite: "
            f"{array.tolist()}. Give boxes as x0 y0 x1 y1 in pixels, not as x y width height"
        )
    if len(boxes) != len(box_classes):
        raise SourceError(
            f"{where}: each box needs one class; sample {row} has {len(boxes)} of {name!r} and "
            f"{counted(len(box_classes), 'class', 'classes')}. "
            "Correct that"
        )
    found: list[list[float]] = array.tolist()
    return found


def move_boxes(boxes: F64, images: I64, view: Crops, size: HeightWidth, affine: F64 | None = None) -> tuple[F64, F64]:
    """Moves a batch's boxes to its output images and clips them.

    boxes: float64 (T, 4) x0, y0, x1, y1 in pixels of the stored images. images: int64 (T,), the row in the batch of
    each box's image. size: (height, width) of the output. affine: float64 (N, 2, 3) or (N, 3, 3) as in `Rows`.

    Returns the boxes, float64 (T, 4) in pixels of the output images, and the visible fraction of each box's area,
    float64 (T,), which is 0 for an empty box. A rotated box becomes the smallest upright box around it, as in
    torchvision and Albumentations; its fraction is that of the crop times that of the upright box.
    """
    corners = boxes.reshape(-1, 2, 2)
    low, high = (edge[:, None] for edge in crop_edges(view, images))
    clipped = np.clip(corners, low, high)
    visible = _fraction(_areas(clipped), _areas(corners))
    extent = np.atleast_2d(extents(view, size, images))[:, None]
    moved = (clipped - low) * (extent / (high - low))
    moved = np.where(flips(view, images)[:, None], extent - moved[:, ::-1], moved)
    if affine is not None:
        moved = (_bounding_boxes if affine.shape[1] == 2 else _bounding_boxes_in_perspective)(moved, affine[images])
        visible *= _fraction(_areas(np.clip(moved, 0, extent)), _areas(moved))
    # Needed without an affine too: rounding may have moved a side outside by less than a thousandth of a pixel.
    return np.clip(moved, 0, extent).reshape(-1, 4), visible


def convert_boxes(boxes: npt.NDArray[Any], format: BoxFormat) -> npt.NDArray[Any]:
    """Converts boxes (T, 4) from x0, y0, x1, y1 to a format, with the arithmetic of torchvision.ops.box_convert."""
    if format == "xyxy":
        return boxes
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([low if format == "xywh" else (low + high) / 2, high - low], axis=1)


def _bounding_boxes(corners: F64, affines: F64) -> F64:
    """float64 (T, 2, 2): the smallest upright boxes around boxes `corners` (T, 2, 2) mapped by `affines` (T, 2, 3)."""
    matrices, shifts = affines[:, :, :2], affines[:, :, 2]
    centers = np.einsum("tij,tj->ti", matrices, corners.mean(axis=1)) + shifts
    half_sizes = np.einsum("tij,tj->ti", np.abs(matrices), (corners[:, 1] - corners[:, 0]) / 2)
    return np.stack([centers - half_sizes, centers + half_sizes], axis=1)


def _bounding_boxes_in_perspective(corners: F64, maps: F64) -> F64:
    """The same for `maps` (T, 3, 3), of all four corners."""
    four = corners[:, [0, 0, 1, 1], [0, 0, 0, 0]], corners[:, [0, 1, 0, 1], [1, 1, 1, 1]]
    points = np.stack([*four, np.ones(four[0].shape)], axis=2)
    moved = np.einsum("tij,tpj->tpi", maps, points)
    moved = moved[..., :2] / moved[..., 2:]
    return np.stack([moved.min(axis=1), moved.max(axis=1)], axis=1)


def _areas(corners: F64) -> F64:
    areas: F64 = np.prod(corners[:, 1] - corners[:, 0], axis=1)
    return areas


def _fraction(part: F64, whole: F64) -> F64:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
