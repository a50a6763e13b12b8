"""The buckets of a loader: of each of its samples, and what follows for its epochs and its state."""

from dataclasses import dataclass, replace

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError
from gpuload.order.bucketed import BucketedStream, WholeBucketedEpochs
from gpuload.order.buckets import Buckets, number_samples
from gpuload.order.global_batches import Epochs
from gpuload.order.sampling import Sampling
from gpuload.order.stream import Stream
from gpuload.types import I64, U8, HeightWidth


@dataclass(frozen=True, eq=False)
class BucketPlan:
    """Which bucket each sample is in, and how epochs end.

    numbers: for each data set uint8 (len,). counts: int64 (buckets,), samples of each in an epoch where all of them
    come in it; None: what is left in the buckets comes in the next epoch. shard_counts: as for `BucketedStream`.
    """

    buckets: Buckets
    numbers: tuple[U8, ...]
    counts: I64 | None
    shard_counts: I64 | None

    @property
    def sizes(self) -> tuple[HeightWidth, ...]:
        """(height, width) of each bucket."""
        return self.buckets.all_sizes

    @property
    def identity(self) -> str:
        """What the order depends on, beside the size of a global batch: 16 hexadecimal digits, and how epochs end."""
        return f"{self.buckets.fingerprint}-{'carried' if self.counts is None else 'whole'}"

    def epochs(self, epochs: Epochs) -> Epochs:
        """The epochs of the same loader without buckets, with them."""
        if self.counts is None:
            return replace(epochs, samples=epochs.batches * epochs.batch_size, drop_last=True)
        return WholeBucketedEpochs(**vars(epochs), counts=tuple(self.counts.tolist()))

    def stream(self, stream: Stream, epochs: Epochs) -> BucketedStream:
        """The same samples in batches of one bucket each."""
        return BucketedStream(
            stream,
            self.numbers,
            len(self.buckets),
            epochs.batch_size,
            self.counts,
            self.shard_counts,
            rank=epochs.rank,
            world_size=epochs.world_size,
        )


def plan_buckets(
    buckets: Buckets | None,
    datasets: tuple[Dataset, ...],
    samplings: tuple[Sampling, ...] | None,
    *,
    drop_last: bool,
    steps_per_epoch: int | None,
    lanes: int = 1,
) -> BucketPlan | None:
    """The plan for a loader with these arguments; None without buckets. Costs O(samples).

    Raises:
        ArgumentError: epochs would not be equally long, or there are lanes.
        ShardError: the size of a sample is not in the index.
    """
    if buckets is None:
        return None
    if lanes != 1:
        raise ArgumentError(
            f"DaliIterator(buckets, lanes={lanes}): a batch of one size holds samples of any lanes, so that every node "
            "would download every shard. Use lanes=1"
        )
    is_whole = not drop_last and steps_per_epoch is None
    if is_whole and (len(datasets) > 1 or samplings is not None):
        what = "a mixture" if len(datasets) > 1 else "balance or weights"
        raise ArgumentError(
            f"DaliIterator(buckets, drop_last=False): with {what} each epoch has other samples in a bucket, so their "
            "number of batches would differ. Use drop_last=True, or steps_per_epoch; what is left comes in the next "
            "epoch"
        )
    numbers = tuple(number_samples(dataset, buckets) for dataset in datasets)
    counts: I64 | None = np.bincount(numbers[0], minlength=len(buckets)) if is_whole else None
    plain = len(datasets) == 1 and samplings is None
    shard_counts = _count_by_shard(datasets[0], numbers[0], len(buckets)) if plain else None
    return BucketPlan(buckets, numbers, counts, shard_counts)


def _count_by_shard(dataset: Dataset, numbers: U8, buckets: int) -> I64:
    """int64 (shards, buckets): how many samples of a shard are in each bucket."""
    sizes = dataset.shard_sizes
    places = np.repeat(np.arange(len(sizes)) * buckets, sizes) + numbers
    counts: I64 = np.bincount(places, minlength=len(sizes) * buckets).reshape(len(sizes), buckets)
    return counts
