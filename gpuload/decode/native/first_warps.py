"""The first step of a view where that moves pixels: it is compiled, and normalises in the same pass."""

from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.augment import View
from gpuload.decode.native.resample import FACTOR
from gpuload.decode.native.warp import warp
from gpuload.transforms.steps import MAP_ARGS, Op, Steps, is_warp
from gpuload.types import U8


def load_warp() -> None:
    """Loads, or compiles, what moves pixels; else the first batch that needs it would."""
    pictures, constants = np.zeros((1, 7), np.int64), np.zeros(3, np.float32)
    fills, out = np.zeros((1, 3), np.uint8), np.empty((1, 3, 2, 2), np.uint8)
    warp(pictures, np.zeros((1, 3, 3)), np.zeros(1, np.bool_), fills, constants, constants, out)


class FirstWarps:
    """The first step of a view where that moves pixels, and the view of what is left to do.

    moved: bool (N,), the images that it moves.
    """

    def __init__(self, view: View, steps: Steps) -> None:
        ops, args = steps.ops[:, 0], steps.args[:, 0]
        self.moved, self._bilinear = ops != Op.NOTHING, ops == Op.WARP_BILINEAR
        self._fills: U8 = args[:, MAP_ARGS:].astype(np.uint8)
        # From pixel to pixel, where a step's map is from centre to centre.
        height, width = view.size
        to_centre = np.array([[1, 0, (1 - width) / 2], [0, 1, (1 - height) / 2], [0, 0, 1]])
        self._maps = np.linalg.inv(to_centre) @ args[:, :MAP_ARGS].reshape(-1, 3, 3).astype(np.float64) @ to_centre
        rest = Steps(steps.ops[:, 1:], steps.args[:, 1:]) if steps.ops.shape[1] > 1 else None
        self.rest = view._replace(steps=rest)

    def warp(
        self, levels: U8, rows: slice, out: npt.NDArray[Any], mean: npt.NDArray[Any], factor: npt.NDArray[Any]
    ) -> None:
        """Those of the images at these rows that are moved, (level - mean) * factor, into uint8 or float32
        (n, 3, height, width); the others are left alone.

        levels: uint8 (n, height, width, 3), the same images cropped and resized.
        """
        number, height, width, _ = levels.shape
        pictures = np.zeros((number, 7), np.int64)
        addresses = levels.ctypes.data + np.arange(number) * levels.strides[0]
        pictures[:, 0] = addresses * self.moved[rows]
        pictures[:, 1:4] = height, width, 3 * width
        pictures[:, FACTOR] = 1
        warp(pictures, self._maps[rows], self._bilinear[rows], self._fills[rows], mean, factor, out)


def first_warps(view: View) -> FirstWarps | None:
    """None where the first step of any image does something else."""
    steps = view.steps
    if steps is None or not steps.ops.shape[1]:
        return None
    first = steps.ops[:, 0]
    if not first.any() or ((first != Op.NOTHING) & ~is_warp(first)).any():
        return None
    return FirstWarps(view, steps)
