"""How well a window mixes: numbers for the quality of a shuffle.

Shuffling within windows of whole shards is not a full shuffle. Where the packer shuffled, batches are like those of a
full shuffle; where the shards are sorted by class, a batch holds the classes of a few shards only. Both are measured on
the order itself.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuload.disk.dataset import Dataset
from gpuload.order.epoch import EpochOrder
from gpuload.types import I64

# Enough for a mean that is exact to two digits, and fast on any data set.
_WINDOWS, _BATCHES = 32, 64


@dataclass(frozen=True)
class Mixing:
    """The mixing of one window (in shards) and batch size.

    distance: of the order from a full shuffle, 0..1: the largest difference, averaged over windows, between the
        distribution of a window's samples over stored order and that of all samples (Kolmogorov–Smirnov). 0: each
        window is drawn from the whole set; towards 1: each from a small part of it.
    classes: distinct classes in a batch, on average; expected_classes: with a full shuffle. None without labels.
    """

    window: int
    batch_size: int
    distance: float
    classes: float | None
    expected_classes: float | None

    @property
    def is_poor(self) -> bool:
        """Whether batches hold clearly fewer classes than with a full shuffle."""
        return (
            self.classes is not None
            and self.expected_classes is not None
            and (self.classes < 0.8 * self.expected_classes)
        )


def measure_mixing(
    dataset: Dataset, window: int, batch_size: int, *, seed: int = 0, epoch: int = 0, lanes: int = 1
) -> Mixing:
    """Measures one epoch's order, on at most 32 windows, of all lanes together, and 64 batches of it."""
    order = EpochOrder(dataset.shard_sizes, seed=seed, epoch=epoch, window=window, lanes=lanes)
    starts = order.rounds
    windows = np.unique(np.linspace(0, len(starts) - 2, _WINDOWS).astype(int))
    distances = [_distance(order[starts[w] : starts[w + 1]], len(order)) for w in windows]
    classes = expected = None
    if "label" in dataset.fields:
        labels = dataset.labels
        starts = np.unique(np.linspace(0, max(0, len(order) - batch_size), _BATCHES).astype(int))
        classes = float(np.mean([len(np.unique(labels[order[s : s + batch_size]])) for s in starts]))
        expected = expected_classes(np.unique(labels, return_counts=True)[1], min(batch_size, len(order)))
    return Mixing(window, batch_size, float(np.mean(distances)), classes, expected)


def smallest_good_window(dataset: Dataset, batch_size: int) -> int | None:
    """The smallest window of 1, 2, 4, … 32 shards, or of all where there are fewer, that mixes well; None if none does.

    Not more than 32 shards, since all shards of a window are in memory.
    """
    most = min(len(dataset.shard_paths), 32)
    windows = [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]
    return next((window for window in windows if not measure_mixing(dataset, window, batch_size).is_poor), None)


def is_sorted_by_class(dataset: Dataset, window: int) -> bool:
    """Whether the first window of an order holds clearly fewer classes than is expected for its size; reads one window.

    False where classes have no names: their number is not known without reading all labels.
    """
    if "label" not in dataset.fields or not dataset.classes:
        return False
    order = EpochOrder(dataset.shard_sizes, seed=0, epoch=0, window=window)
    shards = order.window_shards(0)
    if len(shards) == np.count_nonzero(dataset.shard_sizes):
        return False
    classes = len(dataset.classes)
    # For classes of equal size. They are not, but a set that is not sorted stays far above half of it.
    expected = classes * (1 - (1 - 1 / classes) ** int(order.window_starts[1]))
    seen: set[int] = set()
    for shard in shards.tolist():
        seen.update(np.unique(dataset.rows(shard).column("label").drop_null().to_numpy()).tolist())
        if len(seen) >= 0.5 * expected:  # mostly with the first shard: no others are fetched for this
            return False
    return True


def expected_classes(sizes: npt.NDArray[np.integer], batch_size: int) -> float:
    """Expected number of distinct classes in `batch_size` samples drawn without replacement. sizes: of the classes.

    The sum, over classes, of the probability that any of its samples is drawn: 1 - C(n - size, batch) / C(n, batch).
    """
    total = int(sizes.sum())
    drawn = np.arange(batch_size)
    missed = [
        float(np.exp(np.log((total - size - drawn) / (total - drawn)).sum())) if size + batch_size <= total else 0.0
        for size in sizes.tolist()
    ]
    return len(sizes) - sum(missed)


def _distance(samples: I64, total: int) -> float:
    positions = np.sort(samples) / total
    steps = np.arange(len(positions) + 1) / len(positions)
    return float(max((steps[1:] - positions).max(), (positions - steps[:-1]).max()))


def warn_of_sorted_shards(datasets: Sequence[Dataset], window: int) -> None:
    """Warns where batches would hold few classes. The warning names the line that constructs the loader."""
    for dataset in datasets:
        if is_sorted_by_class(dataset, window):
            warnings.warn(
                f"{dataset.folder}: its shards are sorted by class, so that {window} of them, which are mixed at a "
                "time, hold few classes. Pack them again without --no-shuffle, or raise window; `python -m gpuload "
                "info` shows how well a window mixes",
                stacklevel=4,
            )
