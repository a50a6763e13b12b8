"""Checks of the arguments of `Augment`; each raises ArgumentError with the argument, its value and what is expected."""

from typing import TYPE_CHECKING, get_args

from gpuload.augment.views import Crop, DType, Interpolation, Layout, Normalize
from gpuload.errors import ArgumentError
from gpuload.transforms.erasing import RandomErasing

if TYPE_CHECKING:
    from gpuload.augment.augment import Augment

_CHOICES = {"crop": Crop, "interpolation": Interpolation, "normalize": Normalize, "dtype": DType, "layout": Layout}


def check_choices(augment: "Augment") -> None:
    """The arguments that are one of a few words."""
    for name, choices in _CHOICES.items():
        if (value := getattr(augment, name)) not in get_args(choices):
            raise ArgumentError(f"Augment({name}={value!r}): expected one of {', '.join(map(repr, get_args(choices)))}")


def check_geometry(augment: "Augment") -> None:
    """size, crop, scale, ratio, flips, resize and fraction."""
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
            raise ArgumentError("Augment(resize, fraction): both say what to crop; give one of them")
        if not 0 < augment.fraction <= 1:
            raise ArgumentError(f"Augment(fraction={augment.fraction!r}): expected a share of the sides in 0..1")
    elif augment.resize_px < max(size) and augment.crop == "center":
        raise ArgumentError(f"Augment(resize={augment.resize!r}): the shorter side must be at least size, {max(size)}")


def check_transforms(augment: "Augment") -> None:
    """transforms: each is one, and RandomErasing comes once at most."""
    for transform in augment.transforms:
        if not hasattr(transform, "draw") or isinstance(transform, type):
            raise ArgumentError(
                f"Augment(transforms): {transform!r} is not one of gpuload.transforms. Augment.torchvision(...) reads "
                "torchvision's; your own functions go into DaliIterator(batch_transforms=[...])"
            )
    if sum(isinstance(transform, RandomErasing) for transform in augment.transforms) > 1:
        raise ArgumentError("Augment(transforms): expected one RandomErasing at most")


def check_values(augment: "Augment") -> None:
    """normalize, fill, mean and std."""
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
