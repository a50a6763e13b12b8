"""The endless sequence of samples that epochs are taken from.

    one data set      pass 0            pass 1            pass 2 …      each pass an order of its own
    stream            0 ……… n-1         n ……… 2n-1        2n …
    epochs            [0, n)            [n, 2n)           …             or of any other length: virtual epochs

A mixture is a stream, too: at each position one of the data sets gives its next sample, and each data set has passes of
its own. So every position is a pure function of the seed, and a run can start at any position.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.draws import MIXTURE, make_key, permutation
from gpuload.errors import ArgumentError
from gpuload.order.epoch import EpochOrder
from gpuload.types import I64

# Positions in a block, in which the shares of a mixture are exact: shares are rounded to multiples of 1/4096, and
# counting how often each data set was drawn before a position costs one permutation of a block.
BLOCK = 4096


class PassSlice(NamedTuple):
    """Consecutive samples of one pass over one data set, in a batch.

    source: number of the data set. seed, epoch: what decides their order and crops; epoch counts passes.
    order[start:stop]: the samples. rows: int64, their rows in the batch.
    """

    source: int
    seed: int
    epoch: int
    order: EpochOrder
    start: int
    stop: int
    rows: I64


class Stream:
    """The samples at positions start..stop-1, for any start and stop."""

    def __init__(
        self, datasets: tuple[Dataset, ...], shares: tuple[float, ...], *, seed: int, window: int, shuffle: bool
    ) -> None:
        self._datasets, self._seed = datasets, seed
        self._counts = round_shares(shares, BLOCK)
        if not self._counts.all():
            raise ArgumentError(f"mix: shares {shares}, expected each at least 1/{BLOCK}. Raise the smallest weight")
        self._window, self._shuffle = window, shuffle
        # A batch may extend from one pass into the next, and from one block into the next.
        self._order = lru_cache(maxsize=2 * len(datasets))(self._make_order)
        self._block = lru_cache(maxsize=2)(self._make_block)

    def slices(self, start: int, stop: int) -> list[PassSlice]:
        """The samples at these positions; at least one slice, which may be empty."""
        if len(self._datasets) == 1 or start == stop:
            return self._passes(0, start, np.arange(stop - start))
        sources = np.concatenate(
            [
                self._block(block)[max(start - block * BLOCK, 0) : stop - block * BLOCK]
                for block in range(start // BLOCK, -(-stop // BLOCK))
            ]
        )
        drawn = start // BLOCK * self._counts + np.bincount(
            self._block(start // BLOCK)[: start % BLOCK], minlength=len(self._datasets)
        )
        return [
            part
            for source in np.unique(sources).tolist()
            for part in self._passes(source, int(drawn[source]), np.flatnonzero(sources == source))
        ]

    def _passes(self, source: int, drawn: int, rows: I64) -> list[PassSlice]:
        """The next samples of one data set, after the first `drawn`, divided where a pass ends; at least one slice."""
        slices: list[PassSlice] = []
        samples, done = len(self._datasets[source]), 0
        while done < len(rows) or not slices:
            epoch, start = divmod(drawn + done, samples)
            stop = min(start + len(rows) - done, samples)
            seed, order = self._order(source, epoch)
            slices.append(PassSlice(source, seed, epoch, order, start, stop, rows[done : done + stop - start]))
            done += stop - start
        return slices

    def _make_order(self, source: int, epoch: int) -> tuple[int, EpochOrder]:
        seed = self._seed if len(self._datasets) == 1 else make_key(self._seed, MIXTURE, source)
        sizes = self._datasets[source].shard_sizes
        return seed, EpochOrder(sizes, seed=seed, epoch=epoch, window=self._window, shuffle=self._shuffle)

    def _make_block(self, block: int) -> I64:
        """int64 (BLOCK,): the data set that each position of a block draws from."""
        sources = np.repeat(np.arange(len(self._counts)), self._counts)
        mixed: I64 = sources[permutation(make_key(self._seed, MIXTURE, -1, block), BLOCK)]
        return mixed


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
