"""Whether what an `Augment` does is defined for the pixels of a set, which are known when a loader is constructed."""

from collections.abc import Iterable
from typing import Any

from gpuload.errors import ArgumentError
from gpuload.fields.pixels import GRAY, RGB, Pixels
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
from gpuload.transforms.erasing import RandomErasing
from gpuload.transforms.ops import Op
from gpuload.transforms.timm import TimmAutoAugment
from gpuload.transforms.warps import RandomAffine, RandomPerspective, RandomRotation

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
