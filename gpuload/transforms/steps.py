"""Steps: what is to be done to each image of a batch, as numbers, drawn on the CPU before the images are decoded.

A transform turns random numbers into steps; `gpuload.transforms.apply` executes them. So the same code augments for
every decoder and device, and what happens to an image is a pure function of (seed, epoch, sample).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gpuload.draws import TRANSFORM_DRAWS, Draws, uniform
from gpuload.transforms.ops import ARGS, MAP_ARGS, Op
from gpuload.types import F32, F64, I8, U64, Bools


class Steps(NamedTuple):
    """K steps for each of N images, in their order.

    ops: int8 (N, K), codes of `Op`.
    args: float32 (N, K, ARGS), the numbers of each.
    """

    ops: I8
    args: F32

    def only(self, chosen: Bools) -> "Steps":
        """The same steps for the images that are `chosen` (bool (N,)), and nothing for the others."""
        return Steps(np.where(chosen[:, None], self.ops, np.int8(Op.NOTHING)), self.args)


@runtime_checkable
class Transform(Protocol):
    """A random change of the pixels, which keeps their number and type: what `Augment(transforms=…)` takes."""

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """The steps of N images of `height` × `width` pixels. draws: gives N random numbers a call."""


def sample_draws(key: int | U64, samples: npt.NDArray[np.int64]) -> Draws:
    """The random numbers of samples, int64 (N,), for the one transform to which `key` belongs: one for all, or for
    each.

    Raises, when called:
        ArgumentError: a number that is not among the 4,096 of a transform.
    """
    return lambda number: uniform(key, TRANSFORM_DRAWS.counters(samples, number))


def is_warp(ops: I8) -> Bools:
    """Which steps move pixels by a matrix; codes above are those of `PixelTransform`."""
    warps: Bools = (ops >= Op.WARP_NEAREST) & (ops <= Op.WARP_BILINEAR)
    return warps


def draw_steps(transforms: Sequence[Transform], draws_of: Callable[[int], Draws], height: int, width: int) -> Steps:
    """The steps of all transforms, one after another; `draws_of(i)` gives the random numbers of transform i.

    Warps that follow each other become one where their interpolation and fills are the same, so that pixels are
    interpolated once.
    """
    if not transforms:
        return no_steps(len(draws_of(0)(0)))
    steps = join([transform.draw(draws_of(i), height, width) for i, transform in enumerate(transforms)])
    warps = np.flatnonzero(is_warp(steps.ops).any(axis=0)).tolist()
    for at in reversed(warps):
        if at - 1 in warps:
            steps = _merge_warps(steps, at)
    return steps


def _merge_warps(steps: Steps, at: int) -> Steps:
    """The same with step `at` merged into the one before, or as it is where they differ for any image."""
    ops, args = steps.ops[:, at - 1 : at + 1], steps.args[:, at - 1 : at + 1]
    idle = ops == Op.NOTHING
    fills = args[:, :, MAP_ARGS:]
    alike = np.unique(ops[~idle])
    if len(alike) > 1 or not is_warp(alike).all() or (fills[:, 0] != fills[:, 1])[~idle.any(axis=1)].any():
        return steps
    maps = args[:, :, :MAP_ARGS].reshape(-1, 2, 3, 3).astype(np.float64)
    maps[idle] = np.eye(3)
    merged = np.concatenate(
        [(maps[:, 0] @ maps[:, 1]).reshape(-1, MAP_ARGS), np.where(idle[:, :1], fills[:, 1], fills[:, 0])], axis=1
    )
    both = Steps(
        np.where(idle.all(axis=1), np.int8(Op.NOTHING), np.int8(alike[0]))[:, None], merged[:, None].astype(np.float32)
    )
    left, right = (Steps(steps.ops[:, rows], steps.args[:, rows]) for rows in (slice(at - 1), slice(at + 1, None)))
    return join([left, both, right])


def join(steps: Sequence[Steps]) -> Steps:
    """One after another, for the same N images; at least one."""
    return Steps(np.concatenate([s.ops for s in steps], axis=1), np.concatenate([s.args for s in steps], axis=1))


def no_steps(count: int) -> Steps:
    """For `count` images: N = count, K = 0."""
    return Steps(np.empty((count, 0), np.int8), np.empty((count, 0, ARGS), np.float32))


def one_step(op: Op, count: int, *args: float | F64) -> Steps:
    """The same step for `count` images: K = 1. Each of `args` is one number for all, or (N,)."""
    numbers = np.zeros((count, 1, ARGS), np.float32)
    for index, values in enumerate(args):
        numbers[:, 0, index] = values
    return Steps(np.full((count, 1), op, np.int8), numbers)
