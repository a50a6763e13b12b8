"""Several data sets as one, each with its share."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from gpuload.checks import (
    LARGEST,
    POSITIVE,
    Rule,
    as_items,
    check_fields,
    checked,
    choice,
    instance,
    number,
    refuse,
    several,
)
from gpuload.disk.dataset import Dataset
from gpuload.disk.quarantine import leave_out
from gpuload.errors import ArgumentError
from gpuload.order.interleaving import Interleaving, ShuffledBlocks, Stratified
from gpuload.store.url import LOCATION

Batches = Literal["shuffled", "stratified"]


@dataclass(frozen=True)
class Mixture:
    """Data sets and their shares (which sum to 1), for `DaliIterator(data=…)`. Made by `mix`.

    Each data set is read pass after pass in its own order; which of them the next sample comes from depends on (seed,
    position), or with stratified batches on the position alone. An epoch is as long as all of them together, and
    continues where the last one stopped.
    """

    datasets: tuple[Dataset, ...]
    shares: tuple[float, ...]
    batches: Batches = "shuffled"

    def __post_init__(self) -> None:
        check_fields(self, datasets=several(instance("", Dataset), "a tuple of gpuload.Dataset. Use gpuload.mix"))
        count = len(self.datasets)
        shares = f"{count} numbers above 0 that sum to 1. Use gpuload.mix"
        check_fields(self, shares=several(number(POSITIVE, 1, ""), shares, count))
        if not math.isclose(sum(self.shares), 1):
            raise refuse("Mixture", "shares", self.shares, shares)
        check_fields(self, batches=choice(*get_args(Batches)))

    def __len__(self) -> int:
        """Samples in an epoch: those of all data sets together."""
        return sum(map(len, self.datasets))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class by its number, the same in all of them."""
        return self.datasets[0].classes

    @property
    def fingerprint(self) -> str:
        """Changes when one of the data sets, their sequence, a share or `batches` changes."""
        content: list[Any] = [[dataset.fingerprint for dataset in self.datasets], self.shares]
        if self.batches != "shuffled":  # sets that were mixed before there was a choice keep their fingerprints
            content.append(self.batches)
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """The folders, for messages."""
        return " + ".join(str(dataset.folder) for dataset in self.datasets)


def interleave(mixture: Mixture, seed: int) -> Interleaving:
    """Which data set each position of a mixture draws from."""
    return Stratified(mixture.shares) if mixture.batches == "stratified" else ShuffledBlocks(mixture.shares, seed)


def open_data(
    data: str | Path | Dataset | Mixture,
    exclude: str | Path | Sequence[str] | None = None,
    cache: str | Path | None = None,
    cache_size: int | str | None = None,
) -> tuple[Dataset | Mixture, Mixture]:
    """What a user gave as data, opened; and the same as a mixture, which may be of one data set.

    exclude: a quarantine file, or keys: samples to leave out. cache, cache_size: of a URL.

    Raises:
        ArgumentError: no data set has one of the keys, the file is none, or nothing is left of a data set.
    """
    if isinstance(data, Dataset | Mixture) and (cache is not None or cache_size is not None):
        raise ArgumentError("DaliIterator(cache, cache_size): data is open already. Give them to gpuload.Dataset")
    whole = data if isinstance(data, Mixture | Dataset) else Dataset(data, cache, cache_size)
    mixture = whole if isinstance(whole, Mixture) else Mixture((whole,), (1.0,))
    if exclude is not None and (rest := leave_out(mixture.datasets, exclude)) != mixture.datasets:
        mixture = replace(mixture, datasets=rest)
        whole = mixture if isinstance(whole, Mixture) else rest[0]
    return whole, mixture


def _as_parts(value: Any) -> tuple[tuple[Any, float], ...]:
    weight = number(POSITIVE, LARGEST, "")
    pairs = map(as_items, as_items(value))
    return tuple((data if isinstance(data, Dataset) else LOCATION.read(data), weight.read(w)) for data, w in pairs)


@checked(
    "mix",
    parts=Rule(
        'pairs of a data set and a weight above 0 and up to 1e6, such as [("shards/a", 0.7), ("shards/b", 0.3)]',
        _as_parts,
    ),
    batches=choice(*get_args(Batches)),
)
def mix(parts: Sequence[tuple[str | Path | Dataset, float]], *, batches: Batches = "shuffled") -> Mixture:
    """Mixes data sets by weights: `mix([("shards/a", 0.7), ("shards/b", 0.3)])`.

    parts: data sets, as packed folders, URLs or `Dataset`s, each with its weight; the weights are divided by their sum.
    batches: "shuffled", each position of a batch draws its data set at random; of any 4,096 samples that start at a
        multiple of 4,096, each data set gives exactly its share, rounded to whole samples. "stratified", each batch
        holds the shares: exactly where they are whole numbers of a batch of all ranks together, else rounded up or down
        (of more than two data sets, one more or less). The same holds for a rank's part of it.

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
    return Mixture(datasets, tuple(weight / sum(weights) for weight in weights), batches)
