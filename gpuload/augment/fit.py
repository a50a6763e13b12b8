"""Whether what an `Augment` does is defined for the pixels of a set, which are known when a loader is constructed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuload.augment.padding import RandomCrop
from gpuload.errors import ArgumentError
from gpuload.fields.pixels import GRAY, RGB, Pixels
from gpuload.transforms.color import (
    ColorJitter,
    GaussianBlur,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from gpuload.transforms.compose import RandomApply
from gpuload.transforms.erasing import RandomErasing
from gpuload.transforms.steps import Op
from gpuload.transforms.warps import RandomAffine, RandomPerspective, RandomRotation

if TYPE_CHECKING:
    from gpuload.augment.augment import Augment

Constants = tuple[float, ...] | None

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


def neutral(pixels: Pixels) -> dict[str, Any]:
    """Arguments of an `Augment` that fits these pixels, for who measures a set of whatever mode."""
    half = (0.5,) * pixels.channels
    return {} if pixels.is_rgb else {"mean": half, "std": half}


def pixels_of(augments: "Sequence[Augment]", stored: Pixels, is_raw: bool) -> Pixels:
    """What the batches have: what the augments say, or what is stored. is_raw: as pixels.

    Raises:
        ArgumentError: they differ, or what is stored is not converted to it.
    """
    modes = {stored.mode if augment.mode is None else augment.mode for augment in augments}
    if len(modes) > 1:
        raise ArgumentError(
            f"augment: its views are for the modes {', '.join(sorted(modes))}, expected one. Give all the same mode"
        )
    wanted = Pixels.of_mode(modes.pop())
    if wanted == stored or (stored, wanted) == (RGB, GRAY) or ((stored, wanted) == (GRAY, RGB) and not is_raw):
        return wanted
    raise ArgumentError(
        f"Augment(mode={wanted.mode!r}): the images have {stored.in_words} (mode {stored.mode}), which are not "
        f"converted while loading. Leave mode out, or pack them with --mode {wanted.mode}"
    )


def check_pixels(augment: "Augment", pixels: Pixels, mean: Constants = None, std: Constants = None) -> None:
    """Checks an `Augment` against pixels. mean, std: what was measured of the set, for the message.

    Raises:
        ArgumentError: constants of another number or range, or something that is not defined for them.
    """
    are = f"the images have {pixels.in_words} (mode {pixels.mode})"
    if augment.dtype == "uint8" and pixels.dtype != "uint8":
        raise ArgumentError(f"Augment(dtype='uint8'): {are}, which uint8 does not hold. Use float32")
    _check_constants(augment, pixels, are, mean, std)
    if isinstance(augment.crop, RandomCrop) and isinstance(augment.crop.fill, tuple) and not pixels.is_rgb:
        raise ArgumentError(f"RandomCrop(fill={augment.crop.fill!r}): is for RGB, and {are}. Use one number")
    for transform in augment.transforms:
        if not pixels.is_rgb:
            _check_transform(transform, pixels, are)


def _check_constants(augment: "Augment", pixels: Pixels, are: str, mean: Constants, std: Constants) -> None:
    if not augment.uses_constants:
        return
    found = len(augment.mean)
    if found != pixels.channels:
        measured = f"such as the measured mean={mean}, std={std}" if mean and std else f"{pixels.channels} of each"
        raise ArgumentError(
            f"Augment(mean, std): {found} numbers each, expected {pixels.channels}, since {are}. Give {measured}"
        )
    if pixels.dtype != "float32" and max(*augment.mean, *augment.std) > 1:
        raise ArgumentError(
            f"Augment(mean={augment.mean!r}, std={augment.std!r}): expected values for pixels in 0..1. Divide yours by "
            f"{pixels.peak}"
        )


def _check_transform(transform: Any, pixels: Pixels, are: str) -> None:
    if isinstance(transform, RandomApply):
        for inner in transform.transforms:
            _check_transform(inner, pixels, are)
        return
    name = type(transform).__name__
    if isinstance(transform, RandomErasing):
        if not isinstance(transform.value, int | float):
            raise ArgumentError(f"RandomErasing(value={transform.value!r}): is for RGB, and {are}. Use one number")
        return
    if isinstance(transform, _WARPS):
        if isinstance(transform.fill, tuple):
            raise ArgumentError(f"{name}(fill={transform.fill!r}): is for RGB, and {are}. Use one number")
        return
    if pixels.dtype != "uint8":
        raise ArgumentError(f"{name}: is defined for channels of 8 bits, and {are}. Leave it out")
    if isinstance(transform, ColorJitter):
        other = [op.name.lower() for op, (low, high) in transform.ranges().items() if _needs_rgb(op, low, high)]
        if other:
            raise ArgumentError(f"ColorJitter({other[0]}=…): is defined for RGB, and {are}. Use brightness alone")
        return
    if not isinstance(transform, _EACH_CHANNEL):
        raise ArgumentError(f"{name}: is defined for RGB, and {are}. Leave it out")


def _needs_rgb(op: Op, low: float, high: float) -> bool:
    return op is not Op.BRIGHTNESS and not low == high == (0 if op is Op.HUE else 1)
