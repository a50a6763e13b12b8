"""Transforms made of others, and the base class of one of your own: steps drawn in NumPy, and a kernel in torch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import numpy as np

from gpuload.checks import (
    LARGEST,
    PROBABILITY,
    Rule,
    check_fields,
    number,
    optional,
    refuse,
    settings,
    several,
)
from gpuload.draws import Draws, choose
from gpuload.errors import ArgumentError
from gpuload.transforms.erasing import RandomErasing
from gpuload.transforms.ops import ARGS, FIRST_OWN
from gpuload.transforms.steps import Steps, Transform, join, one_step
from gpuload.types import F64, I64, Bools

__all__ = ["PixelTransform", "RandomApply", "RandomChoice", "RandomOrder"]

_LAST = 127  # code
_KERNELS: dict[
    int, Callable[[Any, Any], Any]
] = {}  # by code; classes are numbered in each process as they are made


def kernel_of(code: int) -> Callable[[Any, Any], Any] | None:
    """The kernel of a step with this code; None where it is one of `Op`."""
    return _KERNELS.get(code)


class PixelTransform(ABC):
    """A transform of pixels made of `draw` and `kernel`, for `Augment(transforms=[…])`, as those of gpuload are.

        class Vignette(gpuload.transforms.PixelTransform):
            def draw(self, draws, height, width):
                return self.steps(draws(0))                 # how dark the corners of each image become

            @staticmethod
            def kernel(images, args): ...                   # uint8 (n, 3, height, width) to the same

    `draw` says in NumPy what is done to each image, as numbers, and calls `self.steps` with them: at most twelve of
    each image. Random numbers are `draws(k)`: float64 (N,) in [0, 1), number k of each image, a pure function of (seed,
    epoch, view, sample, k), k in 0..4095. `kernel` does it in torch, to images that have this step: in the threads that
    decode on a CPU, image by image, on a GPU at once. It combines with all other transforms, such as `RandomApply`. It
    must not move pixels, since boxes, masks and keypoints would not follow.

    A class has one kernel, which gets nothing but images and numbers; up to 64 classes.
    """

    _code: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        kernel = cls.__dict__.get("kernel")
        if kernel is None:  # that of its base class
            return
        if not isinstance(kernel, staticmethod):
            raise ArgumentError(
                f"{cls.__name__}.kernel: expected a static method, (images, args). Put @staticmethod above it"
            )
        code = FIRST_OWN + len(_KERNELS)
        if code > _LAST:
            raise ArgumentError(
                f"{cls.__name__}: there are {len(_KERNELS)} classes of PixelTransform already. Use one of them"
            )
        cls._code = code
        _KERNELS[code] = kernel.__func__

    @abstractmethod
    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """What `self.steps` makes of the numbers of N images.

        Args:
            draws: `draws(k)` gives float64 (N,) in [0, 1), random number k of each image.
            height: Of the images in pixels.
            width: Of the images in pixels.
        """

    @staticmethod
    @abstractmethod
    def kernel(images: Any, args: Any) -> Any:
        """New images, uint8 (n, 3, height, width).

        Args:
            images: uint8 (n, 3, height, width), contiguous; they stay as they are.
            args: float32 (n, 12) on the same device, the numbers that `steps` was given, then zeros.
        """

    def steps(self, *numbers: float | F64, where: Bools | None = None) -> Steps:
        """One step for each of N images.

        Args:
            numbers: Up to twelve; each (N,), at least the first.
            where: bool (N,), the images that it is done to; None: all.

        Raises:
            ArgumentError: no numbers, too many, or not one for each image.
        """
        sizes = {np.shape(values) for values in numbers}
        if where is not None:
            sizes.add(np.shape(where))
        sizes.discard(())  # of one number for all images
        if (
            not 1 <= len(numbers) <= ARGS
            or len(sizes) != 1
            or len(next(iter(sizes))) != 1
        ):
            raise ArgumentError(
                f"{type(self).__name__}.steps: {len(numbers)} numbers of shapes {sorted(sizes)}; expected one to "
                f"{ARGS}, each (N,), a number for each image"
            )
        (count,) = next(iter(sizes))
        steps = one_step(self._code, count, *numbers)
        return steps if where is None else steps.only(np.asarray(where, np.bool_))


def _as_pixel_transform(value: Any) -> Transform:
    """RandomErasing is none: it comes after normalisation."""
    if not isinstance(value, Transform) or isinstance(value, type | RandomErasing):
        raise TypeError
    return value


_TRANSFORMS = several(
    Rule("", _as_pixel_transform),
    "a list of at least one of gpuload's transforms, without RandomErasing",
)


@settings
class _OfOthers:
    """Base class of transforms made of others."""

    transforms: Annotated[Sequence[Transform], _TRANSFORMS]

    def _drawn(self, draws: Draws, height: int, width: int) -> list[Steps]:
        """The steps of each. Number 0 is for all; then come, in turn, those of each."""

        def draws_of(index: int) -> Draws:
            return lambda number: draws(1 + index + number * len(self.transforms))

        return [
            transform.draw(draws_of(index), height, width)
            for index, transform in enumerate(self.transforms)
        ]


@settings
class RandomApply(_OfOthers):
    """torchvision's RandomApply: all of several transforms, in their order, or none.

    Args:
        transforms: Of this module, without RandomErasing.
        p: Probability that they are applied.

    Raises:
        ArgumentError: no transforms, or others than gpuload's; a probability out of its range.
    """

    p: Annotated[float, PROBABILITY] = 0.5

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        chosen = draws(0) < self.p
        return join([steps.only(chosen) for steps in self._drawn(draws, height, width)])


@settings
class RandomChoice(_OfOthers):
    """torchvision's RandomChoice: one of several transforms.

    Args:
        transforms: As of `RandomApply`.
        p: Their probabilities, by default equal; they are divided by their sum.

    Raises:
        ArgumentError: as `RandomApply`; not one probability for each.
    """

    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        count = len(self.transforms)
        shares = f"a probability for each of {count}"
        check_fields(self, p=optional(several(number(0, LARGEST, ""), shares, count)))
        if self.p is not None and not sum(self.p) > 0:
            raise refuse("RandomChoice", "p", self.p, "at least one of them above 0")

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        chosen = choose(draws(0), len(self.transforms), self.p)
        return join(
            [
                steps.only(chosen == index)
                for index, steps in enumerate(self._drawn(draws, height, width))
            ]
        )


@settings
class RandomOrder(_OfOthers):
    """torchvision's RandomOrder: all of several transforms, in an order that is drawn.

    Args:
        transforms: As of `RandomApply`.

    Raises:
        ArgumentError: as `RandomApply`.
    """

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        steps = self._drawn(draws, height, width)
        order = _order(draws(0), len(steps))
        return join(
            [
                item.only(places == index)
                for places in order.T
                for index, item in enumerate(steps)
            ]
        )


def parts_of(transforms: Iterable[Any]) -> Iterator[Any]:
    """The transforms, and in place of those made of others what they are made of."""
    for transform in transforms:
        if isinstance(transform, _OfOthers):
            yield from parts_of(transform.transforms)
        else:
            yield transform


def _order(drawn: F64, count: int) -> I64:
    """int64 (N, count): an order of 0..count-1 for each number, which all orders share equally."""
    items = np.tile(np.arange(count), (len(drawn), 1))
    rows = np.arange(len(drawn))
    order = []
    for remaining in range(count, 0, -1):
        drawn = drawn * remaining
        place = np.minimum(drawn.astype(np.int64), remaining - 1)
        drawn = drawn - place
        order.append(items[rows, place])
        items = items[np.arange(remaining) != place[:, None]].reshape(
            len(rows), remaining - 1
        )
    return np.stack(order, axis=1)
