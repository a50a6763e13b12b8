"""Instances: boxes with masks, areas and marks of crowds, as COCO has them; their outlines in its notation, polygons or
run lengths, and the masks that are drawn of them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import shown
from gpuload.errors import DecodeError
from gpuload.fields.boxes import BoundBoxes, Boxes, BoxesKind, Instances, areas_of
from gpuload.fields.field import Field
from gpuload.fields.kind import FAULTS, LARGEST, Origin, Parsed, read_each
from gpuload.fields.motion import Crops, Motion, Placement, place_boxes
from gpuload.fields.rows import Each, Rows, flat, joined_lists, lengths_of, split_rows
from gpuload.machine.untrusted import parse_json
from gpuload.pictures import draw_mask
from gpuload.types import F64, I64, U8, Array, ClassNames, HeightWidth

# As COCO has them: a list of polygons, each flat, x0 y0 x1 y1 …; or a dict of "size", (height, width), and "counts",
# the lengths of runs of zeros and ones in turns, column by column: a list, or COCO's compressed text.
Outline = Any
_STEPS = 5  # to a pixel, between which COCO's polygons are rounded
# Sets of strangers: masks of an image, and the columns that a polygon's edges cross, which take some 80 bytes each. An
# outline drawn by hand or by a network crosses thousands.
_MOST_BYTES = 1 << 30
_MOST_CROSSED = 1 << 22
_MOST_DRAWN = 1 << 28  # pixels of runs that are scaled to their image


class BoundInstances(BoundBoxes):
    """`PaddedBoxes` of each view without crowds, or targets with masks, areas and marks of crowds.

    An image with 7 polygons of a tenth of it each takes 3 ms at 800×1067 (one busy core, 2026-11).
    """

    def prepare(self) -> None:
        super().prepare()
        self._masks = self.columns[4]
        if self.spec.masks or self.spec.crowds:
            self.stays = "masks" if self.spec.masks else "crowds"
        if self.spec.masks:
            self.columns = (*self.columns, "height", "width")
        else:
            self.columns = (*self.columns[:4], *self.columns[5:])

    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        areas = [areas_of(sample[self.name].astype(np.float64)) for sample in samples]
        crowds = [np.zeros(len(one), np.int64) for one in areas]
        area, crowd = self.columns[2:4]
        return {
            **super().join(samples),
            area: joined_lists(areas),
            crowd: joined_lists(crowds),
        }

    def _stored(self, columns: Mapping[str, Any]) -> Instances:
        areas, crowds = (flat(columns[name]) for name in self.columns[2:4])
        stored = (
            super()
            ._stored(columns)
            ._replace(areas=areas.astype(np.float64), crowds=crowds.astype(np.int64))
        )
        return (
            stored
            if self.spec.crowds
            else stored.take(np.flatnonzero(stored.crowds == 0))
        )

    def _targets(
        self, rows: Rows, seen: Instances, counts: I64, motion: Motion
    ) -> Each:
        targets = super()._targets(rows, seen, counts, motion)
        if not self.spec.masks:
            return targets
        stored = lengths_of(rows.columns[self.name])
        numbers = seen.numbers - np.repeat(
            np.cumsum(stored) - stored, counts
        )  # in their image
        sources = rows.sizes
        parts = motion.crops.covered(motion.size, sources)
        texts = rows.columns[self._masks].to_pylist()
        wanted = split_rows(numbers, counts)
        for row, (text, some, target) in enumerate(
            zip(texts, wanted, targets, strict=True)
        ):
            try:
                outlines = _outlines(
                    text,
                    tuple(sources[row].tolist()),
                    some[: self.spec.max_boxes].tolist(),
                )
                if not all(outlines):
                    raise ValueError("an instance has none")
                target["masks"] = draw_masks(outlines, row, motion, parts[row])
            except FAULTS as error:
                sample = rows.sample_name(self.datasets, row)
                raise DecodeError(
                    f"{sample}: the masks of its {self.name!r} cannot be drawn ({error}). "
                    "Use Boxes(masks=False), or leave the sample out with gpuload.Dataset(exclude=[key])"
                ) from None
        return targets


class InstancesKind(BoxesKind):
    """Boxes as `BoxesKind` has them, each with an area, whether it is a crowd, and COCO's segmentation as its mask.

    A sample's value in a source is a list of these: boxes, classes, areas, crowds, masks.
    """

    name = "instances"
    bound = BoundInstances
    keys = ()
    usual_names = ()
    in_tables = False
    json_names = ("boxes", "classes", "areas", "crowds", "masks")
    companion_suffixes = ("class", "area", "crowd", "masks")

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        area, crowd, masks = self.companions(field.name)[1:]
        more = {
            area: pa.list_(pa.float64()),
            crowd: pa.list_(pa.int64()),
            masks: pa.large_string(),
        }
        return {**super().columns(field), **more}

    def pick(self, name: str, sample: Mapping[str, Any]) -> Any:
        boxes, classes = super().pick(name, sample)
        area, crowd, masks = self.companions(name)[1:]
        own = areas_of(np.array(boxes, np.float64)).tolist()
        others = (
            list(sample.get(area, own)),
            list(sample.get(crowd, [0] * len(boxes))),
        )
        return [boxes, classes, *others, [outline_of(value) for value in sample[masks]]]

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        field, columns = super().parse(where, name, values, classes, detail)
        others = read_each(
            where,
            name,
            values,
            _read_others,
            "boxes, each with an area, a mark of crowds and a mask",
        )
        areas, crowds, masks = zip(*others, strict=True)
        return field, [
            *columns,
            joined_lists(areas),
            joined_lists(crowds),
            pa.array(masks, pa.large_string()),
        ]

    def move(
        self, field: Field, value: Mapping[str, Any], placement: Placement
    ) -> Mapping[str, Any]:
        """As `BoxesKind.move`; areas are scaled as their boxes, clipped ones too.

        Raises:
            DecodeError: the runs of a mask are not those of the image's size.
        """
        area, crowd, masks = self.companions(field.name)[1:]
        moved, kept = place_boxes(value[field.name], placement)
        before = areas_of(np.array(value[field.name], np.float32).astype(np.float64))
        after = areas_of(moved)
        areas = np.array(value[area], np.float64)
        outlines = parse_json(value[masks])
        if placement.changes:
            areas[kept] *= after[kept] / before[kept]
        try:
            placed = [
                place_outline(outlines[number], placement) for number in kept.tolist()
            ]
        except ValueError as error:
            raise DecodeError(f"the runs of a mask of {field.name!r} {error}") from None
        return {
            **super().move(field, value, placement),
            area: areas[kept].tolist(),
            crowd: [value[crowd][number] for number in kept.tolist()],
            masks: json.dumps(placed),
        }

    def dump(self, field: Field, values: Mapping[str, Any]) -> bytes:
        masks = self.companions(field.name)[-1]
        return super().dump(field, {**values, masks: parse_json(values[masks])})

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        found = super().load(field, content)
        masks = self.companions(field.name)[-1]
        return {**found, masks: json.dumps(found[masks])}

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        area, crowd, masks = self.companions(field.name)[1:]
        found = super().look(field, row, read) | {
            name: np.array(row[name]) for name in (area, crowd)
        }
        image = (row["height"], row["width"])
        size = np.array([image])
        none = np.zeros((1, 2))
        uncropped = Crops(
            none.astype(np.int32),
            size.astype(np.int32),
            none.astype(np.float32),
            size.astype(np.float32),
            np.zeros(1, np.int32),
            np.zeros(1, np.int32),
        )
        whole = Motion(uncropped, image)
        return {
            **found,
            masks: draw_masks(
                _outlines(row[masks], image), 0, whole, np.array([0, 0, *image])
            ),
        }

    def look_at_batch(
        self, field: Field, spec: Any, value: Any, row: int
    ) -> dict[str, Any]:
        found = super().look_at_batch(field, spec, value, row)
        if isinstance(spec, Boxes) and spec.masks:
            found[self.companions(field.name)[-1]] = value[row]["masks"]
        return found

    def draw(
        self, field: Field, picture: Image.Image, found: Mapping[str, Any]
    ) -> Image.Image:
        masks = found.get(self.companions(field.name)[-1], ())
        if len(masks) and masks.shape[:0:-1] == picture.size:
            numbers = (1 + np.arange(len(masks)) % 255).astype(np.uint8)
            picture = draw_mask(picture, (masks * numbers[:, None, None]).max(axis=0))
        return super().draw(field, picture, found)


def _read_others(value: Sequence[Any]) -> tuple[F64, I64, str]:
    """The areas, marks of crowds and masks of one sample."""
    areas = np.array(value[2], np.float64)
    crowds = np.array(value[3], np.int64)
    masks = value[4]
    for outline in masks:
        check_outline(outline)
    if {areas.shape, crowds.shape, (len(masks),)} != {(len(value[0]),)}:
        raise ValueError("one of them is missing")
    if not (np.abs(areas) <= LARGEST).all() or not np.isin(crowds, (0, 1)).all():
        raise ValueError(
            f"areas are at most {LARGEST:g}, and crowds are marked by 0 or 1"
        )
    return areas, crowds, json.dumps(masks)


def _outlines(
    text: str, image: HeightWidth, numbers: Sequence[int] | None = None
) -> list[Outline]:
    """The outlines of an image's instances, checked; all, or those of these numbers.

    Raises:
        one of `FAULTS`.
    """
    found = parse_json(text)
    outlines = [
        found[number] for number in (range(len(found)) if numbers is None else numbers)
    ]
    for outline in outlines:
        check_outline(outline, image)
    return outlines


def check_outline(outline: Outline, image: HeightWidth | None = None) -> None:
    """Raises ValueError or TypeError for what is no outline. image: the size that run lengths must have, if known."""
    if not isinstance(outline, dict):
        for polygon in outline:
            if (
                len(polygon) % 2
                or not (np.abs(np.array(polygon, np.float64)) <= LARGEST).all()
            ):
                raise ValueError("a polygon is a flat list of x and y in turns")
        return
    height, width = outline["size"]
    if image is not None and (height, width) != image:
        raise ValueError(
            f"its size is {shown(outline['size'])}, its image's {list(image)}"
        )
    counts = _counts(outline)
    # No run is longer than the image, so that their sum does not overflow.
    if (
        counts.ndim != 1
        or ((counts < 0) | (counts > height * width)).any()
        or counts.sum() != height * width
    ):
        raise ValueError("its runs are not as long as its image")


def outline_of(value: Any) -> Outline:
    """The outline of an instance as a program gives it: COCO's own, pycocotools' with bytes, or a mask (H, W)."""
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return _runs(value != 0)
    if isinstance(value, dict) and isinstance(value.get("counts"), bytes):
        return {**value, "counts": value["counts"].decode("ascii")}
    return value


def place_outline(outline: Outline, placement: Placement) -> Outline:
    """The outline, moved with its image by the packer; run lengths by the nearest pixel.

    Raises:
        ValueError: its runs are those of an image of another size.
    """
    if isinstance(outline, dict):
        if tuple(outline["size"]) != placement.source[::-1]:
            raise ValueError(
                f"are of {outline['size'][1]} x {outline['size'][0]} pixels"
            )
        if not placement.changes:
            return outline
        if (
            placement.source[0] * placement.source[1] > _MOST_DRAWN
        ):  # of an annotation, not of the image itself
            raise ValueError(
                f"are of {placement.source[0]} x {placement.source[1]} pixels, too many to be scaled"
            )
        return _runs(
            np.asarray(
                placement.resample(
                    Image.fromarray(_decoded(outline)), Image.Resampling.NEAREST
                )
            )
        )
    if not placement.changes:
        return outline
    moved = [
        placement.move_points(np.array(polygon, np.float32).reshape(-1, 2))
        for polygon in outline
    ]
    return [points.round(3).reshape(-1).tolist() for points in moved]


def draw_masks(outlines: Sequence[Outline], row: int, motion: Motion, part: I64) -> U8:
    """uint8 (n, height, width) of an image of a batch: 1 where an instance is, at the places that the view shows.

    outlines: in pixels of the stored image, checked. part: of the output, see `Crops.covered`.

    Polygons are moved, then drawn: of the moved points, the pixels are those that pycocotools draws. Run lengths are
    moved by the nearest pixel, as masks are. What was cropped off stays so, even if the affine map moves it back.

    Raises:
        ValueError: they would take too much memory.
    """
    crops = motion.crops
    own = (
        motion.size
        if crops.sizes is None or crops.padded
        else tuple(crops.sizes[row].tolist())
    )
    if len(outlines) * own[0] * own[1] > _MOST_BYTES:
        raise ValueError(
            f"{len(outlines):,} masks of {own[1]} x {own[0]} pixels take more than a gigabyte"
        )
    masks, (top, left, bottom, right) = (
        np.zeros((len(outlines), *own), np.uint8),
        part.tolist(),
    )
    at = np.array([row])
    for mask, outline in zip(masks, outlines, strict=True):
        if isinstance(outline, dict):
            mask[:] = _moved_mask(_decoded(outline), own, at, motion)
            continue
        for polygon in outline:
            points = np.array(polygon, np.float64).reshape(1, -1, 2)
            _fill(mask, motion.warp(motion.crop_and_flip(points, at), at)[0])
    if motion.affine is not None or (top, left, bottom, right) != (0, 0, *own):
        inside = np.zeros(own, np.uint8)
        frame = np.array(
            [[(left, top), (right, top), (right, bottom), (left, bottom)]], np.float64
        )
        _fill(inside, motion.warp(frame, at)[0])
        masks &= inside
    return masks


def _fill(mask: U8, points: F64) -> None:
    """Sets a polygon's pixels in a mask (height, width). points: (P, 2) as x, y.

    They are those of pycocotools, whose corners lie at fifths of a pixel: in the middle of each column that an edge
    crosses, at the height to which this is rounded, inside and outside change.
    """
    height, width = mask.shape
    corners = np.trunc(np.clip(points, -1e6, 1e6) * _STEPS + 0.5).astype(np.int64)
    others = np.roll(corners, -1, axis=0)
    flat = np.abs(others[:, 0] - corners[:, 0]) >= np.abs(others[:, 1] - corners[:, 1])
    axis = np.where(flat, 0, 1)[:, None]
    back = np.take_along_axis(corners, axis, 1) > np.take_along_axis(others, axis, 1)
    begin = np.where(back, others, corners)
    end = np.where(back, corners, others)
    # Column c is crossed between 5c + 2 and 5c + 3.
    low = np.minimum(begin[:, 0], end[:, 0])
    high = np.maximum(begin[:, 0], end[:, 0])
    first = np.maximum(-((2 - low) // _STEPS), 0)
    last = np.minimum((high - 3) // _STEPS, width - 1)
    counts = np.maximum(last - first + 1, 0)
    total = int(counts.sum())
    if not total:
        return
    if total > _MOST_CROSSED:
        raise ValueError(f"the edges of a polygon cross {total:,} columns")
    edge = np.repeat(np.arange(len(counts)), counts)
    columns = (
        first[edge] + np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    )
    (xs, ys), (xe, ye), crossed = begin[edge].T, end[edge].T, _STEPS * columns + 3
    flat = flat[edge]
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(flat, (ye - ys) / (xe - xs), (xe - xs) / (ye - ys))
        step = np.where(flat, crossed - xs, np.ceil((crossed - 0.5 - xs) / slope))
    # The step of a steep edge at which it is across, which division misses by one now and then.
    across = [
        (np.trunc(xs + slope * (step + more) + 0.5) >= crossed) == (slope > 0)
        for more in (-1, 0)
    ]
    step += np.where(flat, 0, ~across[1] * 1 - across[0])
    heights = [np.trunc(ys + slope * (step - back) + 0.5) for back in (1, 0)]
    at = np.where(flat, np.minimum(*heights), ys + step - 1)
    rows = np.ceil(np.clip((at + 0.5) / _STEPS - 0.5, 0, height)).astype(np.int64)
    top = int(rows.min())
    left = int(columns.min())
    tall = int(rows.max()) - top
    wide = int(columns.max()) + 1 - left
    if tall:
        changes = np.sort((columns - left) * tall + rows - top)
        runs = np.diff(changes, prepend=0, append=tall * wide)
        mask[top : top + tall, left : left + wide] |= (
            _runs_as_bits(runs).reshape(wide, tall).T
        )


def _runs_as_bits(counts: I64) -> U8:
    return np.repeat((np.arange(len(counts)) & 1).astype(np.uint8), counts)


def _moved_mask(stored: U8, own: HeightWidth, at: I64, motion: Motion) -> U8:
    """uint8 (height, width) of the size `own`: the nearest pixels of a stored mask, 0 beyond it."""
    low, high = (edge.reshape(2) for edge in motion.edges(at))
    steps = (high - low) / motion.extents(at).reshape(2)
    mirrored = motion.flips(at).reshape(2)
    # From the pixels of the output to those of the stored image.
    back = np.diag([*np.where(mirrored, -steps, steps), 1.0])
    back[:2, 2] = np.where(mirrored, high, low)
    if motion.affine is not None:
        back = back @ np.linalg.inv(np.vstack([motion.affine[at[0]], [0, 0, 1]])[:3])
    numbers = (back / back[2, 2]).reshape(-1)[:8].tolist()
    moved = Image.fromarray(stored).transform(
        own[::-1], Image.Transform.PERSPECTIVE, numbers, Image.Resampling.NEAREST
    )
    return np.asarray(moved)


def _decoded(outline: Outline) -> U8:
    """uint8 (height, width), 1 where the instance is."""
    height, width = outline["size"]
    return np.ascontiguousarray(
        _runs_as_bits(_counts(outline)).reshape(width, height).T
    )


def _counts(outline: Outline) -> I64:
    """The lengths of the runs.

    Compressed, each is a number of characters of 5 bits, least significant first, the sixth telling that another one
    follows; the last one's highest bit is the sign. From the fourth run on it is the difference to the run two before.
    """
    counts = outline["counts"]
    if not isinstance(counts, str):
        return np.array(counts, np.int64)
    codes = np.frombuffer(counts.encode("ascii"), np.uint8).astype(np.int64) - 48
    ends = np.flatnonzero(codes & 32 == 0)
    if not len(ends) or (codes < 0).any() or ends[-1] != len(codes) - 1:
        raise ValueError("its text is cut off")
    begins = np.concatenate([[0], ends[:-1] + 1])
    bits = 5 * (np.arange(len(codes)) - np.repeat(begins, ends - begins + 1))
    values = np.add.reduceat((codes & 31) << bits, begins)
    values -= np.where(codes[ends] & 16, 1 << (bits[ends] + 5), 0)
    values[1::2], values[2::2] = np.cumsum(values[1::2]), np.cumsum(values[2::2])
    return values


def _runs(mask: Array) -> Outline:
    """The outline of a mask (height, width) by its runs."""
    pixels = np.asarray(mask, np.bool_).T.reshape(-1)
    changes = np.flatnonzero(np.diff(pixels, prepend=False))
    return {
        "size": list(mask.shape),
        "counts": np.diff(changes, prepend=0, append=len(pixels)).tolist(),
    }
