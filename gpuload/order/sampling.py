"""How a pass draws its samples: each once, repeated, or by weights or classes.

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

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.disk.dataset import Dataset
from gpuload.draws import DRAWN, make_key, permutation, uniform
from gpuload.errors import ArgumentError, some_of
from gpuload.fields.rows import numbers_of
from gpuload.lists import bounds_of, places_of
from gpuload.order.arguments import (
    MOST_DRAWS,
    AnySampling,
    Balance,
    Repeated,
    Weights,
    digest,
)
from gpuload.order.epoch import ALL, EpochOrder, Segments, Share, Windows
from gpuload.types import F64, I32, I64

# Expected draws of a sample are counted in units of 1/2^32: with up to 2^31 draws in a pass, sums fit into int64.
UNITS = 1 << 32

# The last words of the keys (seed, epoch, DRAWN, …).
_OFFSETS = 0
_ORDER = 1
_CHOSEN = 2


@dataclass(frozen=True, eq=False)
class Sampling:
    """How one data set is sampled: by groups, by weights, or with neither each sample several times in a row.

    Attributes:
        draws: Samples in a pass.
        groups: int32 (len,), from 0 to the last without a gap, which are drawn equally often.
        weights: float64 (len,), not all 0.
        replacement: Whether a sample may be drawn again in the same pass, where there are weights.
        times: How often each sample comes, where there are neither groups nor weights.
    """

    draws: int
    groups: I32 | None = None
    weights: F64 | None = None
    replacement: bool = True
    times: int = 1

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything that changes the order."""
        values = self.groups if self.groups is not None else self.weights
        if values is None:
            return f"repeated-{self.times}"
        content = (
            repr((self.draws, values.dtype.str, not self.replacement)).encode()
            + values.tobytes()
        )
        return digest(content)

    @cached_property
    def units(self) -> tuple[I32, I64]:
        """int (N,), the group of each sample, and int64 (N,), its weight, for draws with replacement. Takes up to 8
        bytes for each sample."""
        if self.groups is not None:
            return self.groups, np.broadcast_to(np.int64(1), self.groups.shape)
        assert self.weights is not None
        total = self.draws * UNITS
        shares = self.weights / self.weights.sum()
        units = np.rint(shares * total).astype(np.int64)
        # What rounding left, where it changes least.
        units[np.argmax(units)] += total - units.sum()
        return np.broadcast_to(np.int32(0), units.shape), units

    def order(
        self, shard_sizes: I64, *, seed: int, epoch: int, window: int
    ) -> EpochOrder:
        """The order of one pass. Costs O(samples) once for each pass.

        Args:
            shard_sizes: int64 (shards,), samples in each shard.
            seed: Of the order.
            epoch: Number of the pass.
            window: Shards whose samples are mixed with one another at a time.
        """
        options: dict[str, Any] = {"seed": seed, "epoch": epoch, "window": window}
        if self.groups is None and self.weights is None:
            return RepeatedOrder(
                EpochOrder(shard_sizes, **options), self.times, epoch * self.draws
            )
        if self.replacement:
            return EpochOrder(
                shard_sizes, **options, make_windows=partial(_DrawnWindows, self)
            )
        chosen = self._choose(int(shard_sizes.sum()), seed, epoch)
        bounds = np.searchsorted(chosen, bounds_of(shard_sizes))
        return EpochOrder(np.diff(bounds), **options, samples=chosen)

    def _choose(self, total: int, seed: int, epoch: int) -> I64:
        """The samples of a pass without replacement, ascending. Takes 8 bytes for each that is drawn."""
        drawn = uniform(make_key(seed, epoch, DRAWN, _CHOSEN), np.arange(total))
        if self.groups is not None:
            by_group = np.lexsort((drawn, self.groups))
            sizes = np.bincount(self.groups)
            each = _divide_draws(self.draws, len(sizes), seed, epoch)
            is_drawn = places_of(sizes) < each[self.groups[by_group]]
            return np.sort(by_group[is_drawn])
        if self.draws >= total:
            return np.arange(total)
        with np.errstate(divide="ignore"):
            waits = -np.log1p(-drawn) / self.weights  # infinite where the weight is 0
        return np.sort(np.argpartition(waits, self.draws - 1)[: self.draws])


def _divide_draws(draws: int, groups: int, seed: int, epoch: int) -> I64:
    """int64 (groups,): the draws of each group, as equal as can be; another part of them gets one more in each pass."""
    counts: I64 = np.full(groups, draws // groups)
    mixed = permutation(make_key(seed, epoch, DRAWN, _OFFSETS, groups), groups)
    counts[mixed[: draws % groups]] += 1
    return counts


class _DrawnWindows(Windows):
    """Windows of which each sample comes as often as it is drawn.

    Costs O(samples) to construct, and where windows are asked for one after another, O(samples of a window) for a
    slice.
    """

    def __init__(
        self,
        sampling: Sampling,
        segments: Segments,
        words: tuple[int, ...],
        **options: Any,
    ) -> None:
        super().__init__(segments, words, **options)
        self._numbers, self._units = sampling.units
        # With offset r, group k has drawn (sum * each + r) // unit samples where the units before sum to `sum`.
        if sampling.groups is None:
            self._each = np.ones(1, np.int64)
            self._unit = np.array([UNITS])
        else:
            self._unit = np.bincount(sampling.groups)
            self._each = _divide_draws(
                sampling.draws, len(self._unit), self._seed, self._epoch
            )
        key = make_key(self._seed, self._epoch, DRAWN, _OFFSETS)
        groups = len(self._unit)
        offsets = uniform(key, np.arange(groups)) * self._unit
        self._offsets = np.minimum(offsets.astype(np.int64), self._unit - 1)
        self._passed: tuple[int, I64] = 0, np.zeros(groups, np.int64)
        windows = range(1, len(self._bounds))
        ends = [self._drawn(self._units_before(window)).sum() for window in windows]
        self.starts = np.array([0, *ends])

    def _units_before(self, window: int) -> I64:
        """int64 (groups,): the units of each group before a window. The last ones are kept, to go on from."""
        last_window, passed = self._passed
        units = passed.copy()
        if last_window > window:
            last_window = 0
            units[:] = 0
        segments = self._segments.take(slice(*self._bounds[[last_window, window]]))
        runs = zip(segments.firsts.tolist(), segments.counts.tolist(), strict=True)
        for first, count in runs:
            rows = slice(first, first + count)
            np.add.at(units, self._numbers[rows], self._units[rows])
        self._passed = window, units
        return units

    def _drawn(self, units: I64, groups: I32 | slice = slice(None)) -> I64:
        """How many samples of each group were drawn where its units so far are these."""
        passed = units * self._each[groups] + self._offsets[groups]
        drawn: I64 = passed // self._unit[groups]
        return drawn

    def _compute(self, window: int) -> tuple[I64, I64 | None]:
        samples = super()._compute(window)[0]
        samples = samples[np.argsort(self._numbers[samples], kind="stable")]
        times = self._count_draws(samples, self._units_before(window))
        drawn = np.repeat(samples, times)
        repeats = places_of(times)
        mixed = permutation(
            make_key(self._seed, self._epoch, DRAWN, _ORDER, window), len(drawn)
        )
        return drawn[mixed], repeats[mixed]

    def _count_draws(self, samples: I64, units_before: I64) -> I64:
        """int64 (N,): how often each sample is drawn.

        Args:
            samples: Sorted by their groups.
            units_before: (groups,), of each group before these samples.
        """
        groups = self._numbers[samples]
        units = self._units[samples]
        sums = np.cumsum(units)
        present, firsts, counts = np.unique(
            groups, return_index=True, return_counts=True
        )
        group_starts = (sums - units)[firsts]
        sums += np.repeat(units_before[present] - group_starts, counts)
        return self._drawn(sums, groups) - self._drawn(sums - units, groups)


class RepeatedOrder(EpochOrder):
    """The order of one pass, each sample several times in a row.

    Args:
        once: The order of each sample once, whose windows it has.
        times: How often each sample comes.
        offset: Positions of the stream before this pass.
        share: The lanes, where they are of one rank; such a share is of one lane.
    """

    def __init__(
        self, once: EpochOrder, times: int, offset: int, share: Share = ALL
    ) -> None:
        self._once = once
        self._times = times
        self._offset = offset
        self._first = (share.first - offset) % share.lanes
        self._step = share.lanes
        starts = once.window_starts * times
        own_starts = -((self._first - starts) // self._step)  # rounded up
        self.window_starts = np.maximum(own_starts, 0)

    def __getitem__(self, positions: slice) -> I64:
        start, stop, _ = positions.indices(len(self))
        if start >= stop:
            return np.empty(0, np.int64)
        places = self._places(start, stop) // self._times
        first = int(places[0])
        last = int(places[-1])
        samples = self._once[first : last + 1]
        return samples[places - first]

    def serving(self, share: Share) -> "RepeatedOrder":
        """As `EpochOrder.serving`."""
        return RepeatedOrder(self._once, self._times, self._offset, share)

    def repeats(self, start: int, stop: int) -> I64:
        """As `EpochOrder.repeats`."""
        return self._places(start, stop) % self._times

    def window_shards(self, window: int) -> I64:
        """As `EpochOrder.window_shards`."""
        return self._once.window_shards(window)

    def following(self, window: int) -> I64:
        """As `EpochOrder.following`."""
        return self._once.following(window)

    def upcoming(self, window: int) -> I64:
        """As `EpochOrder.upcoming`."""
        return self._once.upcoming(window)

    def _places(self, start: int, stop: int) -> I64:
        """The positions of the pass that are at positions start..stop-1 of the share."""
        places: I64 = self._first + self._step * np.arange(start, stop)
        return places


def find_samplings(
    datasets: tuple[Dataset, ...], sampled: AnySampling | None, *, shuffle: bool
) -> tuple[Sampling, ...] | None:
    """The sampling of each data set; None where each sample comes once in a pass.

    Raises:
        ArgumentError: stored order, a mixture with a number of draws, weights that cannot be used, a field that is not
            there, or more draws without replacement than there are samples.
    """
    if sampled is None:
        return None
    name = type(sampled).__name__
    if not shuffle:
        raise ArgumentError(
            f"DaliIterator(sampling={name}, shuffle=False): samples are drawn at random. Use True"
        )
    if len(datasets) > 1 and (
        isinstance(sampled, Repeated) or sampled.num_samples is not None
    ):
        raise ArgumentError(
            f"{name}: is for a single data set, found a mixture of {len(datasets)}. Use Balance or Weights without "
            "num_samples, and steps_per_epoch for the length of an epoch"
        )
    if isinstance(sampled, Repeated):
        return (Sampling(sampled.times * len(datasets[0]), times=sampled.times),)
    make = _balanced if isinstance(sampled, Balance) else _weighted
    samplings = []
    for dataset, values in zip(datasets, _values(datasets, sampled), strict=True):
        draws = sampled.num_samples or len(dataset)
        if draws > MOST_DRAWS:
            raise ArgumentError(
                f"{name}: {draws:,} draws in a pass, expected at most {MOST_DRAWS:,}"
            )
        samplings.append(
            make(f"{name}: {dataset.folder}", values, draws, sampled.replacement)
        )
    return tuple(samplings)


def _balanced(
    subject: str, values: npt.NDArray[Any], draws: int, replacement: bool
) -> Sampling:
    classes, inverse, sizes = np.unique(values, return_inverse=True, return_counts=True)
    most = len(classes) * int(sizes.min())
    if not replacement and draws > most:
        raise ArgumentError(
            f"{subject} has {len(classes)} classes, the smallest of {sizes.min():,} samples. Use num_samples of at "
            f"most {most:,}, or replacement=True"
        )
    return Sampling(draws, groups=inverse.astype(np.int32), replacement=replacement)


def _weighted(
    subject: str, values: npt.NDArray[Any], draws: int, replacement: bool
) -> Sampling:
    weights = values.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise ArgumentError(
            f"{subject}: sample {wrong[0]} has the weight {weights[wrong[0]]}, expected a finite number of at least 0"
        )
    drawable = int(np.count_nonzero(weights))
    least = 1 if replacement else draws
    if drawable < least:
        raise ArgumentError(
            f"{subject} has {drawable:,} samples with a weight above 0, expected at least {least:,}. Use other "
            "weights, a smaller num_samples, or replacement=True"
        )
    weights /= weights.max()  # so that no sum of them overflows
    return Sampling(draws, weights=weights, replacement=replacement)


def _values(
    datasets: tuple[Dataset, ...], sampled: Balance | Weights
) -> list[npt.NDArray[Any]]:
    """For each data set (len,): the classes or weights of its samples."""
    numbers = sampled.field if isinstance(sampled, Balance) else sampled.weights
    if isinstance(numbers, str):
        return [_column(dataset, sampled, numbers) for dataset in datasets]
    try:
        values = np.asarray(numbers)
    except Exception:  # lists of unequal length, tensors on a GPU
        values = np.empty(0, object)
    total = sum(map(len, datasets))
    if values.dtype.kind not in "biuf" or values.shape != (total,):
        raise ArgumentError(
            f"Weights: expected the name of a field, or one number for each of {total:,} samples, found {values.dtype} "
            f"of shape {values.shape}"
        )
    return np.split(values, np.cumsum([len(dataset) for dataset in datasets])[:-1])


def _column(
    dataset: Dataset, sampled: Balance | Weights, name: str
) -> npt.NDArray[Any]:
    """(len,): the numbers of an index column of the samples of a data set, which may be a subset."""
    subject = f"{type(sampled).__name__}({name!r}): {dataset.folder}"
    names = _number_columns(dataset, of_classes=isinstance(sampled, Balance))
    if name not in names:
        raise ArgumentError(
            f"{subject} has no such numbers for each sample, expected one of {some_of(names, 10)}"
        )
    values = dataset.column(name)
    stored = dataset.stored_samples(np.arange(len(dataset)))
    if values.null_count:
        missing = np.flatnonzero(numbers_of(values.is_null())[stored])
        if len(missing):
            raise ArgumentError(
                f"{subject} has {len(missing):,} samples without one, the first is sample {missing[0]}. Leave them "
                "out: dataset.filter(pyarrow.compute.is_valid(pyarrow.compute.field(...)))"
            )
        values = values.fill_null(0)
    numbers: npt.NDArray[Any] = numbers_of(values)[stored]
    return numbers


def _number_columns(dataset: Dataset, *, of_classes: bool) -> list[str]:
    """The index columns that hold a number, or a class, for each sample, without those of the places of members."""
    names = []
    for column in dataset.schema:
        fits = pa.types.is_primitive(column.type)
        if of_classes:
            fits = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
        if fits and not column.name.endswith(("_offset", "_bytes")):
            names.append(column.name)
    return names
