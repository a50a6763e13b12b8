"""Several data sets as one, each with its share."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuload.checks import (
    LARGEST,
    PATH,
    POSITIVE,
    Rule,
    as_items,
    check_fields,
    checked,
    instance,
    number,
    refuse,
    several,
)
from gpuload.disk.dataset import Dataset
from gpuload.disk.quarantine import leave_out
from gpuload.errors import ArgumentError


@dataclass(frozen=True)
class Mixture:
    """Data sets and their shares (which sum to 1), for `DaliIterator(data=…)`. Made by `mix`.

    Each data set is read pass after pass in its own order; which of them the next sample comes from depends on (seed,
    position). An epoch is as long as all of them together, and continues where the last one stopped.
    """

    datasets: tuple[Dataset, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        check_fields(self, datasets=several(instance("", Dataset), "a tuple of gpuload.Dataset. Use gpuload.mix"))
        count = len(self.datasets)
        shares = f"{count} numbers above 0 that sum to 1. Use gpuload.mix"
        check_fields(self, shares=several(number(POSITIVE, 1, ""), shares, count))
        if not math.isclose(sum(self.shares), 1):
            raise refuse("Mixture", "shares", self.shares, shares)

    def __len__(self) -> int:
        """Samples in an epoch: those of all data sets together."""
        return sum(map(len, self.datasets))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class by its number, the same in all of them."""
        return self.datasets[0].classes

    @property
    def fingerprint(self) -> str:
        """Changes when one of the data sets, their sequence or a share changes."""
        content = [[dataset.fingerprint for dataset in self.datasets], self.shares]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """The folders, for messages."""
        return " + ".join(str(dataset.folder) for dataset in self.datasets)


def open_data(
    data: str | Path | Dataset | Mixture, exclude: str | Path | Sequence[str] | None = None
) -> tuple[Dataset | Mixture, tuple[Dataset, ...], tuple[float, ...]]:
    """What a user gave as data, opened; the data sets in it, and their shares.

    exclude: a quarantine file, or keys: samples to leave out.

    Raises:
        ArgumentError: no data set has one of the keys, the file is none, or nothing is left of a data set.
    """
    whole = data if isinstance(data, Mixture | Dataset) else Dataset(data)
    datasets = whole.datasets if isinstance(whole, Mixture) else (whole,)
    shares = whole.shares if isinstance(whole, Mixture) else (1.0,)
    if exclude is not None and (rest := leave_out(datasets, exclude)) != datasets:
        whole, datasets = Mixture(rest, shares) if isinstance(whole, Mixture) else rest[0], rest
    return whole, datasets, shares


def _as_parts(value: Any) -> tuple[tuple[Any, float], ...]:
    weight = number(POSITIVE, LARGEST, "")
    pairs = map(as_items, as_items(value))
    return tuple((data if isinstance(data, Dataset) else PATH.read(data), weight.read(w)) for data, w in pairs)


@checked(
    "mix",
    parts=Rule(
        'pairs of a data set and a weight above 0 and up to 1e6, such as [("shards/a", 0.7), ("shards/b", 0.3)]',
        _as_parts,
    ),
)
def mix(parts: Sequence[tuple[str | Path | Dataset, float]]) -> Mixture:
    """Mixes data sets by weights: `mix([("shards/a", 0.7), ("shards/b", 0.3)])`.

    Of any 4,096 samples that start at a multiple of 4,096, each data set gives exactly its share, rounded to whole
    samples.

    Raises:
        ArgumentError: no data sets, a weight that is not above 0, or data sets whose classes differ.
    """
    if not parts:
        raise ArgumentError("mix(parts): expected at least one (data set, weight)")
    datasets = tuple(part if isinstance(part, Dataset) else Dataset(part) for part, _ in parts)
    weights = [weight for _, weight in parts]
    for dataset in datasets[1:]:
        if dataset.classes != datasets[0].classes:
            raise ArgumentError(
                f"mix: {dataset.folder} has other classes than {datasets[0].folder} ({dataset.classes} and "
                f"{datasets[0].classes}), so their labels mean different things. Pack them with the same class folders"
            )
    return Mixture(datasets, tuple(weight / sum(weights) for weight in weights))
