"""The part of each image that a batch shows: crops and flips, for a whole batch in NumPy, and what draws them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.fields.rows import Crops as Crops  # fields move with them
from gpuload.types import F64, I64

PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
Levels = int | tuple[int, ...]  # of all channels, or of each


class Images(NamedTuple):
    """N images to crop, and the random numbers for them.

    samples: int64 (N,), their numbers, for messages. widths, heights: float64 (N,), in pixels. size: (height, width) of
    the output in pixels. reach: of the resize filter, in output pixels: 1 for a bilinear one, 2 for a bicubic one.
    numbers: float64 (`Geometry.numbers`, N) in [0, 1), the numbers 1, 2, … of each image's crop. more: any others, for
    some of the images: (numbers, rows) to float64 (len(numbers), len(rows)).
    """

    samples: I64
    widths: F64
    heights: F64
    size: tuple[int, int]
    reach: int
    numbers: F64
    more: Callable[[npt.NDArray[Any], I64], F64]

    @property
    def sources(self) -> F64:
        """(N, 2): height and width of each."""
        return np.stack([self.heights, self.widths], axis=1)


class Geometry(ABC):
    """Base class of crops: which part of each image becomes the output.

    numbers: random numbers that every image needs. flip: probability of a horizontal flip, where `Augment` says none.
    places: whether images are `placed`, so that they may be scaled and padded. own_sizes: whether each output has its
        own size, which then depends on the image.
    """

    numbers: ClassVar[int] = 0
    flip: ClassVar[float] = 0.0
    places: ClassVar[bool] = False
    own_sizes: ClassVar[bool] = False

    @property
    def outside(self) -> tuple[Levels, PaddingMode] | None:
        """What is shown of a crop that extends beyond its image: the fill, and the mode of padding. None: none does."""
        return None

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
    """Windows as large as the output, float64 (N, 2) `start` their upper left corners."""
    return windows(start, np.broadcast_to(np.array(size, np.float64), start.shape))


def windows(start: F64, shape: F64) -> Crops:
    """Crops whose region is the whole window, so that the filter uses nothing beyond it. Both are (N, 2)."""
    return _crops(start, shape, np.zeros(shape.shape), shape)


def regions(images: Images, step: F64, first: F64, last: F64) -> Crops:
    """Crops of regions whose edges fall between pixels.

    The antialiasing filter uses pixels beyond them, as it does where the whole image is resized first. So the decoded
    window is larger by the filter's support, as far as the image goes: `Images.reach` output pixels, or as many source
    pixels where the image is enlarged.

    step: (N, 2), source pixels for each output pixel. first, last: (N, 2), the corners of the region in source pixels,
        which may lie beyond the image.
    """
    support = images.reach * np.maximum(step, 1)
    low = np.maximum(np.floor(np.maximum(first, 0) - support), 0)
    high = np.minimum(np.ceil(np.minimum(last, images.sources) + support), images.sources)
    return _crops(low, high - low, first - low, last - low)


def placed(images: Images, corner: F64, shape: F64, size: F64) -> Crops:
    """Crops that show each image scaled to `shape` pixels, with its upper left corner at `corner` of the output.

    All are whole numbers (N, 2), or (2,) for all images. What the image does not cover is padding; it covers at least
    a pixel. size: of the output.
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
