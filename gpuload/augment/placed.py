"""Crops that pad: torchvision's RandomCrop, and those that scale images, keeping their aspect ratio."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, get_args

import numpy as np

from gpuload.augment.crops import Crops, Geometry, Images, Levels, PaddingMode, placed, unscaled
from gpuload.checks import (
    COUNT,
    FLAG,
    POSITIVE,
    PROBABILITY,
    SIDE,
    Rule,
    ascending,
    choice,
    either,
    optional,
    settings,
    several,
    whole,
)
from gpuload.errors import ArgumentError
from gpuload.types import F64, I64, HeightWidth

PADDING_MODES: tuple[PaddingMode, ...] = get_args(PaddingMode)  # compiled code knows them by their index
Padding = int | tuple[int, ...]

_LEVEL = whole(0, 255)
LEVELS: Rule[Levels] = either(
    "a level, a whole number in 0..255, or one for each channel", _LEVEL, several(_LEVEL, "", count=3)
)
_PIXELS = whole(0, 65_535)
_PADDING: Rule[Padding] = either(
    "pixels in 0..65,535: one number, (left and right, top and bottom) or (left, top, right, bottom)",
    _PIXELS,
    several(_PIXELS, "", count=2),
    several(_PIXELS, "", count=4),
)

MOST_PX = 65_535  # along a side, as of a size
_SHORTER = optional(either("pixels, a whole number from 1, or several such numbers", SIDE, several(SIDE, "")))
_SCALE = ascending(POSITIVE, 100, "(low, high) with 0 < low <= high <= 100")
_RANGE = optional(ascending(1, MOST_PX, "(low, high) with 1 <= low <= high <= 65,535, in pixels"))
_CANVAS = ascending(1, 100, "(low, high) with 1 <= low <= high <= 100, multiples of the image's sides")


@settings
class RandomCrop(Geometry):
    """torchvision's RandomCrop, as a `crop` of `Augment`: the image is padded, then a window of
    `size` is taken from it at a random position. Nothing is scaled.

    padding: pixels around the image: one number for all sides, (left and right, top and bottom) or (left, top, right,
        bottom).
    pad_if_needed: pads an image that is smaller than the crop, after `padding`, on both sides by what it lacks. Without
        it, such an image is an error.
    fill: level in 0..255 of all channels, or one for each of RGB, of padding_mode="constant"; of 16 bits and floats,
        that share of 65,535 or 1.
    padding_mode: what is in the padding. "constant": `fill`. "edge": the nearest pixel of the image. "reflect": the
        image mirrored at its outermost pixels, which are not repeated. "symmetric": mirrored at its edge, so that they
        are. Where the padding is wider than the image, it is mirrored again, as in numpy.pad.

    Raises:
        ArgumentError: a value out of its range; a `fill` with another padding_mode than "constant".
    """

    padding: Annotated[Padding | None, optional(_PADDING)] = None
    pad_if_needed: Annotated[bool, FLAG] = False
    fill: Annotated[Levels, LEVELS] = 0
    padding_mode: Annotated[PaddingMode, choice(*PADDING_MODES)] = "constant"

    numbers: ClassVar[int] = 2  # position in y and in x
    flip: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        if self.fill != 0 and self.padding_mode != "constant":
            raise ArgumentError(
                f"RandomCrop(fill={self.fill!r}, padding_mode={self.padding_mode!r}): only padding_mode='constant' has "
                "a fill. Leave out one of them"
            )

    @property
    def outside(self) -> tuple[Levels, PaddingMode]:
        """As `Geometry.outside`."""
        return self.fill, self.padding_mode

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        left, top, right, bottom = _four_sides(self.padding)
        size = np.array(images.size, np.float64)
        before = np.array([top, left], np.float64)
        padded = images.sources + before + np.array([bottom, right])
        missing = np.maximum(size - padded, 0)
        if missing.any() and not self.pad_if_needed:
            row = int(np.flatnonzero(missing.any(axis=1))[0])
            with_padding = f" with its padding ({padded[row, 1]:.0f} × {padded[row, 0]:.0f})" if any(before) else ""
            raise ArgumentError(
                f"RandomCrop: sample {images.samples[row]}, {images.widths[row]:.0f} × {images.heights[row]:.0f} "
                f"pixels, is{with_padding} smaller than the crop of {images.size[1]} × {images.size[0]}. Use "
                "RandomCrop(pad_if_needed=True)"
            )
        room = padded + 2 * missing - size
        return unscaled(np.floor(images.numbers.T * (room + 1)) - before - missing, images.size)


def _four_sides(padding: Padding | None) -> tuple[int, ...]:
    """Left, top, right, bottom."""
    sides = (padding or 0,) if isinstance(padding, int | None) else padding
    return sides * (4 // len(sides))


def source_of(at: I64, size: I64 | int, mode: PaddingMode) -> I64:
    """The pixel of a line of `size` pixels that is shown at each place, in 0..size-1; -1 where there is none, which
    gets the fill. Places outside of 0..size-1 are padding; with size they are broadcast.
    """
    if mode == "constant":
        return np.where((at >= 0) & (at < size), at, -1)
    if mode == "edge":
        return np.clip(at, 0, np.asarray(size) - 1)
    period = 2 * np.asarray(size) - (2 if mode == "reflect" else 0)
    within = at % np.maximum(period, 1)
    mirrored: I64 = np.where(within < size, within, period - within - (0 if mode == "reflect" else 1))
    return mirrored


def source_range(start: I64, stop: I64, size: I64, mode: PaddingMode) -> tuple[I64, I64]:
    """First and last + 1 of the pixels that are shown at places start..stop-1 of lines of `size`, or of some more; at
    least one.
    """
    low, high = start, stop
    if mode != "constant":
        low = np.where(stop > size, np.minimum(start, 2 * size - stop - 1), start)
        high = np.where(start < 0, np.maximum(stop, 1 - start), stop)
    low = np.clip(low, 0, size - 1)
    return low, np.maximum(np.clip(high, 0, size), low + 1)


# DALI has no operator for padding with the image's own pixels (edge, reflect, symmetric):
#
#     DALI ─► a window that holds all pixels the crop shows ─► gathered and flipped (`decode.device`) ─► the crop
#
# The windows of a batch have one size, the largest needed, so that they leave the graph as one array.


def covering(crops: Crops, size: HeightWidth, sources: I64, mode: PaddingMode) -> tuple[Crops, HeightWidth]:
    """Windows of one size that hold all pixels shown by crops of this size, and that size.

    sources: int64 (N, 2), height and width of the images.
    """
    low, high = _shown(crops, size, sources, mode)
    height, width = (high - low).max(axis=0, initial=1).tolist()
    return unscaled(low.astype(np.float64), (height, width)), (height, width)


def places_in_windows(crops: Crops, size: HeightWidth, sources: I64, mode: PaddingMode) -> list[I64]:
    """int64 (N, height) and (N, width): the position in its window of each row and column of the output."""
    (low, _), places = _shown(crops, size, sources, mode), []
    for axis, flipped in enumerate((crops.mirror_y, crops.mirror)):
        at = crops.start[:, axis, None].astype(np.int64) + np.arange(size[axis])
        shown = source_of(at, sources[:, axis, None], mode) - low[:, axis, None]
        places.append(np.where(flipped[:, None] != 0, shown[:, ::-1], shown))
    return places


def _shown(crops: Crops, size: HeightWidth, sources: I64, mode: PaddingMode) -> tuple[I64, I64]:
    start = crops.start.astype(np.int64)
    return source_range(start, start + size, sources, mode)


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

    numbers: ClassVar[int] = 1  # which of the sizes
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
            shorter = choices[np.floor(images.numbers[0] * len(choices)).astype(np.int64)]
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

    numbers: ClassVar[int] = 3  # position in y and in x, and the scale
    flip: ClassVar[float] = 0.5

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        size = np.array(images.size, np.float64)
        low, high = self.scale if self.shorter is None else self.shorter
        drawn = low + images.numbers[2] * (high - low)
        if self.shorter is None:
            fitting = (size / images.sources).min(axis=1)
            shape = np.maximum(np.trunc(images.sources * (fitting * drawn)[:, None]), 1)
        else:
            shorter = np.floor(drawn)
            shape = _upright(
                images, shorter, np.trunc(shorter * images.sources.max(axis=1) / images.sources.min(axis=1))
            )
        room = np.maximum(shape - size, 0)
        return placed(images, -np.floor(images.numbers[:2].T * (room + 1)), shape, size)


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

    numbers: ClassVar[int] = 4  # position in y and in x, how large, and whether
    flip: ClassVar[float] = 0.5

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        size = np.array(images.size, np.float64)
        times = self.side_range[0] + images.numbers[2] * (self.side_range[1] - self.side_range[0])
        shape = np.maximum(np.rint(size / np.where(images.numbers[3] < self.p, times, 1)[:, None]), 1)
        return placed(images, np.floor(images.numbers[:2].T * (size - shape + 1)), shape, size)
