"""Orders for many nodes: the shards are divided among lanes, so that a node reads those of its own lanes alone.

    shards, permuted by the seed   5 2 0 4 1 3        as one sequence of samples,
    3 lanes                        ────┼────┼───      cut evenly: at most one shard is cut at each boundary
    lane 0                         2 5 | …            in each pass: its shards permuted, and mixed in windows
    the stream                     0 1 2 0 1 2 0 …    position p is the next sample of lane p % lanes

So any global batch of a multiple of `lanes` samples holds equally many of each lane, also across the end of a pass. The
order is a pure function of (shard sizes, seed, epoch, window, lanes): ranks only divide it, by lanes where that is
possible. What lies in a lane depends on the seed, so that in later passes a node finds its shards in its cache; of
the samples at the boundaries, which are fewer than lanes, some change lanes from pass to pass.
"""

import warnings
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from gpuload.counted import counted
from gpuload.disk.dataset import Dataset
from gpuload.draws import SAMPLES, SHARDS, make_key, permutation
from gpuload.errors import ArgumentError
from gpuload.order.epoch import EpochOrder
from gpuload.order.sampling import Sampling
from gpuload.ranks import Ranks
from gpuload.types import I64


class Share(NamedTuple):
    """Lanes first..stop-1, of so many."""

    first: int
    stop: int
    lanes: int

    def before(self, position: int) -> int:
        """How many positions of the stream before this one are in these lanes."""
        whole, rest = divmod(position, self.lanes)
        return whole * (self.stop - self.first) + min(max(rest - self.first, 0), self.stop - self.first)


def find_share(
    lanes: int,
    datasets: Sequence[Dataset],
    samplings: Sequence[Sampling] | None,
    ranks: Ranks,
    *,
    shuffle: bool,
    batch_size: int,
) -> Share | None:
    """A rank's own lanes; None where it has none: of one rank, or where ranks or batches cannot be divided by lanes.

    The arguments are `DaliIterator`'s. Warns where lanes are of no use.

    Raises:
        ArgumentError: arguments that lanes do not go with, or more lanes than shards.
    """
    if lanes == 1:
        return None
    subject = f"DaliIterator(lanes={lanes}"
    if not shuffle:
        raise ArgumentError(f"{subject}, shuffle=False): stored order has no lanes. Use shuffle=True, or lanes=1")
    if len(datasets) > 1:
        raise ArgumentError(
            f"{subject}): expected a single data set, found a mixture of {len(datasets)}. Use lanes=1, or pack the "
            "images into one set"
        )
    if samplings is not None:
        raise ArgumentError(
            f"{subject}): expected neither balance= nor weights=, by which passes draw other numbers of samples from "
            "each shard. Use lanes=1, or leave them out"
        )
    filled = int(np.count_nonzero(datasets[0].shard_sizes))
    if lanes > filled:
        raise ArgumentError(
            f"{subject}): expected at most as many lanes as shards with samples, {datasets[0].folder} has {filled}. "
            "Use fewer lanes, or pack with a smaller --maxcount"
        )
    if ranks.world_size == 1:
        return None
    global_batch = batch_size * ranks.world_size
    if lanes % ranks.world_size or global_batch % lanes:
        warnings.warn(
            f"{subject}): {counted(ranks.world_size, 'rank')} with batch_size={batch_size} cannot have lanes of their "
            "own, so that each reads all shards. Use a number of lanes that is a multiple of the number of ranks and "
            f"divides {global_batch}, the samples of a step",
            stacklevel=5,
        )
        return None
    each = lanes // ranks.world_size
    return Share(ranks.rank * each, (ranks.rank + 1) * each, lanes)


def node_lanes(lanes: int, share: Share | None, ranks: Ranks) -> int:
    """How many lanes the ranks of a node read together."""
    return lanes if share is None else min(lanes, (share.stop - share.first) * ranks.local_world_size)


class LanedOrder(EpochOrder):
    """The order of one pass in lanes, or of some of its lanes alone (`serving`).

    shard_sizes, seed, epoch, window: as for `EpochOrder`; each lane has windows of its own. lanes: 2 or more.

    Its `window_shards` are those of the windows that the lanes are in, until one of them enters its next.
    """

    def __init__(self, shard_sizes: I64, *, seed: int, epoch: int, window: int, lanes: int) -> None:
        super().__init__(shard_sizes, seed=seed, epoch=epoch, window=window)
        self._sizes, self._window, self._total = np.asarray(shard_sizes), window, len(self)
        self._sequence = self._filled[permutation(make_key(seed, SHARDS), len(self._filled))]
        self._views: dict[Share, LanedOrder] = {}
        self._serve(Share(0, lanes, lanes))

    def serving(self, share: Share) -> "LanedOrder":
        """The samples of some lanes, in the order in which they come here."""
        if share not in self._views:
            view = self._views[share] = copy(self)
            view._views = {}
            view._serve(share)
        return self._views[share]

    @property
    def rounds(self) -> I64:
        """Where the first lane enters each of its windows, and the end: in between, all lanes mix about one window."""
        return np.append(self._lanes[0].window_starts[:-1] * len(self._lanes), len(self))

    def window_shards(self, window: int) -> I64:
        """As `EpochOrder.window_shards`; one that two lanes share may be there twice."""
        return self._shards_of(self._entered[window])

    def following(self, window: int) -> I64:
        """As `EpochOrder.following`: of the next window of each lane."""
        return self._shards_of(self._entered[window] + 1)

    def upcoming(self, window: int) -> I64:
        """As `EpochOrder.upcoming`."""
        following = self._lanes_of(self._epoch + 1)
        return np.concatenate(
            [_in_turn(self._lanes, self._entered[window].tolist()), _in_turn(following, [0] * len(following))]
        )

    def _serve(self, share: Share) -> None:
        self._share, self._computed = share, {}
        self._lanes = self._lanes_of(self._epoch)
        # In samples of a lane: where any of them enters a window, and which one each is in from there on. At the end,
        # where a rank reads that has no sample of the last batch, they are past their last.
        starts = np.unique(np.concatenate([lane.window_starts[:-1] for lane in self._lanes]))
        found = [np.searchsorted(lane.window_starts[:-1], starts, side="right") - 1 for lane in self._lanes]
        past = [[len(lane.window_starts) - 1 for lane in self._lanes]]
        self._entered: I64 = np.concatenate([np.stack(found, axis=1), past])
        self.window_starts = np.append(starts * len(self._lanes), sum(len(lane) for lane in self._lanes))

    def _lanes_of(self, epoch: int) -> "list[_Lane]":
        """The lanes that are served, in a pass, as they take turns in it."""
        lanes = self._share.lanes
        each, rest = divmod(self._total, lanes)
        turns = (np.arange(lanes) - epoch * self._total % lanes) % lanes  # the stream's turns go on from pass to pass
        bounds = np.concatenate([[0], np.cumsum(each + (turns < rest))])
        ends = np.cumsum(self._sizes[self._sequence])
        served = sorted(range(self._share.first, self._share.stop), key=lambda lane: int(turns[lane]))
        return [self._lane(lane, epoch, int(bounds[lane]), int(bounds[lane + 1]), ends) for lane in served]

    def _lane(self, number: int, epoch: int, start: int, stop: int, ends: I64) -> "_Lane":
        """A lane: samples start..stop-1 of the sequence of shards."""
        first, last = int(np.searchsorted(ends, start, side="right")), int(np.searchsorted(ends, stop))
        shards = self._sequence[first : last + 1]
        before = np.concatenate([[0], ends])[first : last + 1]
        begins = np.maximum(start - before, 0)
        counts = np.minimum(ends[first : last + 1], stop) - before - begins
        firsts = self._first_samples[shards] + begins
        return _Lane(number, shards, firsts, counts, seed=self._seed, epoch=epoch, window=self._window)

    def _shards_of(self, windows: I64) -> I64:
        """The shards of a window of each lane; past the last of a lane, none of it."""
        return np.concatenate([lane.window_shards(w) for lane, w in zip(self._lanes, windows.tolist(), strict=True)])

    def _compute_window(self, window: int) -> I64:
        begin, end = self.window_starts[window : window + 2].tolist()
        width = len(self._lanes)
        first, rows = begin // width, -(-(end - begin) // width)
        table = np.zeros((rows, width), np.int64)
        for column, (lane, entered) in enumerate(zip(self._lanes, self._entered[window].tolist(), strict=True)):
            start = first - int(lane.window_starts[entered])
            samples = lane.samples(entered)[start : start + rows]
            table[: len(samples), column] = samples  # the first lanes may have one more
        return table.reshape(-1)[: end - begin]


class _Lane:
    """One lane in one pass: shards, or parts of them, permuted, in windows whose samples are permuted.

    shards: their numbers. firsts, counts: of each, the first sample and how many.
    """

    def __init__(
        self, number: int, shards: I64, firsts: I64, counts: I64, *, seed: int, epoch: int, window: int
    ) -> None:
        self._number, self._seed, self._epoch = number, seed, epoch
        mixed = permutation(make_key(seed, epoch, SHARDS, number), len(shards))
        self._shards, self._firsts, self._counts = shards[mixed], firsts[mixed], counts[mixed]
        windows = -(-len(shards) // window)
        self._bounds = np.arange(windows + 1) * len(shards) // windows
        self.window_starts: I64 = np.concatenate([[0], np.cumsum(self._counts)])[self._bounds]
        self._computed: dict[int, I64] = {}

    def __len__(self) -> int:
        return int(self.window_starts[-1])

    def window_shards(self, window: int) -> I64:
        """The shards of a window; empty past the last."""
        bounds = self._bounds[window : window + 2]
        return self._shards[slice(*bounds)] if len(bounds) == 2 else self._shards[:0]

    def samples(self, window: int) -> I64:
        """The samples of a window in their order. Two are kept."""
        if window not in self._computed:
            while len(self._computed) > 1:
                del self._computed[next(iter(self._computed))]
            parts = range(*self._bounds[window : window + 2].tolist())
            samples = np.concatenate([self._firsts[part] + np.arange(self._counts[part]) for part in parts])
            key = make_key(self._seed, self._epoch, SAMPLES, self._number, window)
            self._computed[window] = samples[permutation(key, len(samples))]
        return self._computed[window]


def _in_turn(lanes: Sequence[_Lane], entered: Sequence[int]) -> I64:
    """The shards of these windows of the lanes and of those after them, as they are needed."""
    found = [
        (int(lane.window_starts[window]), number, lane.window_shards(window))
        for number, (lane, first) in enumerate(zip(lanes, entered, strict=True))
        for window in range(first, len(lane.window_starts) - 1)
    ]
    nothing = lanes[0].window_shards(0)[:0]
    return np.concatenate([nothing, *(shards for _, _, shards in sorted(found, key=lambda one: one[:2]))])
