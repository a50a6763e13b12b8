"""Transforms made of others."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuload.draws import Draws
from gpuload.transforms.checks import check_probability, refuse
from gpuload.transforms.steps import Steps, Transform, is_geometric, join


@dataclass(frozen=True)
class RandomApply:
    """torchvision's RandomApply: all of `transforms`, in their order, with probability `p`, else none."""

    transforms: Sequence[Transform]
    p: float = 0.5

    def __post_init__(self) -> None:
        if not self.transforms or not all(isinstance(transform, Transform) for transform in self.transforms):
            raise refuse(self, "transforms", "at least one of gpuload's transforms")
        check_probability(self)

    @property
    def geometric(self) -> bool:
        return is_geometric(self.transforms)

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        chosen = draws(0) < self.p
        return join(
            [
                transform.draw(_own(draws, place, len(self.transforms)), height, width).where(chosen)
                for place, transform in enumerate(self.transforms)
            ]
        )


def _own(draws: Draws, place: int, count: int) -> Draws:
    """The random numbers of one of `count` parts: every count-th, after the one that is for the whole."""
    return lambda number: draws(1 + place + number * count)
