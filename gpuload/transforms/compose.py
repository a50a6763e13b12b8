"""Transforms made of others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.checks import LARGEST, PROBABILITY, Rule, check_fields, number, optional, several
from gpuload.draws import Draws
from gpuload.transforms.erasing import RandomErasing
from gpuload.transforms.steps import Steps, Transform, join
from gpuload.types import F64, I64

__all__ = ["RandomApply", "RandomChoice", "RandomOrder"]


def _as_pixel_transform(value: Any) -> Transform:
    """RandomErasing is none: it comes after normalisation."""
    if not isinstance(value, Transform) or isinstance(value, type | RandomErasing):
        raise TypeError
    return value


_TRANSFORMS = several(
    Rule("", _as_pixel_transform), "a list of at least one of gpuload's transforms, without RandomErasing"
)


@dataclass(frozen=True)
class RandomApply:
    """torchvision's RandomApply: all of `transforms`, in their order, with probability `p`, else none.

    transforms: of this module, without RandomErasing.
    p: probability that they are applied.

    Raises:
        ArgumentError: no transforms, or others than gpuload's; a probability out of its range.
    """

    transforms: Sequence[Transform]
    p: float = 0.5

    def __post_init__(self) -> None:
        check_fields(self, transforms=_TRANSFORMS, p=PROBABILITY)

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        # Number 0: whether; then, in turn, those of each transform.
        chosen = draws(0) < self.p
        return join([made.only(chosen) for made in _drawn(self.transforms, draws, height, width)])


@dataclass(frozen=True)
class RandomChoice:
    """torchvision's RandomChoice: one of `transforms`.

    transforms: as for `RandomApply`.
    p: their probabilities, by default equal; they are divided by their sum.

    Raises:
        ArgumentError: as `RandomApply`; not one probability for each.
    """

    transforms: Sequence[Transform]
    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_fields(self, transforms=_TRANSFORMS)
        count = len(self.transforms)
        shares = f"a probability for each of {count}"
        check_fields(self, p=optional(several(number(0, LARGEST, ""), shares, count)))

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        # Number 0: which; then, in turn, those of each transform.
        count = len(self.transforms)
        shares = np.cumsum(self.p if self.p is not None else np.ones(count))
        chosen = np.searchsorted(shares[:-1] / shares[-1], draws(0), side="right")
        return join(
            [made.only(chosen == index) for index, made in enumerate(_drawn(self.transforms, draws, height, width))]
        )


@dataclass(frozen=True)
class RandomOrder:
    """torchvision's RandomOrder: all of `transforms`, in an order that is drawn.

    transforms: as for `RandomApply`.

    Raises:
        ArgumentError: as `RandomApply`.
    """

    transforms: Sequence[Transform]

    def __post_init__(self) -> None:
        check_fields(self, transforms=_TRANSFORMS)

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        # Number 0: the order of all; then, in turn, those of each transform.
        count = len(self.transforms)
        order = _order(draws(0), count)
        made = _drawn(self.transforms, draws, height, width)
        return join([made[index].only(order[:, place] == index) for place in range(count) for index in range(count)])


def _order(drawn: F64, count: int) -> I64:
    """int64 (N, count): an order of 0..count-1 for each number, which all orders share equally."""
    left = np.tile(np.arange(count), (len(drawn), 1))
    rows, order = np.arange(len(drawn)), []
    for remaining in range(count, 0, -1):
        drawn = drawn * remaining
        at = np.minimum(drawn.astype(np.int64), remaining - 1)
        drawn = drawn - at
        order.append(left[rows, at])
        left = left[np.arange(remaining) != at[:, None]].reshape(len(rows), remaining - 1)
    return np.stack(order, axis=1)


def _drawn(transforms: Sequence[Transform], draws: Draws, height: int, width: int) -> list[Steps]:
    """The steps of each, whose random numbers are those after the one that is for all."""
    count = len(transforms)
    return [one.draw(_own_draws(draws, index, count), height, width) for index, one in enumerate(transforms)]


def _own_draws(draws: Draws, index: int, count: int) -> Draws:
    """The random numbers of transform `index` of `count`: every count-th, after the one that is for all."""
    return lambda number: draws(1 + index + number * count)
