"""Which data set each position of a mixture draws from, and how often each was drawn before.

Both are functions of the position alone, so that a run can begin anywhere:

    shares        0.75 and 0.25                      of `ShuffledBlocks` or `Stratified`
    schedule      epoch 0: 0.75 and 0.25             of `ScheduledTurns`, which divides the positions into stretches
                  epoch 9: 0.5 and 0.5               of constant shares, and asks one of the others for each
"""

from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import NamedTuple, Protocol

import numpy as np

from gpuload.draws import MIXTURE, make_key, permutation
from gpuload.errors import ArgumentError
from gpuload.lists import owners_of
from gpuload.order.arguments import Mixture, MixtureSchedule
from gpuload.types import F64, I64

# Positions in a block, in which the shares of a mixture are exact: shares are rounded to multiples of 1/4096, and
# counting how often each data set was drawn before a position costs one permutation of a block.
BLOCK = 4096

# Denominator of a share in stratified batches: weights such as 0.3, 1/3 or 7 are exact, and sums of them far below the
# limits of int64.
_MOST_PARTS = 10_000


# Blocks of a linear schedule that are counted at a time: 1 MB for each data set.
_BLOCKS_AT_ONCE = 1 << 16


class Turns(Protocol):
    """The data sets of a mixture by position."""

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
        exact = np.array(shares) * BLOCK
        self._counts = np.floor(exact).astype(np.int64)
        self._seed = seed
        largest_rests = np.argsort(self._counts - exact, kind="stable")
        self._counts[largest_rests[: BLOCK - self._counts.sum()]] += 1
        if not self._counts.all():
            raise ArgumentError(
                f"mix: shares {shares}, expected each at least 1/{BLOCK}. Raise the smallest weight"
            )
        # A batch may extend from one block into the next.
        self._block = lru_cache(maxsize=2)(self._make_block)

    def sources(self, start: int, stop: int) -> I64:
        """As of `Turns`."""
        parts = []
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            block_start = block * BLOCK
            inside = slice(max(start - block_start, 0), stop - block_start)
            parts.append(self._block(block)[inside])
        return np.concatenate(parts)

    def drawn(self, start: int) -> I64:
        """As of `Turns`, without going there."""
        block, rest = divmod(start, BLOCK)
        drawn: I64 = block * self._counts
        if rest:
            in_block = self._block(block)[:rest]
            drawn += np.bincount(in_block, minlength=len(self._counts))
        return drawn

    def _make_block(self, block: int) -> I64:
        """int64 (BLOCK,): the data set that each position of a block draws from."""
        sources = owners_of(self._counts)
        key = make_key(self._seed, MIXTURE, -1, block)
        mixed: I64 = sources[permutation(key, BLOCK)]
        return mixed


class Stratified:
    """Data sets take turns as evenly as they can, so that each batch holds their shares.

    Of any number of consecutive positions each data set gives its share, exactly where the shares of all data sets are
    whole: with 3/4 and 1/4, of any multiple of 4. Else, of n data sets each is off by less than n - 1: two round up or
    down.

    The first data set is drawn where `position * share` passes a whole number; the positions left are divided among the
    others in the same way.

    Raises:
        ArgumentError: a share is below 1 / 10,000, or they have no common denominator up to 2^31.
    """

    def __init__(self, shares: tuple[float, ...]) -> None:
        parts = [Fraction(share).limit_denominator(_MOST_PARTS) for share in shares]
        denominator = lcm(*(part.denominator for part in parts))
        if not all(parts) or denominator > 1 << 31:
            raise ArgumentError(
                f"mix(batches='stratified'): shares {shares}, expected each at least 1/{_MOST_PARTS}, with a common "
                "denominator of at most 2^31. Use weights that are whole numbers, and raise the smallest"
            )
        weights = [int(part * denominator) for part in parts]
        # Of each data set but the last: its weight, and that of it and those after it.
        self._turns = [
            (weight, sum(weights[source:]))
            for source, weight in enumerate(weights[:-1])
        ]

    def sources(self, start: int, stop: int) -> I64:
        """As of `Turns`."""
        sources = np.full(stop - start, len(self._turns))
        # The rows that no data set has taken yet, and the first of their positions among those left.
        rows = np.arange(stop - start)
        first = start
        for source, (weight, rest) in enumerate(self._turns):
            positions = np.arange(first, first + len(rows) + 1)
            passed = _turns_before(positions, weight, rest)
            is_turn = np.diff(passed) > 0
            sources[rows[is_turn]] = source
            rows = rows[~is_turn]
            first -= int(passed[0])
        return sources

    def drawn(self, start: int) -> I64:
        """As of `Turns`."""
        drawn = []
        remaining = start
        for weight, rest in self._turns:
            turns = int(_turns_before(np.array([remaining]), weight, rest)[0])
            drawn.append(turns)
            remaining -= turns
        return np.array([*drawn, remaining])


def _turns_before(positions: I64, weight: int, total: int) -> I64:
    """How many of the positions before each are turns of a data set: floor(position * weight / total), by halves."""
    turns, rest = np.divmod(positions, total)  # so that the product does not overflow
    before: I64 = turns * weight + (rest * weight + total // 2) // total
    return before


class _Stretch(NamedTuple):
    """Positions start..stop-1, of constant shares.

    Attributes:
        stop: None where there is no end.
        active: int64, the numbers of the data sets whose share is not 0.
        turns: Of these.
    """

    start: int
    stop: int | None
    active: I64
    turns: Turns


class ScheduledTurns:
    """Turns whose shares change with the position.

    Between the points of a linear schedule, shares are those in the middle of each aligned block of 4,096 positions, as
    multiples of 1/4,096. A block that holds a point is divided there.

    Args:
        schedule: The weights.
        unit_samples: Samples in a unit of the schedule's points.
        make_turns: Makes the turns of constant shares above 0, which sum to 1.
    """

    def __init__(
        self,
        schedule: MixtureSchedule,
        unit_samples: int,
        make_turns: Callable[[tuple[float, ...]], Turns],
    ) -> None:
        self._starts = [point * unit_samples for point in schedule.points]
        self._weights = np.array(schedule.weights, np.float64)
        self._is_linear = schedule.between == "linear"
        self._make_turns = lru_cache(maxsize=8)(make_turns)
        if self._starts[-1] >= 1 << 62:
            raise ArgumentError(
                f"mix: {schedule.by} {schedule.points[-1]:,} begins after {self._starts[-1]:,} samples, expected "
                "fewer than 2^62. Leave this point out"
            )
        constant = self._weights[-1:] if self._is_linear else self._weights
        for weights in constant:
            self._constant(0, None, weights)  # raises now for a share that is too small
        # A position, and the draws before it: what comes next is mostly near.
        self._counted = 0, np.zeros(self._weights.shape[1], np.int64)

    def sources(self, start: int, stop: int) -> I64:
        """As of `Turns`."""
        parts = []
        while start < stop:
            stretch = self._stretch(start)
            end = stop if stretch.stop is None else min(stop, stretch.stop)
            parts.append(stretch.active[stretch.turns.sources(start, end)])
            start = end
        return np.concatenate(parts)

    def drawn(self, start: int) -> I64:
        """As of `Turns`. Going back begins at position 0; 1 billion positions of a linear schedule take 0.1 s."""
        counted, drawn = self._counted
        if start < counted:
            counted = 0
            drawn = np.zeros_like(drawn)
        drawn = drawn + self._drawn_between(counted, start)
        self._counted = start, drawn
        return drawn

    def _drawn_between(self, start: int, stop: int) -> I64:
        drawn = np.zeros(self._weights.shape[1], np.int64)
        while start < stop:
            piece = self._piece(start)
            blocks = self._whole_blocks(piece, start, stop)
            if blocks.start < blocks.stop:
                drawn += self._block_counts(piece, blocks).sum(axis=0)
                start = blocks.stop * BLOCK
                continue
            stretch = self._stretch(start)
            end = stop if stretch.stop is None else min(stop, stretch.stop)
            turns = stretch.turns
            drawn[stretch.active] += turns.drawn(end) - turns.drawn(start)
            start = end
        return drawn

    def _piece(self, position: int) -> int:
        """The number of the last point that is not after a position."""
        return bisect_right(self._starts, position) - 1

    def _changes(self, piece: int) -> bool:
        """Whether shares change between a point and the next one."""
        return self._is_linear and piece + 1 < len(self._starts)

    def _whole_blocks(self, piece: int, start: int, stop: int) -> range:
        """Blocks that begin at `start` and end before `stop` and the next point, where shares change; at most 65,536.
        Elsewhere none."""
        if start % BLOCK or not self._changes(piece):
            return range(0)
        first = start // BLOCK
        last = min(stop, self._starts[piece + 1]) // BLOCK
        return range(first, min(last, first + _BLOCKS_AT_ONCE))

    def _stretch(self, position: int) -> _Stretch:
        """The one that holds a position."""
        piece = self._piece(position)
        start = self._starts[piece]
        if piece + 1 == len(self._starts):
            return self._constant(start, None, self._weights[piece])
        stop = self._starts[piece + 1]
        if not self._is_linear:
            return self._constant(start, stop, self._weights[piece])
        block = position // BLOCK
        counts = self._block_counts(piece, range(block, block + 1))[0]
        start = max(start, block * BLOCK)
        stop = min(stop, (block + 1) * BLOCK)
        return self._constant(start, stop, counts / BLOCK)

    def _block_counts(self, piece: int, blocks: range) -> I64:
        """int64 (blocks, data sets): draws of each data set in 4,096 positions, by the shares in their middle; of the
        part of a block that lies between two points, in the middle of this part."""
        begin = self._starts[piece]
        end = self._starts[piece + 1]
        numbers = np.arange(blocks.start, blocks.stop)
        first = np.maximum(numbers * BLOCK, begin)
        last = np.minimum((numbers + 1) * BLOCK, end)
        # Each operation is rounded in the same way on every machine.
        progress = ((first - begin) + (last - begin)) / (2 * (end - begin))
        left = self._weights[piece]
        right = self._weights[piece + 1]
        weights = left + (right - left) * progress[:, None]
        return _whole_counts(weights / weights.sum(axis=1, keepdims=True))

    def _constant(self, start: int, stop: int | None, weights: F64) -> _Stretch:
        active = np.flatnonzero(weights)
        shares = weights[active] / weights[active].sum()
        return _Stretch(start, stop, active, self._make_turns(tuple(shares.tolist())))


def _whole_counts(shares: F64) -> I64:
    """int64: shares of 4,096 positions, rounded so that the sum of each row is 4,096."""
    exact = shares * BLOCK
    counts = np.floor(exact).astype(np.int64)
    missing = BLOCK - counts.sum(axis=1, keepdims=True)
    largest_rests = np.argsort(counts - exact, axis=1, kind="stable")
    ranks = np.argsort(largest_rests, axis=1)
    rounded: I64 = counts + (ranks < missing)
    return rounded


def make_turns(mixture: Mixture, seed: int, unit_samples: int) -> Turns:
    """The turns of a mixture.

    Args:
        mixture: Of several data sets.
        seed: Of the loader.
        unit_samples: Samples in a unit of its schedule, if it has one.

    Raises:
        ArgumentError: A share is too small.
    """

    def make(shares: tuple[float, ...]) -> Turns:
        if mixture.batches == "stratified":
            return Stratified(shares)
        return ShuffledBlocks(shares, seed)

    if mixture.schedule is None:
        return make(mixture.shares)
    return ScheduledTurns(mixture.schedule, unit_samples, make)
