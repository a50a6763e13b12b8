"""Transforms made of others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuload.checks import PROBABILITY, Rule, check_fields, several
from gpuload.draws import Draws
from gpuload.transforms.erasing import RandomErasing
from gpuload.transforms.steps import Steps, Transform, join

__all__ = ["RandomApply"]


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
        return join(
            [
                transform.draw(_own_draws(draws, index, len(self.transforms)), height, width).only(chosen)
                for index, transform in enumerate(self.transforms)
            ]
        )


def _own_draws(draws: Draws, index: int, count: int) -> Draws:
    """The random numbers of transform `index` of `count`: every count-th, after the one that is for all."""
    return lambda number: draws(1 + index + number * count)
