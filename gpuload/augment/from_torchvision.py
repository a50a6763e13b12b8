"""Translates torchvision's transforms to arguments of `Augment`. torchvision itself is not imported."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpuload import transforms
from gpuload.augment.padding import RandomCrop
from gpuload.errors import ArgumentError

# These change the type of an image, not its content.
_CONVERSIONS = {"ToTensor", "PILToTensor", "ToImage", "ToPILImage", "ToDtype", "ConvertImageDtype", "ToPureTensor"}
_SAME_NAME = {
    "ColorJitter": ("brightness", "contrast", "saturation", "hue"),
    "RandomGrayscale": ("p",),
    "GaussianBlur": ("kernel_size", "sigma"),
    "RandomInvert": ("p",),
    "RandomPosterize": ("bits", "p"),
    "RandomSolarize": ("threshold", "p"),
    "RandomAdjustSharpness": ("sharpness_factor", "p"),
    "RandomAutocontrast": ("p",),
    "RandomEqualize": ("p",),
    "RandomRotation": ("degrees", "interpolation", "expand", "center", "fill"),
    "RandomAffine": ("degrees", "translate", "scale", "shear", "interpolation", "fill", "center"),
    "RandomPerspective": ("distortion_scale", "p", "interpolation", "fill"),
    "RandomErasing": ("p", "scale", "ratio", "value"),
    "RandAugment": ("num_ops", "magnitude", "num_magnitude_bins", "fill"),
    "TrivialAugmentWide": ("num_magnitude_bins", "fill"),
    "AutoAugment": ("policy", "fill"),
}
# The order in `Augment`. Conversions may be anywhere. So may flips, where what comes before them does the same to a
# flipped image (`_check_flip`).
_FLIPS = ("RandomHorizontalFlip", "RandomVerticalFlip")
_TOGETHER = (("Resize", "CenterCrop"), ("Pad", "RandomCrop"))
_STAGES = ("crop and resize", "transforms of pixels", "Normalize", "RandomErasing")


def arguments_of(transform: Any) -> dict[str, Any]:
    """Arguments with which `Augment` does what a torchvision transform does: a `Compose` (of `transforms` or
    `transforms.v2`), one transform, or what `weights.transforms()` returns.

    Raises:
        ArgumentError: a transform, or an argument of one, that has no counterpart here, or another order than this: one
            crop and resize, then what changes pixels, then Normalize, then RandomErasing.
    """
    if _name(transform) == "ImageClassification":  # torchvision.transforms._presets
        return {
            "size": _side(transform.crop_size),
            "crop": "center",
            "resize": _side(transform.resize_size),
            "mean": tuple(transform.mean),
            "std": tuple(transform.std),
            "interpolation": _interpolation(transform),
        }
    found: dict[str, Any] = {"flip": 0.0, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "transforms": []}
    names: list[str] = []
    unit = 1  # of levels in arguments: 1 while images are in 0..255, 255 once they are floats in 0..1
    for step in _flatten(transform):
        name = _name(step)
        if name in _CONVERSIONS:
            unit = _unit(step, unit)
            continue
        read = _READERS.get(name)
        pixels = None if read is not None else _pixels(step, unit)  # unknown names are refused before a wrong order
        _check_order(name, names)
        if name in _FLIPS:
            _check_flip(name, found["transforms"])
        if read is not None:
            found.update(read(step, found, unit))
        else:
            found["transforms"].append(pixels)
        names.append(name)
    if "resize" in found and "crop" not in found:  # Resize(224) alone
        raise ArgumentError(
            f"Augment.torchvision: Resize({found['resize']}) without a CenterCrop gives images of different sizes, "
            "which make no batch. Use Resize((height, width))"
        )
    if found.pop("pad", None) is not None:
        raise ArgumentError("Augment.torchvision: Pad without a RandomCrop after it. Use Augment(crop='pad_or_crop')")
    if "size" not in found:
        raise ArgumentError(f"Augment.torchvision: {_name(transform)} holds no crop or resize, which gives the size")
    return {**found, "transforms": tuple(found["transforms"])}


def _check_order(name: str, before: Sequence[str]) -> None:
    """Raises ArgumentError where a transform does not come in the order in which `Augment` does things."""
    if name in before and name in _READERS:
        raise ArgumentError(f"Augment.torchvision: {name} comes twice; here it is done once")
    stage = _stage(name)
    for other in before:
        if stage is not None and (_stage(other) or 0) > stage:
            raise ArgumentError(
                f"Augment.torchvision: {name} comes after {other}; the order here is {', '.join(_STAGES)}"
            )
        if stage == 0 and _stage(other) == 0 and (other, name) not in _TOGETHER:
            raise ArgumentError(f"Augment.torchvision: {other} and {name} both crop or resize; here one of them can")
    if stage and stage != 2 and not any(_stage(other) == 0 for other in before):
        raise ArgumentError(f"Augment.torchvision: {name} comes before crop and resize; here pixels change after them")


def _stage(name: str) -> int | None:
    """Its index in `_STAGES`; None: it may be anywhere."""
    if name in _READERS:
        return None if name in _FLIPS else 2 if name == "Normalize" else 0
    return 3 if name == "RandomErasing" else 1


def _check_flip(name: str, before: Sequence[Any]) -> None:
    """Raises ArgumentError where a flip would change what comes before it: flips are first here."""
    for transform in before:
        if isinstance(transform, transforms.RandomApply):
            _check_flip(name, transform.transforms)
        elif isinstance(transform, transforms.RandomRotation | transforms.RandomAffine):
            shear: Any = getattr(transform, "shear", None) or ()
            ranges: Any = [transform.degrees, shear[:2], shear[2:]]
            if transform.center is not None or any(limits and limits[0] != -limits[1] for limits in ranges):
                raise ArgumentError(
                    f"Augment.torchvision: {name} comes after a {_name(transform)} that turns images to one side more "
                    "than to the other; here flips come first. Put it before"
                )


def _unit(step: Any, before: int) -> int:
    """The factor from levels of the images after a conversion to levels in 0..255: 255 where they are in 0..1."""
    name, dtype = _name(step), getattr(step, "dtype", None)
    if name in ("ToTensor", "ToPILImage"):
        return 255 if name == "ToTensor" else 1
    if name == "ConvertImageDtype" or (name == "ToDtype" and step.scale):
        return 255 if getattr(dtype, "is_floating_point", False) else 1
    return before


def _flatten(transform: Any) -> Iterator[Any]:
    if _name(transform) in ("Compose", "Sequential"):
        for step in getattr(transform, "transforms", transform):
            yield from _flatten(step)
    else:
        yield transform


def _pad(step: Any, found: Mapping[str, Any], unit: int) -> dict[str, Any]:
    return {"pad": _random_crop_of(step, unit, _sides(step))}


def _random_crop(step: Any, found: Mapping[str, Any], unit: int) -> dict[str, Any]:
    crop, before = _random_crop_of(step, unit, _sides(step), bool(step.pad_if_needed)), found.get("pad")
    if before is not None and crop != RandomCrop():
        raise ArgumentError("Augment.torchvision: Pad comes before a RandomCrop that pads, too; here one of them can")
    return {"size": _size(step.size), "crop": before or crop, "pad": None}


def _random_crop_of(step: Any, unit: int, padding: Any, pad_if_needed: bool = False) -> RandomCrop:
    fill, mode = _levels(_plain(step.fill), unit) or 0, step.padding_mode
    whole = tuple(map(round, fill)) if isinstance(fill, tuple) else round(fill)
    # Without padding, and in another mode, it has no effect.
    used = mode == "constant" and (padding is not None or pad_if_needed)
    return RandomCrop(padding, pad_if_needed, whole if used else 0, mode if padding or pad_if_needed else "constant")


def _sides(step: Any) -> Any:
    """As given, or (left, top, right, bottom), where v2's RandomCrop stores (left, right, top, bottom)."""
    padding = _plain(step.padding) if step.padding is not None else None
    is_v2 = ".v2." in type(step).__module__
    if isinstance(padding, tuple) and is_v2 and _name(step) == "RandomCrop":
        left, right, top, bottom = padding
        padding = (left, top, right, bottom)
    return padding if not isinstance(padding, tuple) or len(set(padding)) > 1 else padding[0]


def _random_resized_crop(step: Any, found: Mapping[str, Any], unit: int) -> dict[str, Any]:
    return {
        "size": _size(step.size),
        "crop": "random",
        "scale": tuple(step.scale),
        "ratio": tuple(step.ratio),
        "interpolation": _interpolation(step),
    }


def _resize(step: Any, found: Mapping[str, Any], unit: int) -> dict[str, Any]:
    if step.max_size is not None:
        raise ArgumentError(f"Augment.torchvision: Resize(max_size={step.max_size!r}) has no counterpart")
    if isinstance(step.size, int) or len(step.size) == 1:
        return {"resize": _side(step.size), "interpolation": _interpolation(step)}
    return {"size": _size(step.size), "crop": "none", "interpolation": _interpolation(step)}


def _center_crop(step: Any, found: Mapping[str, Any], unit: int) -> dict[str, Any]:
    if "resize" not in found:
        raise ArgumentError(
            "Augment.torchvision: CenterCrop without a Resize(side) before it. Use Augment(crop='pad_or_crop')"
        )
    return {"size": _size(step.size), "crop": "center"}


def _normalize(step: Any, found: Mapping[str, Any], unit: int) -> dict[str, Any]:
    """One number stands for all three channels, as in torchvision."""
    mean, std = tuple(step.mean), tuple(step.std)
    return {"mean": mean * 3 if len(mean) == 1 else mean, "std": std * 3 if len(std) == 1 else std}


# A reader is given the transform, what was found before it, and the unit of levels.
_READERS: dict[str, Callable[[Any, Mapping[str, Any], int], dict[str, Any]]] = {
    "Pad": _pad,
    "RandomCrop": _random_crop,
    "RandomResizedCrop": _random_resized_crop,
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "RandomHorizontalFlip": lambda step, found, unit: {"flip": float(step.p)},
    "RandomVerticalFlip": lambda step, found, unit: {"vertical_flip": float(step.p)},
    "Normalize": _normalize,
}


def _pixels(step: Any, unit: int) -> Any:
    """The transform of the same name in `gpuload.transforms`. unit: factor of levels in its arguments, see `_unit`."""
    name = _name(step)
    if name == "RandomApply":
        return transforms.RandomApply(tuple(_pixels(inner, unit) for inner in step.transforms), p=float(step.p))
    if name not in _SAME_NAME:
        raise ArgumentError(
            f"Augment.torchvision: {name} has no counterpart. Known: RandomResizedCrop, Resize, CenterCrop, "
            f"RandomCrop, Pad, flips, Normalize, RandomApply, {', '.join(_SAME_NAME)}. Others can be given to "
            "DaliIterator as batch_transforms"
        )
    arguments = {key: _plain(getattr(step, key)) for key in _SAME_NAME[name]}
    if "fill" in arguments:
        mode = getattr(step.interpolation, "value", step.interpolation)
        if "interpolation" not in arguments and mode != "nearest":
            raise ArgumentError(f"Augment.torchvision: {name}(interpolation={mode!r}); expected nearest, its default")
        arguments["fill"] = _levels(arguments["fill"], unit)
    elif name == "RandomSolarize":
        arguments["threshold"] *= unit
    elif name == "RandomErasing" and step.value is None:  # so v2 stores "random"
        arguments["value"] = "random"
    elif name == "ColorJitter":  # torchvision stores a strength of 0 as None
        arguments = {key: 0 if value is None else value for key, value in arguments.items()}
    return getattr(transforms, name)(**arguments)


def _plain(value: Any) -> Any:
    """torchvision stores tuples as lists, v2 also single numbers, and a policy as an enum."""
    if isinstance(value, list):
        return value[0] if len(value) == 1 else tuple(value)
    return getattr(value, "value", value)


def _levels(fill: Any, unit: int) -> Any:
    """A fill in levels of 0..255: one for all channels, or three, or None."""
    if fill is None:
        return None
    if isinstance(fill, Mapping):
        raise ArgumentError(f"Augment.torchvision: fill={fill!r}; expected one level, or three (R, G, B)")
    return tuple(level * unit for level in fill) if isinstance(fill, tuple) else fill * unit


def _interpolation(step: Any) -> str:
    mode = getattr(step.interpolation, "value", step.interpolation)
    if mode not in ("bilinear", "bicubic"):
        raise ArgumentError(f"Augment.torchvision: interpolation {mode!r}; expected bilinear or bicubic")
    if getattr(step, "antialias", True) is False:
        raise ArgumentError(f"Augment.torchvision: {_name(step)}(antialias=False); here resizing always antialiases")
    return str(mode)


def _side(size: Any) -> int:
    return int(size if isinstance(size, int) else size[0])


def _size(size: Any) -> int | tuple[int, int]:
    if isinstance(size, int):
        return size
    height, width = (size[0], size[0]) if len(size) == 1 else size
    return int(height) if height == width else (int(height), int(width))


def _name(transform: Any) -> str:
    return type(transform).__name__
