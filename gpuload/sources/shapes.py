"""Objects on images as numbers: boxes, polygons, and what is drawn as one: turned boxes, circles, ellipses."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from gpuload.checks import shown
from gpuload.fields.instances import area_of_runs, check_outline
from gpuload.fields.kind import LARGEST
from gpuload.sources.files import is_text
from gpuload.types import Array, WidthHeight

Point = tuple[float, float]
Corners = tuple[float, float, float, float]  # x0 y0 x1 y1

_MOST_CLASSES = (1 << 31) - 1
_MOST_PIXELS = 1 << 30
_ARC_STEPS = 32  # corners of the polygon that stands for a circle or an ellipse


class Shape(NamedTuple):
    """An object on an image.

    Attributes:
        label: The name of its class, or its number where the tool writes numbers.
        corners: x0, y0, x1, y1 of its box.
        outline: COCO's segmentation, or a mask (H, W); () without.
        crowd: Whether it is a group.
        points: Keypoints, flat, x y visibility (2: visible, 1: hidden, 0: not labelled).
    """

    label: str | int
    corners: Corners
    outline: Any = ()
    crowd: bool = False
    points: Sequence[float] = ()

    def check(self) -> None:
        """Raises ValueError or TypeError where a value is not what it should be, as tools of others may write it."""
        is_name = isinstance(self.label, str) and is_text(self.label)
        is_number = type(self.label) is int and 0 <= self.label <= _MOST_CLASSES
        if not (is_name or is_number):
            raise ValueError(f"the class {shown(self.label)}")
        _check_numbers(self.corners)
        _check_numbers(self.points)
        if isinstance(self.outline, dict):
            check_outline(self.outline)
        elif isinstance(self.outline, list):
            for polygon in self.outline:
                _check_numbers(polygon)


def _check_numbers(values: Sequence[float]) -> None:
    for value in values:
        if isinstance(value, str) or not abs(value) <= LARGEST:
            raise ValueError(f"the coordinate {shown(value)}")


def blank_mask(height: int, width: int) -> Array:
    """Zeros (height, width) of uint8.

    Raises:
        ValueError: No image is as large.
    """
    if not (height >= 0 and width >= 0 and height * width <= _MOST_PIXELS):
        raise ValueError(f"a mask of {width} x {height} pixels")
    return np.zeros((height, width), np.uint8)


def part_of_mask(part: Array, x: int, y: int, size: WidthHeight) -> Array:
    """The mask (H, W) of an image, of which a part is told.

    Args:
        part: (height, width).
        x: Its first column in the image.
        y: Its first row.
        size: (width, height) of the image.

    Raises:
        ValueError: it leaves the image, or no image is as large.
    """
    mask = blank_mask(size[1], size[0])
    mask[y : y + part.shape[0], x : x + part.shape[1]] = part
    return mask


class Runs(NamedTuple):
    """A mask as Kaggle's tables have it: runs of pixels, which are numbered from 1.

    Attributes:
        starts: The first pixel of each run.
        lengths: Pixels of each run.
        by_rows: Whether runs go along rows, else down columns.
    """

    starts: Sequence[int]
    lengths: Sequence[int]
    by_rows: bool

    def mask(self, width: int, height: int) -> Array:
        """uint8 (height, width).

        Raises:
            ValueError: a run lies outside of the image.
        """
        flat = blank_mask(height, width).reshape(-1)
        for start, length in zip(self.starts, self.lengths, strict=True):
            if start < 1 or length < 0 or start - 1 + length > len(flat):
                raise ValueError(
                    f"a run of a mask lies outside of its image: {start} {length} in an image of {width} x {height}"
                )
            flat[start - 1 : start - 1 + length] = 1
        if self.by_rows:
            return flat.reshape(height, width)
        return flat.reshape(width, height).T


def box_of(label: str | int, x: float, y: float, width: float, height: float) -> Shape:
    """A box by its top left corner and its size."""
    return Shape(label, (x, y, x + width, y + height))


def centered_box(
    label: str | int, x: float, y: float, width: float, height: float
) -> Shape:
    """A box by its center and its size."""
    return box_of(label, x - width / 2, y - height / 2, width, height)


def polygon(label: str | int, points: Sequence[Sequence[float]]) -> Shape:
    """A polygon, with the box around it."""
    every = [(float(x), float(y)) for x, y in points]
    xs = [x for x, _ in every]
    ys = [y for _, y in every]
    outline = [[side for point in every for side in point]]
    return Shape(label, (min(xs), min(ys), max(xs), max(ys)), outline)


def flat_polygon(label: str | int, numbers: Sequence[float]) -> Shape:
    """A polygon by x and y of its corners in turns."""
    return polygon(label, list(zip(numbers[0::2], numbers[1::2], strict=True)))


def joined(parts: Sequence[Shape]) -> Shape:
    """The polygons of one object as one shape."""
    sides = list(zip(*(part.corners for part in parts), strict=True))
    corners = (min(sides[0]), min(sides[1]), max(sides[2]), max(sides[3]))
    outline = [flat for part in parts for flat in part.outline]
    return Shape(parts[0].label, corners, outline)


def turned_box(label: str, corners: Corners, degrees: float, center: Point) -> Shape:
    """A box that is turned clockwise around a point, as a polygon; as it is if it is not turned."""
    x0, y0, x1, y1 = corners
    if degrees % 360 == 0:
        return Shape(label, corners)
    corners_of_box = ((x0, y0), (x1, y0), (x1, y1), (x0, y1))
    offsets = [(x - center[0], y - center[1]) for x, y in corners_of_box]
    return polygon(label, _turned(offsets, degrees, center))


def _turned(offsets: Sequence[Point], degrees: float, center: Point) -> list[Point]:
    """Points at these offsets from a center, turned around it clockwise."""
    sine = math.sin(math.radians(degrees))
    cosine = math.cos(math.radians(degrees))
    return [
        (center[0] + x * cosine - y * sine, center[1] + x * sine + y * cosine)
        for x, y in offsets
    ]


def ellipse(label: str, center: Point, radii: Point, degrees: float = 0) -> Shape:
    """An ellipse as a polygon, with its own box.

    Args:
        label: Of the shape.
        center: (x, y).
        radii: Along x and y, before it is turned.
        degrees: By which it is turned clockwise.
    """
    angles = [2 * math.pi * step / _ARC_STEPS for step in range(_ARC_STEPS)]
    offsets = [
        (radii[0] * math.cos(angle), radii[1] * math.sin(angle)) for angle in angles
    ]
    points = _turned(offsets, degrees, center)
    sine = math.sin(math.radians(degrees))
    cosine = math.cos(math.radians(degrees))
    wide = math.hypot(radii[0] * cosine, radii[1] * sine)
    high = math.hypot(radii[0] * sine, radii[1] * cosine)
    box = (center[0] - wide, center[1] - high, center[0] + wide, center[1] + high)
    return polygon(label, points)._replace(corners=box)


def area_of(shape: Shape) -> float:
    """In pixels: of its polygons or its mask, else of its box."""
    x0, y0, x1, y1 = shape.corners
    if isinstance(shape.outline, np.ndarray):
        return float(np.count_nonzero(shape.outline))
    if isinstance(shape.outline, dict):
        return float(area_of_runs(shape.outline))
    if not isinstance(shape.outline, list) or not shape.outline:
        return (x1 - x0) * (y1 - y0)
    return sum(map(_area_of_polygon, shape.outline))


def _area_of_polygon(flat: Sequence[float]) -> float:
    """The area of a polygon by the shoelace formula.

    Args:
        flat: x and y in turns.
    """
    xs = np.array(flat[0::2])
    ys = np.array(flat[1::2])
    return abs(float(xs @ np.roll(ys, -1) - np.roll(xs, -1) @ ys)) / 2


def in_pixels(shape: Shape, size: WidthHeight, in_shares: bool) -> Shape:
    """A shape on an image of this size.

    Args:
        shape: In pixels or in shares of both sides; its outline may be runs.
        size: Of the image.
        in_shares: Which of both.

    Raises:
        ValueError: A run of a mask lies outside of the image.
    """
    if isinstance(shape.outline, Runs):
        return _of_runs(shape, size)
    return _scaled(shape, size) if in_shares else shape


def _of_runs(shape: Shape, size: WidthHeight) -> Shape:
    """A shape of runs with the mask and the box of these."""
    mask = shape.outline.mask(*size)
    rows = np.flatnonzero(mask.any(1)).tolist() or [0]
    columns = np.flatnonzero(mask.any(0)).tolist() or [0]
    corners = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    return shape._replace(corners=corners, outline=mask)


def _scaled(shape: Shape, size: WidthHeight) -> Shape:
    """A shape in shares of the sides of an image in its pixels; boxes within the image."""
    within = [min(max(share, 0), 1) for share in shape.corners]
    x0, y0, x1, y1 = _multiplied(within, size)
    outline = shape.outline
    if isinstance(outline, list):
        outline = [_multiplied(flat, size) for flat in outline]
    points = _multiplied(shape.points, (*size, 1))
    return Shape(shape.label, (x0, y0, x1, y1), outline, shape.crowd, points)


def _multiplied(values: Sequence[float], factors: Sequence[float]) -> list[float]:
    """Each value times its factor; these come in turns."""
    return [
        value * factor for value, factor in zip(values, cycle(factors), strict=False)
    ]


def size_in(entry: Any) -> WidthHeight:
    """The "width" and "height" of an image that an entry of a document tells; 0 where it does not."""
    return int(entry.get("width") or 0), int(entry.get("height") or 0)


def keypoints_of(numbers: Sequence[float], width: int) -> list[float]:
    """Flat x, y and visibility of keypoints of two or three numbers each; points at 0, 0 without one are not there."""
    points = list[float]()
    for place in range(0, len(numbers), max(1, width)):
        x, y = numbers[place : place + 2]
        is_there = 2.0 * bool(x or y)
        points += [x, y, numbers[place + 2] if width == 3 else is_there]
    return points
