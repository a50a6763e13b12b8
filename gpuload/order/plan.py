"""The order that a loader's arguments describe: its stream, its epochs, and the identity that a state holds."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuload.checks import shown
from gpuload.counted import counted
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, StateError
from gpuload.machine.ranks import Ranks
from gpuload.order.arguments import (
    AnySampling,
    Buckets,
    DropLast,
    Mixture,
    Repeated,
    ScheduleUnit,
    Shuffle,
    digest,
)
from gpuload.order.buckets import BucketPlan, TokenEpochs
from gpuload.order.budget import Budget, PatchGrid, find_batch_sizes
from gpuload.order.epoch import ALL, Share
from gpuload.order.sampling import Sampling, find_samplings
from gpuload.order.stream import Epochs, Position, Stream
from gpuload.types import I64, U8

VERSION = 1

_USUAL: Mapping[str, Any] = {
    "lanes": 1,
    "sampling": None,
    "buckets": None,
    "bucket_batch": None,
    "samples_per_epoch": None,
    "samples_per_step": None,
    "batch_tokens": None,
    "batch_multiple": None,
}


@dataclass(frozen=True)
class OrderPlan:
    """The order of a loader. What its positions depend on must be the same when a run resumes.

    Attributes:
        make_stream: Makes streams of the order.
        epochs: Where epochs begin and end in it.
        buckets: How they divide it, None without buckets.
        window: Shards that are mixed, and waited for, at a time.
        node_lanes: Lanes that this machine reads.
        data: What is read.
        settings: What else they depend on. Seed, shuffle, window and lanes; sampling, a fingerprint of the weights or
            classes that samples are drawn by; buckets, what the order by buckets depends on; bucket_batch, samples in a
            global batch, where there are buckets; samples_per_epoch or samples_per_step, where a mixture's schedule
            counts these; batch_tokens and batch_multiple, tokens in a global batch and what divides its samples, where
            there is a budget.
        batch_size: Samples in a batch of this process, at most.
        large_batch: In one of the largest images, where batches differ; memory is allocated for these.
    """

    make_stream: Callable[[], Stream]
    epochs: Epochs
    buckets: BucketPlan | None
    window: int
    node_lanes: int
    data: Dataset | Mixture
    settings: Mapping[str, Any]
    batch_size: int
    large_batch: int

    def state_dict(self, position: Position) -> dict[str, Any]:
        """Under 1 kB, and JSON: a checkpoint of any kind can hold it. Without the settings that are as usual."""
        return {
            "version": VERSION,
            **position._asdict(),
            **{
                name: value
                for name, value in self.settings.items()
                if (name, value) not in _USUAL.items()
            },
            "fingerprint": self.data.fingerprint,
            "dataset_samples": len(self.data),
        }

    def load(self, state: Mapping[str, Any]) -> Position:
        """The position in a state.

        Raises:
            StateError: the state is of another data set, of a run with another seed, shuffle, window or lanes, or
                damaged.
        """
        missing = sorted(
            set(self.state_dict(Position(0, 0, 0))) - set(state) - set(_USUAL)
        )
        if missing or state["version"] != VERSION:
            raise StateError(
                f"state_dict: has version={shown(state.get('version'))} and the entries {shown(list(state))}, expected "
                f"version {VERSION}{' with ' if missing else ''}{', '.join(missing)}. Give what state_dict() of a "
                "loader returned; of a checkpoint that holds it, that entry"
            )
        for name, has in {
            "fingerprint": self.data.fingerprint,
            **self.settings,
        }.items():
            stored = state.get(name, _USUAL.get(name))
            if stored != has:
                raise StateError(
                    f"state_dict: was made with {name}={shown(stored)}, this loader has {name}={has!r}. The order "
                    "would differ: construct it with the same data and settings"
                )
        return Position(*(_count(name, state[name]) for name in Position._fields))


def _count(name: str, value: Any) -> int:
    """A number in a state, also if a checkpoint turned it into a tensor or an array."""
    try:
        count = int(value)
        if count == value and 0 <= count < 2**62:
            return count
    except (TypeError, ValueError, OverflowError):
        pass
    raise StateError(
        f"state_dict: has {name}={shown(value)}, expected a whole number from 0. Was it edited?"
    )


def plan_order(
    data: Dataset | Mixture,
    ranks: Ranks,
    batch_size: int,
    shuffle: Shuffle | None,
    seed: int,
    *,
    drop_last: DropLast,
    steps_per_epoch: int | None = None,
    sampling: AnySampling | None = None,
    buckets: Buckets | None = None,
) -> OrderPlan:
    """The plan of a loader, of those of `DaliIterator`'s arguments that decide the order and its epochs.

    Args:
        data: A data set, or a mixture.
        ranks: This process among those that train together.
        batch_size: Samples in a batch of this process.
        shuffle: How samples are mixed; None is stored order.
        seed: As of `DaliIterator`.
        drop_last: As of `DaliIterator`.
        steps_per_epoch: As of `DaliIterator`.
        sampling: As of `DaliIterator`.
        buckets: Output sizes of which each sample gets the nearest; None without any.

    Raises:
        ArgumentError: the arguments contradict each other, or do not fit the data.
        ShardError: with buckets, the size of a sample is not in the index.
    """
    datasets = data.datasets if isinstance(data, Mixture) else (data,)
    samplings = find_samplings(datasets, sampling, shuffle=shuffle is not None)
    mixing = shuffle or Shuffle()
    _check_divisions(drop_last, buckets, sampling, mixing)
    share = _find_share(mixing.lanes, data, bool(samplings), ranks, batch_size)
    if isinstance(sampling, Repeated) and ranks.world_size > 1:
        share = Share(ranks.rank, ranks.rank + 1, ranks.world_size)
    epochs = _make_epochs(
        data, ranks, batch_size, drop_last, share, steps_per_epoch, sampling
    )
    settings = _usual_settings(seed, shuffle)
    settings["lanes"] = mixing.lanes
    if samplings is not None:
        settings["sampling"] = _fingerprint_of(samplings)
    bucket_plan = None
    if buckets is not None:
        is_whole = drop_last is not True and steps_per_epoch is None
        bucket_plan = _plan_buckets(buckets, datasets, samplings is None, is_whole)
        epochs = bucket_plan.epochs(epochs)
        settings["buckets"] = (
            f"{buckets.fingerprint}-{'whole' if is_whole else 'carried'}"
        )
        settings["bucket_batch"] = epochs.batch_size
    unit = _schedule_unit(data)
    unit_samples = 1
    if unit != "sample":
        unit_samples = epochs.samples if unit == "epoch" else epochs.batch_size
        settings[f"samples_per_{unit}"] = unit_samples
    window = _window(datasets, shuffle)
    make_stream = partial(
        Stream,
        data,
        samplings,
        seed=seed,
        window=window,
        shuffle=shuffle is not None,
        lanes=mixing.lanes,
        unit_samples=unit_samples,
    )
    return OrderPlan(
        make_stream,
        epochs,
        bucket_plan,
        window,
        _count_node_lanes(mixing.lanes, share, ranks),
        data,
        settings,
        batch_size,
        batch_size,
    )


def _check_divisions(
    drop_last: DropLast,
    buckets: Buckets | None,
    sampling: AnySampling | None,
    mixing: Shuffle,
) -> None:
    """Raises ArgumentError for two things that divide batches in ways of their own."""
    divisions = [
        drop_last == "even",
        buckets is not None,
        isinstance(sampling, Repeated),
        mixing.lanes > 1,
    ]
    if divisions.count(True) > 1:
        raise ArgumentError(
            "DaliIterator: each of drop_last='even', Buckets, Repeated and Shuffle(lanes=...) divides batches in a way "
            "of its own. Use one of them"
        )


def _make_epochs(
    data: Dataset | Mixture,
    ranks: Ranks,
    batch_size: int,
    drop_last: DropLast,
    share: Share,
    steps_per_epoch: int | None,
    sampling: AnySampling | None,
) -> Epochs:
    """The epochs of a loader without buckets.

    Raises:
        ArgumentError: an epoch has no batch.
    """
    global_batch = batch_size * ranks.world_size
    pass_samples = len(data)
    if sampling is not None and sampling.num_samples:
        pass_samples = sampling.num_samples
    is_virtual = steps_per_epoch is not None
    epochs = Epochs(
        pass_samples if steps_per_epoch is None else steps_per_epoch * global_batch,
        global_batch,
        drop_last,
        ranks.rank,
        ranks.world_size,
        share,
        is_virtual=is_virtual,
    )
    if not epochs.batches:
        raise ArgumentError(
            f"batch_size={batch_size}, world_size={ranks.world_size}: a batch of all ranks is larger than "
            f"{data.folder} ({counted(pass_samples, 'sample')}), so an epoch has no batch. Use a smaller batch_size, "
            "or drop_last=False"
        )
    return epochs


def _fingerprint_of(samplings: tuple[Sampling, ...]) -> str:
    return digest("".join(drawn.fingerprint for drawn in samplings).encode())


def _usual_settings(seed: int, shuffle: Shuffle | None) -> dict[str, Any]:
    """The settings of any order; those of others are as usual."""
    window = (shuffle or Shuffle()).window
    return {
        "seed": seed,
        "shuffle": shuffle is not None,
        "window": window,
        **_USUAL,
    }


def _window(datasets: tuple[Dataset, ...], shuffle: Shuffle | None) -> int:
    """Shards that are mixed, and waited for, at a time."""
    if shuffle is not None:
        return shuffle.window
    # Stored order mixes nothing: of a set at a URL, a batch waits for its own shard alone.
    is_remote = any(dataset.cache is not None for dataset in datasets)
    return 1 if is_remote else Shuffle().window


def _count_node_lanes(lanes: int, share: Share, ranks: Ranks) -> int:
    """Lanes that this machine reads."""
    if share == ALL:
        return lanes
    return min(lanes, (share.stop - share.first) * ranks.local_world_size)


def plan_order_by_tokens(
    data: Dataset | Mixture,
    ranks: Ranks,
    budget: Budget,
    grid: PatchGrid | None,
    shuffle: Shuffle | None,
    seed: int,
    *,
    drop_last: DropLast,
    steps_per_epoch: int | None = None,
    sampling: AnySampling | None = None,
) -> OrderPlan:
    """The plan of a loader whose batches have a budget of tokens. An epoch is a pass.

    Args:
        data: As of `plan_order`.
        ranks: As of `plan_order`.
        budget: Tokens in a batch of each rank, and what divides its samples.
        grid: How images are divided into patches; None, where they are not, is refused.
        shuffle: As of `plan_order`.
        seed: As of `plan_order`.
        drop_last: As of `plan_order`.
        steps_per_epoch: As of `plan_order`; refused, since an epoch is a pass.
        sampling: Refused, as for a mixture.

    Raises:
        ArgumentError: the arguments contradict each other, or do not fit the data.
        ShardError: the size of a sample is not in the index.
    """
    if grid is None:
        raise ArgumentError(
            "batch_size=Budget(...): counts the patches of images of their own sizes. Use "
            "augment=gpuload.Augment(None, gpuload.Patches(...))"
        )
    lanes = 1 if shuffle is None else shuffle.lanes
    _check_for_budget(
        {
            "a mixture": isinstance(data, Mixture),
            "sampling=": sampling is not None,
            "steps_per_epoch=": steps_per_epoch is not None,
            "Shuffle(lanes=...)": lanes > 1,
            "drop_last='even'": drop_last == "even",
        }
    )
    assert isinstance(data, Dataset)
    multiple = budget.multiple or ranks.world_size
    if multiple % ranks.world_size:
        raise ArgumentError(
            f"Budget(multiple={multiple}): is no multiple of {counted(ranks.world_size, 'rank')}, which get equally "
            "many samples"
        )
    batch_tokens = budget.tokens * ranks.world_size
    bucket_plan = _plan_lengths(
        data, grid, batch_tokens, multiple, drops_rest=drop_last is True
    )
    window = _window((data,), shuffle)
    make_stream = partial(
        Stream, data, None, seed=seed, window=window, shuffle=shuffle is not None
    )
    sizes = bucket_plan.batch_sizes
    epochs = TokenEpochs(
        len(data),
        int(sizes.max()),
        drop_last,
        ranks.rank,
        ranks.world_size,
        plan=bucket_plan,
        make_stream=make_stream,
    )
    if not epochs.batches:
        raise ArgumentError(
            f"Budget(tokens={budget.tokens}): {data.folder} has {counted(len(data), 'sample')}, fewer than "
            f"{multiple}, so an epoch has no batch. Use a smaller multiple, or drop_last=False"
        )
    settings = _usual_settings(seed, shuffle)
    settings["buckets"] = grid.fingerprint
    settings["batch_tokens"] = batch_tokens
    settings["batch_multiple"] = multiple
    return OrderPlan(
        make_stream,
        epochs,
        bucket_plan,
        window,
        1,
        data,
        settings,
        int(sizes.max()) // ranks.world_size,
        int(sizes.min()) // ranks.world_size,
    )


def _check_for_budget(given: Mapping[str, bool]) -> None:
    """Raises ArgumentError for arguments that need other epochs than a budget has.

    Args:
        given: Whether each was given, by its name in the message.
    """
    for name, is_given in given.items():
        if is_given:
            raise ArgumentError(
                f"batch_size=Budget(...): each epoch is one pass over one data set, in whole batches, and {name} needs "
                "other epochs. Leave it out, or use Buckets"
            )


def _plan_lengths(
    dataset: Dataset,
    grid: PatchGrid,
    batch_tokens: int,
    multiple: int,
    *,
    drops_rest: bool,
) -> BucketPlan:
    """A bucket for each range of lengths in tokens. The arguments are those of `find_batch_sizes`.

    Raises:
        ArgumentError: a batch of the longest images has more tokens.
        ShardError: the size of a sample is not in the index.
    """
    heights, widths = _image_sizes(dataset, "a budget of tokens")
    tokens = grid.shapes(heights, widths).prod(axis=1)
    numbers = np.searchsorted(grid.lengths, tokens).astype(np.uint8)
    totals = np.bincount(numbers, minlength=len(grid.lengths))
    by_tokens = find_batch_sizes(
        grid.lengths, totals, batch_tokens, multiple, drops_rest=drops_rest
    )
    return BucketPlan((), (numbers,), totals, is_whole=True, by_tokens=by_tokens)


def _schedule_unit(data: Dataset | Mixture) -> ScheduleUnit:
    """What the points of a mixture's schedule count; "sample" where nothing is counted."""
    if isinstance(data, Mixture) and data.schedule is not None:
        return data.schedule.by
    return "sample"


def _plan_buckets(
    buckets: Buckets, datasets: tuple[Dataset, ...], is_pass: bool, is_whole: bool
) -> BucketPlan:
    """Costs O(samples) once, and one byte for each.

    Args:
        is_pass: A pass has each sample once.
        is_whole: As for `BucketPlan`.
    """
    is_pass = is_pass and len(datasets) == 1
    if is_whole and not is_pass:
        raise ArgumentError(
            "Buckets, drop_last=False: with a mixture or sampling= each epoch has other samples in a bucket, so their "
            "number of batches would differ. Use drop_last=True, or steps_per_epoch; what is left comes in the next "
            "epoch"
        )
    numbers = tuple(_number_samples(dataset, buckets) for dataset in datasets)
    totals = np.bincount(numbers[0], minlength=len(buckets)) if is_pass else None
    return BucketPlan(buckets.all_sizes, numbers, totals, is_whole)


def _number_samples(dataset: Dataset, buckets: Buckets) -> U8:
    """uint8 (len,): the bucket of each sample of a data set, by the width and height in the index."""
    heights, widths = _image_sizes(dataset, "buckets")
    return buckets.numbers(widths, heights)


def _image_sizes(dataset: Dataset, user: str) -> I64:
    """(2, len): heights and widths in pixels.

    Args:
        user: What needs them, for messages.
    """
    if dataset.tiling is not None:
        raise ArgumentError(
            f"{user.capitalize()}: needs whole images, and tiles have one size. Use Augment(size)"
        )
    samples = dataset.stored_samples(np.arange(len(dataset)))
    sizes: I64 = dataset.image_sizes(samples, user).T
    return sizes


def _find_share(
    lanes: int, data: Dataset | Mixture, is_sampled: bool, ranks: Ranks, batch_size: int
) -> Share:
    """A rank's own lanes; all where it has none: of one rank, or where ranks or batches cannot be divided by lanes.

    Warns where lanes are of no use.

    Raises:
        ArgumentError: arguments that lanes do not go with, or more lanes than shards.
    """
    if lanes == 1:
        return ALL
    filled = (
        0
        if isinstance(data, Mixture) or is_sampled
        else int(np.count_nonzero(data.shard_sizes))
    )
    if lanes > filled:
        raise ArgumentError(
            f"Shuffle(lanes={lanes}): expected a single data set without sampling=, with a shard of samples for each "
            f"lane; {data.folder} has {filled} that can be divided. Use fewer lanes, or pack with a smaller --maxcount"
        )
    if ranks.world_size == 1:
        return ALL
    global_batch = batch_size * ranks.world_size
    if lanes % ranks.world_size or global_batch % lanes:
        warnings.warn(
            f"Shuffle(lanes={lanes}): {counted(ranks.world_size, 'rank')} with batch_size={batch_size} cannot have "
            "lanes of their own, so that each reads all shards. Use a number of lanes that is a multiple of the number "
            f"of ranks and divides {global_batch}, the samples of a step",
            stacklevel=6,
        )
        return ALL
    each = lanes // ranks.world_size
    return Share(ranks.rank * each, (ranks.rank + 1) * each, lanes)
