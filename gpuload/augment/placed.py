"""Crops that scale images, keeping their aspect ratio, and pad them: to a size of their own, or of the batch."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np

from gpuload.augment.crops import Crops, Geometry, Images, Levels, PaddingMode, placed
from gpuload.augment.padding import LEVELS
from gpuload.checks import COUNT, POSITIVE, PROBABILITY, SIDE, ascending, either, optional, settings, several
from gpuload.errors import ArgumentError
from gpuload.types import F64

MOST_PX = 65_535  # along a side, as of a size
_SHORTER = optional(either("pixels, a whole number from 1, or several such numbers", SIDE, several(SIDE, "")))
_SCALE = ascending(POSITIVE, 100, "(low, high) with 0 < low <= high <= 100")
_RANGE = optional(ascending(1, MOST_PX, "(low, high) with 1 <= low <= high <= 65,535, in pixels"))
_CANVAS = ascending(1, 100, "(low, high) with 1 <= low <= high <= 100, multiples of the image's sides")


class _Padded(Geometry):
    """Of those that pad. fill: see `Augment.crop`."""

    fill: Levels
    places: ClassVar[bool] = True

    @property
    def outside(self) -> tuple[Levels, PaddingMode]:
        """As `Geometry.outside`."""
        return self.fill, "constant"


@settings
class Resize(_Padded):
    """Whole images of their own sizes, as a `crop` of `Augment(None, …)`: torchvision's Resize(size, max_size).

    size: shorter side in pixels, to which each image is resized; of several, each image gets one at random, as
        torchvision's RandomShortestSize does it, to within a pixel. None: the size stays, or with a max_size is such
        that the longer side is max_size.
    max_size: longer side in pixels, at most: where it would be longer, the image is made smaller.
    pad_to_multiple_of: None: images come as a list, each of its own size. A number: they come as one array, padded on
        the right and at the bottom to the largest height and the largest width of the batch, rounded up to a multiple
        of it.
    fill: level 0..255 of the padding, or one for each of RGB; of 16 bits and floats, that share of 65,535 or 1.

    Raises:
        ArgumentError: a value out of its range. While reading: an image would have a side of more than 65,535 pixels.
    """

    size: Annotated[int | Sequence[int] | None, _SHORTER] = None
    max_size: Annotated[int | None, optional(SIDE)] = None
    pad_to_multiple_of: Annotated[int | None, optional(COUNT)] = None
    fill: Annotated[Levels, LEVELS] = 0

    draws: ClassVar[int] = 1  # which of the sizes
    own_sizes: ClassVar[bool] = True

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        sources = images.sources
        if self.size is None and self.max_size is None:
            resized = sources
        else:
            resized = self._resized(images, sources.min(axis=1), sources.max(axis=1))
        if len(large := np.flatnonzero(resized.max(axis=1, initial=0) > MOST_PX)):
            row = int(large[0])
            raise ArgumentError(
                f"Resize(size={self.size!r}): sample {images.samples[row]}, {images.widths[row]:.0f} × "
                f"{images.heights[row]:.0f} pixels, would have a side of {resized[row].max():,.0f}. Use max_size"
            )
        crops = placed(images, np.zeros(2), resized, resized)
        return crops._replace(sizes=resized.astype(np.int64), padded=self.pad_to_multiple_of is not None)

    def _resized(self, images: Images, short: F64, long: F64) -> F64:
        """float64 (N, 2): height and width, by torchvision's arithmetic. short, long: the sides of each image."""
        if self.size is None:
            assert self.max_size is not None
            shorter, longer = np.trunc(self.max_size * short / long), np.full(len(long), float(self.max_size))
        else:
            choices = np.array(self.size, np.float64).reshape(-1)
            shorter = choices[np.floor(images.drawn[0] * len(choices)).astype(np.int64)]
            longer = np.trunc(shorter * long / short)
            if self.max_size is not None:
                over = longer > self.max_size
                shorter[over] = np.trunc(self.max_size * shorter[over] / longer[over])
                longer[over] = self.max_size
        return _upright(images, shorter, longer)


def _upright(images: Images, shorter: F64, longer: F64) -> F64:
    """float64 (N, 2): height and width of images with these sides, at least 1."""
    is_upright = images.heights >= images.widths
    sides = np.where(is_upright, longer, shorter), np.where(is_upright, shorter, longer)
    shape: F64 = np.maximum(np.stack(sides, axis=1), 1)
    return shape


@settings
class Letterbox(_Padded):
    """As a `crop` of `Augment`: the image is scaled, without changing its aspect ratio, until it just fits into the
    output, and padded around its centre.

    fill: level 0..255 of the padding, or one for each of RGB; of 16 bits and floats, that share of 65,535 or 1.
    """

    fill: Annotated[Levels, LEVELS] = 114

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        size = np.array(images.size, np.float64)
        shape = np.rint(images.sources * (size / images.sources).min(axis=1, keepdims=True))
        shape = np.clip(shape, 1, size)
        return placed(images, (size - shape) // 2, shape, size)


@settings
class ScaleJitter(_Padded):
    """Large-scale jittering, as a `crop` of `Augment`: torchvision's ScaleJitter, then FixedSizeCrop.

    The image is scaled, without changing its aspect ratio, to a random share of what just fits into the output. Then a
    window at a random position is taken of it, which is padded on the right and at the bottom.

    scale: range of that share. shorter: instead, (low, high): so many pixels of the shorter side, high left out, as
        torchvision's RandomResize does it.
    fill: level 0..255 of the padding, or one for each of RGB; of 16 bits and floats, that share of 65,535 or 1.
    """

    scale: Annotated[tuple[float, float], _SCALE] = (0.1, 2.0)
    fill: Annotated[Levels, LEVELS] = 0
    shorter: Annotated[tuple[float, float] | None, _RANGE] = None

    draws: ClassVar[int] = 3  # position in y and in x, and the scale
    flip: ClassVar[float] = 0.5

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        size = np.array(images.size, np.float64)
        low, high = self.scale if self.shorter is None else self.shorter
        drawn = low + images.drawn[2] * (high - low)
        if self.shorter is None:
            fitting = (size / images.sources).min(axis=1)
            shape = np.maximum(np.trunc(images.sources * (fitting * drawn)[:, None]), 1)
        else:
            shorter = np.floor(drawn)
            shape = _upright(
                images, shorter, np.trunc(shorter * images.sources.max(axis=1) / images.sources.min(axis=1))
            )
        room = np.maximum(shape - size, 0)
        return placed(images, -np.floor(images.drawn[:2].T * (room + 1)), shape, size)


@settings
class ZoomOut(_Padded):
    """torchvision's RandomZoomOut, as a `crop` of `Augment`: the image lies at a random position of a larger canvas,
    which is stretched to the output.

    side_range: how many times as high and as wide the canvas is. p: probability of a larger canvas; of the others, the
        whole image is stretched to the output.
    fill: level 0..255 of the padding, or one for each of RGB; of 16 bits and floats, that share of 65,535 or 1.
    """

    side_range: Annotated[tuple[float, float], _CANVAS] = (1.0, 4.0)
    p: Annotated[float, PROBABILITY] = 0.5
    fill: Annotated[Levels, LEVELS] = 0

    draws: ClassVar[int] = 4  # position in y and in x, how large, and whether
    flip: ClassVar[float] = 0.5

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        size = np.array(images.size, np.float64)
        times = self.side_range[0] + images.drawn[2] * (self.side_range[1] - self.side_range[0])
        shape = np.maximum(np.rint(size / np.where(images.drawn[3] < self.p, times, 1)[:, None]), 1)
        return placed(images, np.floor(images.drawn[:2].T * (size - shape + 1)), shape, size)
