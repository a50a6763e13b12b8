"""`Augment`: how images become a batch, and the random numbers for it; what torchvision's and timm's transforms are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np

from gpuload import checks
from gpuload.augment.crops import CROP, CropName, Geometry, Images, Patches, Resize
from gpuload.augment.translate import arguments_of
from gpuload.augment.views import (
    DType,
    Form,
    Interpolation,
    Layout,
    Measured,
    Normalize,
    PlannedFunction,
    View,
)
from gpuload.checks import (
    PROBABILITY,
    Rule,
    check,
    instance,
    member,
    optional,
    settings,
    shown,
)
from gpuload.draws import (
    AUGMENT,
    CROP_DRAWS,
    FUNCTION,
    TRANSFORM,
    Draws,
    each_key,
    make_key,
    random_bits,
    uniform,
)
from gpuload.errors import ArgumentError
from gpuload.fields.images import GRAY, MODE, Pixels
from gpuload.functions.function import Function
from gpuload.order.arguments import Buckets
from gpuload.order.budget import PatchGrid
from gpuload.transforms.compose import parts_of
from gpuload.transforms.erasing import RandomErasing
from gpuload.transforms.steps import Steps, Transform, draw_steps, sample_draws
from gpuload.types import F64, I32, I64, U64, HeightWidth

_WORD = 0xFFFFFFFFFFFFFFFF
# Draw numbers; a crop has those from `_CROP` on, of which there are fewer than to the next.
_FLIP = 0
_CROP = 1
_VERTICAL_FLIP = 23
_FILTER = 24
_SAMPLES_FOR_OPS = 256  # whose steps tell which operations are compiled with the loader


class _DrawnNumbers(NamedTuple):
    """The random numbers of N samples, float64 in [0, 1).

    Attributes:
        flip: (N,), which images are mirrored left to right.
        vertical_flip: (N,), which images are turned upside down.
        crop: (`Geometry.numbers`, N), those of the crop.
        filter: (N,), by which filter images are resized; None where there is no choice.
    """

    flip: F64
    vertical_flip: F64
    crop: F64
    filter: F64 | None


def _as_transforms(value: Any) -> tuple[Any, ...]:
    transforms = checks.as_items(value)
    for place, transform in enumerate(transforms):
        if isinstance(transform, Geometry | type) or not (
            isinstance(transform, Function) or hasattr(transform, "draw")
        ):
            raise ArgumentError(
                f"Augment(transforms): {shown(transform)} is not one of gpuload.transforms. Crops are for "
                "Augment(crop=…), torchvision's for Augment.torchvision(...), your own function for Function(...)"
            )
        if isinstance(transform, Function) and place:
            raise ArgumentError(
                f"Augment(transforms): Function({shown(transform.function)}) is not the first: call several in one"
            )
    if sum(isinstance(transform, RandomErasing) for transform in transforms) > 1:
        raise ArgumentError("Augment(transforms): expected one RandomErasing at most")
    return transforms


_SIZE = optional(
    checks.either(
        f"{checks.SIDES.expected}, or gpuload.Buckets(...)",
        instance("", Buckets),
        checks.SIDES,
    )
)
_TRANSFORMS = Rule(
    "a list of gpuload.transforms, such as [RandAugment()]", _as_transforms
)
_NORMALIZE = optional(
    checks.either(
        "gpuload.Normalize(mean, std), 'image'",
        instance("", Normalize),
        checks.choice("image"),
    )
)
_CONFIG = optional(
    instance("a dict, as timm.data.resolve_model_data_config gives it", Mapping)
)


@settings
class Augment:
    """How images become a batch (N, C, height, width), of the C channels that the set's images have, mostly 3.

    Args:
        size: Side of the output in pixels, or (height, width). `Buckets(…)`: each batch has the size of its bucket.
            None: each image has its own, with crop="keep" or a `Resize`.
        crop: "random": torchvision's RandomResizedCrop(size). "center": torchvision's Resize(size * 256 / 224), then
            CenterCrop(size). "none": the whole image, stretched to size. "pad_or_crop": nothing is scaled; a large
            image is cropped to its centre, a small one padded with black (TensorFlow's resize_with_crop_or_pad).
            "cover": the image is scaled, without changing its aspect ratio, until it just covers the output, and cut to
            it at a random position; "center_cover": in the centre. "letterbox": the image is scaled, without changing
            its aspect ratio, until it just fits into the output, and padded around its centre with gray. "keep": whole
            images of their own size, as a list; for size=None. Or an object, which has arguments of its own:
            `RandomResizedCrop(scale, ratio)`, `CenterCrop(resize=…)`, `Stretch()`, `PadOrCrop(fill)`,
            `Cover(random=…)`; and `RandomCrop(padding, …)`: nothing is scaled; the image may be padded, and is cropped
            at a random position. `Letterbox(fill)`, `ScaleJitter(scale)` and `ZoomOut(…)` scale and pad;
            `Resize(size, max_size)` and `Patches(patch, max_tokens)` give each image its own size.
        flip: Probability of a horizontal flip; by default 0.5 with "random", `RandomCrop`, `ScaleJitter` and `ZoomOut`,
            else 0.
        vertical_flip: Probability of a vertical flip.
        interpolation: "bilinear" or "bicubic", both with antialiasing, as Pillow and torchvision do it; or "random":
            one of the two for each image, as timm trains.
        transforms: Of `gpuload.transforms`, applied in this order to the cropped, resized and flipped image. Two have a
            place of their own: `Function`, a function of yours, is the first in the list, and is called before flips;
            `RandomErasing` is applied after normalisation, wherever it is listed.
        normalize: `Normalize(mean, std)`: (pixel - mean) / std, for pixels in 0..1; by default with ImageNet's
            constants, for RGB. "image": by each image's own mean and standard deviation over all its pixels and
            channels (TensorFlow's per_image_standardization). None: pixels in 0..1, and floats as they are. Not used
            with uint8.
        dtype: Of the batch, such as "float16", torch.float16 or np.float16; uint8 gives pixels in 0..255.
        layout: "NCHW", or "channels_last": the same shape, in torch's channels_last memory format.
        mode: Of the images in the batch, such as "RGB", "L", "I;16" or "float32x7" (see `gpuload.fields.images`); by
            default that of the set. "L" makes gray of RGB, as Pillow does, and "RGB" shows encoded gray as RGB;
            anything else must be the set's. With a mode, what does not fit it is an error here, not with the loader,
            and the constants of floats may be above 1.

    Raises:
        ArgumentError: a value out of its range, or two that contradict each other.
    """

    size: Annotated[int | tuple[int, int] | Buckets | None, _SIZE]
    crop: Annotated[CropName | Geometry, CROP] = "random"
    flip: Annotated[float | None, optional(PROBABILITY)] = None
    vertical_flip: Annotated[float, PROBABILITY] = 0.0
    interpolation: Annotated[Interpolation, member(*get_args(Interpolation))] = (
        "bilinear"
    )
    transforms: Annotated[
        Sequence[Transform | RandomErasing | Function], _TRANSFORMS
    ] = ()
    normalize: Annotated[Normalize | Literal["image"] | None, _NORMALIZE] = Normalize()
    dtype: Annotated[DType, member(*get_args(DType))] = "float32"
    layout: Annotated[Layout, member(*get_args(Layout))] = "NCHW"
    mode: Annotated[str | None, optional(MODE)] = None

    def __post_init__(self) -> None:
        if self.dtype == "uint8" and self.normalize == "image":
            raise ArgumentError(
                "Augment(normalize='image', dtype='uint8'): standardised pixels need a float dtype"
            )
        if self.mode is not None:
            self.check_pixels(Pixels.of_mode(self.mode))
        elif isinstance(self.normalize, Normalize):
            self.normalize.check_peak(255)
        self._check_own_sizes()
        self._check_by_drawing()

    def _check_by_drawing(self) -> None:
        """Raises ArgumentError for a crop or transform that does not fit an output size, or needs too many random
        numbers.

        It would raise when it draws in the middle of an epoch; so one sample is drawn here.
        """
        if isinstance(self.size, Buckets):
            for size in self.sizes:
                self.for_size(size)  # whose constructor does the same
            return
        first_sample = np.zeros(1, np.int64)
        side = np.full(1, max(self.output_size), np.int32)
        self.draw(0, 0, first_sample, side, side)

    def _check_own_sizes(self) -> None:
        """Raises ArgumentError for a size where the crop gives each image its own, or none where it does not, and for
        what needs one size of all images."""
        has_own_sizes = self._geometry.own_sizes
        name = type(self.crop).__name__
        if has_own_sizes != (self.size is None):
            raise ArgumentError(
                f"Augment(size={shown(self.size)}, crop={name}(…)): size=None is for 'keep', gpuload.Resize(…) and "
                "gpuload.Patches(…)"
            )
        if not has_own_sizes:
            return
        if self.normalize == "image":
            raise ArgumentError(
                "Augment(normalize='image', size=None): needs images of one size. Use Normalize(...)"
            )
        for transform in parts_of(self.transforms):
            if not getattr(transform, "any_size", False):
                raise ArgumentError(
                    f"{type(transform).__name__}: needs images of one size, thus Augment(size=…)"
                )

    def check_pixels(self, pixels: Pixels, measured: Measured = (None, None)) -> None:
        """Checks it against the pixels of a set.

        Args:
            pixels: What the set stores: its channels and the range of their values.
            measured: Mean and std of the set, for the message.

        Raises:
            ArgumentError: constants of another number or range, or something that is not defined for them.
        """
        are = f"the images have {pixels.in_words} (mode {pixels.mode})"
        if self.dtype == "uint8" and pixels.dtype != "uint8":
            raise ArgumentError(
                f"Augment(dtype='uint8'): {are}, which uint8 does not hold. Use float32"
            )
        uses_constants = self.dtype != "uint8" or self._erasing is not None
        if isinstance(self.normalize, Normalize) and uses_constants:
            self.normalize.check_pixels(pixels, are, measured)
        if not pixels.is_rgb:
            self._check_fills(are)
            self._check_definitions(pixels, are)

    def _check_fills(self, are: str) -> None:
        """Raises ArgumentError where a fill is a colour; `are` says of the pixels that they are not RGB."""
        for transform in (self._geometry, *parts_of(self.transforms)):
            for name in ("fill", "value"):
                fill = getattr(transform, name, None)
                if isinstance(fill, tuple | str):
                    raise ArgumentError(
                        f"{type(transform).__name__}({name}={fill!r}): is for RGB, and {are}. Use one number"
                    )

    def _check_definitions(self, pixels: Pixels, are: str) -> None:
        """Raises ArgumentError where a transform is not defined for pixels that are not RGB, of which `are` tells."""
        defined = {"any"}
        if pixels.dtype == "uint8":
            defined.add("bytes")
        if pixels == GRAY:
            defined.add("colours")
        for transform in parts_of(self.transforms):
            is_function = isinstance(transform, Function)
            if not is_function and getattr(transform, "defined_for", "") not in defined:
                raise ArgumentError(
                    f"{type(transform).__name__}: is not defined for such pixels; {are}. Leave it out"
                )

    @property
    def sizes(self) -> tuple[HeightWidth, ...]:
        """(height, width) of the output in pixels: of each bucket, or the one."""
        if isinstance(self.size, Buckets):
            return self.size.all_sizes
        if self.size is None:
            return ((1, 1),)  # which nothing depends on
        return ((self.size, self.size) if isinstance(self.size, int) else self.size,)

    @property
    def output_size(self) -> HeightWidth:
        """(height, width) of the output in pixels, where there are no buckets; (1, 1) where each image has its own."""
        (size,) = self.sizes
        return size

    def for_size(self, size: HeightWidth) -> "Augment":
        """The same with another output size.

        Args:
            size: (height, width) in pixels.
        """
        return replace(self, size=size)

    @property
    def _geometry(self) -> Geometry:
        assert isinstance(self.crop, Geometry)  # the rule makes it of a word
        return self.crop

    @property
    def _multiple(self) -> int | None:
        """Of images of their own sizes, what divides those of a batch; None where they come as a list."""
        if isinstance(self.crop, Patches):
            return self.crop.patch
        return self.crop.pad_to_multiple_of if isinstance(self.crop, Resize) else None

    @property
    def grid(self) -> PatchGrid | None:
        """How images are divided into patches; None where they are not."""
        return self.crop.grid if isinstance(self.crop, Patches) else None

    @property
    def function(self) -> Function | None:
        """The user's, among the transforms."""
        return next(
            (
                transform
                for transform in self.transforms
                if isinstance(transform, Function)
            ),
            None,
        )

    @property
    def _pixel_transforms(self) -> list[Transform]:
        return [
            transform
            for transform in self.transforms
            if not isinstance(transform, RandomErasing | Function)
        ]

    @property
    def _erasing(self) -> RandomErasing | None:
        return next(
            (
                transform
                for transform in self.transforms
                if isinstance(transform, RandomErasing)
            ),
            None,
        )

    @property
    def flip_share(self) -> float:
        """The probability of a horizontal flip, which follows from the crop where none is given."""
        return self._geometry.flip if self.flip is None else self.flip

    @property
    def form(self) -> Form:
        """What is the same for all its batches."""
        constants = self.normalize
        if not isinstance(constants, Normalize):
            channels = 3 if self.mode is None else Pixels.of_mode(self.mode).channels
            constants = Normalize((0.0,) * channels, (1.0,) * channels)
        crop = self._geometry
        grid = self.grid
        return Form(
            self.dtype,
            # The channels of a pixel are together in a patch.
            self.layout if grid is None else "channels_last",
            self.interpolation,
            "image" if self.normalize == "image" else "constants",
            constants.mean,
            constants.std,
            fill=crop.fill or 0,
            pads=crop.fill is not None and not crop.places,
            flips_vertically=self.vertical_flip > 0,
            transforms=bool(self._pixel_transforms) or self._erasing is not None,
            erases=self._erasing is not None,
            places=crop.places,
            sizes=self._sizes_of_images,
            padding_mode=crop.padding_mode,
            function=self._function_place,
            ops=self._ops,
            patch=0 if grid is None else grid.patch,
        )

    @property
    def _sizes_of_images(self) -> Literal["one", "list", "padded"]:
        """As `Form.sizes`."""
        if not self._geometry.own_sizes:
            return "one"
        return "list" if self._multiple is None else "padded"

    @property
    def _function_place(self) -> Literal["after_crop", "before_crop", ""]:
        """As `Form.function`."""
        if self.function is None:
            return ""
        return "before_crop" if self.function.before_crop else "after_crop"

    @cached_property
    def _ops(self) -> tuple[int, ...]:
        """The codes of the steps of some samples."""
        samples = np.arange(_SAMPLES_FOR_OPS)
        steps = draw_steps(
            self._pixel_transforms,
            lambda place: sample_draws(place, samples),
            *self.sizes[0],
        )
        return tuple(np.unique(steps.ops).tolist())

    @cached_property
    def _only_crops(self) -> "Augment":
        """The same crops and flips, and nothing else."""
        return replace(self, transforms=())

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

        Args:
            seed: Of the loader.
            epoch: Number of the pass.
            samples: (N,), sample indices in stored order.
            widths: (N,), of the decoded images in pixels.
            heights: (N,), of the decoded images in pixels.
            view: Number of the view, where several images are made of each sample.
            repeats: (N,), how often each sample came before in this pass; None: never.
        """
        geometry = self._geometry
        size = self.output_size
        key = each_key(
            make_key(seed, epoch, AUGMENT, view)
            if view
            else make_key(seed, epoch, AUGMENT),
            repeats,
        )
        drawn = self._draw_numbers(key, samples)
        flip = self.flip_share
        reach = 1 if self.interpolation == "bilinear" else 2
        images = Images(
            samples,
            widths.astype(np.float64),
            heights.astype(np.float64),
            size,
            reach,
            drawn.crop,
        )
        crops = geometry.draw(images)._replace(
            mirror=(drawn.flip < flip).astype(np.int32),
            mirror_y=(drawn.vertical_flip < self.vertical_flip).astype(np.int32),
        )
        erasing = self._erasing
        erased = None
        if erasing is not None:
            number = len(self._pixel_transforms)
            draws = self._draws_of(seed, epoch, samples, view, repeats, number)
            erased = erasing.draw(draws, *size)
        return View(
            frame=(self._multiple or 1) if geometry.own_sizes else size,
            crops=crops,
            steps=self.draw_transforms(seed, epoch, samples, view, repeats),
            erased=erased,
            function=self._plan(seed, epoch, samples, view, repeats),
            cubic=None if drawn.filter is None else drawn.filter < 0.5,
        )

    def draw_transforms(
        self, seed: int, epoch: int, samples: I64, view: int, repeats: I64 | None
    ) -> Steps | None:
        """The steps of a view; None where there are none.

        Args:
            seed: Of the loader.
            epoch: Number of the pass.
            samples: (N,), sample indices in stored order.
            view: Number of the view.
            repeats: (N,), how often each sample came before in this pass; None: never.
        """
        transforms = self._pixel_transforms
        if not transforms:
            return None
        return draw_steps(
            transforms,
            lambda number: self._draws_of(seed, epoch, samples, view, repeats, number),
            *self.output_size,
        )

    def _draws_of(
        self,
        seed: int,
        epoch: int,
        samples: I64,
        view: int,
        repeats: I64 | None,
        number: int,
    ) -> Draws:
        """The random numbers of one of the transforms."""
        key = make_key(seed, epoch, TRANSFORM, view, number)
        return sample_draws(each_key(key, repeats), samples)

    def _draw_numbers(self, key: U64 | int, samples: I64) -> _DrawnNumbers:
        """The random numbers of samples (N,), drawn at once, since every NumPy call has a cost of its own."""
        has_choice = self.interpolation == "random"
        numbers = [_FLIP, _VERTICAL_FLIP, *range(_CROP, _CROP + self._geometry.numbers)]
        if has_choice:
            numbers.append(_FILTER)
        drawn = uniform(key, samples * CROP_DRAWS.count + np.array(numbers)[:, None])
        return _DrawnNumbers(
            flip=drawn[0],
            vertical_flip=drawn[1],
            crop=drawn[2 : 2 + self._geometry.numbers],
            filter=drawn[-1] if has_choice else None,
        )

    def _plan(
        self, seed: int, epoch: int, samples: I64, view: int, repeats: I64 | None
    ) -> PlannedFunction | None:
        """The calls of the user's function; None where there is none. The arguments are those of `draw`."""
        function = self.function
        if function is None:
            return None
        key = np.asarray(
            each_key(make_key(seed, epoch, FUNCTION, view), repeats), np.uint64
        )
        keys = random_bits(
            key[..., None] if key.ndim else int(key),
            2 * samples[:, None] + np.arange(2),
        )
        origin = np.empty((len(samples), 3), np.uint64)
        origin[:] = seed & _WORD, epoch & _WORD, 0
        if repeats is not None:
            origin[:, 2] = repeats
        return PlannedFunction(function, view, keys, origin, self._only_crops.draw)

    @classmethod
    def torchvision(cls, transform: Any, **changes: Any) -> "Augment":
        """The same as a torchvision transform: a `Compose`, or what `weights.transforms()` gives, in the dtype and
        range of values that it ends with. Pillow's images become what `ToTensor` makes of them.

        Args:
            transform: Of torchvision's `transforms` or `transforms.v2`; it is read, never called.
            **changes: Arguments of `Augment` that replace those read from it, such as layout="channels_last".

        Raises:
            ArgumentError: a transform that has no counterpart here, or that is not torchvision's own.
        """
        check(
            "Augment.torchvision",
            "transform",
            transform,
            checks.function("a torchvision transform, such as a Compose"),
        )
        return cls(**{**arguments_of(transform), **changes})

    @classmethod
    def timm(
        cls, data_config: Mapping[str, Any] | None = None, **options: Any
    ) -> "Augment":
        """The same as `timm.data.create_transform(**data_config, **options)`, which needs timm.

        Args:
            data_config: What `timm.data.resolve_model_data_config` gives.
            **options: Such as is_training, hflip, re_prob and crop_mode; they take precedence.

        Raises:
            ArgumentError: a step that has no counterpart here, which the message names.
        """
        config = check("Augment.timm", "data_config", data_config, _CONFIG)
        return cls(
            **arguments_of(
                import_module("timm.data").create_transform(
                    **{**(config or {}), **options}
                )
            )
        )
