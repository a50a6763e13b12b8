"""Whether the shards of a set are sorted by class, so that a window of them holds some of the classes only.

What harms is not a class that a window lacks: windows of a set with many rare classes lack most of them, however well
it is mixed. It is that images of a class lie together. So two windows are drawn of whole shards, and two of as many
samples that are taken one by one, and it is compared how unequally each class is divided between the two:

    unevenness of a class    |p - q| / (p + q), for its shares p and q of the two windows: 0 equal, 1 in one alone
    spread                   (shards - samples) / (1 - samples), of the means over the classes

It is 0 for a set whose order was drawn, with few classes, many or rare ones, and 1 where no two shards share a class.
"""

from collections.abc import Sequence

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import numbers_of
from gpuload.lists import starts_of
from gpuload.order.arguments import Shuffle
from gpuload.order.epoch import EpochOrder
from gpuload.types import I64

# Sets that are mixed have up to 0.05. MNIST loses 2 % of accuracy at 0.6, half a per cent at 0.3, and nothing at 0.15
# (docs/lab/order.md).
_SORTED = 0.25
_SAMPLES = 8192  # whose classes are looked at
_LEAST_SHARDS = 8  # that they are of; reading fetches the rows of so many ahead
_SPLITS = 16
_DEVIATIONS = 4  # of draws by samples: more is no chance, however few samples there are


def is_sorted_by_class(dataset: Dataset, shuffle: Shuffle, seed: int) -> bool:
    """Whether windows of an order hold clearly fewer classes than as many samples of the whole set.

    Reads the class numbers of two windows, at least of 8 shards, which the first epoch reads first.

    Args:
        dataset: Of which the field "label" is looked at; False where it has none, or one without classes.
        shuffle: How its shards are mixed.
        seed: Of the order of this data set.
    """
    label = dataset.fields.get("label")
    if label is None or kind_of(label).class_column(label) != label.name:
        return False
    filled = int(np.count_nonzero(dataset.shard_sizes))
    windows = -(-filled // (shuffle.window * shuffle.lanes))
    if windows < 2:
        return False
    window_shards = filled // windows
    order = EpochOrder(
        dataset.shard_sizes,
        seed=seed,
        epoch=0,
        window=shuffle.window,
        lanes=shuffle.lanes,
    )
    # Two lanes may share a shard, and the shards of the next pass follow.
    upcoming = list(dict.fromkeys(order.upcoming(0).tolist()))
    looked_at = upcoming[: max(2 * window_shards, _LEAST_SHARDS)]
    shards, classes = _read_labels(dataset, looked_at)
    return _are_classes_apart(shards, classes, window_shards)


def _read_labels(dataset: Dataset, shards: Sequence[int]) -> tuple[I64, I64]:
    """int64 (N,) each: of some samples of these shards, the place of their shard among these, and their class."""
    chance = np.random.default_rng(0)
    sizes = dataset.shard_sizes
    starts = starts_of(sizes)
    most = _SAMPLES // len(shards)
    dataset.fetch_rows(shards)
    labels = []
    for shard in shards:
        samples = np.arange(sizes[shard])
        if len(samples) > most:
            samples = chance.choice(samples, most, replace=False)
        stored = dataset.stored_samples(starts[shard] + samples)
        rows = stored - dataset.first_samples[shard]
        labels.append(np.array(numbers_of(dataset.rows(shard).column("label"))[rows]))
    counts = [len(of_shard) for of_shard in labels]
    return np.repeat(np.arange(len(shards)), counts), np.concatenate(labels)


def _are_classes_apart(shards: I64, classes: I64, window_shards: int) -> bool:
    """Whether two windows share fewer classes than as many samples of them, taken one by one.

    Args:
        shards: int64 (N,), of samples, from 0.
        classes: int64 (N,), of the same.
        window_shards: In a window.
    """
    shard_count = int(shards.max()) + 1
    size = min(window_shards, shard_count // 2)
    shards, classes = _of_repeated_classes(shards, classes)
    if not len(classes):
        return False
    chance = np.random.default_rng(0)
    by_shards = []
    by_samples = []
    for _ in range(_SPLITS):
        # 0 and 1 are the two windows, and more are other shards.
        windows = (chance.permutation(shard_count) // size)[shards]
        by_shards.append(_unevenness(windows, classes))
        by_samples.append(_unevenness(windows, chance.permutation(classes)))
    usual = np.mean(by_samples)
    by_chance = _DEVIATIONS * np.std(by_samples)
    return bool(np.mean(by_shards) - usual > max(_SORTED * (1 - usual), by_chance))


def _of_repeated_classes(shards: I64, classes: I64) -> tuple[I64, I64]:
    """Both, without samples that are the only ones of their class, which tell nothing; classes are numbered anew."""
    _, numbers, counts = np.unique(classes, return_inverse=True, return_counts=True)
    is_repeated = counts[numbers] > 1
    return shards[is_repeated], numbers[is_repeated]


def _unevenness(windows: I64, classes: I64) -> float:
    """The mean over the classes that windows 0 and 1 have.

    Args:
        windows: int64 (N,), the number of each sample's window.
        classes: int64 (N,), its class.
    """
    counts = [
        np.bincount(classes[windows == window], minlength=int(classes.max()) + 1)
        for window in (0, 1)
    ]
    first, second = (count / max(count.sum(), 1) for count in counts)
    is_there = (first + second) > 0
    if not is_there.any():
        return 0.0
    differences = np.abs(first - second)[is_there]
    return float(np.mean(differences / (first + second)[is_there]))
