"""Steps: what is done to each image, as numbers, drawn before images are decoded; and blended chains of them.

A transform turns random numbers into steps; `gpuload.transforms.apply` executes them. So the same code augments for
every decoder and device, and what happens to an image is a pure function of (seed, epoch, sample).
"""

from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gpuload.draws import TRANSFORM_DRAWS, Draws, uniform
from gpuload.transforms.ops import ARGS, MAP_ARGS, Op
from gpuload.types import F32, F64, I8, U64, Bools

EACH = 8  # random numbers of a change
_ATTEMPTS = 16  # of which each succeeds in more than 95 %


class Steps(NamedTuple):
    """K steps for each of N images, in their order.

    Attributes:
        ops: int8 (N, K), codes of `Op`.
        args: float32 (N, K, ARGS), the numbers of each.
    """

    ops: I8
    args: F32

    def only(self, chosen: Bools) -> "Steps":
        """The same steps for some of the images, and nothing for the others.

        Args:
            chosen: bool (N,), which of the images keep their steps.
        """
        ops = np.where(chosen[:, None], self.ops, np.int8(Op.NOTHING))
        return Steps(ops, self.args)

    def part(self, begin: int, end: int) -> "Steps":
        """Steps begin..end-1 of each image."""
        columns = slice(begin, end)
        return self.chosen(slice(None), columns)

    def chosen(self, rows: Any, columns: Any) -> "Steps":
        """The steps at these indices of both axes, as NumPy takes them."""
        return Steps(self.ops[rows, columns], self.args[rows, columns])


@runtime_checkable
class Transform(Protocol):
    """A random change of the pixels, which keeps their number and type: what `Augment(transforms=…)` takes.

    It may say for which images it is defined, by the attributes defined_for: "any" pixels; "bytes": any channels of 8
    bits; "colours": RGB or gray; else RGB; and any_size: whether images may differ in size, by default not.
    """

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """The steps of N images.

        Args:
            draws: Gives N random numbers a call.
            height: Of the images in pixels.
            width: Of the images in pixels.
        """


def sample_draws(key: int | U64, samples: npt.NDArray[np.int64]) -> Draws:
    """The random numbers of samples for one transform.

    Args:
        key: The transform's: one for all samples, or uint64 (N,).
        samples: int64 (N,), their numbers in the data set.

    Raises, when called:
        ArgumentError: a number that is not among the 4,096 of a transform.
    """
    return lambda number: uniform(key, TRANSFORM_DRAWS.counters(samples, number))


def is_warp(ops: I8) -> Bools:
    """Which steps move pixels by a matrix (3, 3); codes above are those of `PixelTransform`."""
    return np.asarray((ops >= Op.WARP_NEAREST) & (ops <= Op.WARP_BILINEAR))


def is_affine(ops: I8) -> Bools:
    """Which steps move pixels by a matrix (2, 3)."""
    return np.asarray((ops == Op.AFFINE) | (ops == Op.AFFINE_BILINEAR))


def maps_of(steps: Steps) -> F64:
    """float64 (N, K, 3, 3): the matrix of each step, from output to input, pixels from the centre; of those that move
    no pixels, that which moves none."""
    maps = np.tile(np.eye(3), (*steps.ops.shape, 1, 1))
    warps = is_warp(steps.ops)
    affines = is_affine(steps.ops)
    args_of_warps = steps.args[warps]
    args_of_affines = steps.args[affines]
    maps[warps] = args_of_warps[:, :MAP_ARGS].reshape(-1, 3, 3)
    maps[affines, :2] = args_of_affines[:, :6].reshape(-1, 2, 3)
    return maps


def draw_steps(
    transforms: Sequence[Transform],
    draws_of: Callable[[int], Draws],
    height: int,
    width: int,
) -> Steps:
    """The steps of all transforms, one after another; `draws_of(i)` gives the random numbers of transform i.

    Warps that follow each other become one where their interpolation and fills are the same, so that pixels are
    interpolated once.
    """
    if not transforms:
        return no_steps(len(draws_of(0)(0)))
    drawn = [
        transform.draw(draws_of(number), height, width)
        for number, transform in enumerate(transforms)
    ]
    steps = join(drawn)
    warps = np.flatnonzero(is_warp(steps.ops).any(axis=0)).tolist()
    for step in reversed(warps):
        if step - 1 in warps:
            steps = _merge_warps(steps, step)
    return steps


def _merge_warps(steps: Steps, step: int) -> Steps:
    """The same with a step merged into the one before, or as it is where they differ for any image."""
    pair = steps.part(step - 1, step + 1)
    if not _can_merge(pair):
        return steps
    idle = pair.ops == Op.NOTHING
    op = pair.ops[~idle][0]
    first_fill, second_fill = np.moveaxis(pair.args[:, :, MAP_ARGS:], 1, 0)
    fill = np.where(idle[:, :1], second_fill, first_fill)
    first_map, second_map = np.moveaxis(maps_of(pair), 1, 0)
    matrix = (first_map @ second_map).reshape(-1, MAP_ARGS)
    merged = one_step(op, len(fill), *matrix.T, *fill.T)
    before = steps.part(0, step - 1)
    after = steps.part(step + 1, steps.ops.shape[1])
    return join([before, merged.only(~idle.all(axis=1)), after])


def _can_merge(pair: Steps) -> bool:
    """Whether two steps are warps of one kind for all images, with the same fill for those that have both."""
    idle = pair.ops == Op.NOTHING
    kinds = np.unique(pair.ops[~idle])
    if len(kinds) > 1 or not is_warp(kinds).all():
        return False
    has_both = ~idle.any(axis=1)
    fills = pair.args[has_both][:, :, MAP_ARGS:]
    return bool((fills[:, 0] == fills[:, 1]).all())


def join(steps: Sequence[Steps]) -> Steps:
    """One after another, for the same N images; at least one."""
    ops = np.concatenate([part.ops for part in steps], axis=1)
    args = np.concatenate([part.args for part in steps], axis=1)
    return Steps(ops, args)


def no_steps(count: int) -> Steps:
    """Nothing to do for N images: K = 0.

    Args:
        count: N.
    """
    ops = np.empty((count, 0), np.int8)
    args = np.empty((count, 0, ARGS), np.float32)
    return Steps(ops, args)


def one_step(op: int, count: int, *args: float | F64) -> Steps:
    """The same step for N images: K = 1.

    Args:
        op: Code of the operation.
        count: N.
        *args: Numbers of the operation, each one for all images, or (N,).
    """
    ops = np.full((count, 1), op, np.int8)
    numbers = np.zeros((count, 1, ARGS), np.float32)
    for index, values in enumerate(args):
        numbers[:, 0, index] = values
    return Steps(ops, numbers)


def draw_mixture(
    width: int, depth: int, alpha: float, draws: Draws, change: Callable[[Draws], Steps]
) -> Steps:
    """AugMix: several chains of changes, and the image itself, blended.

    The image's share and that of all chains are drawn from Dirichlet(alpha, alpha), and that is shared out among the
    chains by Dirichlet(alpha, …, alpha).

    Args:
        width: Number of chains.
        depth: Changes in each chain; -1: 1, 2 or 3, drawn for each.
        alpha: Of both distributions; the larger, the more even are the shares.
        draws: Gives N random numbers a call.
        change: One step for each image, out of at most `EACH` random numbers.
    """
    longest = depth if depth > 0 else 3
    numbers = count(EACH * width * longest)
    chains = _draw_chains(width, longest, draws, change)
    if depth < 0:
        lengths = [draws(next(numbers)) * longest for _ in chains]
        chains = list(map(_shortened, chains, lengths))
    shares = _dirichlet(2, alpha, draws, numbers)
    others = _dirichlet(width, alpha, draws, numbers)
    steps = [one_step(Op.KEEP, len(shares), shares[:, 0])]
    for number, chain in enumerate(chains):
        op = Op.MIX if number < width - 1 else Op.MIXED
        share = shares[:, 1] * others[:, number]
        steps.append(chain)
        steps.append(one_step(op, len(shares), share))
    return join(steps)


def _shortened(chain: Steps, lengths: F64) -> Steps:
    """The first changes of a chain, at least one: as many as `lengths`, (N,), rounded up."""
    has = lengths[:, None] >= np.arange(chain.ops.shape[1])
    return Steps(chain.ops * has, chain.args)


def _draw_chains(
    width: int, longest: int, draws: Draws, change: Callable[[Draws], Steps]
) -> list[Steps]:
    """`width` chains of `longest` changes each."""
    places = width * longest

    def draws_of_all(number: int) -> F64:
        return np.concatenate([draws(EACH * place + number) for place in range(places)])

    # All changes of all chains at once, as if they were of more images.
    changes = change(draws_of_all)
    ops = np.split(changes.ops, places)
    args = np.split(changes.args, places)
    steps = map(Steps, ops, args)
    return [join(list(islice(steps, longest))) for _ in range(width)]


def is_mixed(ops: I8) -> Bools:
    """bool (N, K): steps of which an image gets a share at most."""
    begun = (ops == Op.KEEP).cumsum(axis=1)
    ended = (ops == Op.MIXED).cumsum(axis=1)
    mixed: Bools = begun > ended
    return mixed


def _dirichlet(parts: int, alpha: float, draws: Draws, numbers: "count[int]") -> F64:
    logs = np.stack([_log_gamma(alpha, draws, numbers) for _ in range(parts)], axis=1)
    largest = logs.max(axis=1, keepdims=True)
    weights = np.exp(logs - largest)
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(weights / total)


def _log_gamma(alpha: float, draws: Draws, numbers: "count[int]") -> F64:
    """The logarithm of Gamma(alpha, 1), (N,): G. Marsaglia and W. W. Tsang, "A simple method for generating gamma
    variables", ACM Transactions on Mathematical Software 26 (2000). It takes the same numbers however often a sample
    is drawn again."""
    # Gamma(alpha) is Gamma(alpha + 1) times u ** (1 / alpha), which serves every alpha.
    logarithm = log_of(draws(next(numbers))) / alpha
    center = alpha + 2 / 3
    width = 1 / np.sqrt(9 * center)
    waiting = np.ones(len(logarithm), np.bool_)
    first_numbers = [next(numbers) for _ in range(3 * _ATTEMPTS)][::3]
    for first in first_numbers:
        if not waiting.any():
            break
        normal = normal_of(draws(first), draws(first + 1))
        u = draws(first + 2)
        cube = np.maximum(1 + width * normal, 1e-9) ** 3
        bound = normal**2 / 2 + center * (1 - cube + np.log(cube))
        accepted = waiting & (log_of(u) < bound)
        logarithm += np.where(accepted, np.log(center * cube), 0)
        waiting &= ~accepted
    return logarithm


def log_of(u: F64) -> F64:
    """Of uniform numbers in 0..1, of which 0 has none."""
    return np.asarray(np.log(np.maximum(u, 2.0**-54)))


def normal_of(first: F64, second: F64) -> F64:
    """Normal numbers, out of two uniform ones each (Box and Muller)."""
    radius = np.sqrt(-2 * log_of(first))
    return np.asarray(radius * np.cos(2 * np.pi * second))
