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


@dataclass(frozen=True)
class OrderArguments:
    """The arguments of a loader that decide any order and its epochs.

    Attributes:
        data: A data set, or a mixture.
        ranks: This process among those that train together.
        shuffle: How samples are mixed; None is stored order.
        seed: As of `DaliIterator`.
        drop_last: As of `DaliIterator`.
        steps_per_epoch: As of `DaliIterator`.
        sampling: As of `DaliIterator`.
    """

    data: Dataset | Mixture
    ranks: Ranks
    shuffle: Shuffle | None
    seed: int
    drop_last: DropLast
    steps_per_epoch: int | None = None
    sampling: AnySampling | None = None

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The data set, or those that are mixed."""
        return self.data.datasets if isinstance(self.data, Mixture) else (self.data,)

    @property
    def lanes(self) -> int:
        """In how many parts shards are mixed, each by itself."""
        return 1 if self.shuffle is None else self.shuffle.lanes

    @property
    def window(self) -> int:
        """Shards that are mixed, and waited for, at a time."""
        if self.shuffle is not None:
            return self.shuffle.window
        # Stored order mixes nothing: of a set at a URL, a batch waits for its own shard alone.
        is_remote = any(dataset.cache is not None for dataset in self.datasets)
        return 1 if is_remote else Shuffle().window

    def settings(self) -> dict[str, Any]:
        """Those of any order, as a state has them; those of others are as usual."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle is not None,
            "window": (self.shuffle or Shuffle()).window,
            **_USUAL,
        }


def plan_order(
    wanted: OrderArguments, batch_size: int, buckets: Buckets | None = None
) -> OrderPlan:
    """The plan of a loader whose batches have a number of samples.

    Args:
        wanted: What decides the order.
        batch_size: Samples in a batch of this process.
        buckets: Output sizes of which each sample gets the nearest; None without any.

    Raises:
        ArgumentError: the arguments contradict each other, or do not fit the data.
        ShardError: with buckets, the size of a sample is not in the index.
    """
    ranks = wanted.ranks
    is_shuffled = wanted.shuffle is not None
    samplings = find_samplings(wanted.datasets, wanted.sampling, shuffle=is_shuffled)
    _check_divisions(wanted, buckets)
    share = _find_share(wanted, bool(samplings), batch_size)
    if isinstance(wanted.sampling, Repeated) and ranks.world_size > 1:
        share = Share(ranks.rank, ranks.rank + 1, ranks.world_size)
    epochs = _make_epochs(wanted, batch_size, share)
    settings = wanted.settings()
    settings["lanes"] = wanted.lanes
    if samplings is not None:
        settings["sampling"] = _fingerprint_of(samplings)
    bucket_plan = None
    if buckets is not None:
        is_whole = wanted.drop_last is not True and wanted.steps_per_epoch is None
        is_pass = samplings is None and len(wanted.datasets) == 1
        bucket_plan = _plan_buckets(buckets, wanted.datasets, is_pass, is_whole)
        epochs = bucket_plan.epochs(epochs)
        settings["buckets"] = (
            f"{buckets.fingerprint}-{'whole' if is_whole else 'carried'}"
        )
        settings["bucket_batch"] = epochs.batch_size
    unit = _schedule_unit(wanted.data)
    unit_samples = 1
    if unit != "sample":
        unit_samples = epochs.samples if unit == "epoch" else epochs.batch_size
        settings[f"samples_per_{unit}"] = unit_samples
    make_stream = partial(
        Stream,
        wanted.data,
        samplings,
        seed=wanted.seed,
        window=wanted.window,
        shuffle=is_shuffled,
        lanes=wanted.lanes,
        unit_samples=unit_samples,
    )
    return OrderPlan(
        make_stream,
        epochs,
        bucket_plan,
        wanted.window,
        _count_node_lanes(wanted.lanes, share, ranks),
        wanted.data,
        settings,
        batch_size,
        batch_size,
    )


def _check_divisions(wanted: OrderArguments, buckets: Buckets | None) -> None:
    """Raises ArgumentError for two things that divide batches in ways of their own."""
    divisions = [
        wanted.drop_last == "even",
        buckets is not None,
        isinstance(wanted.sampling, Repeated),
        wanted.lanes > 1,
    ]
    if divisions.count(True) > 1:
        raise ArgumentError(
            "DaliIterator: each of drop_last='even', Buckets, Repeated and Shuffle(lanes=...) divides batches in a way "
            "of its own. Use one of them"
        )


def _make_epochs(wanted: OrderArguments, batch_size: int, share: Share) -> Epochs:
    """The epochs of a loader without buckets.

    Raises:
        ArgumentError: an epoch has no batch.
    """
    ranks = wanted.ranks
    global_batch = batch_size * ranks.world_size
    pass_samples = len(wanted.data)
    if wanted.sampling is not None and wanted.sampling.num_samples:
        pass_samples = wanted.sampling.num_samples
    samples = pass_samples
    if wanted.steps_per_epoch is not None:
        samples = wanted.steps_per_epoch * global_batch
    epochs = Epochs(
        samples,
        global_batch,
        wanted.drop_last,
        ranks.rank,
        ranks.world_size,
        share,
        is_virtual=wanted.steps_per_epoch is not None,
    )
    if not epochs.batches:
        raise ArgumentError(
            f"batch_size={batch_size}, world_size={ranks.world_size}: a batch of all ranks is larger than "
            f"{wanted.data.folder} ({counted(pass_samples, 'sample')}), so an epoch has no batch. Use a smaller "
            "batch_size, or drop_last=False"
        )
    return epochs


def _fingerprint_of(samplings: tuple[Sampling, ...]) -> str:
    return digest("".join(drawn.fingerprint for drawn in samplings).encode())


def _count_node_lanes(lanes: int, share: Share, ranks: Ranks) -> int:
    """Lanes that this machine reads."""
    if share == ALL:
        return lanes
    return min(lanes, (share.stop - share.first) * ranks.local_world_size)


def plan_order_by_tokens(
    wanted: OrderArguments, budget: Budget, grid: PatchGrid | None
) -> OrderPlan:
    """The plan of a loader whose batches have a budget of tokens. An epoch is a pass.

    Args:
        wanted: What decides the order, without what needs other epochs.
        budget: Tokens in a batch of each rank, and what divides its samples.
        grid: How images are divided into patches; None, where they are not, is refused.

    Raises:
        ArgumentError: the arguments contradict each other, or do not fit the data.
        ShardError: the size of a sample is not in the index.
    """
    if grid is None:
        raise ArgumentError(
            "batch_size=Budget(...): counts the patches of images of their own sizes. Use "
            "augment=gpuload.Augment(None, gpuload.Patches(...))"
        )
    _check_for_budget(wanted)
    ranks = wanted.ranks
    (data,) = wanted.datasets
    multiple = budget.multiple or ranks.world_size
    if multiple % ranks.world_size:
        raise ArgumentError(
            f"Budget(multiple={multiple}): is no multiple of {counted(ranks.world_size, 'rank')}, which get equally "
            "many samples"
        )
    batch_tokens = budget.tokens * ranks.world_size
    drops_rest = wanted.drop_last is True
    bucket_plan = _plan_lengths(
        data, grid, batch_tokens, multiple, drops_rest=drops_rest
    )
    make_stream = partial(
        Stream,
        data,
        None,
        seed=wanted.seed,
        window=wanted.window,
        shuffle=wanted.shuffle is not None,
    )
    sizes = bucket_plan.batch_sizes
    epochs = TokenEpochs(
        len(data),
        int(sizes.max()),
        wanted.drop_last,
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
    settings = wanted.settings()
    settings["buckets"] = grid.fingerprint
    settings["batch_tokens"] = batch_tokens
    settings["batch_multiple"] = multiple
    return OrderPlan(
        make_stream,
        epochs,
        bucket_plan,
        wanted.window,
        1,
        data,
        settings,
        int(sizes.max()) // ranks.world_size,
        int(sizes.min()) // ranks.world_size,
    )


def _check_for_budget(wanted: OrderArguments) -> None:
    """Raises ArgumentError for arguments that need other epochs than a budget has."""
    given = {
        "a mixture": isinstance(wanted.data, Mixture),
        "sampling=": wanted.sampling is not None,
        "steps_per_epoch=": wanted.steps_per_epoch is not None,
        "Shuffle(lanes=...)": wanted.lanes > 1,
        "drop_last='even'": wanted.drop_last == "even",
    }
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
        buckets: Output sizes.
        datasets: One, or those of a mixture.
        is_pass: A pass has each sample of a single data set once.
        is_whole: As for `BucketPlan`.
    """
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


def _find_share(wanted: OrderArguments, is_sampled: bool, batch_size: int) -> Share:
    """A rank's own lanes; all where it has none: of one rank, or where ranks or batches cannot be divided by lanes.

    Warns where lanes are of no use.

    Raises:
        ArgumentError: arguments that lanes do not go with, or more lanes than shards.
    """
    lanes = wanted.lanes
    ranks = wanted.ranks
    if lanes == 1:
        return ALL
    filled = 0
    if isinstance(wanted.data, Dataset) and not is_sampled:
        filled = int(np.count_nonzero(wanted.data.shard_sizes))
    if lanes > filled:
        raise ArgumentError(
            f"Shuffle(lanes={lanes}): expected a single data set without sampling=, with a shard of samples for each "
            f"lane; {wanted.data.folder} has {filled} that can be divided. Use fewer lanes, or pack with a smaller "
            "--maxcount"
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
