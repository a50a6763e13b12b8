"""Transforms made of others."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuload.draws import Draws
from gpuload.transforms.checks import check_probability, refuse
from gpuload.transforms.erasing import RandomErasing
from gpuload.transforms.steps import Steps, Transform, join

__all__ = ["RandomApply"]


@dataclass(frozen=True)
class RandomApply:
    """torchvision's RandomApply: all of `transforms`, in their order, with probability `p`, else none.

    Raises:
        ArgumentError: no transforms, or others than gpuload's; a probability out of its range.
    """

    transforms: Sequence[Transform]
    p: float = 0.5

    def __post_init__(self) -> None:
        if not self.transforms or not all(map(_is_pixel_transform, self.transforms)):
            raise refuse(self, "transforms", "at least one of gpuload's transforms")
        check_probability(self)

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


def _is_pixel_transform(transform: object) -> bool:
    """RandomErasing is none: it comes after normalisation."""
    return isinstance(transform, Transform) and not isinstance(transform, type | RandomErasing)


def _own_draws(draws: Draws, index: int, count: int) -> Draws:
    """The random numbers of transform `index` of `count`: every count-th, after the one that is for all."""
    return lambda number: draws(1 + index + number * count)
