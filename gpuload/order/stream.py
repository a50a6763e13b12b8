"""The endless sequence of samples, of which epochs are slices.

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
from gpuload.draws import MIXTURE, make_key
from gpuload.order.epoch import EpochOrder, Share
from gpuload.order.mixture import ShuffledBlocks, Stratified
from gpuload.order.sampling import Sampling
from gpuload.types import I64

_ALL = Share(0, 1, 1)


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
    """The samples at positions start..stop-1, for any start and stop.

    interleaving: which data set each position draws from. samplings: of each data set; None: each sample comes once in
    a pass. lanes: of one data set, see `gpuload.order.epoch`.
    """

    def __init__(
        self,
        datasets: tuple[Dataset, ...],
        interleaving: ShuffledBlocks | Stratified,
        samplings: tuple[Sampling, ...] | None = None,
        *,
        seed: int,
        window: int,
        shuffle: bool,
        lanes: int = 1,
    ) -> None:
        self._datasets, self._interleaving, self._samplings, self._seed = datasets, interleaving, samplings, seed
        self._window, self._shuffle, self._lanes = window, shuffle, lanes
        self._lengths = [sampling.draws for sampling in samplings] if samplings else list(map(len, datasets))
        # A batch may extend from one pass into the next.
        self.order = lru_cache(maxsize=2 * len(datasets))(self._make_order)

    def slices(self, start: int, stop: int, share: Share | None = None) -> list[PassSlice]:
        """The samples at these positions; at least one slice, which may be empty. share: only those of its lanes."""
        if len(self._datasets) == 1 or start == stop:
            return self._passes(0, start, stop, np.arange(stop - start), share)
        sources, drawn = self._interleaving.sources(start, stop), self._interleaving.drawn(start)
        slices = []
        for source in np.unique(sources).tolist():
            rows, begin = np.flatnonzero(sources == source), int(drawn[source])
            slices += self._passes(source, begin, begin + len(rows), rows)
        return slices

    def _passes(self, source: int, start: int, stop: int, rows: I64, share: Share | None = None) -> list[PassSlice]:
        """Samples start..stop-1 of one data set, divided where a pass ends; at least one slice."""
        slices: list[PassSlice] = []
        samples, row, before = self._lengths[source], 0, (share or _ALL).before
        while start < stop or not slices:
            epoch, first = divmod(start, samples)
            last = min(first + stop - start, samples)
            seed, order = self.order(source, epoch)
            begin, end = (before(epoch * samples + at) - before(epoch * samples) for at in (first, last))
            served = order if share is None else order.serving(share)
            slices.append(PassSlice(source, seed, epoch, served, begin, end, rows[row : row + end - begin]))
            start, row = start + last - first, row + end - begin
        return slices

    def _make_order(self, source: int, epoch: int) -> tuple[int, EpochOrder]:
        """The seed of a data set, and the order of a pass over it; `order` keeps the last ones."""
        seed = self._seed if len(self._datasets) == 1 else make_key(self._seed, MIXTURE, source)
        dataset = self._datasets[source]
        if self._samplings is not None:
            return seed, self._samplings[source].order(dataset, seed=seed, epoch=epoch, window=self._window)
        sizes, (window, shuffle, lanes) = dataset.shard_sizes, (self._window, self._shuffle, self._lanes)
        return seed, EpochOrder(sizes, seed=seed, epoch=epoch, window=window, shuffle=shuffle, lanes=lanes)
