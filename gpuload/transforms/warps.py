"""Rotations, affine maps and perspectives at random, as in torchvision, and how such a step moves a point."""

from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np

from gpuload import checks
from gpuload.checks import (
    LARGEST,
    PROBABILITY,
    Rule,
    ascending,
    either,
    number,
    optional,
    settings,
    several,
)
from gpuload.draws import Draws, between
from gpuload.transforms.ops import MAP_ARGS, Op
from gpuload.transforms.steps import (
    Steps,
    is_affine,
    is_mixed,
    is_warp,
    maps_of,
    one_step,
)
from gpuload.types import F64, Bools

__all__ = ["RandomAffine", "RandomPerspective", "RandomRotation"]

# Level where there is no pixel of the image; None is black.
Fill = float | tuple[float, float, float] | None

_LEVEL = number(0, 255, "")
FILL = optional(
    either(
        "a level in 0..255, three of them (R, G, B)",
        _LEVEL,
        several(_LEVEL, "", count=3),
    )
)

WarpInterpolation = Literal["nearest", "bilinear"]

_STEEPEST = 89.0  # degrees of a shear; at 90 the image is a line
_ATTEMPTS = 10

# The corners on the right, and those at the bottom, clockwise from the upper left one.
_FAR_CORNERS = ((1, 2), (2, 3))

_SHEARS = "degrees in 0..89, (low, high) in -89..89 along x, or (low, high, low, high) along x and y"

_CENTER = optional(
    several(
        number(-LARGEST, LARGEST, ""),
        "(x, y) in pixels of the output, from its upper left corner",
        count=2,
    )
)
_SHARES = several(
    number(0, 1, ""),
    "two numbers in 0..1, shares of the width and of the height",
    count=2,
)
_FACTORS = ascending(0.01, 100, "(low, high) with 0.01 <= low <= high <= 100")


def rgb(fill: Fill) -> tuple[float, float, float]:
    """The levels of a fill."""
    return fill if isinstance(fill, tuple) else (fill or 0.0,) * 3


def affine_of(steps: Steps, height: int, width: int) -> F64 | None:
    """How the geometric steps of each image move a point: float64 (N, 2, 3), or (N, 3, 3) if there is a perspective
    among them, or None if there are none.

    Points are (x, y) in pixels from the top left corner, (0, 0), as for boxes; a pixel's centre is at .5. A point of
    the image before the steps moves to `matrix[:2, :2] @ point + matrix[:2, 2]`, with a perspective divided by
    `matrix[2, :2] @ point + matrix[2, 2]`.
    """
    moves_pixels = is_warp(steps.ops) | is_affine(steps.ops)
    geometric = moves_pixels & ~is_mixed(steps.ops)
    if not geometric.any():
        return None
    identity = np.eye(3)
    maps = np.where(geometric[:, :, None, None], maps_of(steps), identity)
    product = np.tile(identity, (len(maps), 1, 1))
    for step in np.flatnonzero(geometric.any(axis=0)):
        product = np.linalg.inv(maps[:, step]) @ product
    to_centre = _shift(-width / 2, -height / 2)
    moved: F64 = np.linalg.inv(to_centre) @ product @ to_centre
    has_perspective = maps[:, :, 2, :2].any()
    if has_perspective:
        return moved
    return moved[:, :2] / moved[:, 2:, 2:]


def mask_steps(steps: Steps, fill: int) -> Steps:
    """The geometric steps of images as those of their masks, by nearest pixel.

    Args:
        steps: Of the images.
        fill: The class of what comes from outside.
    """
    ops = np.full_like(steps.ops, Op.NOTHING)
    ops[is_affine(steps.ops)] = Op.AFFINE
    ops[is_warp(steps.ops)] = Op.WARP_NEAREST
    ops[is_mixed(steps.ops)] = Op.NOTHING
    args = steps.args.copy()
    args[ops == Op.AFFINE, 6] = fill
    args[ops == Op.WARP_NEAREST, MAP_ARGS] = fill
    return Steps(ops, args)


def _range_of(most: float, expected: str) -> Rule[Any]:
    """Two numbers in ascending order, or one, d, that stands for (-d, d)."""
    pair = ascending(-most, most, "")

    def read_one(value: Any) -> Any:
        limit = checks.as_number(value)
        return pair.read((-limit, limit))

    return either(expected, Rule("", read_one), pair)


_DEGREES = _range_of(
    LARGEST,
    "degrees of at least 0, which stand for (-degrees, degrees), or (low, high)",
)
_ALONG = ascending(-_STEEPEST, _STEEPEST, "")


def _as_both_shears(value: Any) -> Any:
    limits = checks.as_items(value)
    return _ALONG.read(limits[:2]) + _ALONG.read(limits[2:])


_BOTH = Rule("", _as_both_shears)
_SHEAR: Rule[Any] = either(_SHEARS, _BOTH, _range_of(_STEEPEST, ""))
INTERPOLATION = checks.member(*get_args(WarpInterpolation))
_NO_EXPAND = checks.fitting(
    "False: images of different sizes make no batch",
    checks.as_flag,
    lambda value: not value,
)


class _Warp:
    """Base class of warps, which are defined for any pixels."""

    defined_for: ClassVar[str] = "any"


@settings
class RandomRotation(_Warp):
    """torchvision's RandomRotation, of the cropped, resized and flipped image, counter-clockwise.

    Args:
        degrees: Range of the angle, (low, high); a number d stands for (-d, d).
        interpolation: "nearest" or "bilinear".
        expand: Must be False: images that grow with their angle make no batch.
        center: Of the rotation, (x, y) in pixels of the output from its upper left corner; None is its centre.
        fill: Level in 0..255, or three (R, G, B), where there is no pixel of the image; of 16 bits and floats, that
            share of 65,535 or 1. None is black.

    Raises:
        ArgumentError: a value out of its range; expand=True.
    """

    degrees: Annotated[float | tuple[float, float], _DEGREES]
    interpolation: Annotated[WarpInterpolation, INTERPOLATION] = "nearest"
    expand: Annotated[bool, _NO_EXPAND] = False
    center: Annotated[tuple[float, float] | None, _CENTER] = None
    fill: Annotated[Fill, FILL] = 0

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        limits: Any = self.degrees
        angle = between(draws(0), *limits)
        none = np.zeros((2, len(angle)))
        back = _back(-angle, none, np.ones(len(angle)), none)
        about_center = _about(back, self.center, height, width)
        return _warp(about_center, self.interpolation, self.fill)


@settings
class RandomAffine(_Warp):
    """torchvision's RandomAffine, of the cropped, resized and flipped image: rotated (clockwise), sheared, scaled and
    translated at once.

    Args:
        degrees: Range of the angle, (low, high); a number d stands for (-d, d). 0: no rotation.
        translate: The largest translation, as shares of the width and of the height; whole pixels are drawn. None:
            none.
        scale: Range of the factor, (low, high). None: 1.
        shear: Range of the shear along x in degrees, (low, high), where a number d stands for (-d, d); or of both,
            (low, high, low, high) along x and y. None: none.
        interpolation: As for `RandomRotation`.
        fill: As for `RandomRotation`.
        center: As for `RandomRotation`; scale and shear have the same centre.

    Raises:
        ArgumentError: a value out of its range.
    """

    degrees: Annotated[float | tuple[float, float], _DEGREES]
    translate: Annotated[tuple[float, float] | None, optional(_SHARES)] = None
    scale: Annotated[tuple[float, float] | None, optional(_FACTORS)] = None
    shear: Annotated[float | tuple[float, ...] | None, optional(_SHEAR)] = None
    interpolation: Annotated[WarpInterpolation, INTERPOLATION] = "nearest"
    fill: Annotated[Fill, FILL] = 0
    center: Annotated[tuple[float, float] | None, _CENTER] = None

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        # Numbers 0: angle; 1, 2: translation in x and y; 3: scale; 4, 5: shear along x and y.
        limits: Any = self.degrees
        angle = between(draws(0), *limits)
        shift = np.zeros((2, len(angle)))
        if self.translate is not None:
            for axis, side in enumerate((width, height)):
                farthest = self.translate[axis] * side
                moved = between(draws(1 + axis), -farthest, farthest)
                shift[axis] = np.rint(moved)
        scale = np.ones(len(angle))
        if self.scale is not None:
            scale = between(draws(3), *self.scale)
        back = _back(angle, shift, scale, self._shear(draws, len(angle)))
        about_center = _about(back, self.center, height, width)
        return _warp(about_center, self.interpolation, self.fill)

    def _shear(self, draws: Draws, count: int) -> F64:
        """Degrees along x and y, (2, N)."""
        shear = np.zeros((2, count))
        limits: Any = self.shear or ()
        for axis, (low, high) in enumerate(zip(limits[::2], limits[1::2], strict=True)):
            shear[axis] = between(draws(4 + axis), low, high)
        return shear


@settings
class RandomPerspective(_Warp):
    """torchvision's RandomPerspective, of the cropped, resized and flipped image: each corner moves inwards.

    Args:
        distortion_scale: How far, at most, as a share of half the width and half the height. Above 0.5 the four corners
            may make no convex shape, which no camera could see; they are then drawn again, up to ten times, and after
            that the image stays as it is.
        p: Probability.
        interpolation: "bilinear" or "nearest".
        fill: As for `RandomRotation`.

    Raises:
        ArgumentError: a value out of its range.
    """

    distortion_scale: Annotated[float, number(0, 1, "a share in 0..1")] = 0.5
    p: Annotated[float, PROBABILITY] = 0.5
    interpolation: Annotated[WarpInterpolation, INTERPOLATION] = "bilinear"
    fill: Annotated[Fill, FILL] = 0

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        # Number 0: whether; then, of each attempt, x and y of the four corners, clockwise from the upper left one.
        chosen = draws(0) < self.p
        corners = self._corners(draws, 0, height, width)
        convex = _is_convex(corners)
        for attempt in range(1, _ATTEMPTS):
            if convex.all():
                break
            again = self._corners(draws, attempt, height, width)
            corners = np.where(convex[:, None, None], corners, again)
            convex = convex | _is_convex(again)
        moves = chosen & convex
        back = np.tile(np.eye(3), (len(chosen), 1, 1))
        if moves.any():
            back[moves] = _projections(corners[moves], _corners_of(height, width))
        # Corners are counted from the upper left one; a step's map is from centre to centre.
        to_corner = _shift(width / 2, height / 2)
        to_centre = _shift(-width / 2, -height / 2)
        steps = _warp(to_centre @ back @ to_corner, self.interpolation, self.fill)
        return steps.only(moves)

    def _corners(self, draws: Draws, attempt: int, height: int, width: int) -> F64:
        """float64 (N, 4, 2): whole pixels (x, y), clockwise from the upper left corner."""
        coordinates = []
        for corner in range(4):
            for axis, side in enumerate((width, height)):
                room = int(self.distortion_scale * (side // 2)) + 1
                number = 1 + 8 * attempt + 2 * corner + axis
                moved = np.floor(draws(number) * room)
                if corner in _FAR_CORNERS[axis]:
                    moved = side - room + moved
                coordinates.append(moved)
        return np.stack(coordinates, axis=1).reshape(-1, 4, 2)


def _corners_of(height: int, width: int) -> F64:
    """float64 (4, 2): x and y of the corner pixels, clockwise from the upper left one."""
    right = width - 1
    bottom = height - 1
    corners = [(0, 0), (right, 0), (right, bottom), (0, bottom)]
    return np.array(corners, np.float64)


def _shift(x: float, y: float) -> F64:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)


def _about(
    back: F64, center: tuple[float, float] | None, height: int, width: int
) -> F64:
    """The maps (N, 3, 3) about this point in place of the centre."""
    if center is None:
        return back
    x = center[0] - width / 2
    y = center[1] - height / 2
    moved: F64 = _shift(x, y) @ back @ _shift(-x, -y)
    return moved


def _back(angle: F64, shift: F64, scale: F64, shear: F64) -> F64:
    """float64 (N, 3, 3): from output to input, pixels from the centre, where the input is sheared, then rotated and
    scaled, then shifted.

    Args:
        angle: (N,), degrees clockwise.
        shift: (2, N), pixels along x and y.
        scale: (N,), a factor.
        shear: (2, N), degrees along x and y.
    """
    turn = np.radians(angle)
    along_x, along_y = np.radians(shear)
    slope = np.tan(along_x)
    cos = np.cos(turn - along_y) / np.cos(along_y)
    sin = np.sin(turn - along_y) / np.cos(along_y)
    forth = np.zeros((len(angle), 3, 3))
    forth[:, 0, 0] = cos
    forth[:, 0, 1] = -cos * slope - np.sin(turn)
    forth[:, 1, 0] = sin
    forth[:, 1, 1] = -sin * slope + np.cos(turn)
    forth[:, :2, :2] *= scale[:, None, None]
    forth[:, 0, 2] = shift[0]
    forth[:, 1, 2] = shift[1]
    forth[:, 2, 2] = 1
    return np.asarray(np.linalg.inv(forth), np.float64)


def _is_convex(corners: F64) -> Bools:
    """bool (N,): whether quadrilaterals (N, 4, 2), given clockwise, turn right at each corner."""
    after = np.roll(corners, -1, axis=1) - corners
    before = np.roll(after, 1, axis=1)
    after_x, after_y = np.moveaxis(after, 2, 0)
    before_x, before_y = np.moveaxis(before, 2, 0)
    turns = before_x * after_y - before_y * after_x
    return np.asarray((turns > 0).all(axis=1))


def _projections(points: F64, targets: F64) -> F64:
    """float64 (N, 3, 3): the projections that map four corners of a convex shape (N, 4, 2) to four targets (4, 2)."""
    # Measured from the middle of the shape, since what is 1 in the equations is 0 on the horizon.
    middle = points.mean(axis=1)
    x, y = np.moveaxis(points - middle[:, None], 2, 0)
    equations = np.zeros((len(points), 8, 8))
    for axis, target in enumerate(targets.T):
        # Four rows for each axis, one of each corner.
        of_axis = equations[:, 4 * axis : 4 * axis + 4]
        first = 3 * axis
        of_axis[..., first] = x
        of_axis[..., first + 1] = y
        of_axis[..., first + 2] = 1
        of_axis[..., 6] = -x * target
        of_axis[..., 7] = -y * target
    right_sides = np.broadcast_to(targets.T.reshape(8, 1), (len(points), 8, 1))
    solved = np.linalg.solve(equations, right_sides)[..., 0]
    numbers = np.ones((len(points), MAP_ARGS))
    numbers[:, :8] = solved
    maps = numbers.reshape(-1, 3, 3)
    maps[:, :, 2] -= np.einsum("nij,nj->ni", maps[:, :, :2], middle)
    return np.asarray(maps, np.float64)


def _warp(back: F64, interpolation: WarpInterpolation, fill: Fill) -> Steps:
    """A step for each of N maps (N, 3, 3) from output to input, pixels from the centre."""
    op = Op.WARP_NEAREST if interpolation == "nearest" else Op.WARP_BILINEAR
    matrix = back.reshape(-1, MAP_ARGS).T
    return one_step(op, len(back), *matrix, *rgb(fill))
