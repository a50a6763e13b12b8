"""What is done to an image on its way into a batch, and the random numbers for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from gpuload.augment.crops import (
    RANDOM_CROP_DRAWS,
    Crops,
    center_crops,
    central_fractions,
    pad_or_crop,
    random_crops,
    whole_images,
)
from gpuload.augment.from_torchvision import arguments_of
from gpuload.augment.views import DType, Form, Interpolation, Layout, Normalize, View
from gpuload.draws import AUGMENT, CROP_DRAWS, TRANSFORM, make_key, uniform
from gpuload.errors import ArgumentError
from gpuload.transforms import (
    ColorJitter,
    RandomErasing,
    Transform,
    draw_steps,
    sample_draws,
)
from gpuload.types import F64, I32, I64

Crop = Literal["random", "center", "none", "pad_or_crop"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Augment:
    """How images become a batch (N, 3, height, width).

    size: side of the output in pixels, or (height, width).
    crop: "random": torchvision's RandomResizedCrop(size, scale, ratio).
        "center": torchvision's Resize(resize), then CenterCrop(size); or with `fraction`, that share of the image's
        sides, stretched to size.
        "none": the whole image, stretched to size.
        "pad_or_crop": nothing is scaled; the middle of a large image, a small one between `fill`
        (TensorFlow's resize_with_crop_or_pad).
    scale, ratio: range of a random crop's area, as a share of the image's, and of its width / height.
    flip, vertical_flip: probability of a horizontal flip (by default 0.5 with random crops, else 0) and a vertical one.
    resize: shorter side, in pixels, to which "center" resizes; by default size * 256 / 224.
    interpolation: "bilinear" or "bicubic", both with antialiasing, as Pillow and torchvision do it.
    transforms: of `gpuload.transforms`, carried out in this order on the cropped, resized and flipped image;
        `RandomErasing` comes after normalisation, wherever it stands.
    normalize: "constants": (pixel / 255 - mean) / std. "image": by each image's own mean and standard deviation over
        all its pixels and channels (TensorFlow's per_image_standardization). Not used with uint8.
    mean, std: of each channel (R, G, B), for pixels in 0..1. ImageNet's by default.
    fill: level 0..255 of all channels for what "pad_or_crop" adds.
    dtype: of the batch; uint8 gives pixels in 0..255.
    layout: "NCHW", or "channels_last": the same shape, in torch's channels_last memory format.

    Raises:
        ArgumentError: a value out of its range, or two that contradict one another.
    """

    size: int | tuple[int, int]
    crop: Crop = "random"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float | None = None
    vertical_flip: float = 0.0
    resize: int | None = None
    fraction: float | None = None
    interpolation: Interpolation = "bilinear"
    transforms: Sequence[Transform | RandomErasing] = ()
    normalize: Normalize = "constants"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    fill: int = 0
    dtype: DType = "float32"
    layout: Layout = "NCHW"

    @classmethod
    def imagenet_train(cls, size: int = 224, **changes: Any) -> "Augment":
        """What torchvision's reference training of ResNet-50 begins with: random crops, flips, ImageNet's constants."""
        return cls(size, crop="random", **changes)

    @classmethod
    def imagenet_eval(cls, size: int = 224, **changes: Any) -> "Augment":
        """Its evaluation: the shorter side resized to size * 256 / 224, the middle cropped."""
        return cls(size, crop="center", **changes)

    @classmethod
    def inception(cls, size: int = 299, *, train: bool, **changes: Any) -> "Augment":
        """The preprocessing of the Inception networks in TensorFlow's models: values in -1..1.

        Training: crops of 5 to 100 % of the area, flips and colours distorted (brightness by 32/255, saturation and
        contrast by half, hue by 0.2; brightness is multiplied here, where TensorFlow adds). Evaluation: the middle
        87.5 % of each side, stretched to size.
        """
        constants = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
        if not train:
            return cls(size, **{"crop": "center", "fraction": 0.875, **constants, **changes})
        jitter = ColorJitter(brightness=32 / 255, contrast=0.5, saturation=0.5, hue=0.2)
        return cls(size, **{"crop": "random", "scale": (0.05, 1.0), "transforms": (jitter,), **constants, **changes})

    @classmethod
    def torchvision(cls, transform: Any, **changes: Any) -> "Augment":
        """The same as a torchvision transform: a `Compose`, or what `weights.transforms()` gives.

        Raises:
            ArgumentError: a transform that has no counterpart here; names it.
        """
        return cls(**{**arguments_of(transform), **changes})

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(self.transforms))
        for name, choices in (
            ("crop", Crop),
            ("interpolation", Interpolation),
            ("normalize", Normalize),
            ("dtype", DType),
            ("layout", Layout),
        ):
            _check_choice(name, getattr(self, name), get_args(choices))
        _check_geometry(self)
        _check_values(self)
        # What a transform has against the size of the output, it says when it draws: better now than in mid-epoch.
        self.draw(0, 0, np.zeros(1, np.int64), *np.full((2, 1), max(self.output_size), np.int32))

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

    @property
    def _changes(self) -> list[Transform]:
        return [transform for transform in self.transforms if not isinstance(transform, RandomErasing)]

    @property
    def _erasing(self) -> RandomErasing | None:
        return next((transform for transform in self.transforms if isinstance(transform, RandomErasing)), None)

    @property
    def form(self) -> Form:
        return Form(
            self.dtype,
            self.layout,
            self.interpolation,
            self.normalize,
            self.mean,
            self.std,
            self.fill,
            pads=self.crop == "pad_or_crop",
            flips_vertically=self.vertical_flip > 0,
            transforms=bool(self.transforms),
        )

    def draw(self, seed: int, epoch: int, samples: I64, widths: I32, heights: I32, view: int = 0) -> View:
        """What is to be done to a batch: a pure function of (seed, epoch, sample, view) and the image's size.

        samples: (N,), numbers of the samples in stored order. widths, heights: (N,), of the decoded images in pixels.
        view: where several images are made of each sample, which one.
        """
        key = make_key(seed, epoch, AUGMENT, view) if view else make_key(seed, epoch, AUGMENT)

        # Number 0: flip. Then those of a random crop, and the vertical flip. At once: each NumPy call costs as much.
        last = 1 + RANDOM_CROP_DRAWS
        numbers = np.array([0, 1, 2, 3, 4, last] if self.crop == "random" else [0, last])
        drawn = uniform(key, samples * CROP_DRAWS.count + numbers[:, None])

        def draw_more(rows: I64) -> F64:
            return uniform(key, samples[rows] * CROP_DRAWS.count + np.arange(5, last)[:, None])

        def draws_of(transform: int) -> Any:
            return sample_draws(make_key(seed, epoch, TRANSFORM, view, transform), samples)

        crops = self._crops(drawn[1:-1], draw_more, widths.astype(np.float64), heights.astype(np.float64))
        crops = crops._replace(
            mirror=(drawn[0] < self.flip_probability).astype(np.int32),
            mirror_y=(drawn[-1] < self.vertical_flip).astype(np.int32),
        )
        changes, erasing = self._changes, self._erasing
        steps = draw_steps(changes, draws_of, *self.output_size) if changes else None
        erased = erasing.draw(draws_of(len(changes)), *self.output_size) if erasing else None
        return View(self.output_size, crops, steps, erased)

    def _crops(self, drawn: F64, draw_more: Callable[[I64], F64], width: F64, height: F64) -> Crops:
        if self.crop == "random":
            return random_crops(drawn, draw_more, width, height, self.scale, self.ratio)
        if self.crop == "center" and self.fraction is None:
            reach = 1 if self.interpolation == "bilinear" else 2
            return center_crops(width, height, self.resize_px, self.output_size, reach)
        if self.crop == "center":
            return central_fractions(width, height, self.fraction or 1.0)
        if self.crop == "pad_or_crop":
            return pad_or_crop(width, height, self.output_size)
        return whole_images(width, height)


def _check_geometry(augment: Augment) -> None:
    size = augment.output_size
    if len(size) != 2 or min(size) < 1:
        raise ArgumentError(f"Augment(size={augment.size!r}): expected a positive side in pixels, or (height, width)")
    if not 0 < augment.scale[0] <= augment.scale[1] <= 1:
        raise ArgumentError(
            f"Augment(scale={augment.scale!r}): expected 0 < low <= high <= 1, shares of the image's area"
        )
    if not 0 < augment.ratio[0] <= augment.ratio[1]:
        raise ArgumentError(f"Augment(ratio={augment.ratio!r}): expected 0 < low <= high, of width / height")
    for name, value in (("flip", augment.flip_probability), ("vertical_flip", augment.vertical_flip)):
        if not 0 <= value <= 1:
            raise ArgumentError(f"Augment({name}={value!r}): expected a probability in 0..1")
    for name in ("resize", "fraction"):
        if getattr(augment, name) is not None and augment.crop != "center":
            raise ArgumentError(
                f"Augment({name}={getattr(augment, name)!r}): is for crop='center' only; crop is {augment.crop!r}"
            )
    if augment.fraction is not None:
        if augment.resize is not None:
            raise ArgumentError("Augment(resize, fraction): each tells what to crop; give one of them")
        if not 0 < augment.fraction <= 1:
            raise ArgumentError(f"Augment(fraction={augment.fraction!r}): expected a share of the sides in 0..1")
    elif augment.resize_px < max(size) and augment.crop == "center":
        raise ArgumentError(f"Augment(resize={augment.resize!r}): the shorter side must be at least size, {max(size)}")


def _check_values(augment: Augment) -> None:
    for transform in augment.transforms:
        if not hasattr(transform, "draw") or isinstance(transform, type):
            raise ArgumentError(
                f"Augment(transforms): {transform!r} is not one of gpuload.transforms. Augment.torchvision(...) reads "
                "torchvision's; a function of your own goes into DaliIterator(batch_transforms=[...])"
            )
    if sum(isinstance(transform, RandomErasing) for transform in augment.transforms) > 1:
        raise ArgumentError("Augment(transforms): expected one RandomErasing at most")
    if augment.dtype == "uint8" and augment.normalize == "image":
        raise ArgumentError("Augment(normalize='image', dtype='uint8'): standardised pixels need a float dtype")
    if not 0 <= augment.fill <= 255:
        raise ArgumentError(f"Augment(fill={augment.fill!r}): expected a level in 0..255")
    mean, std = augment.mean, augment.std
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
        raise ArgumentError(f"Augment(mean={mean!r}, std={std!r}): expected three values each (R, G, B), std above 0")
    if max(*mean, *std) > 1:
        raise ArgumentError(
            f"Augment(mean={mean!r}, std={std!r}): expected values for pixels in 0..1. Divide yours by 255"
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ArgumentError(f"Augment({name}={value!r}): expected one of {', '.join(map(repr, choices))}")
