"""Random erasing: rectangles of the normalised image are overwritten."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from gpuload.checks import (
    LARGEST,
    PROBABILITY,
    ascending,
    choice,
    either,
    fitting,
    number,
    settings,
    several,
    whole,
)
from gpuload.draws import Draws, between
from gpuload.types import F32, F64, I32, U64, Bools

__all__ = ["RandomErasing"]

_ATTEMPTS = 10  # as in torchvision
_NUMBER = number(-LARGEST, LARGEST, "")
_SCALE = ascending(0, 1, "(low, high), two numbers with 0 <= low <= high <= 1")
_RATIO = ascending(
    1 / LARGEST, LARGEST, "(low, high), two numbers with 1e-6 <= low <= high <= 1e6"
)
_VALUE = either(
    "a number in -1e6..1e6, three of them (R, G, B), 'random' or 'color'",
    _NUMBER,
    several(_NUMBER, "", count=3),
    choice("random", "color"),
)


# Draw numbers: how many rectangles; the color of one; those of each rectangle.
_HOW_MANY = 24
_COLOR = 25
_EACH = 32


_COUNT = fitting(
    "(least, most), two whole numbers with 1 <= least <= most <= 100",
    several(whole(1, 100), "", count=2).read,
    lambda pair: pair[0] <= pair[1],
)


class ErasedRegions(NamedTuple):
    """What to erase in each of N images, and what to write there.

    Attributes:
        box: int32 (N, 4), top, left, height and width in pixels; height 0 where nothing is erased.
        value: float32 (N, 3), R, G and B, in units of the batch.
        noise: float32 (N, 3), standard deviation of the normal noise that is added for each pixel; or 0.
        key: uint64 (N,), of that noise.
    """

    box: I32
    value: F32
    noise: F32
    key: U64

    def in_levels(self, mean: Sequence[float], std: Sequence[float]) -> "ErasedRegions":
        """The same regions for a batch that is not normalised, in levels of 0..255.

        Args:
            mean: Of each channel, of pixels in 0..1: by it and `std` the values would be normalised.
            std: Of each channel, of pixels in 0..1.
        """
        scale = 255 * np.asarray(std, np.float32)
        shift = 255 * np.asarray(mean, np.float32)
        return self._replace(value=self.value * scale + shift, noise=self.noise * scale)


@settings
class RandomErasing:
    """torchvision's RandomErasing, after normalisation as in the training recipes of torchvision and timm.

    Args:
        p: Probability that an image loses a rectangle.
        scale: Range of its area, as a share of the image's.
        ratio: Range of its height / width, which is log-uniform.
        value: Of the normalised image: one number, three (R, G, B); "random", which is normal noise for each pixel, or
            "color", for each rectangle. The default, 0, is the mean color that the image was normalised with.
        count: Rectangles, at least and at most; of several, each has its part of the area, as in timm.

    Where none of ten attempts fits into the image, a rectangle is left out.

    Raises:
        ArgumentError: a value out of its range.
    """

    p: Annotated[float, PROBABILITY] = 0.5
    scale: Annotated[tuple[float, float], _SCALE] = (0.02, 0.33)
    ratio: Annotated[tuple[float, float], _RATIO] = (0.3, 3.3)
    value: Annotated[
        float | tuple[float, float, float] | Literal["random", "color"], _VALUE
    ] = 0
    count: Annotated[tuple[int, int], _COUNT] = (1, 1)

    defined_for: ClassVar[str] = "any"

    def draw(self, draws: Draws, height: int, width: int) -> tuple[ErasedRegions, ...]:
        """The regions of N images, one after another.

        Args:
            draws: Gives N random numbers a call.
            height: Of the images in pixels.
            width: Of the images in pixels.
        """
        low, high = self.count
        erased = draws(0) < self.p
        counts = np.ones(len(erased))
        if high > 1:
            counts = low + np.floor(draws(_HOW_MANY) * (high - low + 1))

        def rectangle(number: int) -> ErasedRegions:
            needed = erased & (number < counts)
            return self._rectangle(
                lambda k: draws(number * _EACH + k), needed, counts, height, width
            )

        return tuple(map(rectangle, range(high)))

    def _rectangle(
        self, draws: Draws, open_: Bools, counts: F64, height: int, width: int
    ) -> ErasedRegions:
        """One of each image.

        Args:
            open_: The images that still need one.
            counts: Of all rectangles of an image.
        """
        # Number 1, 2: position, y and x; 3: the noise. 4 + 2a, 5 + 2a: area and ratio of attempt a. 25 to 30: a color.
        box = self._boxes(draws, open_, counts, height, width)
        fixed = 0 if isinstance(self.value, str) else self.value
        value = np.full((len(open_), 3), fixed, np.float32)
        if self.value == "color":
            for channel in range(3):
                number = _COLOR + channel
                value[:, channel] = _normal(draws(number), draws(number + 3))
        noise = np.full_like(value, self.value == "random")
        key = (draws(3) * 2.0**53).astype(np.uint64)
        return ErasedRegions(box, value, noise, key)

    def _boxes(
        self, draws: Draws, open_: Bools, counts: F64, height: int, width: int
    ) -> I32:
        """int32 (N, 4), top, left, height and width of each; all 0 without one."""
        box = np.zeros((len(open_), 4), np.int32)
        ratio = np.log(self.ratio)
        for attempt in range(_ATTEMPTS):
            if not open_.any():
                break
            share = between(draws(4 + 2 * attempt), *self.scale)
            area = height * width * share / counts
            aspect = np.exp(between(draws(5 + 2 * attempt), *ratio))
            h = np.rint(np.sqrt(area * aspect))
            w = np.rint(np.sqrt(area / aspect))
            fits = open_ & (h < height) & (w < width)
            top = np.floor(draws(1) * (height - h + 1))
            left = np.floor(draws(2) * (width - w + 1))
            box[fits] = np.stack([top, left, h, w], axis=1)[fits]
            open_ &= ~fits
        return box


def _normal(first: F64, second: F64) -> F64:
    """Normal random numbers, of two uniform ones each (Box and Muller)."""
    radius = np.sqrt(-2 * np.log1p(-first))
    return np.asarray(radius * np.cos(2 * np.pi * second))
