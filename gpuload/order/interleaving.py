"""Which data set of a mixture each position of the stream draws from."""

from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Protocol

import numpy as np

from gpuload.draws import MIXTURE, make_key, permutation
from gpuload.errors import ArgumentError
from gpuload.types import I64

# Positions in a block, in which the shares of a mixture are exact: shares are rounded to multiples of 1/4096, and
# counting how often each data set was drawn before a position costs one permutation of a block.
BLOCK = 4096

# Denominator of a share in stratified batches: weights such as 0.3, 1/3 or 7 are exact, and sums of them far below the
# limits of int64.
_MOST_PARTS = 10_000


class Interleaving(Protocol):
    """A pure function of positions; how often each data set was drawn before one is known without going there."""

    def sources(self, start: int, stop: int) -> I64:
        """int64: the data set that each of the positions start..stop-1 draws from."""

    def drawn(self, start: int) -> I64:
        """int64 (data sets,): how often each is drawn before a position."""


class ShuffledBlocks:
    """Blocks of 4,096 positions, in each of which the shares are exact, in random order by (seed, block).

    Raises:
        ArgumentError: a share is below 1 / 4,096.
    """

    def __init__(self, shares: tuple[float, ...], seed: int) -> None:
        self._counts, self._seed = round_shares(shares, BLOCK), seed
        if not self._counts.all():
            raise ArgumentError(f"mix: shares {shares}, expected each at least 1/{BLOCK}. Raise the smallest weight")
        # A batch may extend from one block into the next.
        self._block = lru_cache(maxsize=2)(self._make_block)

    def sources(self, start: int, stop: int) -> I64:
        """As `Interleaving`."""
        return np.concatenate(
            [
                self._block(block)[max(start - block * BLOCK, 0) : stop - block * BLOCK]
                for block in range(start // BLOCK, -(-stop // BLOCK))
            ]
        )

    def drawn(self, start: int) -> I64:
        """As `Interleaving`."""
        block, rest = divmod(start, BLOCK)
        here = np.bincount(self._block(block)[:rest], minlength=len(self._counts)) if rest else 0
        drawn: I64 = block * self._counts + here
        return drawn

    def _make_block(self, block: int) -> I64:
        """int64 (BLOCK,): the data set that each position of a block draws from."""
        sources = np.repeat(np.arange(len(self._counts)), self._counts)
        mixed: I64 = sources[permutation(make_key(self._seed, MIXTURE, -1, block), BLOCK)]
        return mixed


class Stratified:
    """Data sets take turns as evenly as they can, so that each batch holds their shares.

    Of any number of consecutive positions each data set gives its share, rounded up or down, or one more or less where
    there are more than two data sets. It is exact wherever every share of that number is whole: with shares of 3/4 and
    1/4, in each batch of a multiple of 4.

    The first data set is drawn where `position * share` passes a whole number; the positions left are divided among the
    others in the same way.

    Raises:
        ArgumentError: a share is below 1 / 10,000.
    """

    def __init__(self, shares: tuple[float, ...]) -> None:
        parts = [Fraction(share).limit_denominator(_MOST_PARTS) for share in shares]
        if not all(parts):
            raise ArgumentError(
                f"mix: shares {shares}, expected each at least 1/{_MOST_PARTS}. Raise the smallest weight"
            )
        whole = lcm(*(part.denominator for part in parts))
        if whole > 1 << 31:
            raise ArgumentError(
                f"mix(batches='stratified'): the shares {shares} have no common denominator below 2^31. Use weights "
                "that are whole numbers"
            )
        self._weights = [int(part * whole) for part in parts]

    def sources(self, start: int, stop: int) -> I64:
        """As `Interleaving`."""
        sources = np.full(stop - start, len(self._weights) - 1)
        rows, first = np.arange(stop - start), start
        for source, (weight, rest) in enumerate(self._turns()):
            passed = _turns_before(np.arange(first, first + len(rows) + 1), weight, rest)
            is_turn = np.diff(passed) > 0
            sources[rows[is_turn]] = source
            rows, first = rows[~is_turn], first - int(passed[0])
        return sources

    def drawn(self, start: int) -> I64:
        """As `Interleaving`."""
        drawn, left = [], start
        for weight, rest in self._turns():
            drawn.append(int(_turns_before(np.array([left]), weight, rest)[0]))
            left -= drawn[-1]
        return np.array([*drawn, left])

    def _turns(self) -> list[tuple[int, int]]:
        """Of each data set but the last: its weight, and that of it and those after it."""
        return [(weight, sum(self._weights[source:])) for source, weight in enumerate(self._weights[:-1])]


def _turns_before(positions: I64, weight: int, total: int) -> I64:
    """How many of the positions before each are turns of a data set: floor(position * weight / total), by halves."""
    turns, rest = np.divmod(positions, total)  # so that the product does not overflow
    before: I64 = turns * weight + (rest * weight + total // 2) // total
    return before


def round_shares(shares: tuple[float, ...], total: int) -> I64:
    """int64: whole numbers that sum to `total`, in these shares, by largest remainders.

    >>> round_shares((0.5, 0.25, 0.25), 5).tolist()
    [3, 1, 1]
    """
    exact = np.array(shares) * total
    counts: I64 = np.floor(exact).astype(np.int64)
    for source in np.argsort(counts - exact, kind="stable")[: total - counts.sum()]:
        counts[source] += 1
    return counts
