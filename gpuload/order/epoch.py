"""The order of the samples of an epoch, as numbers only, and how well it mixes them.

The order is a pure function of (shard sizes, seed, epoch, window, lanes). It does not depend on ranks, batch sizes or
devices, which only divide it. So any process can compute any part of it, and a run that is resumed with other ranks and
batch sizes sees exactly the rest.

    shards, permuted         5 2 | 0 4 | 1 3        by (seed, epoch)
    windows of 2 shards      ─────────────────
    samples of a window      all permuted together, by (seed, epoch, window's number)

For many nodes, the shards are divided among lanes, so that a node reads those of its own lanes alone:

    shards, permuted         5 2 0 4 1 3            by the seed, as one sequence of samples
    3 lanes                  ────┼────┼───          cut evenly: at most one shard is cut at each boundary
    lane 0                   2 5 | …                in each pass: its shards permuted, and mixed in windows
    the stream               0 1 2 0 1 2 0 …        position p is the next sample of lane p % lanes

So any global batch of a multiple of `lanes` samples holds equally many of each lane, also across the end of a pass.
What lies in a lane depends on the seed, so that in later passes a node finds its shards in its cache; of the samples at
the boundaries, which are fewer than lanes, some change lanes from pass to pass.

The golden orders in the tests are part of the disk format (`gpuload.disk.manifest.VERSION`), since a state_dict depends
on them.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.draws import SAMPLES, SHARDS, make_key, permutation
from gpuload.lists import bounds_of, starts_of
from gpuload.types import I64


class Share(NamedTuple):
    """The lanes that a rank reads: first..stop-1.

    Attributes:
        first: Its first lane.
        stop: The lane after its last one.
        lanes: How many there are of all ranks.
    """

    first: int
    stop: int
    lanes: int

    def before(self, position: int) -> int:
        """How many positions of the stream before this one are in these lanes."""
        width = self.stop - self.first
        rounds, rest = divmod(position, self.lanes)
        return rounds * width + min(max(rest - self.first, 0), width)

    def last_before(self, position: int) -> int:
        """The last position of the stream before this one that is in these lanes."""
        lane = (position - 1) % self.lanes
        if self.first <= lane < self.stop:
            return position - 1
        return position - 1 - (lane - self.stop + 1) % self.lanes


ALL = Share(0, 1, 1)


class Segments(NamedTuple):
    """Runs of consecutive samples, each of one shard: int64 (n,), the shard, its first sample, and how many."""

    shards: I64
    firsts: I64
    counts: I64

    def take(self, rows: I64 | slice) -> "Segments":
        """Some of them, in this order."""
        return Segments(*(values[rows] for values in self))

    def part(self, start: int, stop: int) -> "Segments":
        """Samples start..stop-1 of them, one segment after another."""
        ends = np.cumsum(self.counts)
        rows = slice(
            int(np.searchsorted(ends, start, side="right")),
            int(np.searchsorted(ends, stop)) + 1,
        )
        inside = self.take(rows)
        before = ends[rows] - self.counts[rows]
        begins = np.maximum(start - before, 0)
        counts = np.minimum(before + inside.counts, stop) - before - begins
        return Segments(inside.shards, inside.firsts + begins, counts)


class Windows:
    """Segments permuted, and divided evenly among windows, whose samples are permuted together: one lane of a pass.

    Args:
        segments: Of which the windows are made, in stored order.
        words: What the permutations depend on, beside seed and epoch.
        seed: Of the order.
        epoch: Number of the pass.
        window: Segments in a window, at most.
        shuffle: False gives stored order.

    Attributes:
        starts: int64 (windows + 1,), where each begins, and the end.
    """

    def __init__(
        self,
        segments: Segments,
        words: tuple[int, ...],
        *,
        seed: int,
        epoch: int,
        window: int,
        shuffle: bool = True,
    ) -> None:
        self._seed = seed
        self._epoch = epoch
        self._words = words
        self._shuffle = shuffle
        count = len(segments.shards)
        mixed = (
            permutation(make_key(seed, epoch, SHARDS, *words), count)
            if shuffle
            else slice(None)
        )
        self._segments = segments.take(mixed)
        windows = -(-count // window)
        self._bounds: I64 = np.arange(windows + 1) * count // max(windows, 1)
        self.starts = bounds_of(self._segments.counts)[self._bounds]
        self._computed: dict[int, tuple[I64, I64 | None]] = {}

    def shards(self, window: int) -> I64:
        """The shards of a window; empty past the last."""
        if window + 1 >= len(self._bounds):
            return self._segments.shards[:0]
        first, stop = self._bounds[window : window + 2]
        return self._segments.shards[first:stop]

    def shards_from(self, window: int) -> tuple[I64, I64]:
        """The shards of a window and of those after it, and where the window of each begins."""
        bounds = self._bounds[window:]
        starts = np.repeat(self.starts[window:-1], np.diff(bounds))
        return self._segments.shards[bounds[0] :], starts

    def samples(self, window: int) -> I64:
        """The samples of a window, in order."""
        return self._computed_window(window)[0]

    def repeats(self, window: int) -> I64:
        """How often each of the samples of a window came before in this pass, where they come more than once."""
        repeats = self._computed_window(window)[1]
        assert repeats is not None
        return repeats

    def _computed_window(self, window: int) -> tuple[I64, I64 | None]:
        """The samples of a window, and their repeats. The last two windows are kept, since a batch may span both."""
        if window not in self._computed:
            while len(self._computed) > 1:
                del self._computed[next(iter(self._computed))]
            self._computed[window] = self._compute(window)
        return self._computed[window]

    def _compute(self, window: int) -> tuple[I64, I64 | None]:
        inside = self._segments.take(slice(*self._bounds[window : window + 2]))
        runs = zip(inside.firsts.tolist(), inside.counts.tolist(), strict=True)
        samples = np.concatenate(
            [np.arange(first, first + count) for first, count in runs]
        )
        if self._shuffle:
            samples = samples[
                permutation(
                    make_key(self._seed, self._epoch, SAMPLES, *self._words, window),
                    len(samples),
                )
            ]
        return samples, None


class EpochOrder:
    """The order of one epoch: `order[start:stop]` are the sample indices at those positions.

    Costs O(shards) to construct and O(samples of a window) for a slice, whatever the size of the data set.

    Args:
        shard_sizes: int64 (shards,), samples in each shard.
        seed: With the epoch, what decides the order.
        epoch: Number of the pass, from 0.
        window: Number of shards whose samples are mixed with one another; shards are divided evenly among windows, so
            that they differ by one shard at most.
        shuffle: False gives stored order.
        lanes: Each has windows of its own. A window of the order is then where each lane is in one, until a lane enters
            its next.
        samples: int64, those that the order is of, ascending, where it is not of all; shard_sizes counts them alone.
        make_windows: Makes the `Windows` of this pass, where samples come as often as they are drawn.

    Attributes:
        window_starts: int64 (windows + 1,), where each window begins, and the end.
    """

    def __init__(
        self,
        shard_sizes: I64,
        *,
        seed: int,
        epoch: int,
        window: int,
        shuffle: bool = True,
        lanes: int = 1,
        samples: I64 | None = None,
        make_windows: Callable[..., Windows] = Windows,
    ) -> None:
        self._numbers = samples
        self._make_windows = make_windows
        self._seed = seed
        self._epoch = epoch
        self._window = window
        self._shuffle = shuffle
        sizes = np.asarray(shard_sizes)
        # A subset can leave shards empty; windows would hold fewer samples.
        filled = np.flatnonzero(sizes)
        segments = Segments(filled, starts_of(sizes)[filled], sizes[filled])
        # What lies in a lane is the same in all passes.
        if lanes > 1:
            segments = segments.take(permutation(make_key(seed, SHARDS), len(filled)))
        self._sequence = segments
        self._samples = int(sizes.sum())
        self._served: dict[Share, EpochOrder] = {}
        self._serve(Share(0, lanes, lanes))

    def __len__(self) -> int:
        return int(self.window_starts[-1])

    def __getitem__(self, positions: slice) -> I64:
        """int64: the samples at positions start..stop-1 of the epoch."""
        start, stop, _ = positions.indices(len(self))
        numbers = self._gather(start, stop, Windows.samples)
        return numbers if self._numbers is None else self._numbers[numbers]

    def serving(self, share: Share) -> "EpochOrder":
        """The samples of some lanes alone, in the order in which they come here."""
        if share not in self._served:
            view = self._served[share] = copy(self)
            view._served = {}
            view._serve(share)
        return self._served[share]

    def repeats(self, start: int, stop: int) -> I64 | None:
        """int64: how often the samples at positions start..stop-1 came before in this pass; None: never."""
        if self._make_windows is Windows:
            return None
        return self._gather(start, stop, Windows.repeats)

    def window_at(self, position: int) -> int:
        """Number of the window that contains a position."""
        return int(np.searchsorted(self.window_starts, position, side="right")) - 1

    def window_shards(self, window: int) -> I64:
        """The shards of a window; empty past the last. One that two lanes share may be there twice."""
        return self._shards_of(self._entered[min(window, len(self._entered) - 1)])

    def following(self, window: int) -> I64:
        """The shards that are needed next: those of the next window of each lane.

        Args:
            window: Number of the present window.
        """
        return self._shards_of(self._entered[window] + 1)

    def upcoming(self, window: int) -> I64:
        """The shards of a window and of those after it, and then of the next pass, as they will be needed."""
        next_pass = self._lanes_of(self._epoch + 1)
        return np.concatenate(
            [
                _in_turn(self._lanes, self._entered[window]),
                _in_turn(next_pass, [0] * len(next_pass)),
            ]
        )

    def _serve(self, share: Share) -> None:
        self._share = share
        self._lanes = self._lanes_of(self._epoch)
        # In samples of a lane: where any of them enters a window, and which one each is in from there on. At the end,
        # where a rank reads that has no sample of the last batch, they are past their last.
        starts_of_lanes = [lane.starts[:-1] for lane in self._lanes]
        starts = np.unique(np.concatenate(starts_of_lanes))
        entered = [
            np.searchsorted(starts_of_lane, starts, side="right") - 1
            for starts_of_lane in starts_of_lanes
        ]
        past = [[len(lane.starts) - 1 for lane in self._lanes]]
        self._entered: I64 = np.concatenate([np.stack(entered, axis=1), past])
        self.window_starts: I64 = np.append(
            starts * len(self._lanes), sum(int(lane.starts[-1]) for lane in self._lanes)
        )

    def _lanes_of(self, epoch: int) -> list[Windows]:
        """The lanes that are served, in a pass, as they take turns in it."""
        lanes = self._share.lanes
        each, rest = divmod(self._samples, lanes)
        # They go on from pass to pass.
        turns = (np.arange(lanes) - epoch * self._samples % lanes) % lanes
        ends = np.cumsum(each + (turns < rest))
        served = sorted(
            range(self._share.first, self._share.stop),
            key=lambda lane: int(turns[lane]),
        )
        # Of the next pass only the shards are asked for.
        make = self._make_windows if epoch == self._epoch else Windows
        options: dict[str, Any] = {
            "seed": self._seed,
            "epoch": epoch,
            "window": self._window,
            "shuffle": self._shuffle,
        }
        return [
            make(
                self._sequence.part(
                    int(ends[lane - 1]) if lane else 0, int(ends[lane])
                ),
                () if lanes == 1 else (lane,),
                **options,
            )
            for lane in served
        ]

    def _shards_of(self, windows: I64) -> I64:
        """The shards of a window of each lane; past the last of a lane, none of it."""
        return np.concatenate(
            [
                lane.shards(w)
                for lane, w in zip(self._lanes, windows.tolist(), strict=True)
            ]
        )

    def _gather(
        self, start: int, stop: int, values_of: Callable[[Windows, int], I64]
    ) -> I64:
        """The values at positions start..stop-1, of all lanes in turn.

        Args:
            values_of: Gives those of a window of a lane.
        """
        parts = [np.empty(0, np.int64)]
        window = self.window_at(start)
        while start < stop:
            end = min(stop, int(self.window_starts[window + 1]))
            parts.append(self._gather_in_window(start, end, window, values_of))
            start = end
            window += 1
        return np.concatenate(parts)

    def _gather_in_window(
        self,
        start: int,
        stop: int,
        window: int,
        values_of: Callable[[Windows, int], I64],
    ) -> I64:
        """The same of positions in one window."""
        width = len(self._lanes)
        # In samples of a lane.
        first = start // width
        last = -(-stop // width)
        table = np.zeros((last - first, width), np.int64)
        lanes = zip(self._lanes, self._entered[window].tolist(), strict=True)
        for column, (lane, entered) in enumerate(lanes):
            lane_start = int(lane.starts[entered])
            values = values_of(lane, entered)[first - lane_start : last - lane_start]
            # At the end, the first lanes may have one more.
            table[: len(values), column] = values
        table_start = first * width
        gathered: I64 = table.reshape(-1)[start - table_start : stop - table_start]
        return gathered


def _in_turn(lanes: Sequence[Windows], entered: Sequence[int] | I64) -> I64:
    """The shards of these windows of the lanes and of those after them, as they are needed."""
    shards, starts = zip(
        *(
            lane.shards_from(window)
            for lane, window in zip(lanes, entered, strict=True)
        ),
        strict=True,
    )
    needed: I64 = np.concatenate(shards)[
        np.argsort(np.concatenate(starts), kind="stable")
    ]
    return needed


# Windows and batches that are measured: enough for a mean that is exact to two digits, and fast on any data set.
_WINDOWS = 32
_BATCHES = 64


@dataclass(frozen=True)
class Mixing:
    """How well a window mixes batches.

    Shuffling within windows of whole shards is not a full shuffle. Where the packer shuffled, batches are like those of
    a full shuffle; where the shards are sorted by class, a batch holds the classes of a few shards only.

    Attributes:
        window: In shards.
        batch_size: Samples in a batch.
        distance: Of the order from a full shuffle, 0..1: the largest difference, averaged over windows, between the
            distribution of a window's samples over stored order and that of all samples (Kolmogorov–Smirnov). 0: each
            window is drawn from the whole set; towards 1: each from a small part of it.
        classes: Distinct classes in a batch, on average; None without labels.
        expected_classes: The same with a full shuffle.
    """

    window: int
    batch_size: int
    distance: float
    classes: float | None
    expected_classes: float | None

    @property
    def is_poor(self) -> bool:
        """Whether batches hold clearly fewer classes than with a full shuffle."""
        return self.classes is not None and self.classes < 0.8 * (
            self.expected_classes or 0.0
        )


def measure_mixing(
    dataset: Dataset, window: int, batch_size: int, *, lanes: int = 1
) -> Mixing:
    """Measures an epoch's order, on at most 32 windows, of all lanes together, and 64 batches of it.

    Args:
        dataset: Whose order is measured.
        window: In shards.
        batch_size: Samples in a batch.
        lanes: Of the order.
    """
    order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=window, lanes=lanes)
    # Where the first lane enters each of its windows, and the end: in between, all lanes mix about one window.
    starts = np.append(order._lanes[0].starts[:-1] * lanes, len(order))
    windows = np.unique(np.linspace(0, len(starts) - 2, _WINDOWS).astype(int))
    distances = [
        _distance(order[starts[w] : starts[w + 1]], len(order)) for w in windows
    ]
    classes: float | None = None
    expected: float | None = None
    if "label" in dataset.fields:
        full = EpochOrder(
            dataset.shard_sizes, seed=0, epoch=0, window=len(dataset.shard_sizes)
        )
        classes = _count_classes(dataset.labels, order, batch_size)
        expected = _count_classes(dataset.labels, full, batch_size)
    return Mixing(window, batch_size, float(np.mean(distances)), classes, expected)


def smallest_good_window(dataset: Dataset, batch_size: int) -> int | None:
    """The smallest window of 1, 2, 4, … 32 shards, or of all where there are fewer, that mixes well; None if none does.

    Not more than 32 shards, since all shards of a window are in memory.
    """
    windows = sorted({min(1 << power, len(dataset.shard_paths)) for power in range(6)})
    return next(
        (
            window
            for window in windows
            if not measure_mixing(dataset, window, batch_size).is_poor
        ),
        None,
    )


def _distance(samples: I64, total: int) -> float:
    positions = np.sort(samples) / total
    steps = np.arange(len(positions) + 1) / len(positions)
    above = (steps[1:] - positions).max()
    below = (positions - steps[:-1]).max()
    return float(max(above, below))


def _count_classes(labels: I64, order: EpochOrder, batch_size: int) -> float:
    """The mean number of classes in some batches."""
    starts = np.unique(
        np.linspace(0, max(0, len(order) - batch_size), _BATCHES).astype(int)
    )
    return float(
        np.mean(
            [
                len(np.unique(labels[order[start : start + batch_size]]))
                for start in starts
            ]
        )
    )
