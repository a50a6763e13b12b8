"""`Augment`: how images become a batch, and the random numbers for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gpuload.augment.checks import check_arguments
from gpuload.augment.crops import (
    RANDOM_CROP_DRAWS,
    Crops,
    center_crops,
    central_fractions,
    covering_crops,
    pad_or_crop,
    random_crops,
    unscaled,
    whole_images,
)
from gpuload.augment.from_torchvision import arguments_of
from gpuload.augment.padding import RandomCrop
from gpuload.augment.planned import plan_function
from gpuload.augment.views import Crop, DType, Form, FunctionAt, Interpolation, Layout, Normalize, View
from gpuload.checks import FLAG, check, function
from gpuload.draws import AUGMENT, CROP_DRAWS, TRANSFORM, each_key, make_key, uniform
from gpuload.errors import ArgumentError
from gpuload.functions.interface import SampleFunction
from gpuload.transforms.color import ColorJitter
from gpuload.transforms.erasing import RandomErasing
from gpuload.transforms.steps import Transform, draw_steps, sample_draws
from gpuload.types import F64, I32, I64, HeightWidth

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# The draws of a crop that every image needs, beside those of the flips.
_CROP_NUMBERS = {"random": (1, 2, 3, 4), "cover": (1, 2)}


@dataclass(frozen=True)
class Augment:
    """How images become a batch (N, C, height, width), of the C channels that the set's images have, mostly 3.

    size: side of the output in pixels, or (height, width). None: each batch has the size of its bucket, for
        `DaliIterator(buckets=…)`.
    crop: "random": torchvision's RandomResizedCrop(size, scale, ratio).
        "center": torchvision's Resize(resize), then CenterCrop(size); or with `fraction`, that share of the image's
        sides, stretched to size.
        "none": the whole image, stretched to size.
        "pad_or_crop": nothing is scaled; a large image is cropped to its centre, a small one padded with `fill`
        (TensorFlow's resize_with_crop_or_pad).
        "cover": the image is scaled, without changing its aspect ratio, until it just covers the output, and cut to it
        at a random position; "center_cover": in the centre.
        A `RandomCrop`: nothing is scaled; the image may be padded, and is cropped at a random position.
    scale, ratio: range of a random crop's area, as a share of the image's, and of its width / height.
    flip, vertical_flip: probability of a horizontal flip (by default 0.5 with "random" and `RandomCrop`, else 0) and a
        vertical one.
    fraction: with crop "center", the share of each side of the image that is kept, in 0..1.
    resize: shorter side, in pixels, to which "center" resizes; by default size * 256 / 224.
    interpolation: "bilinear" or "bicubic", both with antialiasing, as Pillow and torchvision do it.
    transforms: of `gpuload.transforms`, applied in this order to the cropped, resized and flipped image;
        `RandomErasing` is applied after normalisation, wherever it is listed.
    normalize: "constants": (pixel / 255 - mean) / std. "image": by each image's own mean and standard deviation over
        all its pixels and channels (TensorFlow's per_image_standardization). Not used with uint8.
    mean, std: of each channel, for pixels in 0..1: 8 bits divided by 255, 16 bits by 65,535. Floats are taken as they
        are. ImageNet's by default, for RGB.
    fill: level 0..255 of all channels where "pad_or_crop" pads; of 16 bits and floats, that share of 65,535 or 1.
    dtype: of the batch, such as "float16", torch.float16 or np.float16; uint8 gives pixels in 0..255.
    layout: "NCHW", or "channels_last": the same shape, in torch's channels_last memory format.
    mode: of the images in the batch, such as "RGB", "L", "I;16" or "float32x7" (see `gpuload.fields.pixels`); by
        default that of the set. "L" makes gray of RGB, as Pillow does, and "RGB" shows encoded gray as RGB; anything
        else must be the set's. With a mode, what does not fit it is an error here, not with the loader, and the
        constants of floats may be above 1.
    function: your own function of each sample, f(sample, rng), called on the CPU; or a transform of torchvision's v2,
        or of Albumentations. It gets the image, of the set's type, boxes, masks and keypoints in a dict, and returns
        the image or a dict of what it changed (see `gpuload.functions`). Flips, `transforms` and normalisation follow.
    function_at: "after_crop": it gets the cropped and resized image, and keeps its size. "before_crop": it gets the
        whole decoded image and may change its size; crops, boxes, masks and keypoints follow.

    Raises:
        ArgumentError: a value out of its range, or two that contradict each other.
    """

    size: int | tuple[int, int] | None = None
    crop: Crop | RandomCrop = "random"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float | None = None
    vertical_flip: float = 0.0
    resize: int | None = None
    fraction: float | None = None
    interpolation: Interpolation = "bilinear"
    transforms: Sequence[Transform | RandomErasing] = ()
    normalize: Normalize = "constants"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    fill: int = 0
    dtype: DType = "float32"
    layout: Layout = "NCHW"
    mode: str | None = None
    function: SampleFunction | None = None
    function_at: FunctionAt = "after_crop"

    @classmethod
    def imagenet_train(cls, size: int = 224, **changes: Any) -> "Augment":
        """The basis of torchvision's reference training of ResNet-50: random crops, flips, ImageNet's mean and std."""
        return cls(size, **{"crop": "random", **changes})

    @classmethod
    def imagenet_eval(cls, size: int = 224, **changes: Any) -> "Augment":
        """Its evaluation: the shorter side resized to size * 256 / 224, then a center crop."""
        return cls(size, **{"crop": "center", **changes})

    @classmethod
    def inception(cls, size: int = 299, *, train: bool, **changes: Any) -> "Augment":
        """The preprocessing of the Inception networks in TensorFlow's models: values in -1..1.

        Training: crops of 5 to 100 % of the area, flips, and colour jitter (brightness by 32/255, saturation and
        contrast by half, hue by 0.2; brightness is multiplied here, where TensorFlow adds). Evaluation: the central
        87.5 % of each side, stretched to size.
        """
        train = check("Augment.inception", "train", train, FLAG)
        constants = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
        if not train:
            return cls(size, **{"crop": "center", "fraction": 0.875, **constants, **changes})
        jitter = ColorJitter(brightness=32 / 255, contrast=0.5, saturation=0.5, hue=0.2)
        return cls(size, **{"crop": "random", "scale": (0.05, 1.0), "transforms": (jitter,), **constants, **changes})

    @classmethod
    def torchvision(cls, transform: Any, **changes: Any) -> "Augment":
        """The same as a torchvision transform: a `Compose`, or what `weights.transforms()` gives.

        Raises:
            ArgumentError: a transform that has no counterpart here.
        """
        check("Augment.torchvision", "transform", transform, function("a torchvision transform, such as a Compose"))
        return cls(**{**arguments_of(transform), **changes})

    def __post_init__(self) -> None:
        check_arguments(self)
        # A transform that does not fit the output size, or needs too many random numbers, raises when it draws: better
        # here than in the middle of an epoch. Without a size, `for_size` comes here again.
        if self.size is not None:
            self.draw(0, 0, np.zeros(1, np.int64), *np.full((2, 1), max(self.output_size), np.int32))

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of the output in pixels.

        Raises:
            ArgumentError: it has no size.
        """
        if self.size is None:
            raise ArgumentError("Augment(size=None): is for DaliIterator(buckets=...), which gives sizes. Give a size")
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def for_size(self, size: HeightWidth) -> "Augment":
        """The same with another output size.

        size: (height, width) in pixels.
        """
        return replace(self, size=size)

    @property
    def flip_probability(self) -> float:
        """Probability of a horizontal flip."""
        if self.flip is None:
            return 0.5 if self.crop == "random" or isinstance(self.crop, RandomCrop) else 0.0
        return self.flip

    @property
    def resize_px(self) -> int:
        """Shorter side in pixels to which "center" resizes before it crops."""
        return self.resize if self.resize is not None else round(max(self.output_size) * 256 / 224)

    @property
    def uses_constants(self) -> bool:
        """Whether anything depends on mean and std."""
        return (self.dtype != "uint8" and self.normalize == "constants") or self._erasing is not None

    @property
    def _pixel_transforms(self) -> list[Transform]:
        return [transform for transform in self.transforms if not isinstance(transform, RandomErasing)]

    @property
    def _erasing(self) -> RandomErasing | None:
        return next((transform for transform in self.transforms if isinstance(transform, RandomErasing)), None)

    @property
    def form(self) -> Form:
        """What is the same for all its batches."""
        own = self.crop if isinstance(self.crop, RandomCrop) else None
        return Form(
            self.dtype,
            self.layout,
            self.interpolation,
            self.normalize,
            self.mean,
            self.std,
            self.fill if own is None else own.fill,
            pads=self.crop == "pad_or_crop" or own is not None,
            flips_vertically=self.vertical_flip > 0,
            transforms=bool(self.transforms),
            padding_mode="constant" if own is None else own.padding_mode,
            function="" if self.function is None else self.function_at,
        )

    @cached_property
    def only_crops(self) -> "Augment":
        """The same crops and flips, and nothing else."""
        return replace(self, transforms=(), function=None, function_at="after_crop")

    def draw(
        self,
        seed: int,
        epoch: int,
        samples: I64,
        widths: I32,
        heights: I32,
        view: int = 0,
        repeats: I64 | None = None,
    ) -> View:
        """The view of a batch: a pure function of (seed, epoch, sample, view, repeat) and the image's size.

        samples: (N,), sample indices in stored order. widths, heights: (N,), of the decoded images in pixels. view:
        number of the view, where several images are made of each sample. repeats: (N,), how often each sample came
        before in this pass; None: never.
        """
        key = each_key(make_key(seed, epoch, AUGMENT, view) if view else make_key(seed, epoch, AUGMENT), repeats)

        # Number 0: flip; then those of a random crop; last the vertical flip. Drawn at once, since every NumPy call has
        # a cost of its own.
        last = 1 + RANDOM_CROP_DRAWS
        own = (1, 2) if isinstance(self.crop, RandomCrop) else _CROP_NUMBERS.get(self.crop, ())
        numbers = np.array([0, *own, last])
        drawn = uniform(key, samples * CROP_DRAWS.count + numbers[:, None])

        def draw_more(rows: I64) -> F64:
            return uniform(
                key if isinstance(key, int) else key[rows],
                samples[rows] * CROP_DRAWS.count + np.arange(5, last)[:, None],
            )

        def draws_of(transform: int) -> Any:
            return sample_draws(each_key(make_key(seed, epoch, TRANSFORM, view, transform), repeats), samples)

        sizes = widths.astype(np.float64), heights.astype(np.float64)
        if isinstance(self.crop, RandomCrop):
            crops = unscaled(self.crop.draw(drawn[1:-1], samples, *sizes, self.output_size), self.output_size)
        else:
            crops = self._crops(drawn[1:-1], draw_more, *sizes)
        crops = crops._replace(
            mirror=(drawn[0] < self.flip_probability).astype(np.int32),
            mirror_y=(drawn[-1] < self.vertical_flip).astype(np.int32),
        )
        transforms, erasing = self._pixel_transforms, self._erasing
        steps = draw_steps(transforms, draws_of, *self.output_size) if transforms else None
        erased = erasing.draw(draws_of(len(transforms)), *self.output_size) if erasing else None
        function = None if self.function is None else plan_function(self, seed, epoch, samples, view, repeats)
        return View(self.output_size, crops, steps, erased, function)

    def _crops(self, drawn: F64, draw_more: Callable[[I64], F64], width: F64, height: F64) -> Crops:
        if self.crop == "random":
            return random_crops(drawn, draw_more, width, height, self.scale, self.ratio)
        reach = 1 if self.interpolation == "bilinear" else 2
        if self.crop in ("cover", "center_cover"):
            return covering_crops(drawn if len(drawn) else None, width, height, self.output_size, reach)
        if self.crop == "center" and self.fraction is None:
            return center_crops(width, height, self.resize_px, self.output_size, reach)
        if self.crop == "center":
            return central_fractions(width, height, self.fraction or 1.0)
        if self.crop == "pad_or_crop":
            return pad_or_crop(width, height, self.output_size)
        return whole_images(width, height)
