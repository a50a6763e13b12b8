"""Several data sets as one, each with its share, and which of them each position of the stream draws from."""

import hashlib
import json
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np

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
    settings,
    several,
)
from gpuload.disk.dataset import Dataset
from gpuload.draws import MIXTURE, make_key, permutation
from gpuload.errors import ArgumentError
from gpuload.store.url import LOCATION
from gpuload.types import I64

Batches = Literal["shuffled", "stratified"]

# Positions in a block, in which the shares of a mixture are exact: shares are rounded to multiples of 1/4096, and
# counting how often each data set was drawn before a position costs one permutation of a block.
BLOCK = 4096

# Denominator of a share in stratified batches: weights such as 0.3, 1/3 or 7 are exact, and sums of them far below the
# limits of int64.
_MOST_PARTS = 10_000


_DATASETS = several(instance("", Dataset), "a tuple of gpuload.Dataset. Use gpuload.mix")


@settings
class Mixture:
    """Data sets and their shares (which sum to 1), for `DaliIterator(data=…)`. Made by `mix`.

    Each data set is read pass after pass in its own order; which of them the next sample comes from depends on (seed,
    position), or with stratified batches on the position alone. An epoch is as long as all of them together, and
    continues where the last one stopped.
    """

    datasets: Annotated[tuple[Dataset, ...], _DATASETS]
    shares: tuple[float, ...]
    batches: Annotated[Batches, choice(*get_args(Batches))] = "shuffled"

    def __post_init__(self) -> None:
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
    def num_classes(self) -> int | None:
        """As `Dataset.num_classes`: the largest of the data sets'."""
        return max((dataset.num_classes or 0 for dataset in self.datasets), default=0) or None

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


def interleave(mixture: Mixture, seed: int) -> "ShuffledBlocks | Stratified":
    """Which data set each position of a mixture draws from."""
    return Stratified(mixture.shares) if mixture.batches == "stratified" else ShuffledBlocks(mixture.shares, seed)


def open_data(data: str | Path | Dataset | Mixture) -> tuple[Dataset | Mixture, Mixture]:
    """What a user gave as data, opened; and the same as a mixture, which may be of one data set."""
    whole = data if isinstance(data, Mixture | Dataset) else Dataset(data)
    return whole, whole if isinstance(whole, Mixture) else Mixture((whole,), (1.0,))


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
        holds the shares: exactly where those of all data sets are whole numbers of a batch of all ranks together, else
        rounded up or down (of n data sets, off by less than n - 1). The same holds for a rank's part of it.

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


class ShuffledBlocks:
    """Blocks of 4,096 positions, in each of which the shares are exact, in random order by (seed, block).

    Raises:
        ArgumentError: a share is below 1 / 4,096.
    """

    def __init__(self, shares: tuple[float, ...], seed: int) -> None:
        self._counts, self._seed = round_shares(shares, BLOCK), seed
        if not self._counts.all():
            raise ArgumentError(f"mix: shares {shares}, expected each at least 1/{BLOCK}. Raise the smallest weight")
        # A batch may extend from one block into the next.
        self._block = lru_cache(maxsize=2)(self._make_block)

    def sources(self, start: int, stop: int) -> I64:
        """int64: the data set that each of the positions start..stop-1 draws from."""
        return np.concatenate(
            [
                self._block(block)[max(start - block * BLOCK, 0) : stop - block * BLOCK]
                for block in range(start // BLOCK, -(-stop // BLOCK))
            ]
        )

    def drawn(self, start: int) -> I64:
        """int64 (data sets,): how often each is drawn before a position, without going there."""
        block, rest = divmod(start, BLOCK)
        here = np.bincount(self._block(block)[:rest], minlength=len(self._counts)) if rest else 0
        drawn: I64 = block * self._counts + here
        return drawn

    def _make_block(self, block: int) -> I64:
        """int64 (BLOCK,): the data set that each position of a block draws from."""
        sources = np.repeat(np.arange(len(self._counts)), self._counts)
        mixed: I64 = sources[permutation(make_key(self._seed, MIXTURE, -1, block), BLOCK)]
        return mixed


class Stratified:
    """Data sets take turns as evenly as they can, so that each batch holds their shares.

    Of any number of consecutive positions each data set gives its share, exactly where the shares of all data sets are
    whole: with 3/4 and 1/4, of any multiple of 4. Else, of n data sets each is off by less than n - 1: two round up or
    down.

    The first data set is drawn where `position * share` passes a whole number; the positions left are divided among the
    others in the same way.

    Raises:
        ArgumentError: a share is below 1 / 10,000.
    """

    def __init__(self, shares: tuple[float, ...]) -> None:
        parts = [Fraction(share).limit_denominator(_MOST_PARTS) for share in shares]
        if not all(parts):
            raise ArgumentError(
                f"mix: shares {shares}, expected each at least 1/{_MOST_PARTS}. Raise the smallest weight"
            )
        whole = lcm(*(part.denominator for part in parts))
        if whole > 1 << 31:
            raise ArgumentError(
                f"mix(batches='stratified'): the shares {shares} have no common denominator below 2^31. Use weights "
                "that are whole numbers"
            )
        self._weights = [int(part * whole) for part in parts]

    def sources(self, start: int, stop: int) -> I64:
        """As of `ShuffledBlocks`."""
        sources = np.full(stop - start, len(self._weights) - 1)
        rows, first = np.arange(stop - start), start
        for source, (weight, rest) in enumerate(self._turns()):
            passed = _turns_before(np.arange(first, first + len(rows) + 1), weight, rest)
            is_turn = np.diff(passed) > 0
            sources[rows[is_turn]] = source
            rows, first = rows[~is_turn], first - int(passed[0])
        return sources

    def drawn(self, start: int) -> I64:
        """As of `ShuffledBlocks`."""
        drawn, left = [], start
        for weight, rest in self._turns():
            drawn.append(int(_turns_before(np.array([left]), weight, rest)[0]))
            left -= drawn[-1]
        return np.array([*drawn, left])

    def _turns(self) -> list[tuple[int, int]]:
        """Of each data set but the last: its weight, and that of it and those after it."""
        return [(weight, sum(self._weights[source:])) for source, weight in enumerate(self._weights[:-1])]


def _turns_before(positions: I64, weight: int, total: int) -> I64:
    """How many of the positions before each are turns of a data set: floor(position * weight / total), by halves."""
    turns, rest = np.divmod(positions, total)  # so that the product does not overflow
    before: I64 = turns * weight + (rest * weight + total // 2) // total
    return before


def round_shares(shares: tuple[float, ...], total: int) -> I64:
    """int64: whole numbers that sum to `total`, in these shares, by largest remainders.

    >>> round_shares((0.5, 0.25, 0.25), 5).tolist()
    [3, 1, 1]
    """
    exact = np.array(shares) * total
    counts: I64 = np.floor(exact).astype(np.int64)
    for source in np.argsort(counts - exact, kind="stable")[: total - counts.sum()]:
        counts[source] += 1
    return counts
