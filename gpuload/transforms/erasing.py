"""Random erasing: a rectangle of the normalised image is overwritten."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.checks import LARGEST, PROBABILITY, ascending, check_fields, choice, either, number, several
from gpuload.draws import Draws
from gpuload.types import F32

__all__ = ["RandomErasing"]

_ATTEMPTS = 10  # as in torchvision
_NUMBER = number(-LARGEST, LARGEST, "")
_VALUE = either(
    "a number in -1e6..1e6, three of them (R, G, B), or 'random'",
    _NUMBER,
    several(_NUMBER, "", count=3),
    choice("random"),
)


class ErasedRegions(NamedTuple):
    """What to erase in each of N images, and what to write there.

    box: int32 (N, 4), top, left, height and width in pixels; height 0 where nothing is erased.
    value: float32 (N, 3), R, G and B, in units of the batch.
    noise: float32 (N, 3), standard deviation of the normal noise that is added for each pixel; or 0.
    key: uint64 (N,), of that noise.
    """

    box: npt.NDArray[np.int32]
    value: F32
    noise: F32
    key: npt.NDArray[np.uint64]

    def select(self, rows: npt.NDArray[np.integer] | slice) -> "ErasedRegions":
        """The regions of some of the images."""
        return ErasedRegions(self.box[rows], self.value[rows], self.noise[rows], self.key[rows])

    def in_levels(self, mean: Sequence[float], std: Sequence[float]) -> "ErasedRegions":
        """The same for a batch that is not normalised: levels of 0..255 for `mean` and `std` of pixels in 0..1."""
        scale, shift = 255 * np.asarray(std, np.float32), 255 * np.asarray(mean, np.float32)
        return self._replace(value=self.value * scale + shift, noise=self.noise * scale)


@dataclass(frozen=True)
class RandomErasing:
    """torchvision's RandomErasing, after normalisation as in the training recipes of torchvision and timm.

    p: probability that an image loses a rectangle.
    scale: range of its area, as a share of the image's.
    ratio: range of its height / width, which is log-uniform.
    value: of the normalised image: one number, three (R, G, B), or "random", which is normal noise for each pixel. The
        default, 0, is the mean color that the image was normalised with.

    Where none of ten attempts fits into the image, nothing is erased.

    Raises:
        ArgumentError: a value out of its range.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, float, float] | Literal["random"] = 0

    def __post_init__(self) -> None:
        check_fields(
            self,
            p=PROBABILITY,
            scale=ascending(0, 1, "(low, high), two numbers with 0 <= low <= high <= 1"),
            ratio=ascending(1 / LARGEST, LARGEST, "(low, high), two numbers with 1e-6 <= low <= high <= 1e6"),
            value=_VALUE,
        )

    def draw(self, draws: Draws, height: int, width: int) -> ErasedRegions:
        """The regions of N images of `height` × `width` pixels. draws: gives N random numbers a call."""
        # Number 0: whether; 1, 2: position, y and x; 3: the noise. 4 + 2a, 5 + 2a: area and ratio of attempt a.
        open_ = draws(0) < self.p  # the images that still need a rectangle
        box = np.zeros((len(open_), 4), np.int32)
        low, high = np.log(self.ratio)
        for attempt in range(_ATTEMPTS):
            if not open_.any():
                break
            area = height * width * (self.scale[0] + draws(4 + 2 * attempt) * (self.scale[1] - self.scale[0]))
            aspect = np.exp(low + draws(5 + 2 * attempt) * (high - low))
            h, w = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
            fits = open_ & (h < height) & (w < width)
            top, left = np.floor(draws(1) * (height - h + 1)), np.floor(draws(2) * (width - w + 1))
            box[fits] = np.stack([top, left, h, w], axis=1)[fits]
            open_ &= ~fits
        random = self.value == "random"
        value = np.full((len(open_), 3), 0 if isinstance(self.value, str) else self.value, np.float32)
        noise = np.full((len(open_), 3), float(random), np.float32)
        return ErasedRegions(box, value, noise, (draws(3) * 2.0**53).astype(np.uint64))
