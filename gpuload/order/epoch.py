"""The order of the samples of an epoch: numbers only.

The order is a pure function of (shard sizes, seed, epoch, window). It does not depend on ranks, batch sizes or devices,
which only divide it. So any process can compute any part of it, and a run that is resumed with other ranks and batch
sizes sees exactly the rest.

    shards, permuted         5 2 | 0 4 | 1 3        by (seed, epoch)
    windows of 2 shards      ─────────────────
    samples of a window      all permuted together, by (seed, epoch, window's number)

The golden orders in the tests are part of the disk format (`gpuload.disk.manifest.VERSION`), since a state_dict depends
on them.
"""

from collections.abc import Callable

import numpy as np

from gpuload.draws import SAMPLES, SHARDS, make_key, permutation
from gpuload.types import I64


class EpochOrder:
    """The order of one epoch: `order[start:stop]` are the sample indices at those positions.

    shard_sizes: int64 (shards,), samples in each shard.
    window: number of shards whose samples are mixed with one another; shards are divided evenly among windows, so that
        they differ by one shard at most.
    shuffle: False gives stored order.

    Costs O(shards) to construct and O(samples of a window) for a slice, whatever the size of the data set.
    """

    def __init__(self, shard_sizes: I64, *, seed: int, epoch: int, window: int, shuffle: bool = True) -> None:
        self._seed, self._epoch, self._shuffle = seed, epoch, shuffle
        self._filled = np.flatnonzero(shard_sizes)  # a subset can leave shards empty; windows would hold fewer samples
        count = len(self._filled)
        self._shards = self._pass_shards(epoch)
        self._first_samples = np.concatenate([[0], np.cumsum(shard_sizes)])
        windows = -(-count // window)
        self._window_bounds = np.arange(windows + 1) * count // max(windows, 1)
        samples_before = np.concatenate([[0], np.cumsum(np.asarray(shard_sizes)[self._shards])])
        self.window_starts: I64 = samples_before[self._window_bounds]
        self._computed: dict[int, I64] = {}

    def __len__(self) -> int:
        return int(self.window_starts[-1])

    def __getitem__(self, positions: slice) -> I64:
        """int64: the samples at positions start..stop-1 of the epoch."""
        start, stop, _ = positions.indices(len(self))
        return self._gather(start, stop, self._window_samples)

    def repeats(self, start: int, stop: int) -> I64 | None:
        """int64: how often the samples at positions start..stop-1 came before in this pass; None: never."""
        return None

    def window_at(self, position: int) -> int:
        """Number of the window that contains a position."""
        return int(np.searchsorted(self.window_starts, position, side="right")) - 1

    def window_shards(self, window: int) -> I64:
        """The shards of a window; empty past the last."""
        return (
            self._shards[slice(*self._window_bounds[window : window + 2])]
            if window < len(self._window_bounds) - 1
            else self._shards[:0]
        )

    def following(self, window: int) -> I64:
        """The shards that are needed next, after those of a window."""
        return self.window_shards(window + 1)

    def upcoming(self, window: int) -> I64:
        """The shards of a window and of those after it, and then of the next pass, as they will be needed."""
        return np.concatenate([self._shards[self._window_bounds[window] :], self._pass_shards(self._epoch + 1)])

    def _pass_shards(self, epoch: int) -> I64:
        order = permutation(make_key(self._seed, epoch, SHARDS), len(self._filled)) if self._shuffle else slice(None)
        shards: I64 = self._filled[order]
        return shards

    def _gather(self, start: int, stop: int, values_of: Callable[[int], I64]) -> I64:
        """The values at positions start..stop-1, out of those of each window."""
        parts = []
        window = self.window_at(start)
        while start < stop:
            first, end = self.window_starts[window : window + 2].tolist()
            parts.append(values_of(window)[start - first : min(stop, end) - first])
            start, window = end, window + 1
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _window_samples(self, window: int) -> I64:
        """The samples of a window in their order. Two are kept, since a batch may extend from one into the next."""
        if window not in self._computed:
            while len(self._computed) > 1:
                del self._computed[next(iter(self._computed))]
            self._computed[window] = self._compute_window(window)
        return self._computed[window]

    def _compute_window(self, window: int) -> I64:
        shards = self.window_shards(window)
        samples = np.concatenate([np.arange(self._first_samples[s], self._first_samples[s + 1]) for s in shards])
        if not self._shuffle:
            return samples
        return samples[permutation(make_key(self._seed, self._epoch, SAMPLES, window), len(samples))]
