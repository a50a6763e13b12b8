"""Instances: boxes with masks, areas and marks of crowds, as COCO has them; their outlines in its notation, polygons or
run lengths, and the masks that are drawn of them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import shown
from gpuload.errors import DecodeError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.boxes import BoundBoxes, Boxes, BoxesKind, Instances, areas_of
from gpuload.fields.field import Field
from gpuload.fields.kind import FAULTS, LARGEST, Origin, Parsed, read_each
from gpuload.fields.motion import Crops, Motion, Placement, place_boxes
from gpuload.fields.rows import Each, Rows, flat, joined_lists, lengths_of, split_rows
from gpuload.lists import owners_of, spread, starts_of
from gpuload.machine.untrusted import parse_json
from gpuload.pictures import draw_mask
from gpuload.types import F64, I64, U8, Array, Bools, ClassNames, HeightWidth

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
        crowds = [np.zeros(len(of_sample), np.int64) for of_sample in areas]
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
        # In their image.
        numbers = seen.numbers - np.repeat(starts_of(stored), counts)
        sources = rows.sizes
        parts = motion.crops.covered(motion.size, sources)
        texts = rows.columns[self._masks].to_pylist()
        numbers_of_images = split_rows(numbers, counts)
        for row, target in enumerate(targets):
            shown = numbers_of_images[row][: self.spec.max_boxes].tolist()
            try:
                outlines = _outlines(texts[row], tuple(sources[row].tolist()), shown)
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
        areas_of_boxes = areas_of(np.array(boxes, np.float64)).tolist()
        areas = list(sample.get(area, areas_of_boxes))
        crowds = list(sample.get(crowd, [0] * len(boxes)))
        outlines = [outline_of(value) for value in sample[masks]]
        return [boxes, classes, areas, crowds, outlines]

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
            array_of(masks, pa.large_string()),
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
        values = super().load(field, content)
        masks = self.companions(field.name)[-1]
        return {**values, masks: json.dumps(values[masks])}

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        area, crowd, masks = self.companions(field.name)[1:]
        values = super().look(field, row, read)
        for name in (area, crowd):
            values[name] = np.array(row[name])
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
        unmoved = Motion(uncropped, image)
        outlines = _outlines(row[masks], image)
        values[masks] = draw_masks(outlines, 0, unmoved, np.array([0, 0, *image]))
        return values

    def look_at_batch(
        self, field: Field, spec: Any, value: Any, row: int
    ) -> dict[str, Any]:
        values = super().look_at_batch(field, spec, value, row)
        if isinstance(spec, Boxes) and spec.masks:
            values[self.companions(field.name)[-1]] = value[row]["masks"]
        return values

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
    document = parse_json(text)
    if numbers is None:
        numbers = range(len(document))
    outlines = [document[number] for number in numbers]
    for outline in outlines:
        check_outline(outline, image)
    return outlines


def check_outline(outline: Outline, image: HeightWidth | None = None) -> None:
    """Raises ValueError or TypeError for what is no outline.

    Args:
        outline: What was given.
        image: (height, width) that run lengths must have; None: unknown.
    """
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


def box_of_runs(outline: Outline) -> tuple[int, int, int, int]:
    """The box x0 y0 x1 y1 of a mask in run lengths, in pixels; zeros where it is empty.

    Raises:
        ValueError or TypeError: as `check_outline`.
    """
    check_outline(outline)
    height = outline["size"][0]
    lengths = _counts(outline)
    ends = np.cumsum(lengths)[1::2]
    starts = ends - lengths[1::2]
    is_filled = ends > starts
    if not is_filled.any():
        return 0, 0, 0, 0
    first_columns, tops = np.divmod(starts[is_filled], height)
    last_columns, bottoms = np.divmod(ends[is_filled] - 1, height)
    rows = (0, height)
    if (first_columns == last_columns).all():
        rows = (int(tops.min()), int(bottoms.max()) + 1)
    return int(first_columns.min()), rows[0], int(last_columns.max()) + 1, rows[1]


def area_of_runs(outline: Outline) -> int:
    """The pixels of a mask in run lengths."""
    return int(_counts(outline)[1::2].sum())


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
    """The masks of the instances of one image, uint8 (n, height, width): 1 where an instance is, at the places that the
    view shows.

    Polygons are moved, then drawn: of the moved points, the pixels are those that pycocotools draws. Run lengths are
    moved by the nearest pixel, as masks are. What was cropped off stays so, even if the affine map moves it back.

    Args:
        outlines: In pixels of the stored image, checked.
        row: The number of the image in its batch.
        motion: How the view moves what is in the images of the batch.
        part: int64 (4,), the part of the output that the stored image covers, see `Crops.covered`.

    Raises:
        ValueError: they would take too much memory.
    """
    crops = motion.crops
    size = motion.size
    if crops.sizes is not None and not crops.padded:
        size = tuple(crops.sizes[row].tolist())
    if len(outlines) * size[0] * size[1] > _MOST_BYTES:
        raise ValueError(
            f"{len(outlines):,} masks of {size[1]} x {size[0]} pixels take more than a gigabyte"
        )
    masks = np.zeros((len(outlines), *size), np.uint8)
    image = np.array([row])
    for mask, outline in zip(masks, outlines, strict=True):
        if isinstance(outline, dict):
            mask[:] = _moved_mask(_decoded(outline), size, image, motion)
            continue
        for polygon in outline:
            points = np.array(polygon, np.float64).reshape(1, -1, 2)
            moved = motion.warp(motion.crop_and_flip(points, image), image)
            _fill(mask, moved[0])
    if motion.affine is not None or part.tolist() != [0, 0, *size]:
        masks &= _shown_part(part, size, image, motion)
    return masks


def _shown_part(part: I64, size: HeightWidth, image: I64, motion: Motion) -> U8:
    """uint8 (height, width): 1 where the warped part of an image is shown.

    Args:
        image: int64 (1,), its row.
    """
    top, left, bottom, right = part.tolist()
    if top == bottom or left == right:
        return np.zeros(size, np.uint8)
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    frame = motion.warp(np.array([corners], np.float64), image)
    inside = np.zeros(size, np.uint8)
    _fill(inside, frame[0])
    return inside


def _fill(mask: U8, points: F64) -> None:
    """Sets a polygon's pixels in a mask (height, width).

    They are those of pycocotools, whose corners lie at fifths of a pixel: in the middle of each column that an edge
    crosses, at the height to which this is rounded, inside and outside change.

    Args:
        points: (P, 2) as x, y.
    """
    height, width = mask.shape
    edges = _Edges.of_polygon(points)
    numbers, columns = edges.crossed_columns(width)
    if not len(columns):
        return
    rows = edges.take(numbers).rows_at(columns, height)
    _set_between(mask, rows, columns)


def _set_between(mask: U8, rows: I64, columns: I64) -> None:
    """Sets the pixels of each column from the first row at which an edge crosses it to the second, and so on."""
    first_row = int(rows.min())
    first_column = int(columns.min())
    tall = int(rows.max()) - first_row
    wide = int(columns.max()) + 1 - first_column
    if tall:
        changes = np.sort((columns - first_column) * tall + rows - first_row)
        runs = np.diff(changes, prepend=0, append=tall * wide)
        bits = _runs_as_bits(runs).reshape(wide, tall).T
        shown_rows = slice(first_row, first_row + tall)
        mask[shown_rows, first_column : first_column + wide] |= bits


class _Edges(NamedTuple):
    """The edges of a polygon, as pycocotools draws them.

    Attributes:
        begin: int64 (E, 2), x and y in fifths of a pixel: the end with the lower coordinate on the longer axis.
        end: int64 (E, 2), the other end.
        flat: bool (E,), whether the longer axis is x.
    """

    begin: I64
    end: I64
    flat: Bools

    @classmethod
    def of_polygon(cls, points: F64) -> "_Edges":
        """The edges of a polygon.

        Args:
            points: (P, 2), x and y in pixels.
        """
        corners = np.trunc(np.clip(points, -1e6, 1e6) * _STEPS + 0.5).astype(np.int64)
        others = np.roll(corners, -1, axis=0)
        lengths = np.abs(others - corners)
        flat = lengths[:, 0] >= lengths[:, 1]
        axis = np.where(flat, 0, 1)[:, None]
        corner_on_axis = np.take_along_axis(corners, axis, 1)
        other_on_axis = np.take_along_axis(others, axis, 1)
        is_back = corner_on_axis > other_on_axis
        begin = np.where(is_back, others, corners)
        end = np.where(is_back, corners, others)
        return cls(begin, end, flat)

    def take(self, numbers: I64) -> "_Edges":
        return _Edges(self.begin[numbers], self.end[numbers], self.flat[numbers])

    def crossed_columns(self, width: int) -> tuple[I64, I64]:
        """int64 (n,) and (n,): an edge and a column of pixels that it crosses, for each of its columns.

        Raises:
            ValueError: they are too many.
        """
        # Column c is crossed between 5c + 2 and 5c + 3.
        low = np.minimum(self.begin[:, 0], self.end[:, 0])
        high = np.maximum(self.begin[:, 0], self.end[:, 0])
        first = np.maximum(-((2 - low) // _STEPS), 0)
        last = np.minimum((high - 3) // _STEPS, width - 1)
        counts = np.maximum(last - first + 1, 0)
        total = int(counts.sum())
        if total > _MOST_CROSSED:
            raise ValueError(f"the edges of a polygon cross {total:,} columns")
        return owners_of(counts), spread(first, counts)

    def rows_at(self, columns: I64, height: int) -> I64:
        """int64 (n,): the row at which each edge crosses its column, 0..height."""
        begin_x, begin_y = self.begin.T
        crossed = _STEPS * columns + 3
        slope = self._slopes()
        with np.errstate(divide="ignore", invalid="ignore"):
            steep_step = np.ceil((crossed - 0.5 - begin_x) / slope)
        step = np.where(self.flat, crossed - begin_x, steep_step)

        def is_across(number: F64) -> Bools:
            """Whether a steep edge is across its column after this number of steps."""
            x = np.trunc(begin_x + slope * number + 0.5)
            return (x >= crossed) == (slope > 0)

        # Division misses by one, now and then, the step of a steep edge at which it is across.
        correction = ~is_across(step) * 1 - is_across(step - 1)
        step += np.where(self.flat, 0, correction)
        before = np.trunc(begin_y + slope * (step - 1) + 0.5)
        after = np.trunc(begin_y + slope * step + 0.5)
        y = np.where(self.flat, np.minimum(before, after), begin_y + step - 1)
        rows = np.ceil(np.clip((y + 0.5) / _STEPS - 0.5, 0, height))
        return rows.astype(np.int64)

    def _slopes(self) -> F64:
        """float64 (E,): by how much each edge moves on its shorter axis in one step on its longer one."""
        lengths = self.end - self.begin
        with np.errstate(divide="ignore", invalid="ignore"):
            of_flat = lengths[:, 1] / lengths[:, 0]
            of_steep = lengths[:, 0] / lengths[:, 1]
        return np.where(self.flat, of_flat, of_steep)


def _runs_as_bits(counts: I64) -> U8:
    return np.repeat((np.arange(len(counts)) & 1).astype(np.uint8), counts)


def _moved_mask(stored: U8, size: HeightWidth, image: I64, motion: Motion) -> U8:
    """uint8 (height, width) of this size: the nearest pixels of a stored mask, 0 beyond it."""
    low, high = (edge.reshape(2) for edge in motion.edges(image))
    steps = (high - low) / motion.extents(image).reshape(2)
    mirrored = motion.flips(image).reshape(2)
    # From the pixels of the output to those of the stored image.
    back = np.diag([*np.where(mirrored, -steps, steps), 1.0])
    back[:2, 2] = np.where(mirrored, high, low)
    if motion.affine is not None:
        back = back @ np.linalg.inv(np.vstack([motion.affine[image[0]], [0, 0, 1]])[:3])
    numbers = (back / back[2, 2]).reshape(-1)[:8].tolist()
    moved = Image.fromarray(stored).transform(
        size[::-1], Image.Transform.PERSPECTIVE, numbers, Image.Resampling.NEAREST
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
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return values


def compressed_runs(lengths: I64) -> str:
    """COCO's compressed text of the lengths of runs; see `_counts`."""
    values = lengths.copy()
    values[3:] -= lengths[1:-2]
    is_over = np.zeros(len(values), np.bool_)
    codes = np.zeros((len(values), 0), np.uint8)
    while not is_over.all():
        digit = values & 31
        values = values >> 5
        ends = np.where(digit & 16, values == -1, values == 0)
        column = np.where(is_over, 0, digit + 48 + np.where(ends, 0, 32))
        codes = np.concatenate([codes, column[:, None].astype(np.uint8)], 1)
        is_over |= ends
    return codes[codes > 0].tobytes().decode("ascii")


def _runs(mask: Array) -> Outline:
    """The outline of a mask (height, width) by its runs."""
    pixels = np.asarray(mask, np.bool_).T.reshape(-1)
    changes = np.flatnonzero(np.diff(pixels, prepend=False))
    return {
        "size": list(mask.shape),
        "counts": np.diff(changes, prepend=0, append=len(pixels)).tolist(),
    }
