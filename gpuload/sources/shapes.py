"""Objects on images as numbers: boxes, polygons, and what is drawn as one: turned boxes, circles, ellipses."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuload.fields.instances import area_of_runs
from gpuload.types import Array

Point = tuple[float, float]
Corners = tuple[float, float, float, float]  # x0 y0 x1 y1

_ARC_STEPS = 32  # corners of the polygon that stands for a circle or an ellipse


class Shape(NamedTuple):
    """An object on an image.

    label: the name of its class, or its number where the tool writes numbers. corners: of its box. outline: COCO's
    segmentation, or a mask (H, W); () without. crowd: whether it is a group. points: keypoints, flat, x y visibility
    (2: visible, 1: hidden, 0: not labelled).
    """

    label: str | int
    corners: Corners
    outline: Any = ()
    crowd: bool = False
    points: Sequence[float] = ()


class Runs(NamedTuple):
    """A mask as Kaggle's tables have it: starts and lengths of runs of pixels, numbered from 1. by_rows: whether these
    go along rows, else down columns."""

    starts: Sequence[int]
    lengths: Sequence[int]
    by_rows: bool

    def mask(self, width: int, height: int) -> Array:
        """uint8 (height, width).

        Raises:
            ValueError: a run lies outside of the image.
        """
        flat = np.zeros(width * height, np.uint8)
        for start, length in zip(self.starts, self.lengths, strict=True):
            if start < 1 or length < 0 or start - 1 + length > len(flat):
                what = f"{start} {length} in an image of {width} x {height}"
                raise ValueError(f"a run of a mask lies outside of its image: {what}")
            flat[start - 1 : start - 1 + length] = 1
        if self.by_rows:
            return flat.reshape(height, width)
        return flat.reshape(width, height).T


def of_runs(shape: Shape, width: int, height: int) -> Shape:
    """A shape of runs with the mask and the box of these."""
    mask = shape.outline.mask(width, height)
    rows = np.flatnonzero(mask.any(1)).tolist() or [0]
    columns = np.flatnonzero(mask.any(0)).tolist() or [0]
    corners = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    return shape._replace(corners=corners, outline=mask)


def box_of(label: str | int, x: float, y: float, width: float, height: float) -> Shape:
    """A box by its top left corner and its size."""
    return Shape(label, (x, y, x + width, y + height))


def polygon(label: str | int, points: Sequence[Sequence[float]]) -> Shape:
    """A polygon, with the box around it."""
    every = [(float(x), float(y)) for x, y in points]
    xs = [x for x, _ in every]
    ys = [y for _, y in every]
    outline = [[side for point in every for side in point]]
    return Shape(label, (min(xs), min(ys), max(xs), max(ys)), outline)


def turned_box(label: str, corners: Corners, degrees: float, center: Point) -> Shape:
    """A box that is turned clockwise around a point, as a polygon; as it is if it is not turned."""
    x0, y0, x1, y1 = corners
    if degrees % 360 == 0:
        return Shape(label, corners)
    sine = math.sin(math.radians(degrees))
    cosine = math.cos(math.radians(degrees))
    points = list[Point]()
    for x, y in ((x0, y0), (x1, y0), (x1, y1), (x0, y1)):
        right = x - center[0]
        down = y - center[1]
        points.append(
            (
                center[0] + right * cosine - down * sine,
                center[1] + right * sine + down * cosine,
            )
        )
    return polygon(label, points)


def ellipse(label: str, center: Point, radii: Point, degrees: float = 0) -> Shape:
    """An ellipse as a polygon, with its own box. degrees: by which it is turned clockwise."""
    steps = [2 * math.pi * step / _ARC_STEPS for step in range(_ARC_STEPS)]
    sine = math.sin(math.radians(degrees))
    cosine = math.cos(math.radians(degrees))
    points = list[Point]()
    for angle in steps:
        right = radii[0] * math.cos(angle)
        down = radii[1] * math.sin(angle)
        points.append(
            (
                center[0] + right * cosine - down * sine,
                center[1] + right * sine + down * cosine,
            )
        )
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
    total = 0.0
    for flat in shape.outline:
        xs = flat[0::2]
        ys = flat[1::2]
        after = zip(xs[1:] + xs[:1], ys[1:] + ys[:1], strict=True)
        pairs = zip(xs, ys, after, strict=True)
        total += abs(sum(x * end_y - end_x * y for x, y, (end_x, end_y) in pairs)) / 2
    return total


def scaled(shape: Shape, width: float, height: float) -> Shape:
    """A shape in shares of the sides of an image in its pixels; boxes within the image."""
    sides = (width, height, width, height)
    corners = [
        min(max(share, 0), 1) * side
        for share, side in zip(shape.corners, sides, strict=True)
    ]
    x0, y0, x1, y1 = corners
    outline = shape.outline
    if isinstance(outline, list):
        outline = [
            [value * (width, height)[place % 2] for place, value in enumerate(flat)]
            for flat in outline
        ]
    factors = (width, height, 1)
    points = [value * factors[place % 3] for place, value in enumerate(shape.points)]
    return Shape(shape.label, (x0, y0, x1, y1), outline, shape.crowd, points)


def keypoints_of(numbers: Sequence[float], width: int) -> list[float]:
    """Flat x, y and visibility of keypoints of two or three numbers each; points at 0, 0 without one are not there."""
    points = list[float]()
    for place in range(0, len(numbers), max(1, width)):
        x, y = numbers[place : place + 2]
        is_there = 2.0 * bool(x or y)
        points += [x, y, numbers[place + 2] if width == 3 else is_there]
    return points
