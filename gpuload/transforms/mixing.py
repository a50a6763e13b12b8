"""Chains of steps of which each begins with the same image, and whose results are blended."""

from collections.abc import Callable
from itertools import count

import numpy as np

from gpuload.draws import Draws
from gpuload.transforms.ops import Op
from gpuload.transforms.steps import Steps, join, one_step
from gpuload.types import F64, I8, Bools

EACH = 8  # random numbers of a change
_ATTEMPTS = 16  # of which each succeeds in more than 95 %


def draw_mixture(width: int, depth: int, alpha: float, draws: Draws, change: Callable[[Draws], Steps]) -> Steps:
    """AugMix: `width` chains of `depth` changes each (-1: 1, 2 or 3), and the image itself, blended.

    The image's share and that of all chains are drawn from Dirichlet(alpha, alpha), and that is shared out among the
    chains by Dirichlet(alpha, …, alpha).

    change: one step for each image, out of at most `EACH` random numbers.
    """
    longest = depth if depth > 0 else 3
    places, numbers = width * longest, count(EACH * width * longest)
    # All changes of all chains at once, as if they were of more images.
    changes = change(lambda number: np.concatenate([draws(EACH * place + number) for place in range(places)]))
    each = list(map(Steps, np.split(changes.ops, places), np.split(changes.args, places)))
    chains = [join(each[begin : begin + longest]) for begin in range(0, places, longest)]
    if depth < 0:
        lengths = [draws(next(numbers)) * longest for _ in chains]
        shorter = [length[:, None] >= np.arange(longest) for length in lengths]
        chains = [Steps(chain.ops * has, chain.args) for chain, has in zip(chains, shorter, strict=True)]
    own, others = _dirichlet(2, alpha, draws, numbers), _dirichlet(width, alpha, draws, numbers)
    steps = [one_step(Op.KEEP, len(own), own[:, 0])]
    for number, chain in enumerate(chains):
        op = Op.MIX if number < width - 1 else Op.MIXED
        steps += [chain, one_step(op, len(own), own[:, 1] * others[:, number])]
    return join(steps)


def is_mixed(ops: I8) -> Bools:
    """bool (N, K): steps of which an image gets a share at most."""
    begun, ended = ((ops == op).cumsum(axis=1) for op in (Op.KEEP, Op.MIXED))
    found: Bools = begun > ended
    return found


def _dirichlet(parts: int, alpha: float, draws: Draws, numbers: "count[int]") -> F64:
    logs = np.stack([_log_gamma(alpha, draws, numbers) for _ in range(parts)], axis=1)
    each = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(each / each.sum(axis=1, keepdims=True))


def _log_gamma(alpha: float, draws: Draws, numbers: "count[int]") -> F64:
    """The logarithm of Gamma(alpha, 1), (N,): G. Marsaglia and W. W. Tsang, "A simple method for generating gamma
    variables", ACM Transactions on Mathematical Software 26 (2000). It takes the same numbers however often a sample
    is drawn again."""
    # Gamma(alpha) is Gamma(alpha + 1) times u ** (1 / alpha), which serves every alpha.
    found = log_of(draws(next(numbers))) / alpha
    center = alpha + 2 / 3
    width, left = 1 / np.sqrt(9 * center), np.ones(len(found), np.bool_)
    for first in [next(numbers) for _ in range(3 * _ATTEMPTS)][::3]:
        if not left.any():
            break
        normal, u = normal_of(draws(first), draws(first + 1)), draws(first + 2)
        cube = np.maximum(1 + width * normal, 1e-9) ** 3
        taken = left & (log_of(u) < normal**2 / 2 + center * (1 - cube + np.log(cube)))
        found += np.where(taken, np.log(center * cube), 0)
        left &= ~taken
    return found


def log_of(u: F64) -> F64:
    """Of uniform numbers in 0..1, of which 0 has none."""
    return np.asarray(np.log(np.maximum(u, 2.0**-54)))


def normal_of(first: F64, second: F64) -> F64:
    """Normal numbers, out of two uniform ones each (Box and Muller)."""
    return np.asarray(np.sqrt(-2 * log_of(first)) * np.cos(2 * np.pi * second))
