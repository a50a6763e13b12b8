"""Reads torchvision's transforms: which arguments of `Augment` say the same. torchvision itself is not imported."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuload import transforms
from gpuload.errors import ArgumentError

# These change the type of an image, not what it shows.
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
    "RandomErasing": ("p", "scale", "ratio", "value"),
    "RandAugment": ("num_ops", "magnitude", "num_magnitude_bins"),
    "TrivialAugmentWide": ("num_magnitude_bins",),
}


def arguments_of(transform: Any) -> dict[str, Any]:
    """Arguments for `Augment` that do what a torchvision transform does: a `Compose` (of `transforms` or
    `transforms.v2`), one transform, or what `weights.transforms()` gives.

    Raises:
        ArgumentError: a transform that has no counterpart here, or an order that has none: pixels change after crop
            and resize, and are normalised last.
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
    for step in _flatten(transform):
        read = _READERS.get(_name(step))
        if read is not None:
            found.update(read(step, found))
        elif _name(step) not in _CONVERSIONS:
            if "size" not in found:
                raise ArgumentError(
                    f"Augment.torchvision: {_name(step)} comes before any crop or resize; here pixels change after them"
                )
            found["transforms"].append(_pixels(step))
    if "resize" in found and "crop" not in found:  # Resize(224) alone
        raise ArgumentError(
            f"Augment.torchvision: Resize({found['resize']}) without a CenterCrop gives images of different sizes, "
            "which make no batch. Use Resize((height, width))"
        )
    if "size" not in found:
        raise ArgumentError(f"Augment.torchvision: {_name(transform)} holds no crop or resize, which gives the size")
    return {**found, "transforms": tuple(found["transforms"])}


def _flatten(transform: Any) -> Iterator[Any]:
    if _name(transform) in ("Compose", "Sequential"):
        for step in getattr(transform, "transforms", transform):
            yield from _flatten(step)
    else:
        yield transform


def _random_resized_crop(step: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "size": _size(step.size),
        "crop": "random",
        "scale": tuple(step.scale),
        "ratio": tuple(step.ratio),
        "interpolation": _interpolation(step),
    }


def _resize(step: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(step.size, int) or len(step.size) == 1:
        return {"resize": _side(step.size), "interpolation": _interpolation(step)}
    return {"size": _size(step.size), "crop": "none", "interpolation": _interpolation(step)}


def _center_crop(step: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    if "resize" not in found:
        raise ArgumentError(
            "Augment.torchvision: CenterCrop without a Resize before it. Use Augment(crop='pad_or_crop')"
        )
    return {"size": _size(step.size), "crop": "center"}


def _normalize(step: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    return {"mean": tuple(step.mean), "std": tuple(step.std)}


_READERS: dict[str, Callable[[Any, Mapping[str, Any]], dict[str, Any]]] = {
    "RandomResizedCrop": _random_resized_crop,
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "RandomHorizontalFlip": lambda step, found: {"flip": float(step.p)},
    "RandomVerticalFlip": lambda step, found: {"vertical_flip": float(step.p)},
    "Normalize": _normalize,
}


def _pixels(step: Any) -> Any:
    """The transform of the same name of `gpuload.transforms`."""
    name = _name(step)
    if name == "RandomApply":
        return transforms.RandomApply(tuple(_pixels(inner) for inner in step.transforms), p=float(step.p))
    if name == "AutoAugment":
        return transforms.AutoAugment(step.policy.value)
    if name not in _SAME_NAME:
        raise ArgumentError(
            f"Augment.torchvision: {name} has no counterpart. Known: RandomResizedCrop, Resize, CenterCrop, flips, "
            f"Normalize, RandomApply, AutoAugment, {', '.join(_SAME_NAME)}. Others can be given to DaliIterator as "
            "batch_transforms"
        )
    arguments = {key: getattr(step, key) for key in _SAME_NAME[name]}
    return getattr(transforms, name)(**{key: _plain(value) for key, value in arguments.items()})


def _plain(value: Any) -> Any:
    """torchvision keeps lists where it was given tuples, and None for a strength of 0."""
    if value is None:
        return 0
    return tuple(value) if isinstance(value, list) else value


def _interpolation(step: Any) -> str:
    mode = getattr(step.interpolation, "value", step.interpolation)
    if mode not in ("bilinear", "bicubic"):
        raise ArgumentError(f"Augment.torchvision: interpolation {mode!r}; expected bilinear or bicubic")
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
