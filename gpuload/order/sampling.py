"""Which samples a pass draws, and how often: all of them once, or by weights or classes."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import shown
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, some_of
from gpuload.order.drawn import MOST_DRAWS, ChosenOrder, DrawnOrder, Strata, equal_strata, weighted_stratum
from gpuload.order.epoch import EpochOrder
from gpuload.types import F64, I32

Weights = str | npt.ArrayLike


@dataclass(frozen=True, eq=False)
class Sampling:
    """How one data set is sampled.

    draws: samples in a pass. groups: int32 (len,), which are drawn equally often; else weights: float64 (len,).
    strata: of sampling with replacement; None: without.
    """

    draws: int
    groups: I32 | None
    weights: F64 | None
    strata: Strata | None

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything that changes the order."""
        values = self.groups if self.groups is not None else self.weights
        assert values is not None
        content = repr((self.draws, values.dtype.str, self.strata is None)).encode() + values.tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def order(self, dataset: Dataset, *, seed: int, epoch: int, window: int) -> EpochOrder:
        """The order of one pass."""
        sizes = dataset.shard_sizes
        if self.strata is not None:
            return DrawnOrder(sizes, self.strata, self.draws, seed=seed, epoch=epoch, window=window)
        return ChosenOrder(sizes, self.groups, self.weights, self.draws, seed=seed, epoch=epoch, window=window)


def find_samplings(
    datasets: tuple[Dataset, ...],
    *,
    balance: str | None,
    weights: Weights | None,
    replacement: bool,
    num_samples: int | None,
    shuffle: bool,
) -> tuple[Sampling, ...] | None:
    """The sampling of each data set; None where each sample comes once in a pass. The arguments are `DaliIterator`'s.

    Raises:
        ArgumentError: arguments that contradict one another, weights that cannot be used, a field that is not there, or
            more draws without replacement than there are samples.
    """
    if balance is None and weights is None:
        if num_samples is not None or not replacement:
            given = f"num_samples={num_samples}" if num_samples is not None else "replacement=False"
            raise ArgumentError(
                f"DaliIterator({given}): is for samples drawn by balance= or weights=. Use steps_per_epoch for epochs "
                "of another length"
            )
        return None
    if balance is not None and weights is not None:
        raise ArgumentError(
            "DaliIterator(balance, weights): both say how often a sample is drawn. Give one; weights of 1 / (samples "
            "of its class) balance classes, too"
        )
    given = "balance" if balance is not None else "weights"
    if not shuffle:
        raise ArgumentError(f"DaliIterator({given}, shuffle=False): samples are drawn at random. Use shuffle=True")
    if len(datasets) > 1 and (num_samples is not None or not replacement):
        raise ArgumentError(
            f"DaliIterator({given}): num_samples and replacement=False are for a single data set, expected neither "
            "with a mixture. Use steps_per_epoch for the length of an epoch"
        )
    if not replacement and num_samples is None:
        raise ArgumentError(
            f"DaliIterator({given}, replacement=False): draws each sample once at most, expected num_samples, the "
            "number of samples in a pass"
        )
    found = []
    arrays = _split(datasets, weights) if weights is not None and not isinstance(weights, str) else None
    for number, dataset in enumerate(datasets):
        draws = num_samples if num_samples is not None else len(dataset)
        if draws > MOST_DRAWS:
            raise ArgumentError(f"DaliIterator({given}): {draws:,} draws in a pass, expected at most {MOST_DRAWS:,}")
        if balance is not None:
            found.append(_balanced(dataset, balance, draws, replacement))
        else:
            values = arrays[number] if arrays is not None else _column(dataset, "weights", str(weights))
            found.append(_weighted(dataset, values, draws, replacement))
    return tuple(found)


def fingerprint_of(samplings: tuple[Sampling, ...] | None) -> str | None:
    """16 hexadecimal digits that change with anything that changes the order; None where each sample comes once."""
    if samplings is None:
        return None
    return hashlib.sha256("".join(sampling.fingerprint for sampling in samplings).encode()).hexdigest()[:16]


def _balanced(dataset: Dataset, balance: str, draws: int, replacement: bool) -> Sampling:
    values = _column(dataset, "balance", balance)
    if values.dtype.kind not in "biu":
        raise ArgumentError(
            f"DaliIterator(balance={balance!r}): {dataset.folder} holds numbers with fractions there, expected "
            "classes. Use weights="
        )
    found, inverse = np.unique(values, return_inverse=True)
    groups: I32 = inverse.astype(np.int32)
    if not replacement:
        sizes, most = np.bincount(groups), -(-draws // len(found))
        if sizes.min() < most:
            poorest = int(np.argmin(sizes))
            raise ArgumentError(
                f"DaliIterator(balance={balance!r}, replacement=False): num_samples={draws} needs {most:,} samples of "
                f"each of {len(found)} classes, class {found[poorest]} has {sizes[poorest]:,}. Use num_samples of at "
                f"most {len(found) * sizes.min()}, or replacement=True"
            )
    return Sampling(draws, groups, None, equal_strata(groups) if replacement else None)


def _weighted(dataset: Dataset, values: npt.NDArray[Any], draws: int, replacement: bool) -> Sampling:
    weights = values.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise ArgumentError(
            f"DaliIterator(weights): sample {wrong[0]} of {dataset.folder} has the weight {weights[wrong[0]]}, "
            "expected a finite number of at least 0"
        )
    drawable = int(np.count_nonzero(weights))
    if not drawable:
        raise ArgumentError(f"DaliIterator(weights): all weights of {dataset.folder} are 0. Give some above 0")
    if not replacement and drawable < draws:
        raise ArgumentError(
            f"DaliIterator(weights, replacement=False, num_samples={draws}): {dataset.folder} has {drawable:,} samples "
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
            f"DaliIterator(weights): expected the name of a field, or one number for each of {total:,} samples, found "
            f"{found}"
        )
    return np.split(values, np.cumsum([len(dataset) for dataset in datasets])[:-1])


def _column(dataset: Dataset, argument: str, name: str) -> npt.NDArray[Any]:
    """(len,): the numbers of an index column of the samples of a data set, which may be a subset."""
    subject = f"DaliIterator({argument}={name!r})"
    numeric = [field.name for field in dataset.schema if pa.types.is_primitive(field.type)]
    names = [column for column in numeric if not column.endswith(("_offset", "_bytes"))]
    if name not in names:
        raise ArgumentError(
            f"{subject}: {dataset.folder} has no numbers of that name for each sample, expected one of "
            f"{some_of(names, 10)}"
        )
    dataset.fetch_rows()
    values = pa.chunked_array([dataset.rows(shard).column(name) for shard in range(len(dataset.shard_paths))])
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
