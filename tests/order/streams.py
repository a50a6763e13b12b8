"""Streams over made-up shards, and what they hold."""

from typing import Any

import numpy as np

import gpuload
from gpuload.order.stream import Stream


class Sized:
    """All that a stream asks of a data set."""

    def __init__(self, sizes: list[int]) -> None:
        self.shard_sizes = np.array(sizes)

    def __len__(self) -> int:
        return int(self.shard_sizes.sum())


def stream_of(*shards: list[int], seed: int = 0, batches: Any = "shuffled", **options: Any) -> Stream:
    """Of one data set, or of a mixture of several whose shares are as 1 to 2 to 3, each given by the sizes of its
    shards."""
    datasets: Any = tuple(map(Sized, shards))
    shares = tuple(np.arange(1, 1 + len(shards)) / sum(range(1, 1 + len(shards))))
    data = datasets[0] if len(shards) == 1 else gpuload.Mixture(datasets, shares, batches)
    return Stream(data, seed=seed, window=2, shuffle=True, **options)


def seen(stream: Stream, start: int, stop: int, *share: Any) -> list[tuple[int, int, int]]:
    """(data set, pass, sample) at positions start..stop-1, those of a share alone."""
    slices = stream.slices(start, stop, *share)
    found = [(one.source, one.epoch, int(s)) for one in slices for s in one.order[one.start : one.stop]]
    rows = np.concatenate([one.rows for one in slices])
    assert sorted(rows.tolist()) == list(range(len(found)))
    return [found[place] for place in np.argsort(rows)]
