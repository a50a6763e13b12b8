"""What is done to the images of a batch: `View`, drawn for each batch, and `Form`, the same for all."""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from gpuload.augment.crops import Crops, Levels, PaddingMode
from gpuload.errors import ArgumentError
from gpuload.fields.images import GRAY, RGB, Pixels
from gpuload.functions.function import Function
from gpuload.transforms.auto import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from gpuload.transforms.color import (
    ColorJitter,
    GaussianBlur,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from gpuload.transforms.compose import RandomApply, RandomChoice, RandomOrder
from gpuload.transforms.erasing import ErasedRegions, RandomErasing
from gpuload.transforms.ops import Op
from gpuload.transforms.steps import Steps
from gpuload.transforms.timm import TimmAutoAugment
from gpuload.transforms.warps import RandomAffine, RandomPerspective, RandomRotation
from gpuload.types import I32, I64, U64, Bools

_POLICIES = (AugMix, AutoAugment, RandAugment, TimmAutoAugment, TrivialAugmentWide)
_WARPS = (RandomRotation, RandomAffine, RandomPerspective)  # of any pixels
# Of any number of channels, 8 bits each: they treat each channel by itself.
_EACH_CHANNEL = (
    GaussianBlur,
    RandomSolarize,
    RandomPosterize,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
)
_COLOURS = (ColorJitter, RandomGrayscale, *_EACH_CHANNEL)

Interpolation = Literal["bilinear", "bicubic", "random"]
DType = Literal["float32", "float16", "bfloat16", "uint8"]
Layout = Literal["NCHW", "channels_last"]


def pixels_of(modes: Iterable[str | None], stored: Pixels, is_raw: bool) -> Pixels:
    """What the batches have: what augments say, or what is stored.

    modes: of each `Augment`. is_raw: the images are stored as pixels.

    Raises:
        ArgumentError: they differ, or what is stored is not converted to it.
    """
    different = {stored.mode if mode is None else mode for mode in modes}
    if len(different) > 1:
        raise ArgumentError(
            f"augment: its views are for the modes {', '.join(sorted(different))}, expected one. Give all the same mode"
        )
    wanted = Pixels.of_mode(different.pop())
    if wanted == stored or (stored, wanted) == (RGB, GRAY) or ((stored, wanted) == (GRAY, RGB) and not is_raw):
        return wanted
    raise ArgumentError(
        f"Augment(mode={wanted.mode!r}): the images have {stored.in_words} (mode {stored.mode}), which are not "
        f"converted while loading. Leave mode out, or pack them with --mode {wanted.mode}"
    )


def check_transform(transform: Any, pixels: Pixels, are: str) -> None:
    """Checks a transform of an `Augment` for pixels other than RGB. are: what is said of them in the message.

    Raises:
        ArgumentError: it is not defined for them.
    """
    if isinstance(transform, Function):
        return
    if isinstance(transform, RandomApply | RandomChoice | RandomOrder):
        for inner in transform.transforms:
            check_transform(inner, pixels, are)
        return
    name = type(transform).__name__
    if isinstance(transform, RandomErasing):
        if not isinstance(transform.value, int | float):
            raise ArgumentError(f"RandomErasing(value={transform.value!r}): is for RGB, and {are}. Use one number")
        return
    if isinstance(transform, (*_WARPS, *_POLICIES) if pixels == GRAY else _WARPS):
        if isinstance(transform.fill, tuple):
            raise ArgumentError(f"{name}(fill={transform.fill!r}): is for RGB, and {are}. Use one number")
        return
    if pixels.dtype != "uint8":
        raise ArgumentError(f"{name}: is defined for channels of 8 bits, and {are}. Leave it out")
    if pixels == GRAY and isinstance(transform, ColorJitter | RandomGrayscale):
        return
    if isinstance(transform, ColorJitter):
        other = [op.name.lower() for op, (low, high) in transform.ranges().items() if _needs_rgb(op, low, high)]
        if other:
            raise ArgumentError(f"ColorJitter({other[0]}=…): is defined for RGB, and {are}. Use brightness alone")
        return
    if not isinstance(transform, _EACH_CHANNEL):
        raise ArgumentError(f"{name}: is defined for RGB, and {are}. Leave it out")


def check_any_size(transform: Any) -> None:
    """Raises ArgumentError for a transform that is not defined for images that each have their own size."""
    if isinstance(transform, RandomApply | RandomChoice | RandomOrder):
        for inner in transform.transforms:
            check_any_size(inner)
    elif isinstance(transform, GaussianBlur) or not isinstance(transform, _COLOURS):
        raise ArgumentError(
            f"{type(transform).__name__}: needs images of one size, and with size=None each has its own. Give a size, "
            "for instance with crop=gpuload.Letterbox(), or leave it out"
        )


def _needs_rgb(op: Op, low: float, high: float) -> bool:
    return op is not Op.BRIGHTNESS and not low == high == (0 if op is Op.HUE else 1)


class PlannedFunction(NamedTuple):
    """A function that is to be called for each of N images of a view.

    view: the number of the view. keys: uint64 (N, 2), the key of each sample's generator. origin: uint64 (N, 3), the
    seed, the epoch and the repeat that the view was drawn with. redraw: `Augment.draw` of the same crops and flips.
    """

    function: Function
    view: int
    keys: U64
    origin: U64
    redraw: Callable[[int, int, I64, I32, I32, int, I64], "View"]

    def crop(self, row: int, sample: int, height: int, width: int) -> Crops:
        """The crop and flips of one image, as they are drawn for an image of this size: N = 1."""
        seed, epoch, repeat = self.origin[row].tolist()
        sides = np.array([width, height], np.int32)
        samples, repeats = np.array([sample]), np.array([repeat], np.int64)
        return self.redraw(seed, epoch, samples, sides[:1], sides[1:], self.view, repeats).crops


class View(NamedTuple):
    """What is to be done to a batch of N stored images, to make one output image of each.

    frame: (height, width) of the output in pixels; where each image has its own size, the number that divides the
    height and width of the batch. steps: of the N images; erased: one after another; None where there is nothing to
    do. cubic: which images are resized by a bicubic filter, where that is drawn for each.
    function: the user's, to be called for each image; None where there is none.
    """

    frame: tuple[int, int] | int
    crops: Crops
    steps: Steps | None
    erased: tuple[ErasedRegions, ...] | None
    function: PlannedFunction | None = None
    cubic: Bools | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the batch in pixels, which are those of the largest image where each has its own."""
        if not isinstance(self.frame, int):
            return self.frame
        assert self.crops.sizes is not None
        height, width = self.crops.sizes.max(axis=0, initial=1).tolist()
        return -(-height // self.frame) * self.frame, -(-width // self.frame) * self.frame

    def own_size(self, row: int) -> tuple[int, int]:
        """(height, width) in pixels of the output of one image."""
        if self.crops.sizes is None:
            return self.size
        height, width = self.crops.sizes[row].tolist()
        return height, width

    def without_transforms(self) -> "View":
        """Only crop, resize and flips; where there is nothing else, itself."""
        if self.steps is None and self.erased is None:
            return self
        return View(self.frame, self.crops, None, None, cubic=self.cubic)

    def moved(self, corners: I64) -> "View":
        """The same of parts of images. corners: int64 (N, 2), the top and left of each in its image."""
        return self._replace(crops=self.crops._replace(start=self.crops.start + corners.astype(np.int32)))


class Form(NamedTuple):
    """What is the same for all batches of a view, whatever is drawn for them: what a decoder is built for.

    normalize: "constants": (pixel - mean) / std; "image": by each image's own; "levels": pixels as they are stored,
    which no user asks for. fill: level 0..255 of what is padded, or one for each channel. pads: whether a crop may
    extend beyond the image. flips_vertically, transforms, erases: whether there may be any; erasing counts as a
    transform. places: whether images may be scaled and padded. sizes: whether all images of a batch have one size, or
    come as a list of their own ones, or padded to the largest. padding_mode: of the crop. function: where the user's
    function is called, "" where there is none. ops: codes of steps that are drawn; rare ones may be missing. The others
    are arguments of `Augment`.
    """

    dtype: DType
    layout: Layout
    interpolation: Interpolation
    normalize: Literal["constants", "image", "levels"]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fill: Levels
    pads: bool
    flips_vertically: bool
    transforms: bool
    erases: bool = False
    places: bool = False
    sizes: Literal["one", "list", "padded"] = "one"
    padding_mode: PaddingMode = "constant"
    function: Literal["after_crop", "before_crop", ""] = ""
    ops: tuple[int, ...] = ()

    def fills(self, channels: int) -> tuple[int, ...]:
        """The fill of each channel."""
        return (self.fill,) * channels if isinstance(self.fill, int) else self.fill

    @property
    def is_plain(self) -> bool:
        """Whether pixels are only cropped, resized, flipped, padded with a colour and normalised by constants."""
        constant = self.normalize != "image" or self.dtype == "uint8"
        return constant and not self.transforms and self.padding_mode == "constant"

    @property
    def channels(self) -> int:
        """Of the images, once the form is fitted to those of a set."""
        return len(self.mean)

    def fitted(self, pixels: Pixels) -> "Form":
        """The form for images of these pixels, against which its `Augment` was checked: constants that nothing depends
        on may be of another number."""
        if self.channels == pixels.channels:
            return self
        return self._replace(mean=(0.0,) * pixels.channels, std=(1.0,) * pixels.channels)

    def levels(self, pixels: Pixels) -> "Form":
        """The form of its pixels before they are transformed and normalised, (N, C, height, width): uint8, or the same
        numbers as float32 where they are not uint8."""
        plain = self._replace(layout="NCHW", transforms=False, erases=False, function="", ops=())
        if pixels.dtype == "uint8":
            return plain._replace(dtype="uint8", normalize="constants")
        return plain._replace(dtype="float32", normalize="levels")
