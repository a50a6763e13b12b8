"""The order that a loader's arguments describe: its stream, its epochs, and the identity that a state holds."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpuload.counted import counted
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError
from gpuload.machine.ranks import Ranks
from gpuload.order.arguments import Balance, Repeated, Shuffle, Weights
from gpuload.order.buckets import BucketPlan, Buckets, plan_buckets
from gpuload.order.epoch import Share
from gpuload.order.mixture import Mixture, interleave
from gpuload.order.sampling import Sampling, find_samplings, fingerprint_of
from gpuload.order.stream import Epochs, RunIdentity, Stream


@dataclass(frozen=True)
class OrderOptions:
    """Those of `DaliIterator`'s arguments that decide the order and its epochs.

    shuffle: None is stored order. rest: "exact", "even" or "", where drop_last is a flag.
    """

    batch_size: int
    shuffle: Shuffle | None
    seed: int
    drop_last: bool
    rest: str = ""
    steps_per_epoch: int | None = None
    sampling: Balance | Weights | Repeated | None = None
    buckets: Buckets | None = None


class OrderPlan(NamedTuple):
    """make_stream: makes streams of the loader's order. epochs: where epochs begin and end in it. buckets: how they
    divide it, None without buckets. window: shards that are mixed, and waited for, at a time. node_lanes: lanes that
    this machine reads. identity: what a state must agree with.
    """

    make_stream: Callable[[], Stream]
    epochs: Epochs
    buckets: BucketPlan | None
    window: int
    node_lanes: int
    identity: RunIdentity


def plan_order(data: Dataset | Mixture, mixture: Mixture, ranks: Ranks, options: OrderOptions) -> OrderPlan:
    """The plan of a loader.

    data: what the user gave, opened. mixture: the same as a mixture, of one data set or several.

    Raises:
        ArgumentError: the options contradict each other, or do not fit the data.
    """
    datasets, seed, shuffle = mixture.datasets, options.seed, options.shuffle is not None
    samplings = find_samplings(datasets, options.sampling, shuffle=shuffle)
    mixing = options.shuffle or Shuffle()
    lanes = mixing.lanes
    # Stored order mixes nothing: of a set at a URL, a batch waits for its own shard alone.
    is_remote = any(dataset.cache is not None for dataset in datasets)
    window = 1 if is_remote and not shuffle else mixing.window
    repeated = isinstance(options.sampling, Repeated)
    if options.rest == "even" and (lanes > 1 or options.buckets is not None or repeated):
        raise ArgumentError(
            "DaliIterator(drop_last='even'): fills the last batch up with samples of the next epoch, which lanes, "
            "buckets and Repeated do not allow. Use drop_last=False, or leave these out"
        )
    if repeated and options.buckets is not None:
        raise ArgumentError("Repeated: samples of a bucket would not come in a row. Use one size, or leave it out")
    own_lanes = find_share(lanes, datasets, samplings, ranks, batch_size=options.batch_size)
    if repeated and ranks.world_size > 1:
        own_lanes = Share(ranks.rank, ranks.rank + 1, ranks.world_size)
    epochs = find_epochs(data, options, ranks, own_lanes)
    whole = not options.drop_last and options.steps_per_epoch is None
    plan = plan_buckets(options.buckets, datasets, samplings, is_whole=whole, lanes=lanes)
    if plan is not None:
        epochs = plan.epochs(epochs)
    words: dict[str, Any] = {"seed": seed, "window": mixing.window, "shuffle": shuffle, "lanes": lanes}
    make_stream = partial(Stream, datasets, interleave(mixture, seed), samplings, **{**words, "window": window})
    identity = RunIdentity(
        data,
        sampling=fingerprint_of(samplings),
        buckets=None if plan is None else plan.identity,
        bucket_batch=None if plan is None else epochs.batch_size,
        **words,
    )
    return OrderPlan(make_stream, epochs, plan, window, node_lanes(lanes, own_lanes, ranks), identity)


def find_epochs(data: Dataset | Mixture, options: OrderOptions, ranks: Ranks, share: Share | None = None) -> Epochs:
    """The epochs of a loader: passes over the data, or as long as `steps_per_epoch` says. share: the rank's lanes.

    Raises:
        ArgumentError: an epoch would have no batch.
    """
    global_batch, steps = options.batch_size * ranks.world_size, options.steps_per_epoch
    draws = None if options.sampling is None else options.sampling.num_samples
    in_pass = len(data) if draws is None else draws
    epochs = Epochs(
        in_pass if steps is None else steps * global_batch,
        global_batch,
        options.drop_last,
        ranks.rank,
        ranks.world_size,
        share,
        exact=options.rest == "exact",
        even=options.rest == "even",
    )
    if not epochs.batches:
        times = f" x world_size {ranks.world_size}" if ranks.world_size > 1 else ""
        raise ArgumentError(
            f"batch_size {options.batch_size}{times}: is larger than {data.folder} ({counted(in_pass, 'sample')}), so "
            "an epoch has no batch. Use a smaller batch_size, or drop_last=False"
        )
    return epochs


def find_share(
    lanes: int,
    datasets: Sequence[Dataset],
    samplings: Sequence[Sampling] | None,
    ranks: Ranks,
    *,
    batch_size: int,
) -> Share | None:
    """A rank's own lanes; None where it has none: of one rank, or where ranks or batches cannot be divided by lanes.

    The arguments are `DaliIterator`'s. Warns where lanes are of no use.

    Raises:
        ArgumentError: arguments that lanes do not go with, or more lanes than shards.
    """
    if lanes == 1:
        return None
    subject = f"Shuffle(lanes={lanes})"
    if len(datasets) > 1:
        raise ArgumentError(
            f"{subject}: expected a single data set, found a mixture of {len(datasets)}. Use lanes=1, or pack the "
            "images into one set"
        )
    if samplings is not None:
        raise ArgumentError(
            f"{subject}: does not go with sampling=, by which passes draw other numbers of samples from each shard. "
            "Use lanes=1, or leave it out"
        )
    filled = int(np.count_nonzero(datasets[0].shard_sizes))
    if lanes > filled:
        raise ArgumentError(
            f"{subject}: expected at most as many lanes as shards with samples, {datasets[0].folder} has {filled}. "
            "Use fewer lanes, or pack with a smaller --maxcount"
        )
    if ranks.world_size == 1:
        return None
    global_batch = batch_size * ranks.world_size
    if lanes % ranks.world_size or global_batch % lanes:
        warnings.warn(
            f"{subject}: {counted(ranks.world_size, 'rank')} with batch_size={batch_size} cannot have lanes of their "
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
