"""Random changes of color and sharpness, with torchvision's names and arguments: one dataclass each."""

from itertools import permutations
from typing import Annotated, Any, ClassVar

import numpy as np

from gpuload import checks
from gpuload.checks import (
    LARGEST,
    POSITIVE,
    PROBABILITY,
    Rule,
    either,
    fitting,
    number,
    settings,
    whole,
)
from gpuload.draws import Draws, between
from gpuload.errors import ArgumentError
from gpuload.transforms.ops import Op
from gpuload.transforms.steps import Steps, join, no_steps, one_step

__all__ = [
    "ColorJitter",
    "GaussianBlur",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
]

Range = float | tuple[float, float]


def _one_or_two(expected: str, low: float, least: float, high: float) -> Rule[Any]:
    """A number in low..high, or two in least..high in ascending order."""
    return either(expected, number(low, high, ""), checks.ascending(least, high, ""))


_FACTOR = _one_or_two(
    "a number in 0..1e6, or (low, high) with 0 <= low <= high <= 1e6", 0, 0, LARGEST
)
_HUE = _one_or_two(
    "a number in 0..0.5, or (low, high) with -0.5 <= low <= high <= 0.5", 0, -0.5, 0.5
)
_PIXELS = "pixels above 0 and up to 1e6, or (low, high) with 0 < low <= high <= 1e6"
_SIGMA = _one_or_two(_PIXELS, POSITIVE, POSITIVE, LARGEST)
_ODD = fitting(
    "an odd number of pixels below 1,000",
    whole(1, 999).read,
    lambda pixels: pixels % 2 == 1,
)
_KERNEL = either(
    "an odd number of pixels below 1,000, or two (x, y)",
    _ODD,
    checks.several(_ODD, "", count=2),
)


@settings
class ColorJitter:
    """torchvision's ColorJitter: brightness, contrast, saturation and hue, in random order.

    Args:
        brightness: A factor, uniform in max(0, 1 - value)..1 + value, or in (low, high).
        contrast: A factor, uniform in max(0, 1 - value)..1 + value, or in (low, high).
        saturation: A factor, uniform in max(0, 1 - value)..1 + value, or in (low, high).
        hue: A shift, uniform in -value..value, or in (low, high); 0.5 is half a turn, the most in either direction.
        p: Probability that an image is changed at all (torchvision: RandomApply around it; SimCLR uses 0.8).

    Raises:
        ArgumentError: a range that is negative, in the wrong order, or beyond half a turn of hue.
    """

    brightness: Annotated[Range, _FACTOR] = 0
    contrast: Annotated[Range, _FACTOR] = 0
    saturation: Annotated[Range, _FACTOR] = 0
    hue: Annotated[Range, _HUE] = 0
    p: Annotated[float, PROBABILITY] = 1.0

    any_size: ClassVar[bool] = True

    @property
    def defined_for(self) -> str:
        """As `Transform`: brightness alone treats each channel by itself."""
        return "bytes" if {*self._ranges()} <= {Op.BRIGHTNESS} else "colours"

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        # Number 0: whether; 1: the order; 2: brightness, 3: contrast, 4: saturation, 5: hue.
        chosen = draws(0) < self.p
        changes = [
            one_step(op, len(chosen), between(draws(number), low, high))
            for op, (number, low, high) in self._ranges().items()
        ]
        if not changes:
            return no_steps(len(chosen))
        orders = np.array(list(permutations(range(len(changes)))))
        number = (draws(1) * len(orders)).astype(np.int64)
        rows = np.arange(len(chosen))[:, None]
        in_order = join(changes).chosen(rows, orders[number])
        return in_order.only(chosen)

    def _ranges(self) -> dict[Op, tuple[int, float, float]]:
        """The random number and (low, high) of each factor. One that changes nothing is left out, as in torchvision, so
        that it has no part in the order either."""
        ranges = {}
        for index, op in enumerate((Op.BRIGHTNESS, Op.CONTRAST, Op.SATURATION, Op.HUE)):
            value = getattr(self, op.name.lower())
            still = 0 if op is Op.HUE else 1
            if isinstance(value, float | int):
                value = (-value if op is Op.HUE else max(0, 1 - value)), still + value
            if not value[0] == value[1] == still:
                ranges[op] = 2 + index, *value
        return ranges


@settings
class GaussianBlur:
    """torchvision's GaussianBlur: the edge is reflected.

    Args:
        kernel_size: Of the kernel in pixels, odd; or (x, y).
        sigma: Of the kernel in pixels, uniform in (low, high); or one number.
        p: Probability that an image is blurred (torchvision: RandomApply around it; SimCLR uses 0.5).

    Raises:
        ArgumentError: an even kernel, a sigma that is not above 0; on drawing, an image smaller than half the kernel.
    """

    kernel_size: Annotated[int | tuple[int, int], _KERNEL]
    sigma: Annotated[Range, _SIGMA] = (0.1, 2.0)
    p: Annotated[float, PROBABILITY] = 1.0

    defined_for: ClassVar[str] = "bytes"

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        x, y = (
            (self.kernel_size,) * 2
            if isinstance(self.kernel_size, int)
            else self.kernel_size
        )
        if x // 2 >= width or y // 2 >= height:
            raise ArgumentError(
                f"GaussianBlur(kernel_size={self.kernel_size!r}): reflects {y // 2} × {x // 2} pixels at the edges, "
                f"and the image is {height} × {width}. Use a smaller kernel"
            )
        # Number 0: whether; 1: sigma.
        chosen = draws(0) < self.p
        if isinstance(self.sigma, float | int):
            sigma = np.full(len(chosen), self.sigma, np.float64)
        else:
            sigma = between(draws(1), *self.sigma)
        return one_step(Op.GAUSSIAN_BLUR, len(chosen), sigma, x, y).only(chosen)


class _Random:
    """One step, with probability `p`; its numbers are the other fields."""

    defined_for: ClassVar[str] = "bytes"
    any_size: ClassVar[bool] = True
    _op: ClassVar[Op]
    p: float

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        chosen = draws(0) < self.p
        numbers = [number for name, number in vars(self).items() if name != "p"]
        return one_step(self._op, len(chosen), *numbers).only(chosen)


@settings
class RandomGrayscale(_Random):
    """With probability `p`, all three channels become 0.2989 R + 0.587 G + 0.114 B.

    Args:
        p: Probability that an image is changed.
    """

    defined_for = "colours"
    _op = Op.GRAYSCALE
    p: Annotated[float, PROBABILITY] = 0.1


@settings
class RandomSolarize(_Random):
    """With probability `p`, levels from `threshold` on are inverted.

    Args:
        threshold: Level, 0..255.
        p: Probability that an image is changed.
    """

    _op = Op.SOLARIZE
    threshold: Annotated[float, number(0, 255, "a level in 0..255")] = 128
    p: Annotated[float, PROBABILITY] = 0.5


@settings
class RandomPosterize(_Random):
    """With probability `p`, only the highest `bits` of each level are kept.

    Args:
        bits: 0..8.
        p: Probability that an image is changed.
    """

    _op = Op.POSTERIZE
    bits: Annotated[int, whole(0, 8)]
    p: Annotated[float, PROBABILITY] = 0.5


@settings
class RandomAdjustSharpness(_Random):
    """With probability `p`, the sharpness is changed.

    Args:
        sharpness_factor: 0 blurs, 1 changes nothing, 2 doubles the sharpness.
        p: Probability that an image is changed.
    """

    _op = Op.SHARPNESS
    sharpness_factor: Annotated[float, number(0, LARGEST, "a number in 0..1e6")]
    p: Annotated[float, PROBABILITY] = 0.5


@settings
class RandomAutocontrast(_Random):
    """With probability `p`, each channel is stretched so that its levels reach from 0 to 255.

    Args:
        p: Probability that an image is changed.
    """

    _op = Op.AUTOCONTRAST
    p: Annotated[float, PROBABILITY] = 0.5


@settings
class RandomEqualize(_Random):
    """With probability `p`, the histogram of each channel is made even.

    Args:
        p: Probability that an image is changed.
    """

    _op = Op.EQUALIZE
    p: Annotated[float, PROBABILITY] = 0.5


@settings
class RandomInvert(_Random):
    """With probability `p`, each level becomes 255 minus it.

    Args:
        p: Probability that an image is changed.
    """

    _op = Op.INVERT
    p: Annotated[float, PROBABILITY] = 0.5
