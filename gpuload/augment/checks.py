"""The arguments of `Augment`: what each may be, and which contradict each other."""

from typing import TYPE_CHECKING, Any, get_args

from gpuload.augment.fit import check_pixels
from gpuload.augment.padding import RandomCrop
from gpuload.augment.views import Crop, DType, FunctionAt, Interpolation, Layout, Normalize
from gpuload.checks import (
    LARGEST,
    POSITIVE,
    PROBABILITY,
    SIDE,
    SIDES,
    Rule,
    as_items,
    ascending,
    check_fields,
    choice,
    either,
    instance,
    member,
    number,
    optional,
    several,
    shown,
    whole,
)
from gpuload.errors import ArgumentError
from gpuload.fields.pixels import MODE, Pixels
from gpuload.functions.adapt import as_function
from gpuload.transforms.erasing import RandomErasing

if TYPE_CHECKING:
    from gpuload.augment.augment import Augment


def _as_transforms(value: Any) -> tuple[Any, ...]:
    transforms = as_items(value)
    for transform in transforms:
        if isinstance(transform, RandomCrop):
            raise ArgumentError("Augment(transforms): RandomCrop is a crop. Give it as Augment(crop=RandomCrop(...))")
        if not hasattr(transform, "draw") or isinstance(transform, type):
            raise ArgumentError(
                f"Augment(transforms): {shown(transform)} is not one of gpuload.transforms. Augment.torchvision(...) "
                "reads torchvision's; your own function of a sample goes into Augment(function=...), one of whole "
                "batches into DaliIterator(batch_transforms=[...])"
            )
    return transforms


_RULES: dict[str, Rule[Any]] = {
    "size": optional(SIDES),
    "crop": either(
        f"one of {', '.join(map(repr, get_args(Crop)))}, or a RandomCrop",
        instance("", RandomCrop),
        choice(*get_args(Crop)),
    ),
    "scale": ascending(POSITIVE, 1, "(low, high) with 0 < low <= high <= 1, shares of the image's area"),
    "ratio": ascending(1 / LARGEST, LARGEST, "(low, high) with 1e-6 <= low <= high <= 1e6, of width / height"),
    "flip": optional(PROBABILITY),
    "vertical_flip": PROBABILITY,
    "resize": optional(SIDE),
    "fraction": optional(number(POSITIVE, 1, "a share of the sides, above 0 and at most 1")),
    "interpolation": member(*get_args(Interpolation)),
    "transforms": Rule("a list of gpuload.transforms, such as [RandAugment()]", _as_transforms),
    "normalize": choice(*get_args(Normalize)),
    "mean": several(number(-LARGEST, LARGEST, ""), "three numbers (R, G, B), for pixels in 0..1, or one a channel"),
    "std": several(
        number(POSITIVE, LARGEST, ""), "three numbers above 0 (R, G, B), for pixels in 0..1, or one a channel"
    ),
    "fill": whole(0, 255, "a level, a whole number in 0..255"),
    "dtype": member(*get_args(DType)),
    "layout": member(*get_args(Layout)),
    "mode": optional(MODE),
    "function": optional(
        Rule("a function f(sample, rng), or a transform of torchvision or Albumentations", as_function)
    ),
    "function_at": choice(*get_args(FunctionAt)),
}


def check_arguments(augment: "Augment") -> None:
    """Checks each argument, then what they are together; sets them to Python's own types.

    Raises:
        ArgumentError: an argument, its value and what was expected.
    """
    check_fields(augment, **_RULES)
    _check_center(augment)
    if augment.fill and isinstance(augment.crop, RandomCrop):
        raise ArgumentError(f"Augment(fill={augment.fill!r}): is for crop='pad_or_crop'. Use RandomCrop(fill=...)")
    if augment.function is None and augment.function_at != "after_crop":
        raise ArgumentError(
            f"Augment(function_at={augment.function_at!r}): there is no function. Give one, or leave it out"
        )
    if sum(isinstance(transform, RandomErasing) for transform in augment.transforms) > 1:
        raise ArgumentError("Augment(transforms): expected one RandomErasing at most")
    if augment.dtype == "uint8" and augment.normalize == "image":
        raise ArgumentError("Augment(normalize='image', dtype='uint8'): standardised pixels need a float dtype")
    mean, std = augment.mean, augment.std
    if len(mean) != len(std):
        name, given, other = ("std", std, mean) if len(mean) == 3 else ("mean", mean, std)
        raise ArgumentError(
            f"Augment({name}={given!r}): expected three numbers (R, G, B), or one a channel, as many as the other has, "
            f"{len(other)}"
        )
    if augment.mode is not None:
        check_pixels(augment, Pixels.of_mode(augment.mode))
    elif max(*mean, *std) > 1:
        raise ArgumentError(
            f"Augment(mean={mean!r}, std={std!r}): expected values for pixels in 0..1. Divide yours by 255"
        )


def _check_center(augment: "Augment") -> None:
    """resize and fraction, which are for crop="center"."""
    for name in ("resize", "fraction"):
        if getattr(augment, name) is not None and augment.crop != "center":
            raise ArgumentError(
                f"Augment({name}={getattr(augment, name)!r}): is for crop='center' only; crop is {augment.crop!r}"
            )
    if augment.fraction is not None and augment.resize is not None:
        raise ArgumentError("Augment(resize, fraction): both say what to crop; give one of them")
    size = max(augment.output_size) if augment.size is not None else 0
    if augment.size is not None and augment.crop == "center" and augment.fraction is None and augment.resize_px < size:
        raise ArgumentError(f"Augment(resize={augment.resize!r}): the shorter side must be at least size, {size}")
