"""What is done to an image on its way into a batch, and the random numbers for it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
import numpy.typing as npt

from gpuload.draws import make_key, uniform
from gpuload.errors import ArgumentError
from gpuload.order import AUGMENT

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

Crop = Literal["random", "center", "none"]
DType = Literal["float32", "float16", "bfloat16", "uint8"]
Layout = Literal["NCHW", "channels_last"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# Each sample owns this many random numbers an epoch; which one is for what is told in `Augment.draw`.
_DRAWS = 64
_ATTEMPTS = 10  # as in torchvision's RandomResizedCrop


class Draws(Protocol):
    """Random numbers in [0, 1): one for each chosen sample; `number` tells which of those that a sample owns."""

    def __call__(self, number: int, chosen: npt.NDArray[np.int64], /) -> F64: ...


class Crops(NamedTuple):
    """What to cut out of each image of a batch of N, in pixels of the decoded image, (y, x).

    start, shape: int32 (N, 2), the window to decode.
    roi_start, roi_end: float32 (N, 2), relative to `start`: what of that window is stretched over the output. The
        decoded window is larger than it where a filter may look beyond the edge.
    mirror: int32 (N,), 1 where the output is flipped left to right.
    """

    start: I32
    shape: I32
    roi_start: npt.NDArray[np.float32]
    roi_end: npt.NDArray[np.float32]
    mirror: I32


@dataclass(frozen=True)
class Augment:
    """How images become a batch (N, 3, height, width).

    size: side of the output in pixels, or (height, width).
    crop: "random": torchvision's RandomResizedCrop(size, scale, ratio).
        "center": torchvision's Resize(resize), then CenterCrop(size).
        "none": the whole image, stretched to size.
    scale, ratio: range of a random crop's area, as a share of the image's, and of its width / height.
    flip: probability of a horizontal flip; by default 0.5 with random crops, else 0.
    resize: shorter side, in pixels, to which "center" resizes; by default size * 256 / 224.
    mean, std: of each channel (R, G, B), for pixels in 0..1; the batch is (pixel / 255 - mean) / std. ImageNet's by
        default. Not used with uint8.
    dtype: of the batch; uint8 gives pixels in 0..255.
    layout: "NCHW", or "channels_last": the same shape, in torch's channels_last memory format.

    Resizing is bilinear with antialiasing, as Pillow and torchvision do it.

    Raises:
        ArgumentError: a value out of its range.
    """

    size: int | tuple[int, int]
    crop: Crop = "random"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float | None = None
    resize: int | None = None
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    dtype: DType = "float32"
    layout: Layout = "NCHW"

    def __post_init__(self) -> None:
        _check_choice("crop", self.crop, get_args(Crop))
        _check_choice("dtype", self.dtype, get_args(DType))
        _check_choice("layout", self.layout, get_args(Layout))
        if len(self.output_size) != 2 or min(self.output_size) < 1:
            raise ArgumentError(f"Augment(size={self.size!r}): expected a positive side in pixels, or (height, width)")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ArgumentError(
                f"Augment(scale={self.scale!r}): expected 0 < low <= high <= 1, shares of the image's area"
            )
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ArgumentError(f"Augment(ratio={self.ratio!r}): expected 0 < low <= high, of width / height")
        if not 0 <= self.flip_probability <= 1:
            raise ArgumentError(f"Augment(flip={self.flip!r}): expected a probability in 0..1")
        if self.resize is not None and self.crop != "center":
            raise ArgumentError(f"Augment(resize={self.resize!r}): is for crop='center' only; crop is {self.crop!r}")
        if self.resize_px < max(self.output_size) and self.crop == "center":
            raise ArgumentError(
                f"Augment(resize={self.resize!r}): the shorter side must be at least size, {max(self.output_size)}"
            )
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ArgumentError(
                f"Augment(mean={self.mean!r}, std={self.std!r}): expected three values each (R, G, B), std above 0"
            )
        if max(*self.mean, *self.std) > 1:
            raise ArgumentError(
                f"Augment(mean={self.mean!r}, std={self.std!r}): expected values for pixels in 0..1. "
                "Divide yours by 255"
            )

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of the output in pixels."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def flip_probability(self) -> float:
        if self.flip is None:
            return 0.5 if self.crop == "random" else 0.0
        return self.flip

    @property
    def resize_px(self) -> int:
        """Shorter side to which "center" resizes before it crops."""
        return self.resize if self.resize is not None else round(max(self.output_size) * 256 / 224)

    def draw(self, seed: int, epoch: int, samples: npt.NDArray[np.int64], widths: I32, heights: I32) -> Crops:
        """The crops and flips of a batch: a pure function of (seed, epoch, sample) and the image's size.

        samples: (N,), numbers of the samples in stored order. widths, heights: (N,), of the decoded images in pixels.
        """
        key = make_key(seed, epoch, AUGMENT)

        # Draw 0: flip. 1, 2: place of a random crop, y and x. 3 + 2a, 4 + 2a: area and ratio of its attempt a.
        def draws(number: int, chosen: npt.NDArray[np.int64]) -> F64:
            return uniform(key, chosen * _DRAWS + number)

        height, width = heights.astype(np.float64), widths.astype(np.float64)
        if self.crop == "random":
            crops = self._random_crops(draws, samples, width, height)
        elif self.crop == "center":
            crops = self._center_crops(width, height)
        else:
            crops = _whole(np.zeros((len(samples), 2)), np.stack([height, width], axis=1))
        mirror = (draws(0, samples) < self.flip_probability).astype(np.int32)
        return crops._replace(mirror=mirror)

    def _random_crops(self, draws: Draws, samples: npt.NDArray[np.int64], width: F64, height: F64) -> Crops:
        """torchvision's `RandomResizedCrop.get_params`, for a whole batch.

        Ten attempts to draw an area and a (log-uniform) ratio whose window fits into the image; where none does, the
        largest central window whose ratio is in range.
        """
        ratio = np.clip(width / height, *self.ratio)
        crop_width = np.where(width / height < self.ratio[0], width, np.minimum(width, np.rint(height * ratio)))
        crop_height = np.where(width / height > self.ratio[1], height, np.minimum(height, np.rint(width / ratio)))
        top, left = (height - crop_height) // 2, (width - crop_width) // 2

        low, high = np.log(self.ratio)
        open_ = np.arange(len(samples))  # the images for which no attempt has fitted yet
        for attempt in range(_ATTEMPTS):
            chosen = samples[open_]
            area = (
                width[open_]
                * height[open_]
                * (self.scale[0] + draws(3 + 2 * attempt, chosen) * (self.scale[1] - self.scale[0]))
            )
            aspect = np.exp(low + draws(4 + 2 * attempt, chosen) * (high - low))
            w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
            fits = (w > 0) & (w <= width[open_]) & (h > 0) & (h <= height[open_])
            hit = open_[fits]
            crop_width[hit], crop_height[hit] = w[fits], h[fits]
            top[hit] = np.floor(draws(1, samples[hit]) * (height[hit] - h[fits] + 1))
            left[hit] = np.floor(draws(2, samples[hit]) * (width[hit] - w[fits] + 1))
            open_ = open_[~fits]
            if not len(open_):
                break
        return _whole(np.stack([top, left], axis=1), np.stack([crop_height, crop_width], axis=1))

    def _center_crops(self, width: F64, height: F64) -> Crops:
        """torchvision's Resize(resize_px) and CenterCrop(size), as one window of the source image.

        The window's edges fall between pixels, and the antialiasing filter looks beyond them, as it does when the
        whole image is resized first: so the decoded window is larger by the filter's support (one output pixel, or
        one source pixel where the image is enlarged).
        """
        source = np.stack([height, width], axis=1)
        resized = np.trunc(self.resize_px * source / source.min(axis=1, keepdims=True))
        target = np.array(self.output_size, np.float64)
        step = source / resized
        roi_start = np.rint((resized - target) / 2) * step
        roi_end = roi_start + target * step
        support = np.maximum(step, 1)
        start = np.maximum(np.floor(roi_start - support), 0)
        end = np.minimum(np.ceil(roi_end + support), source)
        return Crops(
            start.astype(np.int32),
            (end - start).astype(np.int32),
            (roi_start - start).astype(np.float32),
            (roi_end - start).astype(np.float32),
            np.zeros(len(width), np.int32),
        )


def _whole(start: F64, shape: F64) -> Crops:
    """Crops whose decoded window is stretched over the output as it is, with no look beyond its edge."""
    return Crops(
        start.astype(np.int32),
        shape.astype(np.int32),
        np.zeros(shape.shape, np.float32),
        shape.astype(np.float32),
        np.zeros(len(shape), np.int32),
    )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ArgumentError(f"Augment({name}={value!r}): expected one of {', '.join(map(repr, choices))}")
