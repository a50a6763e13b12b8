"""The crops that `Augment` knows by a word: one class each, with its own arguments alone."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gpuload.augment.crops import Crops, Geometry, Images, Levels, PaddingMode, regions, unscaled, whole_images, windows
from gpuload.augment.placed import Letterbox, Resize
from gpuload.checks import (
    COUNT,
    FLAG,
    LARGEST,
    POSITIVE,
    SIDES,
    Rule,
    ascending,
    choice,
    number,
    optional,
    settings,
    several,
    whole,
)
from gpuload.errors import ArgumentError
from gpuload.types import F64

_ATTEMPTS = 10  # as in torchvision's RandomResizedCrop
_LATER = np.arange(5, 1 + 2 + 2 * _ATTEMPTS)  # draws of all attempts but the first
SHARES = ascending(POSITIVE, 1, "(low, high) with 0 < low <= high <= 1, shares of the image's area")
_BOX = several(COUNT, "(height, width) in pixels", count=2)
_RATIOS = ascending(1 / LARGEST, LARGEST, "(low, high) with 1e-6 <= low <= high <= 1e6, of width / height")


@settings
class RandomResizedCrop(Geometry):
    """torchvision's RandomResizedCrop, as a `crop` of `Augment`: a random window, stretched to the size.

    Ten attempts to draw an area and a (log-uniform) ratio whose window fits into the image; where none does, the
    largest central window whose ratio is in range.

    scale, ratio: range of the window's area, as a share of the image's, and of its width / height.
    """

    scale: Annotated[tuple[float, float], SHARES] = (0.08, 1.0)
    ratio: Annotated[tuple[float, float], _RATIOS] = (3 / 4, 4 / 3)

    numbers: ClassVar[int] = 4  # position in y and in x; area and ratio of the first attempt: three of four images fit
    flip: ClassVar[float] = 0.5

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        drawn, width, height = images.numbers, images.widths, images.heights
        (heights,), (widths,), (fits,) = self._windows(drawn[2:], width, height)
        shape = np.stack([heights, widths])
        missed = np.flatnonzero(~fits)
        if len(missed):
            width_missed, height_missed = width[missed], height[missed]
            heights, widths, fitting = self._windows(images.more(_LATER, missed), width_missed, height_missed)
            first = fitting.argmax(axis=0), np.arange(len(missed))
            fits[missed] = fitting[first]
            central = self._central_window(width_missed, height_missed)
            shape[:, missed] = np.where(fitting[first], [heights[first], widths[first]], central)
        room = np.array([height, width]) - shape
        start = np.where(fits, np.floor(drawn[:2] * (room + 1)), room // 2)
        return windows(start.T, shape.T)

    def _windows(self, drawn: F64, width: F64, height: F64) -> tuple[F64, F64, npt.NDArray[np.bool_]]:
        """Height and width of the window of each attempt, (attempts, N), and whether it fits. drawn: area and ratio of
        each, (2 * attempts, N)."""
        low, high = np.log(self.ratio)
        area = width * height * (self.scale[0] + drawn[::2] * (self.scale[1] - self.scale[0]))
        aspect = np.exp(low + drawn[1::2] * (high - low))
        widths, heights = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
        return heights, widths, (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)

    def _central_window(self, width: F64, height: F64) -> list[F64]:
        """Height and width of the largest window whose ratio is in range."""
        clipped = np.clip(width / height, *self.ratio)
        return [np.minimum(height, np.rint(width / clipped)), np.minimum(width, np.rint(height * clipped))]


@settings
class CenterCrop(Geometry):
    """The centre of each image, as a `crop` of `Augment`: torchvision's Resize(resize), then CenterCrop(size).

    resize: shorter side in pixels to which the image is resized first; by default size * 256 / 224. Or
        (height, width), to which it is stretched.
    cover: instead of a resize, the (height, width) that the image is scaled to cover, its aspect ratio kept.
    fraction: instead of a resize, the share of each side that is kept, and stretched to the size (TensorFlow's
        `tf.image.central_crop`).

    Raises:
        ArgumentError: a value out of its range, or two of them. From `Augment`: a resize smaller than the size.
    """

    resize: Annotated[int | tuple[int, int] | None, optional(SIDES)] = None
    fraction: Annotated[float | None, optional(number(POSITIVE, 1, "a share of the sides, above 0 and at most 1"))] = (
        None
    )
    cover: Annotated[tuple[int, int] | None, optional(_BOX)] = None

    def __post_init__(self) -> None:
        if [self.fraction, self.resize, self.cover].count(None) < 2:
            raise ArgumentError("CenterCrop(resize, fraction, cover): each says what to crop; give one of them")

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        source, target = images.sources, np.array(images.size, np.float64)
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

    def _resize_px(self, size: tuple[int, int]) -> int | tuple[int, int]:
        resize = round(max(size) * 256 / 224) if self.resize is None else self.resize
        if isinstance(resize, int) and resize < max(size):
            raise ArgumentError(f"CenterCrop(resize={resize!r}): the shorter side must be at least size, {max(size)}")
        if not isinstance(resize, int) and (resize[0] < size[0] or resize[1] < size[1]):
            raise ArgumentError(
                f"CenterCrop(resize={resize!r}): must be at least as large as size, {size[0]} × {size[1]}"
            )
        return resize


@settings
class Cover(Geometry):
    """As a `crop` of `Augment`: the image is scaled, without changing its aspect ratio, until it just covers the
    output, and cut to it.

    random: at a random position, else in the centre.
    resize: scaled further, until its shorter side has so many pixels: torchvision's Resize(resize), then
        RandomCrop(size).

    Raises:
        ArgumentError: a value out of its range. From `Augment`: a resize smaller than the size.
    """

    random: Annotated[bool, FLAG] = True
    resize: Annotated[int | None, optional(COUNT)] = None

    numbers: ClassVar[int] = 2  # position in y and in x

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        source, target = images.sources, np.array(images.size, np.float64)
        if self.resize is None:
            resized = np.maximum(np.rint(source * (target / source).max(axis=1, keepdims=True)), target)
        elif self.resize < max(images.size):
            raise ArgumentError(f"Cover(resize={self.resize}): must be at least size, {max(images.size)}")
        else:
            resized = np.trunc(self.resize * source / source.min(axis=1, keepdims=True))
        room = resized - target
        offset = np.floor(images.numbers.T * (room + 1)) if self.random else room // 2
        step = source / resized
        return regions(images, step, offset * step, (offset + target) * step)


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

    fill: level 0..255 of all channels of the padding; of 16 bits and floats, that share of 65,535 or 1.
    """

    fill: Annotated[int, whole(0, 255, "a level, a whole number in 0..255")] = 0

    @property
    def outside(self) -> tuple[Levels, PaddingMode]:
        """As `Geometry.outside`."""
        return self.fill, "constant"

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        surplus = images.sources - np.array(images.size, np.float64)
        return unscaled(np.sign(surplus) * np.floor(np.abs(surplus) / 2), images.size)


CropName = Literal["random", "center", "none", "pad_or_crop", "cover", "center_cover", "letterbox", "keep"]
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
_NAME = choice(*CROPS)


def _as_crop(value: Any) -> Geometry:
    return value if isinstance(value, Geometry) else CROPS[_NAME.read(value)]


CROP: Rule[Geometry] = Rule(f"{_NAME.expected}, or an object such as gpuload.CenterCrop(resize=256)", _as_crop)
