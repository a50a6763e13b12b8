"""Shears, translations and rotations as one kind of step, and how geometric steps move a point.

A step `Op.AFFINE` holds the matrix (2, 3) from output to input that torchvision's `affine` and `rotate` build, row by
row; its coordinates are pixels from the centre of the image, x to the right and y down. Each output pixel takes the
input pixel nearest to the point that its own centre comes from, or the fill. The steps of `gpuload.transforms.warps`
hold a matrix (3, 3) of the same kind.
"""

import numpy as np

from gpuload.checks import either, number, optional, several
from gpuload.transforms.mixing import is_mixed
from gpuload.transforms.ops import MAP_ARGS, Op
from gpuload.transforms.steps import Steps, is_warp, one_step
from gpuload.types import F64, I8, Bools

Fill = float | tuple[float, float, float] | None  # level where there is no pixel of the image; None is black

_LEVEL = number(0, 255, "")
FILL = optional(either("a level in 0..255, three of them (R, G, B)", _LEVEL, several(_LEVEL, "", count=3)))


def shear_x(level: F64, height: int, width: int, fill: Fill) -> Steps:
    """Shear by (N,) `level` pixels a line, about the image's top left corner, as AutoAugment defines it."""
    return _affine(1, level, level * (height / 2), 0, 1, 0, fill, len(level))


def shear_y(level: F64, height: int, width: int, fill: Fill) -> Steps:
    """Shear by (N,) `level` pixels a column."""
    return _affine(1, 0, 0, level, 1, level * (width / 2), fill, len(level))


def translate_x(pixels: F64, height: int, width: int, fill: Fill) -> Steps:
    """To the right by (N,) pixels."""
    return _affine(1, 0, -pixels, 0, 1, 0, fill, len(pixels))


def translate_y(pixels: F64, height: int, width: int, fill: Fill) -> Steps:
    """Down by (N,) pixels."""
    return _affine(1, 0, 0, 0, 1, -pixels, fill, len(pixels))


def rotate(degrees: F64, height: int, width: int, fill: Fill) -> Steps:
    """Counter-clockwise about the centre, by (N,) degrees."""
    turn = np.radians(degrees)
    cos, sin = np.cos(turn), np.sin(turn)
    return _affine(cos, -sin, 0, sin, cos, 0, fill, len(degrees))


def _affine(
    a: float | F64,
    b: float | F64,
    c: float | F64,
    d: float | F64,
    e: float | F64,
    f: float | F64,
    fill: Fill,
    count: int,
) -> Steps:
    levels = fill if isinstance(fill, tuple) else (fill or 0.0,) * 3
    return one_step(Op.AFFINE, count, a, b, c, d, e, f, *levels)


def _is_affine(ops: I8) -> Bools:
    found: Bools = (ops == Op.AFFINE) | (ops == Op.AFFINE_BILINEAR)
    return found


def affine_of(steps: Steps, height: int, width: int) -> F64 | None:
    """How the geometric steps of each image move a point: float64 (N, 2, 3), or (N, 3, 3) if there is a perspective
    among them, or None if there are none.

    Points are (x, y) in pixels from the top left corner, (0, 0), as for boxes; a pixel's centre is at .5. A point of
    the image before the steps moves to `matrix[:2, :2] @ point + matrix[:2, 2]`, with a perspective divided by
    `matrix[2, :2] @ point + matrix[2, 2]`.
    """
    geometric = (is_warp(steps.ops) | _is_affine(steps.ops)) & ~is_mixed(steps.ops)
    if not geometric.any():
        return None
    whole, has_perspective = np.tile(np.eye(3), (len(steps.ops), 1, 1)), False
    for step in np.flatnonzero(geometric.any(axis=0)):
        chosen = geometric[:, step]
        back = np.tile(np.eye(3), (int(chosen.sum()), 1, 1))
        args, by_matrix = steps.args[chosen, step], is_warp(steps.ops[chosen, step])
        back[~by_matrix, :2] = args[~by_matrix, :6].reshape(-1, 2, 3)
        back[by_matrix] = args[by_matrix, :MAP_ARGS].reshape(-1, 3, 3)
        has_perspective |= bool(args[by_matrix, 6:8].any())
        whole[chosen] = np.linalg.inv(back) @ whole[chosen]
    to_centre = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1]])
    moved: F64 = np.linalg.inv(to_centre) @ whole @ to_centre
    return moved if has_perspective else moved[:, :2] / moved[:, 2:, 2:]


def mask_steps(steps: Steps, fill: int) -> Steps:
    """The geometric steps of images as those of their masks, by nearest pixel; `fill` from outside."""
    ops = np.where(_is_affine(steps.ops), np.int8(Op.AFFINE), np.int8(Op.NOTHING))
    ops[is_warp(steps.ops)] = Op.WARP_NEAREST
    ops[is_mixed(steps.ops)] = Op.NOTHING
    geometric = Steps(ops, steps.args.copy())
    geometric.args[:, :, 6][ops == Op.AFFINE] = fill
    geometric.args[:, :, MAP_ARGS][ops == Op.WARP_NEAREST] = fill
    return geometric
