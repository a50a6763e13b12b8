"""How a pass draws its samples: each once, or by weights or classes."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import shown
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, some_of
from gpuload.order.arguments import Balance, Repeated, Weights
from gpuload.order.drawn import (
    MOST_DRAWS,
    DrawnOrder,
    RepeatedOrder,
    Strata,
    choose_order,
    equal_strata,
    weighted_stratum,
)
from gpuload.order.epoch import EpochOrder
from gpuload.types import F64, I32


@dataclass(frozen=True, eq=False)
class Sampling:
    """How one data set is sampled.

    draws: samples in a pass, each `times` times in a row. groups: int32 (len,), which are drawn equally often; else
    weights: float64 (len,). strata: of sampling with replacement; None: without. Without groups and weights, each
    sample comes equally often.
    """

    draws: int
    groups: I32 | None
    weights: F64 | None
    strata: Strata | None
    times: int = 1

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything that changes the order."""
        values = self.groups if self.groups is not None else self.weights
        if values is None:
            return f"repeated-{self.times}"
        content = repr((self.draws, values.dtype.str, self.strata is None)).encode() + values.tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def order(self, dataset: Dataset, *, seed: int, epoch: int, window: int) -> EpochOrder:
        """The order of one pass."""
        sizes = dataset.shard_sizes
        if self.times > 1:
            once = EpochOrder(sizes, seed=seed, epoch=epoch, window=window)
            return RepeatedOrder(once, self.times, epoch * self.draws)
        if self.strata is not None:
            return DrawnOrder(sizes, self.strata, self.draws, seed=seed, epoch=epoch, window=window)
        return choose_order(sizes, self.groups, self.weights, self.draws, seed=seed, epoch=epoch, window=window)


def find_samplings(
    datasets: tuple[Dataset, ...], sampled: Balance | Weights | Repeated | None, *, shuffle: bool
) -> tuple[Sampling, ...] | None:
    """The sampling of each data set; None where each sample comes once in a pass.

    Raises:
        ArgumentError: stored order, a mixture with a number of draws, weights that cannot be used, a field that is not
            there, or more draws without replacement than there are samples.
    """
    if sampled is None:
        return None
    given = type(sampled).__name__
    if not shuffle:
        raise ArgumentError(f"DaliIterator(sampling={given}, shuffle=False): samples are drawn at random. Use True")
    if isinstance(sampled, Repeated):
        if len(datasets) > 1:
            raise ArgumentError(f"Repeated: expected a single data set, found a mixture of {len(datasets)}")
        return (Sampling(sampled.times * len(datasets[0]), None, None, None, sampled.times),)
    if len(datasets) > 1 and sampled.num_samples is not None:
        raise ArgumentError(
            f"{given}(num_samples={sampled.num_samples}): is for a single data set, not for a mixture. Use "
            "steps_per_epoch for the length of an epoch"
        )
    found = []
    weights = sampled.weights if isinstance(sampled, Weights) else ""
    by_name = isinstance(weights, str)
    parts = [] if by_name else _split(datasets, weights)
    for number, dataset in enumerate(datasets):
        draws = len(dataset) if sampled.num_samples is None else sampled.num_samples
        if draws > MOST_DRAWS:
            raise ArgumentError(f"{given}: {draws:,} draws in a pass, expected at most {MOST_DRAWS:,}")
        if isinstance(sampled, Balance):
            found.append(_balanced(dataset, sampled.field, draws, sampled.replacement))
        else:
            values = _column(dataset, "Weights", weights) if by_name else parts[number]
            found.append(_weighted(dataset, values, draws, sampled.replacement))
    return tuple(found)


def fingerprint_of(samplings: tuple[Sampling, ...] | None) -> str | None:
    """16 hexadecimal digits that change with anything that changes the order; None where each sample comes once."""
    if samplings is None:
        return None
    return hashlib.sha256("".join(sampling.fingerprint for sampling in samplings).encode()).hexdigest()[:16]


def _balanced(dataset: Dataset, balance: str, draws: int, replacement: bool) -> Sampling:
    values = _column(dataset, "Balance", balance)
    if values.dtype.kind not in "biu":
        raise ArgumentError(
            f"Balance({balance!r}): {dataset.folder} holds numbers with fractions there, expected classes. Use Weights"
        )
    found, inverse = np.unique(values, return_inverse=True)
    groups: I32 = inverse.astype(np.int32)
    if not replacement:
        sizes, most = np.bincount(groups), -(-draws // len(found))
        if sizes.min() < most:
            poorest = int(np.argmin(sizes))
            raise ArgumentError(
                f"Balance({balance!r}, replacement=False): num_samples={draws} needs {most:,} samples of "
                f"each of {len(found)} classes, class {found[poorest]} has {sizes[poorest]:,}. Use num_samples of at "
                f"most {len(found) * sizes.min()}, or replacement=True"
            )
    return Sampling(draws, groups, None, equal_strata(groups) if replacement else None)


def _weighted(dataset: Dataset, values: npt.NDArray[Any], draws: int, replacement: bool) -> Sampling:
    weights = values.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise ArgumentError(
            f"Weights: sample {wrong[0]} of {dataset.folder} has the weight {weights[wrong[0]]}, "
            "expected a finite number of at least 0"
        )
    drawable = int(np.count_nonzero(weights))
    if not drawable:
        raise ArgumentError(f"Weights: all weights of {dataset.folder} are 0. Give some above 0")
    if not replacement and drawable < draws:
        raise ArgumentError(
            f"Weights(replacement=False, num_samples={draws}): {dataset.folder} has {drawable:,} samples "
            "with a weight above 0. Use a smaller num_samples, or replacement=True"
        )
    weights /= weights.max()  # so that no sum of them overflows
    return Sampling(draws, None, weights, weighted_stratum(weights, draws) if replacement else None)


def _split(datasets: tuple[Dataset, ...], weights: npt.ArrayLike) -> list[npt.NDArray[Any]]:
    """An array of weights, for each data set its part."""
    try:
        values = np.asarray(weights)
    except Exception:  # lists of unequal length, tensors on a GPU
        values = np.empty(0, object)
    total = sum(map(len, datasets))
    if values.dtype.kind not in "biuf" or values.shape != (total,):
        found = f"an array of {values.dtype}, shape {values.shape}" if values.dtype != object else shown(weights)
        raise ArgumentError(
            f"Weights: expected the name of a field, or one number for each of {total:,} samples, found {found}"
        )
    return np.split(values, np.cumsum([len(dataset) for dataset in datasets])[:-1])


def _column(dataset: Dataset, argument: str, name: str) -> npt.NDArray[Any]:
    """(len,): the numbers of an index column of the samples of a data set, which may be a subset."""
    subject = f"{argument}({name!r})"
    numeric = [field.name for field in dataset.schema if pa.types.is_primitive(field.type)]
    names = [column for column in numeric if not column.endswith(("_offset", "_bytes"))]
    if name not in names:
        raise ArgumentError(
            f"{subject}: {dataset.folder} has no numbers of that name for each sample, expected one of "
            f"{some_of(names, 10)}"
        )
    values = dataset.column(name)
    stored = dataset.stored_samples(np.arange(len(dataset)))
    if values.null_count:
        missing = np.flatnonzero(values.is_null().to_numpy()[stored])
        if len(missing):
            raise ArgumentError(
                f"{subject}: {len(missing):,} samples of {dataset.folder} have none, the first is sample {missing[0]}. "
                "Leave them out: dataset.filter(pyarrow.compute.is_valid(pyarrow.compute.field(...)))"
            )
        values = values.fill_null(0)
    found: npt.NDArray[Any] = values.to_numpy()[stored]
    return found
