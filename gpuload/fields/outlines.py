"""Outlines of instances in COCO's notation, polygons or run lengths, and the masks that are drawn of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from gpuload.checks import shown
from gpuload.fields.motion import Placement, apply_affine, crop_and_flip, crop_edges, extents, flips
from gpuload.fields.rows import Crops
from gpuload.types import F64, I64, U8, Array, HeightWidth

# As COCO has them: a list of polygons, each flat, x0 y0 x1 y1 …; or a dict of "size", (height, width), and "counts",
# the lengths of runs of zeros and ones in turns, column by column: a list, or COCO's compressed text.
Outline = Any
LARGEST = 1e30  # of a coordinate or an area: however far it is zoomed, it is still a float32
_STEPS = 5  # to a pixel, between which COCO's polygons are rounded
# Sets of strangers: masks of an image, and the columns that a polygon's edges cross, which take some 80 bytes each. An
# outline drawn by hand or by a network crosses thousands.
_MOST_BYTES, _MOST_CROSSED = 1 << 30, 1 << 22


def check_outline(outline: Outline, image: HeightWidth | None = None) -> None:
    """Raises ValueError or TypeError for what is no outline. image: the size that run lengths must have, if known."""
    if not isinstance(outline, dict):
        for polygon in outline:
            if len(polygon) % 2 or not (np.abs(np.array(polygon, np.float64)) <= LARGEST).all():
                raise ValueError("a polygon is a flat list of x and y in turns")
        return
    height, width = outline["size"]
    if image is not None and (height, width) != image:
        raise ValueError(f"its size is {shown(outline['size'])}, its image's {list(image)}")
    counts = _counts(outline)
    # No run is longer than the image, so that their sum does not overflow.
    if counts.ndim != 1 or ((counts < 0) | (counts > height * width)).any() or counts.sum() != height * width:
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
            raise ValueError(f"are of {outline['size'][1]} x {outline['size'][0]} pixels")
        if not placement.changes:
            return outline
        return _runs(np.asarray(placement.resample(Image.fromarray(_decoded(outline)), Image.Resampling.NEAREST)))
    if not placement.changes:
        return outline
    moved = [placement.move_points(np.array(polygon, np.float32).reshape(-1, 2)) for polygon in outline]
    return [points.round(3).reshape(-1).tolist() for points in moved]


def draw_masks(
    outlines: Sequence[Outline], row: int, view: Crops, size: HeightWidth, part: I64, affine: F64 | None
) -> U8:
    """uint8 (n, height, width) of an image of a batch: 1 where an instance is, at the places that the view shows.

    outlines: in pixels of the stored image, checked. part: see `covered`. affine: as in `Rows`.

    Polygons are moved, then drawn: of the moved points, the pixels are those that pycocotools draws. Run lengths are
    moved by the nearest pixel, as masks are. What was cropped off stays so, even if the affine map moves it back.

    Raises:
        ValueError: they would take too much memory.
    """
    own = size if view.sizes is None or view.padded else tuple(view.sizes[row].tolist())
    if len(outlines) * own[0] * own[1] > _MOST_BYTES:
        raise ValueError(f"{len(outlines):,} masks of {own[1]} x {own[0]} pixels take more than a gigabyte")
    masks, (top, left, bottom, right) = np.zeros((len(outlines), *own), np.uint8), part.tolist()
    for mask, outline in zip(masks, outlines, strict=True):
        if isinstance(outline, dict):
            _move_mask(_decoded(outline), mask, row, view, size, affine)
            continue
        for polygon in outline:
            points = np.array(polygon, np.float64).reshape(-1, 2)
            at = np.full(len(points), row)
            points = crop_and_flip(points, at, view, size)
            _fill(mask, points if affine is None else apply_affine(points, at, affine))
    if affine is not None:
        frame = np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)
        inside = np.zeros(own, np.uint8)
        _fill(inside, apply_affine(frame, np.full(4, row), affine))
        masks &= inside
    elif (top, left, bottom, right) != (0, 0, *own):
        for beyond in (np.s_[:, :top], np.s_[:, bottom:], np.s_[..., :left], np.s_[..., right:]):
            masks[beyond] = 0
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
    begin, end = np.where(back, others, corners), np.where(back, corners, others)
    # Column c is crossed between 5c + 2 and 5c + 3.
    low, high = np.minimum(begin[:, 0], end[:, 0]), np.maximum(begin[:, 0], end[:, 0])
    first, last = np.maximum(-((2 - low) // _STEPS), 0), np.minimum((high - 3) // _STEPS, width - 1)
    counts = np.maximum(last - first + 1, 0)
    total = int(counts.sum())
    if not total:
        return
    if total > _MOST_CROSSED:
        raise ValueError(f"the edges of a polygon cross {total:,} columns")
    edge = np.repeat(np.arange(len(counts)), counts)
    columns = first[edge] + np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    (xs, ys), (xe, ye), crossed = begin[edge].T, end[edge].T, _STEPS * columns + 3
    flat = flat[edge]
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(flat, (ye - ys) / (xe - xs), (xe - xs) / (ye - ys))
        step = np.where(flat, crossed - xs, np.ceil((crossed - 0.5 - xs) / slope))
    # The step of a steep edge at which it is across, which division misses by one now and then.
    across = [(np.trunc(xs + slope * (step + more) + 0.5) >= crossed) == (slope > 0) for more in (-1, 0)]
    step += np.where(flat, 0, ~across[1] * 1 - across[0])
    heights = [np.trunc(ys + slope * (step - back) + 0.5) for back in (1, 0)]
    at = np.where(flat, np.minimum(*heights), ys + step - 1)
    rows = np.ceil(np.clip((at + 0.5) / _STEPS - 0.5, 0, height)).astype(np.int64)
    top, left = int(rows.min()), int(columns.min())
    tall, wide = int(rows.max()) - top, int(columns.max()) + 1 - left
    if tall:
        changes = np.sort((columns - left) * tall + rows - top)
        runs = np.diff(changes, prepend=0, append=tall * wide)
        mask[top : top + tall, left : left + wide] |= _runs_as_bits(runs).reshape(wide, tall).T


def _runs_as_bits(counts: I64) -> U8:
    return np.repeat((np.arange(len(counts)) & 1).astype(np.uint8), counts)


def _move_mask(stored: U8, mask: U8, row: int, view: Crops, size: HeightWidth, affine: F64 | None) -> None:
    """Sets the pixels of a mask (height, width) to the nearest ones of a stored one."""
    one = np.array([row])
    (low,), (high,) = crop_edges(view, one)
    (mirrored,), extent = flips(view, one), np.atleast_2d(extents(view, size, one))[0]
    height, width = mask.shape
    places = [np.arange(side) + 0.5 for side in (width, height)]
    if affine is not None:
        matrix = np.vstack([affine[row], [0, 0, 1]]) if affine.shape[1] == 2 else affine[row]
        grid = np.stack([*np.meshgrid(*places), np.ones(mask.shape)])
        x, y, scale = np.einsum("ij,jhw->ihw", np.linalg.inv(matrix), grid)
        places = [x / scale, y / scale]
    inside, source = [], []
    for axis, at in enumerate(places):
        inside.append((at >= 0) & (at < extent[axis]))
        unflipped = extent[axis] - at if mirrored[axis] else at
        place = np.floor(low[axis] + unflipped * ((high - low) / extent)[axis]).astype(np.int64)
        inside[axis] &= (place >= 0) & (place < stored.shape[1 - axis])
        source.append(np.clip(place, 0, stored.shape[1 - axis] - 1))
    if affine is None:
        mask[:] = stored[np.ix_(source[1], source[0])] & inside[1][:, None] & inside[0]
    else:
        mask[:] = stored[source[1], source[0]] & inside[0] & inside[1]


def _decoded(outline: Outline) -> U8:
    """uint8 (height, width), 1 where the instance is."""
    height, width = outline["size"]
    return np.ascontiguousarray(_runs_as_bits(_counts(outline)).reshape(width, height).T)


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
    return {"size": list(mask.shape), "counts": np.diff(changes, prepend=0, append=len(pixels)).tolist()}
