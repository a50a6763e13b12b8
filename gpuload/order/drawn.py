"""Orders in which samples come as often as their weights say.

With replacement, the draws of a pass are divided among the samples in proportion to their weights, by systematic
sampling: weights are added up along a random order of the samples, and each time the sum passes a multiple of
total / draws, plus a random offset, the sample is drawn. So a sample whose share is 2.3 draws comes 2 or 3 times, 2.3
times on average, and no pass strays further from the weights, whereas independent draws (torch's
`WeightedRandomSampler`) miss a sample with one expected draw in 37 % of the passes. Sums are whole numbers, so that
nothing depends on the order of summation (Madow, "On the theory of systematic sampling, II", Annals of Mathematical
Statistics 20, 1949).

Without replacement, the samples with the smallest values of E / weight are drawn, each E an exponential random number.
That is successive sampling, as in torch (Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
Information Processing Letters 97, 2006).

Repeated, each sample comes several times in a row, for views of it on several ranks:

    order       5 2 7 …                    of a pass, as `EpochOrder` has it
    stream      5 5 5 2 2 2 7 7 7 …        3 times each
    2 ranks     5 . 5 . 2 . 7 . 7 …        each takes every second position, so that views of a sample lie on both

That is the division of DeiT's and torchvision's `RASampler`: the stream does not depend on the number of ranks.
"""

from typing import NamedTuple

import numpy as np

from gpuload.draws import DRAWN, make_key, permutation, uniform
from gpuload.order.epoch import EpochOrder, Segments, Share, Windows
from gpuload.types import F64, I32, I64

# Expected draws of a sample are counted in units of 1/2^32: with up to 2^31 draws in a pass, sums fit into int64.
UNITS = 1 << 32
MOST_DRAWS = (1 << 31) - 1

_ALL = Share(0, 1, 1)
_OFFSETS, _ORDER, _CHOSEN = 0, 1, 2  # the last words of the keys (seed, epoch, DRAWN, …)


class Strata(NamedTuple):
    """Groups of samples whose draws in a pass are fixed: one group, or the classes of a balanced data set.

    numbers: int (N,), the group of each sample, 0..groups-1. units: int64 (N,), the weight of each sample.
    totals: int64 (groups,), the units of each group. per_draw: units that a draw takes; None: so many that each group
    is drawn equally often.
    """

    numbers: I32
    units: I64
    totals: I64
    per_draw: int | None

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.totals)


def equal_strata(numbers: I32) -> Strata:
    """Groups that are drawn equally often, of samples of equal weight.

    numbers: int32 (N,), from 0 to the last without a gap. Takes these 4 bytes for each sample.
    """
    ones = np.broadcast_to(np.int64(1), numbers.shape)
    return Strata(numbers, ones, np.bincount(numbers), None)


def weighted_stratum(weights: F64, draws: int) -> Strata:
    """One group of samples with these weights, which are not all 0. Takes 8 bytes for each sample."""
    units = np.rint(weights / weights.sum() * (draws * UNITS)).astype(np.int64)
    units[np.argmax(units)] += draws * UNITS - units.sum()  # what rounding left, where it changes least
    group = np.broadcast_to(np.int32(0), units.shape)
    return Strata(group, units, np.array([draws * UNITS]), UNITS)


def divide_draws(draws: int, groups: int, seed: int, epoch: int) -> I64:
    """int64 (groups,): the draws of each group, as equal as can be; another part of them gets one more in each pass."""
    counts: I64 = np.full(groups, draws // groups)
    counts[permutation(make_key(seed, epoch, DRAWN, _OFFSETS, groups), groups)[: draws % groups]] += 1
    return counts


class DrawnOrder(EpochOrder):
    """The order of one pass with replacement: windows of shards as in `EpochOrder`, samples as often as drawn.

    strata: of the samples. draws: of the pass.

    Costs O(samples) time once for each pass, O(samples of a window) for a slice, and memory for the groups that occur
    in each window.
    """

    def __init__(self, shard_sizes: I64, strata: Strata, draws: int, *, seed: int, epoch: int, window: int) -> None:
        self._strata, self._draws = strata, draws
        super().__init__(shard_sizes, seed=seed, epoch=epoch, window=window)

    def repeats(self, start: int, stop: int) -> I64:
        """As `EpochOrder.repeats`."""
        return self._gather(start, stop, lambda lane, window: lane.repeats(window))

    def _lane(self, segments: Segments, epoch: int, lane: int) -> Windows:
        if epoch != self._epoch:  # a pass of which only the shards are asked for
            return super()._lane(segments, epoch, lane)
        return _DrawnWindows(segments, self._strata, self._draws, seed=self._seed, epoch=epoch, window=self._window)


class _DrawnWindows(Windows):
    """Windows of which each sample comes as often as it is drawn."""

    def __init__(self, segments: Segments, strata: Strata, draws: int, *, seed: int, epoch: int, window: int) -> None:
        super().__init__(segments, (), seed=seed, epoch=epoch, window=window)
        self._strata = strata
        # With offset r, group k has drawn (sum * each + r) // unit samples where the units before sum to `sum`.
        if strata.per_draw is not None:
            self._each, self._unit = np.ones(1, np.int64), np.array([strata.per_draw])
        else:
            self._each, self._unit = divide_draws(draws, strata.groups, seed, epoch), strata.totals
        offsets = uniform(make_key(seed, epoch, DRAWN, _OFFSETS), np.arange(strata.groups)) * self._unit
        self._offsets = np.minimum(offsets.astype(np.int64), self._unit - 1)
        self._sum_windows()
        self._repeats: dict[int, I64] = {}

    def repeats(self, window: int) -> I64:
        """How often the samples of a window came before in this pass."""
        self.samples(window)
        return self._repeats[window]

    def _sum_windows(self) -> None:
        """For each group of each window: the units before it; and where the windows begin.

        Kept as one entry for each group that occurs in a window, sorted by window: memory grows with what is there.
        """
        strata = self._strata
        windows, groups, units = [], [], []
        for window in range(len(self._bounds) - 1):
            inside = self._segments.take(slice(*self._bounds[window : window + 2]))
            sums = np.zeros(strata.groups, np.int64)
            for first, count in zip(inside.firsts.tolist(), inside.counts.tolist(), strict=True):
                rows = slice(first, first + count)
                np.add.at(sums, strata.numbers[rows], strata.units[rows])
            there = np.flatnonzero(sums)
            windows.append(np.full(len(there), window))
            groups.append(there)
            units.append(sums[there])
        of_window, of_group, sums = map(np.concatenate, (windows, groups, units))
        by_group = np.lexsort((of_window, of_group))
        before = np.cumsum(sums[by_group]) - sums[by_group]
        starts = np.searchsorted(of_group[by_group], np.arange(strata.groups))
        before -= before[starts][of_group[by_group]]
        self._entry_starts = np.searchsorted(of_window, np.arange(len(self._bounds)))
        self._entry_groups = of_group
        self._entry_units = np.empty_like(before)
        self._entry_units[by_group] = before
        drawn = self._drawn(of_group, self._entry_units + sums) - self._drawn(of_group, self._entry_units)
        in_window = np.bincount(of_window, drawn, minlength=len(windows)).astype(np.int64)
        self.starts = np.concatenate([[0], np.cumsum(in_window)])

    def _drawn(self, groups: I64 | I32, units: I64) -> I64:
        """How many samples of each group were drawn where its units so far are these."""
        drawn: I64 = (units * self._each[groups] + self._offsets[groups]) // self._unit[groups]
        return drawn

    def _compute(self, window: int) -> I64:
        samples = super()._compute(window)
        groups, units = self._strata.numbers[samples], self._strata.units[samples]
        by_group = np.argsort(groups, kind="stable")
        groups, units = groups[by_group], units[by_group]
        entries = slice(*self._entry_starts[window : window + 2])
        present, before = self._entry_groups[entries], self._entry_units[entries]
        sums = np.cumsum(units)
        starts = np.searchsorted(groups, present)
        heads = np.zeros(self._strata.groups, np.int64)
        heads[present] = before - (sums[starts] - units[starts])
        sums += heads[groups]
        counts = self._drawn(groups, sums) - self._drawn(groups, sums - units)
        drawn = np.repeat(samples[by_group], counts)
        repeats = np.arange(len(drawn)) - np.repeat(np.cumsum(counts) - counts, counts)
        mixed = permutation(make_key(self._seed, self._epoch, DRAWN, _ORDER, window), len(drawn))
        self._repeats[window] = repeats[mixed]
        for old in self._repeats.keys() - self._computed.keys() - {window}:
            del self._repeats[old]
        result: I64 = drawn[mixed]
        return result


def choose_order(
    shard_sizes: I64,
    numbers: I32 | None,
    weights: F64 | None,
    draws: int,
    *,
    seed: int,
    epoch: int,
    window: int,
) -> EpochOrder:
    """The order of one pass without replacement: the samples that are drawn, in windows of their shards.

    numbers: int32 (N,), the group of each sample, of which equally many are drawn from each; or None, with `weights`.

    Costs O(samples) once for each pass, in time and 8 bytes for each sample that is drawn.
    """
    total = int(shard_sizes.sum())
    drawn = uniform(make_key(seed, epoch, DRAWN, _CHOSEN), np.arange(total))
    if numbers is not None:
        by_group = np.lexsort((drawn, numbers))
        sizes = np.bincount(numbers)
        place = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        each = divide_draws(draws, len(sizes), seed, epoch)
        chosen = by_group[place < each[numbers[by_group]]]
    else:
        assert weights is not None
        with np.errstate(divide="ignore"):
            waits = -np.log1p(-drawn) / weights  # infinite where the weight is 0
        chosen = np.argpartition(waits, draws - 1)[:draws] if draws < total else np.arange(total)
    chosen = np.sort(chosen)
    bounds = np.searchsorted(chosen, np.concatenate([[0], np.cumsum(shard_sizes)]))
    return EpochOrder(np.diff(bounds), seed=seed, epoch=epoch, window=window, samples=chosen)


class RepeatedOrder(EpochOrder):
    """The order of one pass, each sample `times` times in a row.

    once: the order of each sample once. offset: positions of the stream before this pass. A share is of one lane.
    """

    def __init__(self, once: EpochOrder, times: int, offset: int, share: Share = _ALL) -> None:
        vars(self).update(vars(once))  # its windows of shards
        self._once, self._times, self._offset = once, times, offset
        self._first, self._step = (share.first - offset) % share.lanes, share.lanes
        starts = once.window_starts * times
        self.window_starts = np.maximum(-(-(starts - self._first) // self._step), 0)

    def __getitem__(self, positions: slice) -> I64:
        start, stop, _ = positions.indices(len(self))
        if start >= stop:
            return np.empty(0, np.int64)
        which = self._places(start, stop) // self._times
        found: I64 = self._once[int(which[0]) : int(which[-1]) + 1][which - which[0]]
        return found

    def serving(self, share: Share) -> "RepeatedOrder":
        """As `EpochOrder.serving`."""
        return RepeatedOrder(self._once, self._times, self._offset, share)

    def repeats(self, start: int, stop: int) -> I64:
        """As `EpochOrder.repeats`."""
        return self._places(start, stop) % self._times

    def _places(self, start: int, stop: int) -> I64:
        """The positions of the pass that are at positions start..stop-1 of the share."""
        places: I64 = self._first + self._step * np.arange(start, stop)
        return places
