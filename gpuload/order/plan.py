"""What a loader's arguments make of the order: its stream, its epochs, and what a state says of them."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from gpuload.disk.dataset import Dataset
from gpuload.order.bucket_plan import BucketPlan, plan_buckets
from gpuload.order.buckets import Buckets
from gpuload.order.global_batches import Epochs, find_epochs
from gpuload.order.lanes import find_share, node_lanes
from gpuload.order.mixture import Mixture, interleave
from gpuload.order.position import RunIdentity
from gpuload.order.sampling import Weights, find_samplings, fingerprint_of
from gpuload.order.stream import Stream
from gpuload.ranks import Ranks


class OrderPlan(NamedTuple):
    """make_stream: makes streams of the loader's order. epochs: where epochs begin and end in it. buckets: how they
    divide it, None without buckets. node_lanes: lanes that this machine reads. identity: what a state must agree with.
    """

    make_stream: Callable[[], Stream]
    epochs: Epochs
    buckets: BucketPlan | None
    node_lanes: int
    identity: RunIdentity


def plan_order(
    data: Dataset | Mixture,
    mixture: Mixture,
    ranks: Ranks,
    *,
    batch_size: int,
    shuffle: bool,
    seed: int,
    window: int,
    lanes: int,
    drop_last: bool,
    steps_per_epoch: int | None,
    balance: str | None,
    weights: Weights | None,
    replacement: bool,
    num_samples: int | None,
    buckets: Buckets | None,
) -> OrderPlan:
    """The plan of a loader with these arguments, which are `DaliIterator`'s.

    data: what the user gave, opened. mixture: the same as a mixture, of one data set or several.

    Raises:
        ArgumentError: they contradict each other, or do not fit the data.
    """
    datasets = mixture.datasets
    samplings = find_samplings(
        datasets,
        balance=balance,
        weights=weights,
        replacement=replacement,
        num_samples=num_samples,
        shuffle=shuffle,
    )
    own_lanes = find_share(lanes, datasets, samplings, ranks, shuffle=shuffle, batch_size=batch_size)
    epochs = find_epochs(data, batch_size, steps_per_epoch, drop_last, ranks, num_samples, own_lanes)
    plan = plan_buckets(buckets, datasets, samplings, drop_last=drop_last, steps_per_epoch=steps_per_epoch, lanes=lanes)
    if plan is not None:
        epochs = plan.epochs(epochs)
    make_stream = partial(
        Stream,
        datasets,
        interleave(mixture, seed),
        samplings,
        seed=seed,
        window=window,
        shuffle=shuffle,
        lanes=lanes,
    )
    identity = RunIdentity(
        data,
        seed,
        shuffle,
        window,
        fingerprint_of(samplings),
        None if plan is None else plan.identity,
        None if plan is None else epochs.batch_size,
        lanes,
    )
    return OrderPlan(make_stream, epochs, plan, node_lanes(lanes, own_lanes, ranks), identity)
