"""The part of each image that a batch shows: the crops of `Augment`, drawn for a whole batch in NumPy.

One class for each crop, with its own arguments alone. Some scale nothing, some take a region and stretch it, and some
place the scaled image in the output, with padding around it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from gpuload import checks
from gpuload.checks import (
    COUNT,
    FLAG,
    POSITIVE,
    SIDE,
    SIDES,
    Rule,
    ascending,
    either,
    optional,
    settings,
    several,
)
from gpuload.draws import between
from gpuload.errors import ArgumentError
from gpuload.fields.motion import Crops as Crops  # fields move with them
from gpuload.order.budget import MOST_PX, MOST_TOKENS, PatchGrid
from gpuload.types import F64, I64, Bools, HeightWidth

__all__ = [
    "CenterCrop",
    "Cover",
    "Letterbox",
    "PadOrCrop",
    "Patches",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
]
__all__ += ["ScaleJitter", "Stretch", "ZoomOut"]

PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
# Compiled code knows them by their index.
PADDING_MODES: tuple[PaddingMode, ...] = get_args(PaddingMode)
Levels = int | tuple[int, ...]  # of all channels, or of each
Padding = int | tuple[int, ...]

_ATTEMPTS = 10  # as in torchvision's RandomResizedCrop

SHARES = ascending(
    POSITIVE, 1, "(low, high) with 0 < low <= high <= 1, shares of the image's area"
)
_RATIOS = ascending(
    1 / checks.LARGEST,
    checks.LARGEST,
    "(low, high) with 1e-6 <= low <= high <= 1e6, of width / height",
)
_FRACTION = checks.number(POSITIVE, 1, "a share of the sides, above 0 and at most 1")
_BOX = several(COUNT, "(height, width) in pixels", count=2)
_LEVEL = checks.whole(0, 255, "a level, a whole number in 0..255")
LEVELS: Rule[Levels] = either(
    f"{_LEVEL.expected}, or one for each channel", _LEVEL, several(_LEVEL, "", count=3)
)
_PIXELS = checks.whole(0, MOST_PX)
_PADDING: Rule[Padding] = either(
    "pixels in 0..65,535: one number, (left and right, top and bottom) or (left, top, right, bottom)",
    _PIXELS,
    several(_PIXELS, "", count=2),
    several(_PIXELS, "", count=4),
)
_SHORTER = optional(
    either(
        "pixels, a whole number from 1, or several such numbers",
        SIDE,
        several(SIDE, ""),
    )
)
_SCALE = ascending(POSITIVE, 100, "(low, high) with 0 < low <= high <= 100")
_RANGE = optional(
    ascending(1, MOST_PX, "(low, high) with 1 <= low <= high <= 65,535, in pixels")
)
_CANVAS = ascending(
    1, 100, "(low, high) with 1 <= low <= high <= 100, multiples of the image's sides"
)


class Images(NamedTuple):
    """N images to crop, and the random numbers for them.

    Attributes:
        samples: int64 (N,), their numbers, for messages.
        widths: float64 (N,), of the images in pixels.
        heights: float64 (N,), of the images in pixels.
        size: (height, width) of the output in pixels.
        reach: Of the resize filter, in output pixels: 1 for a bilinear one, 2 for a bicubic one.
        numbers: float64 (`Geometry.numbers`, N) in [0, 1), the numbers 1, 2, … of each image's crop.
    """

    samples: I64
    widths: F64
    heights: F64
    size: tuple[int, int]
    reach: int
    numbers: F64

    @property
    def sources(self) -> F64:
        """(N, 2): height and width of each."""
        return np.stack([self.heights, self.widths], axis=1)


class Geometry(ABC):
    """Base class of crops: which part of each image becomes the output.

    Attributes:
        numbers: Random numbers that every image needs.
        flip: Probability of a horizontal flip, where `Augment` says none.
        places: Whether images are `placed`, so that they may be scaled and padded.
        own_sizes: Whether each output has its own size, which then depends on the image.
        fill: The level of what a crop shows beyond its image; None: no crop extends beyond it.
        padding_mode: What a crop shows beyond its image.
    """

    numbers: ClassVar[int] = 0
    flip: ClassVar[float] = 0.0
    places: ClassVar[bool] = False
    own_sizes: ClassVar[bool] = False
    fill: Any = None
    padding_mode: Any = "constant"

    @abstractmethod
    def draw(self, images: Images) -> Crops:
        """The crops of N images, without flips.

        Raises:
            ArgumentError: the crop does not fit the output size, or an image.
        """


def whole_images(widths: F64, heights: F64) -> Crops:
    """Each image as a whole."""
    sources = np.stack([heights, widths], axis=1)
    return windows(np.zeros(sources.shape), sources)


def unscaled(start: F64, size: tuple[int, int]) -> Crops:
    """Windows as large as the output.

    Args:
        start: (N, 2), the upper left corner of each window in pixels of the image.
        size: (height, width) of the output in pixels.
    """
    return windows(start, np.broadcast_to(np.array(size, np.float64), start.shape))


def windows(start: F64, shape: F64) -> Crops:
    """Crops whose region is the whole window, so that the filter uses nothing beyond it. Both are (N, 2)."""
    return _crops(start, shape, np.zeros(shape.shape), shape)


def regions(images: Images, step: F64, first: F64, last: F64) -> Crops:
    """Crops of regions whose edges fall between pixels.

    The antialiasing filter uses pixels beyond them, as it does where the whole image is resized first. So the decoded
    window is larger by the filter's support, as far as the image goes: `Images.reach` output pixels, or as many source
    pixels where the image is enlarged.

    Args:
        images: The sizes of the N images, and of the output.
        step: (N, 2), source pixels for each output pixel.
        first: (N, 2), the upper left corner of the region in source pixels, which may lie beyond the image.
        last: (N, 2), its lower right corner, which may, too.
    """
    support = images.reach * np.maximum(step, 1)
    low = np.maximum(np.floor(np.maximum(first, 0) - support), 0)
    high = np.minimum(
        np.ceil(np.minimum(last, images.sources) + support), images.sources
    )
    return _crops(low, high - low, first - low, last - low)


def placed(images: Images, corner: F64, shape: F64, size: F64) -> Crops:
    """Crops that show each image scaled, with its upper left corner somewhere in the output.

    All arrays are of whole numbers (N, 2), or (2,) for all images. What the image does not cover is padding; it covers
    at least a pixel.

    Args:
        images: The sizes of the N images.
        corner: The place of the image's upper left corner in the output, in pixels, which may lie beyond it.
        shape: Height and width in pixels to which the whole image is scaled.
        size: Height and width of the output in pixels.
    """
    step = images.sources / shape
    return regions(images, step, -corner * step, (size - corner) * step)


def _crops(start: F64, shape: F64, roi_start: F64, roi_end: F64) -> Crops:
    unflipped = np.zeros(len(start), np.int32)
    return Crops(
        start.astype(np.int32, order="C"),
        shape.astype(np.int32, order="C"),
        roi_start.astype(np.float32, order="C"),
        roi_end.astype(np.float32, order="C"),
        unflipped,
        unflipped,
    )


# ---- crops that stretch a region, or scale nothing


@settings
class RandomResizedCrop(Geometry):
    """torchvision's RandomResizedCrop, as a `crop` of `Augment`: a random window, stretched to the size.

    Ten attempts to draw an area and a (log-uniform) ratio whose window fits into the image; where none does, the
    largest central window whose ratio is in range.

    Args:
        scale: Range of the window's area, as a share of the image's.
        ratio: Range of the window's width / height.
    """

    scale: Annotated[tuple[float, float], SHARES] = (0.08, 1.0)
    ratio: Annotated[tuple[float, float], _RATIOS] = (3 / 4, 4 / 3)

    # Position in y and in x; area and ratio of each attempt.
    numbers: ClassVar[int] = 2 + 2 * _ATTEMPTS
    flip: ClassVar[float] = 0.5

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        width = images.widths
        height = images.heights
        sources = np.stack([height, width])
        shapes = self._attempts(images)
        inside = (shapes > 0) & (shapes <= sources[:, None])
        fitting: Bools = np.asarray(inside.all(axis=0))
        first = fitting.argmax(axis=0)
        rows = np.arange(len(width))
        fits = fitting[first, rows]
        shape = np.where(
            fits, shapes[:, first, rows], self._central_window(width, height)
        )
        room = sources - shape
        start = np.where(fits, np.floor(images.numbers[:2] * (room + 1)), room // 2)
        return windows(start.T, shape.T)

    def _attempts(self, images: Images) -> F64:
        """float64 (2, attempts, N): height and width of the windows that are drawn for each image."""
        area_draws = images.numbers[2::2]
        aspect_draws = images.numbers[3::2]
        share = between(area_draws, *self.scale)
        area = images.widths * images.heights * share
        aspect = np.exp(between(aspect_draws, *np.log(self.ratio)))
        shapes: F64 = np.rint(np.sqrt(np.stack([area / aspect, area * aspect])))
        return shapes

    def _central_window(self, width: F64, height: F64) -> list[F64]:
        """Height and width of the largest window whose ratio is in range."""
        clipped = np.clip(width / height, *self.ratio)
        return [
            np.minimum(height, np.rint(width / clipped)),
            np.minimum(width, np.rint(height * clipped)),
        ]


@settings
class CenterCrop(Geometry):
    """The centre of each image, as a `crop` of `Augment`: torchvision's Resize(resize), then CenterCrop(size).

    Args:
        resize: Shorter side in pixels to which the image is resized first; by default size * 256 / 224. Or (height,
            width), to which it is stretched.
        fraction: Instead of a resize, the share of each side that is kept, and stretched to the size (TensorFlow's
            `tf.image.central_crop`).
        cover: Instead of a resize, the (height, width) that the image is scaled to cover, its aspect ratio kept.

    Raises:
        ArgumentError: a value out of its range, or two of them. From `Augment`: a resize smaller than the size.
    """

    resize: Annotated[int | tuple[int, int] | None, optional(SIDES)] = None
    fraction: Annotated[float | None, optional(_FRACTION)] = None
    cover: Annotated[tuple[int, int] | None, optional(_BOX)] = None

    def __post_init__(self) -> None:
        if [self.fraction, self.resize, self.cover].count(None) < 2:
            raise ArgumentError(
                "CenterCrop(resize, fraction, cover): each says what to crop; give one of them"
            )

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        source = images.sources
        target = np.array(images.size, np.float64)
        if self.fraction is not None:
            corner = np.trunc((source - source * self.fraction) / 2)
            return windows(corner, source - 2 * corner)
        resize = self.cover or self._resize_px(images.size)
        if self.cover is not None:
            resized = np.rint(source / (source / resize).min(axis=1, keepdims=True))
        elif isinstance(resize, int):
            resized = np.trunc(resize * source / source.min(axis=1, keepdims=True))
        else:
            resized = np.broadcast_to(np.array(resize, np.float64), source.shape)
        step = source / resized
        start = np.rint((resized - target) / 2) * step
        return regions(images, step, start, start + target * step)

    def _resize_px(self, size: HeightWidth) -> int | tuple[int, int]:
        resize = round(max(size) * 256 / 224) if self.resize is None else self.resize
        height, width = (resize, resize) if isinstance(resize, int) else resize
        if height < size[0] or width < size[1]:
            raise ArgumentError(
                f"CenterCrop(resize={resize!r}): must be at least size, {size[0]} × {size[1]}"
            )
        return resize


@settings
class Cover(Geometry):
    """As a `crop` of `Augment`: the image is scaled, without changing its aspect ratio, until it just covers the
    output, and cut to it.

    Args:
        random: At a random position, else in the centre.
        resize: Scaled further, until its shorter side has so many pixels: torchvision's Resize(resize), then
            RandomCrop(size).

    Raises:
        ArgumentError: a value out of its range. From `Augment`: a resize smaller than the size.
    """

    random: Annotated[bool, FLAG] = True
    resize: Annotated[int | None, optional(COUNT)] = None

    numbers: ClassVar[int] = 2  # position in y and in x

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        source = images.sources
        target = np.array(images.size, np.float64)
        if self.resize is None:
            resized = np.rint(source * (target / source).max(axis=1, keepdims=True))
        elif self.resize < max(images.size):
            raise ArgumentError(
                f"Cover(resize={self.resize}): must be at least size, {max(images.size)}"
            )
        else:
            resized = np.trunc(self.resize * source / source.min(axis=1, keepdims=True))
        room = resized - target
        offset = np.floor(images.numbers.T * (room + 1)) if self.random else room // 2
        return placed(images, -offset, resized, target)


@settings
class Stretch(Geometry):
    """As a `crop` of `Augment`: the whole image, stretched to the size."""

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        return whole_images(images.widths, images.heights)


@settings
class PadOrCrop(Geometry):
    """TensorFlow's `tf.image.resize_with_crop_or_pad`, as a `crop` of `Augment`: nothing is scaled; image and output
    have the same centre.

    A larger image loses ⌊difference / 2⌋ pixels at its top and left, a smaller one gets as much padding there.

    Args:
        fill: Level 0..255 of all channels of the padding; of 16 bits and floats, that share of 65,535 or 1.
    """

    fill: Annotated[int, _LEVEL] = 0

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        surplus = images.sources - np.array(images.size, np.float64)
        return unscaled(np.sign(surplus) * np.floor(np.abs(surplus) / 2), images.size)


@settings
class RandomCrop(Geometry):
    """torchvision's RandomCrop, as a `crop` of `Augment`: the image is padded, then a window of
    `size` is taken from it at a random position. Nothing is scaled.

    Args:
        padding: Pixels around the image: one number for all sides, (left and right, top and bottom) or (left, top,
            right, bottom).
        pad_if_needed: Pads an image that is smaller than the crop, after `padding`, on both sides by what it lacks.
            Without it, such an image is an error.
        fill: Level in 0..255 of all channels, or one for each of RGB, of padding_mode="constant"; of 16 bits and
            floats, that share of 65,535 or 1.
        padding_mode: What is in the padding. "constant": `fill`. "edge": the nearest pixel of the image. "reflect": the
            image mirrored at its outermost pixels, which are not repeated. "symmetric": mirrored at its edge, so that
            they are. Where the padding is wider than the image, it is mirrored again, as in numpy.pad.

    Raises:
        ArgumentError: a value out of its range; a `fill` with another padding_mode than "constant".
    """

    padding: Annotated[Padding | None, optional(_PADDING)] = None
    pad_if_needed: Annotated[bool, FLAG] = False
    fill: Annotated[Levels, LEVELS] = 0
    padding_mode: Annotated[PaddingMode, checks.choice(*PADDING_MODES)] = "constant"

    numbers: ClassVar[int] = 2  # position in y and in x
    flip: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        if self.fill != 0 and self.padding_mode != "constant":
            raise ArgumentError(
                f"RandomCrop(fill={self.fill!r}, padding_mode={self.padding_mode!r}): only padding_mode='constant' has "
                "a fill. Leave out one of them"
            )

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        sides = (
            (self.padding or 0,)
            if isinstance(self.padding, int | None)
            else self.padding
        )
        left, top, right, bottom = sides * (4 // len(sides))
        size = np.array(images.size, np.float64)
        before = np.array([top, left], np.float64)
        padded = images.sources + before + np.array([bottom, right])
        missing = np.maximum(size - padded, 0)
        if missing.any() and not self.pad_if_needed:
            row = int(np.flatnonzero(missing.any(axis=1))[0])
            raise ArgumentError(
                f"RandomCrop: sample {images.samples[row]}, {images.widths[row]:.0f} × {images.heights[row]:.0f} "
                f"pixels, is smaller with its padding than the crop of {images.size[1]} × {images.size[0]}. Use "
                "RandomCrop(pad_if_needed=True)"
            )
        room = padded + 2 * missing - size
        return unscaled(
            np.floor(images.numbers.T * (room + 1)) - before - missing, images.size
        )


# ---- crops that scale and pad


@settings
class Resize(Geometry):
    """Whole images of their own sizes, as a `crop` of `Augment(None, …)`: torchvision's Resize(size, max_size).

    Args:
        size: Shorter side in pixels, to which each image is resized; of several, each image gets one at random, as
            torchvision's RandomShortestSize does it, to within a pixel. None: the size stays, or with a max_size is
            such that the longer side is max_size.
        max_size: Longer side in pixels, at most: where it would be longer, the image is made smaller.
        pad_to_multiple_of: None: images come as a list, each of its own size. A number: they come as one array, padded
            on the right and at the bottom to the largest height and the largest width of the batch, rounded up to a
            multiple of it.
        fill: Level 0..255 of the padding, or one for each of RGB; of 16 bits and floats, that share of 65,535 or 1.

    Raises:
        ArgumentError: a value out of its range. While reading: an image would have a side of more than 65,535 pixels.
    """

    size: Annotated[int | Sequence[int] | None, _SHORTER] = None
    max_size: Annotated[int | None, optional(SIDE)] = None
    pad_to_multiple_of: Annotated[int | None, optional(COUNT)] = None
    fill: Annotated[Levels, LEVELS] = 0

    places: ClassVar[bool] = True
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
        return crops._replace(
            sizes=resized.astype(np.int64), padded=self.pad_to_multiple_of is not None
        )

    def _resized(self, images: Images, short: F64, long: F64) -> F64:
        """float64 (N, 2): height and width, by torchvision's arithmetic.

        Args:
            short: float64 (N,), the shorter side of each image.
            long: float64 (N,), the longer side of each image.
        """
        if self.size is None:
            assert self.max_size is not None
            shorter = np.trunc(self.max_size * short / long)
            longer = np.full(len(long), float(self.max_size))
        else:
            choices = np.array(self.size, np.float64).reshape(-1)
            shorter = choices[
                np.floor(images.numbers[0] * len(choices)).astype(np.int64)
            ]
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
class Patches(Geometry):
    """Whole images of their own sizes as patches, as a `crop` of `Augment(None, …)`: NaFlex's and NaViT's input.

    Both sides of an image are stretched to the nearest number of patches. An image of more patches than `max_tokens` is
    made smaller, without changing its aspect ratio further. A batch's images are a dict, as timm's NaFlexVit takes it:
    "patches": (N, L, patch * patch * C), row by row from the upper left, the C channels of a pixel together.
    "patch_coord": int64 (N, L, 2), row and column of each.
    "patch_valid": bool (N, L), False for the padding up to L, the patches of the largest image in the batch.

    Args:
        patch: Side of a patch in pixels.
        max_tokens: Patches of an image, at most.

    Raises:
        ArgumentError: A value out of its range.
    """

    patch: Annotated[int, checks.whole(1, 1024)] = 16
    max_tokens: Annotated[int, checks.whole(1, MOST_TOKENS)] = 1024

    places: ClassVar[bool] = True
    own_sizes: ClassVar[bool] = True

    @property
    def grid(self) -> PatchGrid:
        """How many patches images have."""
        return PatchGrid(self.patch, self.max_tokens)

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        shapes = self.grid.shapes(images.heights, images.widths) * self.patch
        pixels = shapes.astype(np.float64)
        crops = placed(images, np.zeros(2), pixels, pixels)
        return crops._replace(sizes=shapes, padded=True)


@settings
class Letterbox(Geometry):
    """As a `crop` of `Augment`: the image is scaled, without changing its aspect ratio, until it just fits into the
    output, and padded around its centre.

    Args:
        fill: Level 0..255 of the padding, or one for each of RGB; of 16 bits and floats, that share of 65,535 or 1.
    """

    fill: Annotated[Levels, LEVELS] = 114

    places: ClassVar[bool] = True

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        size = np.array(images.size, np.float64)
        shape = np.rint(
            images.sources * (size / images.sources).min(axis=1, keepdims=True)
        )
        shape = np.clip(shape, 1, size)
        return placed(images, (size - shape) // 2, shape, size)


@settings
class ScaleJitter(Geometry):
    """Large-scale jittering, as a `crop` of `Augment`: torchvision's ScaleJitter, then FixedSizeCrop.

    The image is scaled, without changing its aspect ratio, to a random share of what just fits into the output. Then a
    window at a random position is taken of it, which is padded on the right and at the bottom.

    Args:
        scale: Range of that share.
        fill: Level 0..255 of the padding, or one for each of RGB; of 16 bits and floats, that share of 65,535 or 1.
        shorter: Instead, (low, high): so many pixels of the shorter side, high left out, as torchvision's RandomResize
            does it.
    """

    scale: Annotated[tuple[float, float], _SCALE] = (0.1, 2.0)
    fill: Annotated[Levels, LEVELS] = 0
    shorter: Annotated[tuple[float, float] | None, _RANGE] = None

    places: ClassVar[bool] = True
    numbers: ClassVar[int] = 3  # position in y and in x, and the scale
    flip: ClassVar[float] = 0.5

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        size = np.array(images.size, np.float64)
        low, high = self.scale if self.shorter is None else self.shorter
        drawn = between(images.numbers[2], low, high)
        if self.shorter is None:
            fitting = (size / images.sources).min(axis=1)
            shape = np.maximum(np.trunc(images.sources * (fitting * drawn)[:, None]), 1)
        else:
            shorter = np.floor(drawn)
            shape = _upright(
                images,
                shorter,
                np.trunc(
                    shorter * images.sources.max(axis=1) / images.sources.min(axis=1)
                ),
            )
        room = np.maximum(shape - size, 0)
        return placed(images, -np.floor(images.numbers[:2].T * (room + 1)), shape, size)


@settings
class ZoomOut(Geometry):
    """torchvision's RandomZoomOut, as a `crop` of `Augment`: the image lies at a random position of a larger canvas,
    which is stretched to the output.

    Args:
        side_range: How many times as high and as wide the canvas is.
        p: Probability of a larger canvas; of the others, the whole image is stretched to the output.
        fill: Level 0..255 of the padding, or one for each of RGB; of 16 bits and floats, that share of 65,535 or 1.
    """

    side_range: Annotated[tuple[float, float], _CANVAS] = (1.0, 4.0)
    p: Annotated[float, checks.PROBABILITY] = 0.5
    fill: Annotated[Levels, LEVELS] = 0

    places: ClassVar[bool] = True
    numbers: ClassVar[int] = 4  # position in y and in x, how large, and whether
    flip: ClassVar[float] = 0.5

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        size = np.array(images.size, np.float64)
        is_enlarged = images.numbers[3] < self.p
        times = between(images.numbers[2], *self.side_range)
        factor = np.where(is_enlarged, times, 1)
        shape = np.maximum(np.rint(size / factor[:, None]), 1)
        room = size - shape + 1
        corner = np.floor(images.numbers[:2].T * room)
        return placed(images, corner, shape, size)


CropName = Literal[
    "random",
    "center",
    "none",
    "pad_or_crop",
    "cover",
    "center_cover",
    "letterbox",
    "keep",
]
CROPS: Mapping[CropName, Geometry] = {
    "random": RandomResizedCrop(),
    "center": CenterCrop(),
    "none": Stretch(),
    "pad_or_crop": PadOrCrop(),
    "cover": Cover(),
    "center_cover": Cover(random=False),
    "letterbox": Letterbox(),
    "keep": Resize(),
}
_NAME = checks.choice(*CROPS)


def _as_crop(value: Any) -> Geometry:
    return value if isinstance(value, Geometry) else CROPS[_NAME.read(value)]


CROP: Rule[Geometry] = Rule(
    f"{_NAME.expected}, or an object such as gpuload.CenterCrop(resize=256)",
    _as_crop,
    _NAME.words,
)


# ---- padding with pixels of the image


def source_of(at: I64, size: I64 | int, mode: PaddingMode) -> I64:
    """The pixel of a line of `size` pixels that is shown at each place, in 0..size-1; -1 where there is none, which
    gets the fill. Places outside of 0..size-1 are padding; with size they are broadcast.

    Args:
        at: int64, places along a line; they may lie outside of it.
        size: Pixels of the line, or of each.
        mode: What is in the padding.
    """
    if mode == "constant":
        return np.where((at >= 0) & (at < size), at, -1)
    if mode == "edge":
        return np.clip(at, 0, np.asarray(size) - 1)
    period = 2 * np.asarray(size) - (2 if mode == "reflect" else 0)
    within = at % np.maximum(period, 1)
    mirrored: I64 = np.where(
        within < size, within, period - within - (0 if mode == "reflect" else 1)
    )
    return mirrored


def source_range(
    start: I64, stop: I64, size: I64, mode: PaddingMode
) -> tuple[I64, I64]:
    """First and last + 1 of the pixels that are shown at places start..stop-1 of lines of `size`, or of some more; at
    least one.

    Args:
        start: int64, the first place.
        stop: int64, behind the last place.
        size: int64, pixels of each line.
        mode: What is in the padding.
    """
    low = start
    high = stop
    if mode != "constant":  # the mirror image of what lies beyond an edge
        low = np.minimum(start, 2 * size - stop - 1)
        high = np.maximum(stop, 1 - start)
    low = np.clip(low, 0, size - 1)
    return low, np.maximum(np.clip(high, 0, size), low + 1)
