"""Boxes that follow what is done to their images, each with a class number; all boxes of a batch at once."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.errors import ArgumentError, SourceError
from gpuload.fields.field import Field
from gpuload.fields.kind import BadRows, Columns, FieldSpec, Kind, Member, Placement, shortest
from gpuload.fields.motion import crop_edges, flips
from gpuload.fields.parsing import number_classes, parse_list
from gpuload.fields.ragged import flat, lengths_of, pad, rows_of
from gpuload.fields.rows import BoundField, DatasetView, Rows, Value, View
from gpuload.types import F32, F64, I64, ClassNames, HeightWidth

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]  # as torchvision.ops.box_convert names them

_BOX = pa.list_(pa.float32(), 4)
_ROUNDING_PX = 0.5  # a box that reaches this far over an edge was rounded, nobody drew it wrong


@dataclass(frozen=True)
class Boxes(FieldSpec):
    """Boxes as `PaddedBoxes`, in pixels of the batch's images: moved with crop, resize and flips, and clipped.

    format: "xyxy" (left, top, right, bottom), "xywh" (left, top, width, height) or "cxcywh" (centre, width, height).
        Sides lie between pixels: the box of a whole image is 0, 0, width, height.
    normalized: divided by the width and height of the batch's images, so that all is in 0..1.
    min_visible: a box of which a smaller share of its area remains in the image is left out; so is one of which nothing
        remains, always.
    max_boxes: M of every batch; of more boxes the first ones stay. By default that of the batch's fullest image.

    Raises:
        ArgumentError: a format that is not one of these, a share outside of 0..1, max_boxes below 1.
    """

    name: str = "boxes"
    format: BoxFormat = "xyxy"
    normalized: bool = False
    min_visible: float = 0.1
    max_boxes: int | None = None

    kind = "boxes"

    def __post_init__(self) -> None:
        if self.format not in get_args(BoxFormat):
            raise ArgumentError(
                f"Boxes({self.name!r}, format={self.format!r}): expected one of "
                f"{', '.join(map(repr, get_args(BoxFormat)))}"
            )
        if not 0 <= self.min_visible <= 1:
            raise ArgumentError(
                f"Boxes({self.name!r}, min_visible={self.min_visible!r}): expected a share of the box's area, in 0..1"
            )
        self._require_at_least("max_boxes", self.max_boxes, 1)


class PaddedBoxes(NamedTuple):
    """The boxes of N images; M is the largest number of them in one.

    boxes: float32 (N, M, 4), 0 behind the last. labels: int64 (N, M), their class numbers, -1 behind the last.
    counts: int64 (N,), how many each image has.
    """

    boxes: Any
    labels: Any
    counts: Any


class BoxesKind(Kind):
    """Any number of boxes a sample, x0 y0 x1 y1 in pixels of the stored image, each with a class number.

    A sample's value in a source is a pair: boxes, and a class (number or name) for each.
    """

    name = "boxes"
    specs = (Boxes,)
    keys = ("boxes",)
    usual_names = ("boxes", "bboxes")
    in_tables = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.list_(_BOX), class_column(field): pa.list_(pa.int64())}

    def class_column(self, field: Field) -> str | None:
        return class_column(field)

    def companions(self, name: str) -> tuple[str, ...]:
        return (f"{name}_class",)

    def pick(self, name: str, sample: Mapping[str, Any]) -> Any:
        boxes = np.asarray(sample[name], np.float64).reshape(-1, 4).tolist()
        return [boxes, list(sample.get(f"{name}_class", [0] * len(boxes)))]

    def parse_cell(self, cell: Any) -> Any:
        rows = [list(box) for box in parse_list(cell)]
        return [box[:4] for box in rows], [box[4] if len(box) > 4 else 0 for box in rows]

    def parse(
        self, where: str, name: str, values: Sequence[Any], classes: ClassNames = None, detail: str = ""
    ) -> tuple[Field, Columns]:
        """Raises SourceError where a box has no four numbers, or its corners are in the wrong order."""
        checked = [_check_boxes(where, name, row, *pair) for row, pair in enumerate(values)]
        numbers, names = number_classes(where, name, [box_classes for _, box_classes in values], classes)
        field = Field(name, self.name, f"{name}.json", names)
        types = self.columns(field)
        return field, [pa.array(checked, types[name]), pa.array(numbers, types[class_column(field)])]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        """Boxes clipped to the canvas; those with nothing left on it are left out."""
        corners = np.array(value[field.name], np.float32).reshape(-1, 2, 2)
        moved = np.clip(placement.move_points(corners), 0, placement.canvas).reshape(-1, 4)
        kept = np.flatnonzero((moved[:, 2] > moved[:, 0]) & (moved[:, 3] > moved[:, 1]))
        boxes = shortest(moved[kept].astype(np.float32))
        classes = [value[class_column(field)][number] for number in kept.tolist()]
        content = json.dumps({"boxes": boxes, "classes": classes})
        return Member(content.encode(), 0, {field.name: boxes, class_column(field): classes})

    def remarks(self, field: Field, value: Mapping[str, Any], placement: Placement) -> Counter[str]:
        """Boxes with nothing of them on their image, and those over its edge.

        What the canvas cuts off does not count: that was asked for.
        """
        corners = np.array(value[field.name], np.float32).reshape(-1, 2, 2)
        inside = np.clip(corners, 0, placement.source)
        there = (inside[:, 1] > inside[:, 0]).all(axis=1)
        over = (np.abs(inside - corners) > _ROUNDING_PX).any(axis=(1, 2))
        return Counter(
            {
                "boxes that are empty or lie outside of their images: {}, left out": int((~there).sum()),
                "boxes that reach over an edge of their images: {}, cut there": int((there & over).sum()),
            }
        )

    def estimate_bytes(self, field: Field, samples: pa.Table) -> I64:
        import pyarrow.compute as pc

        sizes: I64 = pc.list_value_length(samples.column(field.name)).to_numpy() * 48 + 30
        return sizes

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        found = json.loads(content)
        return {field.name: found["boxes"], class_column(field): found["classes"]}

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        boxes, classes = rows.column(field.name), rows.column(class_column(field))
        count, class_count = lengths_of(boxes), lengths_of(classes)
        yield BadRows(
            np.flatnonzero(count != class_count),
            lambda row: f"{count[row]} boxes in {field.name!r} and {class_count[row]} class numbers of them",
        )
        yield BadRows(
            rows_of(4 * count)[~np.isfinite(flat(boxes))],
            lambda row: f"its {field.name!r} as {boxes[row].as_py()}, expected numbers",
        )

    def bind(self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]) -> BoundField:
        return BoundBoxes(spec if isinstance(spec, Boxes) else Boxes(field.name), field)


def class_column(field: Field) -> str:
    """Index column: class number of each box."""
    return f"{field.name}_class"


def _check_boxes(where: str, name: str, row: int, boxes: Any, box_classes: Any) -> list[list[float]]:
    """The boxes of one sample, as float32 numbers."""
    try:
        array: F32 = np.array(list(boxes), np.float32).reshape(len(boxes), 4)
    except (TypeError, ValueError):
        raise SourceError(
            f"{where}: {name!r} of sample {row} is {str(boxes)[:60]}; a box is four numbers, x0 y0 x1 y1"
        ) from None
    if not (np.isfinite(array).all() and (array[:, 2:] >= array[:, :2]).all()):
        raise SourceError(
            f"{where}: {name!r} of sample {row} has a box whose right or lower side comes first: {array.tolist()}. "
            "Boxes are x0 y0 x1 y1 in pixels, not x y width height"
        )
    if len(boxes) != len(box_classes):
        raise SourceError(
            f"{where}: sample {row} has {len(boxes)} {name} and {len(box_classes)} classes of them. "
            "Give each box one class"
        )
    found: list[list[float]] = array.tolist()
    return found


@dataclass(frozen=True)
class BoundBoxes:
    """`PaddedBoxes` of each view: 4 µs an image of 20 boxes, 8 with an affine (batches of 256, one core, 2026-11)."""

    spec: Boxes
    field: Field

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.field.name, class_column(self.field))

    @property
    def members(self) -> tuple[str, ...]:
        return ()

    def values(self, rows: Rows) -> Value:
        stored: Any = rows.columns[self.field.name]
        images = rows_of(lengths_of(stored))
        boxes = flat(stored).reshape(-1, 4).astype(np.float64)
        labels = flat(rows.columns[class_column(self.field)])

        def moved(view: View, size: HeightWidth, affine: F64 | None) -> PaddedBoxes:
            there, visible = move_boxes(boxes, images, view, size, affine)
            kept = np.flatnonzero((visible >= self.spec.min_visible) & (visible > 0))
            found = convert_boxes(there[kept], self.spec.format)
            if self.spec.normalized:
                found /= [size[1], size[0], size[1], size[0]]
            counts = np.bincount(images[kept], minlength=len(rows))
            width = self.spec.max_boxes
            return PaddedBoxes(
                pad(found.astype(np.float32), counts, width, 0),
                pad(labels[kept].astype(np.int64), counts, width, -1),
                counts if width is None else np.minimum(counts, width),
            )

        return rows.per_view(moved)


def move_boxes(boxes: F64, images: I64, view: View, size: HeightWidth, affine: F64 | None = None) -> tuple[F64, F64]:
    """Boxes of a batch as they lie in its output images, clipped to them, and the share of each that is visible.

    boxes: (T, 4) x0, y0, x1, y1 in pixels of the stored images. images: (T,), the row in the batch of the image of
    each. size: (height, width) of the output. affine: (N, 2, 3) as in `Rows`.

    The share is of the box's area, 0 for a box without one. A box that is turned becomes the smallest upright box
    around it, as in torchvision and Albumentations; its share is that of the crop times that of this upright box.
    """
    corners = boxes.reshape(-1, 2, 2)
    low, high = (edge[:, None] for edge in crop_edges(view, images))
    clipped = np.clip(corners, low, high)
    visible = _share(_areas(clipped), _areas(corners))
    extent = np.array(size[::-1], np.float64)
    moved = (clipped - low) * (extent / (high - low))
    moved = np.where(flips(view, images)[:, None], extent - moved[:, ::-1], moved)
    if affine is not None:
        moved = _hulls(moved, affine[images])
        visible *= _share(_areas(np.clip(moved, 0, extent)), _areas(moved))
    # Also without an affine: rounding may have placed a side outside by less than a thousandth of a pixel.
    return np.clip(moved, 0, extent).reshape(-1, 4), visible


def convert_boxes(boxes: npt.NDArray[Any], format: BoxFormat) -> npt.NDArray[Any]:
    """(T, 4) x0, y0, x1, y1 in another format; the same arithmetic as torchvision.ops.box_convert."""
    if format == "xyxy":
        return boxes
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([low if format == "xywh" else (low + high) / 2, high - low], axis=1)


def _hulls(corners: F64, affines: F64) -> F64:
    """(T, 2, 2): the smallest upright boxes around those of `corners` (T, 2, 2) under maps (T, 2, 3)."""
    turns, shift = affines[:, :, :2], affines[:, :, 2]
    centers = np.einsum("tij,tj->ti", turns, corners.mean(axis=1)) + shift
    reach = np.einsum("tij,tj->ti", np.abs(turns), (corners[:, 1] - corners[:, 0]) / 2)
    return np.stack([centers - reach, centers + reach], axis=1)


def _areas(corners: F64) -> F64:
    areas: F64 = np.prod(corners[:, 1] - corners[:, 0], axis=1)
    return areas


def _share(part: F64, whole: F64) -> F64:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
