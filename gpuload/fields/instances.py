"""Instances: boxes with masks, areas and marks of crowds, as COCO has them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.errors import DecodeError, SourceError
from gpuload.fields.boxes import BoundBoxes, Boxes, BoxesKind, Instances, place_boxes
from gpuload.fields.field import Field
from gpuload.fields.kind import BadRows, Member, Parsed, shortest
from gpuload.fields.motion import Placement, covered
from gpuload.fields.outlines import LARGEST, Outline, check_outline, draw_masks, outline_of, place_outline
from gpuload.fields.rows import Crops, Rows, flat, joined_lists, lengths_of, rows_of
from gpuload.machine.untrusted import parse_json
from gpuload.types import F64, I64, Array, ClassNames, HeightWidth, WidthHeight

_FAULTS = (ValueError, TypeError, KeyError, IndexError, OverflowError)  # of a text that holds no outlines


class BoundInstances(BoundBoxes):
    """`PaddedBoxes` of each view without crowds, or targets with masks, areas and marks of crowds.

    An image with 7 polygons of a tenth of it each takes 3 ms at 800×1067 (one busy core, 2026-11).
    """

    def prepare(self) -> None:
        super().prepare()
        self._masks, self.stays = self.columns[4], "masks" if self.spec.masks else "crowds" * self.spec.crowds
        if self.spec.masks:
            self.columns = (*self.columns, "height", "width")
        else:
            self.columns = (*self.columns[:4], *self.columns[5:])

    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        boxes = [sample[self.name].astype(np.float64) for sample in samples]
        areas = [(one[:, 2] - one[:, 0]) * (one[:, 3] - one[:, 1]) for one in boxes]
        crowds = [np.zeros(len(one), np.int64) for one in boxes]
        area, crowd = self.columns[2:4]
        return {**super().join(samples), area: joined_lists(areas), crowd: joined_lists(crowds)}

    def _stored(self, columns: Mapping[str, Any]) -> Instances:
        areas, crowds = (flat(columns[name]) for name in self.columns[2:4])
        stored = super()._stored(columns)._replace(areas=areas.astype(np.float64), crowds=crowds.astype(np.int64))
        return stored if self.spec.crowds else stored.take(np.flatnonzero(stored.crowds == 0))

    def _draw(
        self, rows: Rows, numbers: Sequence[I64], view: Crops, size: HeightWidth, affine: F64 | None
    ) -> Sequence[Array]:
        counts = lengths_of(rows.columns[self.name])
        first = np.cumsum(counts) - counts
        sources = np.stack([rows.columns["height"], rows.columns["width"]], axis=1).astype(np.int64)
        parts, drawn = covered(view, size, sources), []
        for row, (text, some) in enumerate(zip(rows.columns[self._masks].to_pylist(), numbers, strict=True)):
            try:
                outlines = _outlines(text, tuple(sources[row].tolist()), (some - first[row]).tolist())
                drawn.append(draw_masks(outlines, row, view, size, parts[row], affine))
                fault = "" if all(outlines) else "have no mask for an instance"
            except _FAULTS as error:
                fault = f"have a mask that is none ({error})"
            if fault:
                raise DecodeError(
                    f"{rows.sample_name(self.datasets, row)}: its {self.name!r} {fault}. Use Boxes(masks=False), or "
                    "leave the sample out with gpuload.Dataset(exclude=[key])"
                )
        return drawn


class InstancesKind(BoxesKind):
    """Boxes as `BoxesKind` has them, each with an area, whether it is a crowd, and COCO's segmentation as its mask.

    A sample's value in a source is a list of these: boxes, classes, areas, crowds, masks.
    """

    name = "instances"
    bound = BoundInstances
    keys = ()
    usual_names = ()
    in_tables = False

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        area, crowd, masks = self.companions(field.name)[1:]
        more = {area: pa.list_(pa.float64()), crowd: pa.list_(pa.int64()), masks: pa.large_string()}
        return {**super().columns(field), **more}

    def companions(self, name: str) -> tuple[str, ...]:
        return tuple(f"{name}_{what}" for what in ("class", "area", "crowd", "masks"))

    def pick(self, name: str, sample: Mapping[str, Any]) -> Any:
        boxes, classes = super().pick(name, sample)
        area, crowd, masks = self.companions(name)[1:]
        own = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes]
        others = (list(sample.get(area, own)), list(sample.get(crowd, [0] * len(boxes))))
        return [boxes, classes, *others, [outline_of(value) for value in sample[masks]]]

    def parse(self, where: str, name: str, values: Sequence[Any], classes: ClassNames, detail: str) -> Parsed:
        """Raises SourceError as `BoxesKind.parse`, and for areas, crowds or masks that are not one for each box."""
        field, columns = super().parse(where, name, [value[:2] for value in values], classes, detail)
        areas, crowds, masks = [], [], []
        for row, (boxes, _, *others) in enumerate(values):
            try:
                area, crowd = np.array(others[0], np.float64), np.array(others[1], np.int64)
                for outline in others[2]:
                    check_outline(outline)
                if {area.shape, crowd.shape, (len(others[2]),)} != {(len(boxes),)}:
                    raise ValueError("each box needs one area, one mark of crowds and one mask")
                if not (np.abs(area) <= LARGEST).all() or not np.isin(crowd, (0, 1)).all():
                    raise ValueError(f"areas are at most {LARGEST:g}, and crowds are marked by 0 or 1")
                masks.append(json.dumps(others[2]))
            except _FAULTS as error:
                raise SourceError(f"{where}: {name!r} of sample {row}: {error}. Correct that") from None
            areas.append(area)
            crowds.append(crowd)
        field = Field(name, self.name, f"{name}.json", field.classes)
        types = list(self.columns(field).values())[2:]
        return field, [
            *columns,
            *(pa.array(some, kind) for some, kind in zip((areas, crowds, masks), types, strict=True)),
        ]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        """As `BoxesKind.store`; areas are scaled as their boxes, clipped ones too.

        Raises:
            DecodeError: the runs of a mask are not those of the image's size.
        """
        names = list(self.columns(field))
        corners = np.array(value[field.name], np.float32).reshape(-1, 4).astype(np.float64)
        moved, kept = place_boxes(value[field.name], placement)
        outlines = parse_json(value[names[4]])
        stored: list[Any] = [shortest(moved[kept].astype(np.float32)), *([] for _ in range(4))]
        for number in kept.tolist():
            before, after = ((box[2] - box[0]) * (box[3] - box[1]) for box in (corners[number], moved[number]))
            try:
                outline = place_outline(outlines[number], placement)
            except ValueError as error:
                raise DecodeError(f"the runs of a mask of {field.name!r} {error}") from None
            area = value[names[2]][number] * (after / before if placement.changes else 1)
            of_number = (value[names[1]][number], float(area), value[names[3]][number], outline)
            for column, one in zip(stored[1:], of_number, strict=True):
                column.append(one)
        content = dict(zip(("boxes", "classes", "areas", "crowds", "masks"), stored, strict=True))
        stored[4] = json.dumps(stored[4])
        return Member(json.dumps(content).encode(), 0, dict(zip(names, stored, strict=True)))

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        found = parse_json(content)
        values = [found[name] for name in ("boxes", "classes", "areas", "crowds")]
        return dict(zip(self.columns(field), (*values, json.dumps(found["masks"])), strict=True))

    def estimate_bytes(self, field: Field, samples: pa.Table) -> I64:
        import pyarrow.compute as pc  # takes 30 ms, which workers are spared

        masks: I64 = pc.binary_length(samples.column(self.companions(field.name)[-1])).to_numpy()
        return super().estimate_bytes(field, samples) + masks

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        area, crowd, masks = self.companions(field.name)[1:]
        found = super().look(field, row, read) | {name: np.array(row[name]) for name in (area, crowd)}
        image = (row["height"], row["width"])
        size, none = np.array([image]), np.zeros((1, 2))
        whole = Crops(none, size, none, size, *(np.zeros(1) for _ in range(2)))  # type: ignore[arg-type]
        drawn = draw_masks(_outlines(row[masks], image), 0, whole, image, np.array([0, 0, *image]), None)
        return {**found, masks: drawn}

    def look_at_batch(self, field: Field, spec: Any, value: Any, row: int, size: WidthHeight) -> dict[str, Any]:
        found = super().look_at_batch(field, spec, value, row, size)
        if isinstance(spec, Boxes) and spec.masks:
            found[self.companions(field.name)[-1]] = value[row]["masks"]
        return found

    def draw(self, field: Field, picture: Image.Image, found: Mapping[str, Any]) -> Image.Image:
        from gpuload.pictures import draw_mask  # Pillow's fonts

        masks = found.get(self.companions(field.name)[-1], ())
        if len(masks) and masks.shape[:0:-1] == picture.size:
            numbers = (1 + np.arange(len(masks)) % 255).astype(np.uint8)
            picture = draw_mask(picture, (masks * numbers[:, None, None]).max(axis=0))
        return super().draw(field, picture, found)

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        yield from super().bad_rows(field, rows)
        count = lengths_of(rows.column(field.name))
        for name in self.companions(field.name)[1:3]:
            found = lengths_of(rows.column(name))
            yield BadRows(
                np.flatnonzero(count != found),
                lambda row, found=found, name=name: f"{count[row]} boxes in {field.name!r} and {found[row]} {name!r}",  # type: ignore[misc]
            )
        name = self.companions(field.name)[1]
        areas = rows.column(name)
        yield BadRows(
            rows_of(lengths_of(areas))[~(np.abs(flat(areas)) <= LARGEST)],
            lambda row: f"its {name!r} as {areas[row].as_py()}, expected numbers up to {LARGEST:g}",
        )


def _outlines(text: str, image: HeightWidth, numbers: Sequence[int] | None = None) -> list[Outline]:
    """The outlines of an image's instances, checked; all, or those of these numbers.

    Raises:
        one of `_FAULTS`.
    """
    found = parse_json(text)
    outlines = [found[number] for number in (range(len(found)) if numbers is None else numbers)]
    for outline in outlines:
        check_outline(outline, image)
    return outlines
