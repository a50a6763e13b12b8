"""Translates transforms of torchvision, timm, open_clip and DINOv2 to arguments of `Augment`, importing none of these.

`_READERS` and `_SAME_NAME` are the table of all steps that are known; the others are refused by their names.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from PIL import Image

from gpuload import transforms
from gpuload.augment.from_timm import POLICIES, policy_of
from gpuload.augment.geometries import CenterCrop, Cover, RandomResizedCrop
from gpuload.augment.normalize import Normalize
from gpuload.augment.placed import RandomCrop
from gpuload.augment.views import DType
from gpuload.errors import ArgumentError

_TO_TENSOR = ("ToTensor", "PILToTensor", "ToImage")
_TO_DTYPE = ("ToDtype", "ConvertImageDtype")
_CONVERSIONS = (*_TO_TENSOR, *_TO_DTYPE, "ToPILImage")
_SEQUENTIAL = "torch.nn.modules.container.Sequential"
_NOTHING = ("Identity", "ToPureTensor", "MaybeConvertMode")
# Whose transforms are known. Of some classes, the name that torchvision has for the same.
_KNOWN = ("torchvision.", "timm.data.", "open_clip.transform", "dinov2.data.")
_ALIASES = {
    "MaybeToTensor": "ToTensor",
    "MaybePILToTensor": "PILToTensor",
    "RandomResizedCropAndInterpolation": "RandomResizedCrop",
}
# Of floats in 0..255, which torchvision's other transforms take for floats in 0..1.
_OF_ANY_RANGE = ("GaussianBlur", "RandomRotation", "RandomAffine", "RandomPerspective")
_WAY_OUT = "Give it to gpuload as a function of a sample, transforms.Function(...), or leave it out"
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
    "RandAugment": ("num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill"),
    "TrivialAugmentWide": ("num_magnitude_bins", "interpolation", "fill"),
    "AutoAugment": ("policy", "interpolation", "fill"),
    "AugMix": ("severity", "mixture_width", "chain_depth", "alpha", "all_ops", "interpolation", "fill"),
}
_MADE_OF_OTHERS = ("RandomApply", "RandomChoice", "RandomOrder")
_CONTAINERS = (transforms.RandomApply, transforms.RandomChoice, transforms.RandomOrder)
# The order in `Augment`. Conversions may be anywhere. So may flips, where what comes before them does the same to a
# flipped image (`_check_flip`).
_FLIPS = ("RandomHorizontalFlip", "RandomVerticalFlip")
_TOGETHER = (
    ("Resize", "CenterCrop"),
    ("Resize", "RandomCrop"),
    ("Resize", "RandomResizedCrop"),
    ("timm's ResizeKeepRatio", "CenterCrop"),
    ("Pad", "RandomCrop"),
)
_STAGES = ("crop and resize", "transforms of pixels", "Normalize", "RandomErasing")


@dataclass
class _Images:
    """What torchvision's images are at a place of a pipeline.

    kind: "given": nothing has said it yet, they may be Pillow's or tensors. unit: the levels of 0..255 to which a value
    of 1 corresponds: 255 for floats in 0..1, else 1.
    """

    kind: Literal["given", "pil", "tensor"] = "given"
    dtype: str = "uint8"
    unit: int = 1
    is_normalized: bool = False

    def convert(self, step: Any) -> None:
        """Does what a conversion does.

        Raises:
            ArgumentError: the result has values that `Augment` does not make, or depends on what the images are.
        """
        name = _name(step)
        if name == "ToPILImage":
            if self.is_normalized or (self.dtype != "uint8" and self.unit == 1):
                raise _error(f"ToPILImage gets {self.in_words}; expected uint8, or floats in 0..1. Leave it out")
            self.kind, self.dtype, self.unit = "pil", "uint8", 1
        elif name in _TO_DTYPE:
            self._cast(step, _dtype_of(step), name == "ConvertImageDtype" or step.scale)
        elif self.kind != "tensor":
            if self.kind == "given" and self.dtype != "uint8":
                raise _error(f"{name} comes after what has no effect on Pillow's images. Put it first")
            self.kind = "tensor"
            if name == "ToTensor":
                self.dtype, self.unit = "float32", 255

    def _cast(self, step: Any, dtype: str | None, scale: bool) -> None:
        called = f"{_name(step)}({dtype}{', scale=True' if scale else ''})"
        if self.kind == "pil":
            raise _error(f"{called} has no effect on Pillow's images. Put ToImage() before it")
        if dtype is None or dtype == self.dtype:
            return
        if dtype not in get_args(DType):
            raise _error(f"{called}: expected one of {', '.join(get_args(DType))}, which batches may have")
        if dtype == "uint8":
            if self.is_normalized or not scale or self.unit == 1:
                raise _error(f"{called} gets {self.in_words}; expected scale=True and floats in 0..1. Leave it out")
            self.unit = 1
        elif self.dtype == "uint8":
            self.unit = 255 if scale else 1
        self.dtype = dtype

    def become_floats(self, name: str) -> None:
        """For a transform that needs them: without any conversion before it, they are in 0..1."""
        if self.kind == "given" and self.dtype == "uint8":
            self.dtype, self.unit = "float32", 255
        elif self.dtype == "uint8":
            raise _error(f"{name} gets {self.in_words}; expected floats. Put ToDtype(torch.float32, scale=True) before")

    @property
    def in_words(self) -> str:
        if self.is_normalized:
            return "normalised floats"
        return self.dtype if self.dtype == "uint8" else f"{self.dtype} in 0..{255 // self.unit}"

    def arguments(self) -> dict[str, Any]:
        """The arguments of `Augment` for batches of these images. Pillow's become what ToTensor makes of them."""
        if self.is_normalized or self.kind == "pil" or (self.kind == "given" and self.dtype == "uint8"):
            return {"dtype": self.dtype if self.is_normalized else "float32"}
        in_levels = self.dtype != "uint8" and self.unit == 1
        levels = Normalize((0.0,) * 3, (1 / 255,) * 3)
        return {"dtype": self.dtype, **({"normalize": levels} if in_levels else {})}


def arguments_of(transform: Any) -> dict[str, Any]:
    """Arguments with which `Augment` does what a torchvision transform does: a `Compose` (of `transforms` or
    `transforms.v2`), one transform, or what `weights.transforms()` returns.

    Raises:
        ArgumentError: something that is none of these libraries' own; a transform, or an argument of one, that has no
            counterpart here; another order than this: one crop and resize, then what changes pixels, then Normalize,
            then RandomErasing; or a dtype or range of values that `Augment` does not make.
    """
    _check_torchvisions(transform)
    if _name(transform) == "ImageClassification":  # torchvision.transforms._presets
        return {
            "size": _side(transform.crop_size),
            "crop": CenterCrop(_side(transform.resize_size)),
            "normalize": Normalize(transform.mean, transform.std),
            "interpolation": _interpolation(transform, _Images()),
        }
    found: dict[str, Any] = {"flip": 0.0, "normalize": None, "transforms": []}
    names: list[str] = []
    images = _Images()
    for step in _flatten(transform):
        name = _name(step)
        if name in _NOTHING or _converts(step):
            continue
        if name in _CONVERSIONS:
            _check_erased(name, names, images)
            images.convert(step)
            continue
        read = _READERS.get(name)
        if name == "RandomErasing":
            images.become_floats(name)
        pixels = None if read is not None else _pixels(step, images)  # unknown ones are refused before a wrong order
        moves = _is_pointwise(pixels)
        _check_order(name, names, moves)
        if name in _FLIPS:
            _check_flip(name, found["transforms"])
        if read is not None:
            found.update(read(step, found, images))
        else:
            found["transforms"].append(pixels)
        names.append("" if moves else name)
    if (resize := found.pop("resize", None)) is not None and "crop" not in found:
        _refuse_without_crop(resize)
    found.pop("cover", None)
    if found.pop("pad", None) is not None:
        raise _error("Pad without a RandomCrop after it. Use Augment(crop='pad_or_crop')")
    if "size" not in found:
        raise _error(f"{_name(transform)} holds no crop or resize, which gives the size")
    return {**found, **images.arguments(), "transforms": tuple(found["transforms"])}


def _error(message: str) -> ArgumentError:
    return ArgumentError(f"Augment.torchvision: {message}")


def _check_torchvisions(step: Any) -> None:
    """Raises ArgumentError for what only has the name of a transform of torchvision's: it may do something else."""
    kind = step if isinstance(step, type) else type(step)
    if kind is step:
        raise _error(f"{kind.__name__} is a class. Give an object: {kind.__name__}(...)")
    if kind.__module__.startswith(_KNOWN) or f"{kind.__module__}.{kind.__name__}" == _SEQUENTIAL or _converts(step):
        return
    name = getattr(step, "__qualname__", kind.__name__)
    based = next((base.__name__ for base in kind.__mro__ if base.__module__.startswith("torchvision.")), None)
    what = f"a subclass of torchvision's {based}, which may do something else" if based else "not torchvision's own"
    module = getattr(step, "__module__", None) or kind.__module__
    inner = getattr(step, "transforms", None)
    inside = "Give its attribute `transforms`, where that is all it does. " if type(inner).__name__ == "Compose" else ""
    raise _error(f"{module}.{name} is {what}. {inside}{_WAY_OUT}")


def _check_erased(name: str, before: Sequence[str], images: _Images) -> None:
    """Raises ArgumentError where a conversion changes the values that RandomErasing has written."""
    if "RandomErasing" in before and not (name in _TO_DTYPE and images.dtype != "uint8"):
        raise _error(f"{name} comes after RandomErasing, whose values it would change. Put it before")


def _refuse_without_crop(resize: Any) -> NoReturn:
    raise _error(
        f"Resize({resize}) without a CenterCrop gives images of different sizes, which make no batch. Use "
        "Resize((height, width))"
    )


def _check_order(name: str, before: Sequence[str], moves: bool) -> None:
    """Raises ArgumentError where a transform does not come in the order in which `Augment` does things.

    moves: it changes each pixel by itself, and may come before crop and resize, too.
    """
    if name in before and name in _READERS:
        raise _error(f"{name} comes twice; here it is done once")
    stage = _stage(name)
    for other in before:
        if stage is not None and (_stage(other) or 0) > stage:
            raise _error(f"{name} comes after {other}; the order here is {', '.join(_STAGES)}")
        if stage == 0 and _stage(other) == 0 and (other, name) not in _TOGETHER:
            raise _error(f"{other} and {name} both crop or resize; here one of them can")
    if stage and stage != 2 and not moves and not any(_stage(other) == 0 for other in before):
        raise _error(f"{name} comes before crop and resize; here pixels change after them. Put it behind")


def _stage(name: str) -> int | None:
    """Its index in `_STAGES`; None: it may be anywhere. name: "" for what changes each pixel by itself."""
    if not name or name in _FLIPS:
        return None
    if name in _READERS:
        return 2 if name == "Normalize" else 0
    return 3 if name == "RandomErasing" else 1


def _is_pointwise(transform: Any) -> bool:
    """Whether it does the same to each pixel of an image, whatever the others are, and nearly in proportion: then it
    may as well change the pixels of a resized crop."""
    if isinstance(transform, _CONTAINERS):
        return all(map(_is_pointwise, transform.transforms))
    if isinstance(transform, transforms.ColorJitter):
        return transform.contrast in (0, (1.0, 1.0))
    return isinstance(transform, transforms.RandomGrayscale | transforms.RandomInvert)


def _converts(step: Any) -> bool:
    """Whether it is a function, or a Lambda of one, that calls `convert` and leaves an RGB image as it is."""
    function = getattr(step, "lambd", step)
    if "convert" not in getattr(getattr(function, "__code__", None), "co_names", ()):
        return False
    probe = Image.fromarray(np.arange(24 * 16 * 3, dtype=np.uint8).reshape(24, 16, 3))
    try:
        made = function(probe.copy())
        return isinstance(made, Image.Image) and (made.mode, made.tobytes()) == ("RGB", probe.tobytes())
    except Exception:  # whatever a function of others raises: it is not what was looked for
        return False


def _check_flip(name: str, before: Sequence[Any]) -> None:
    """Raises ArgumentError where a flip would change what comes before it: flips are first here."""
    for transform in before:
        if isinstance(transform, _CONTAINERS):
            _check_flip(name, transform.transforms)
        elif isinstance(transform, transforms.RandomRotation | transforms.RandomAffine):
            shear: Any = getattr(transform, "shear", None) or ()
            ranges: Any = [transform.degrees, shear[:2], shear[2:]]
            if transform.center is not None or any(limits and limits[0] != -limits[1] for limits in ranges):
                raise _error(
                    f"{name} comes after a {_name(transform)} that turns images to one side more "
                    "than to the other; here flips come first. Put it before"
                )


def _dtype_of(step: Any) -> str | None:
    """The name of the dtype that images get; None: their own."""
    dtype = step.dtype
    if isinstance(dtype, Mapping):  # by class of the tensors
        named = {getattr(kind, "__name__", kind): value for kind, value in dtype.items()}
        dtype = named.get("Image", named.get("Tensor", named.get("others")))
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _flatten(transform: Any) -> Iterator[Any]:
    _check_torchvisions(transform)
    if _name(transform) in ("Compose", "Sequential"):
        for step in getattr(transform, "transforms", transform):
            yield from _flatten(step)
    else:
        yield transform


def _pad(step: Any, found: Mapping[str, Any], images: _Images) -> dict[str, Any]:
    return {"pad": _random_crop_of(step, images.unit, _sides(step))}


def _random_crop(step: Any, found: Mapping[str, Any], images: _Images) -> dict[str, Any]:
    crop, before = _random_crop_of(step, images.unit, _sides(step), bool(step.pad_if_needed)), found.get("pad")
    if before is not None and crop != RandomCrop():
        raise _error("Pad comes before a RandomCrop that pads, too; here one of them can")
    if "resize" in found or found.get("crop") == "none":
        if isinstance(found.get("resize"), int) and crop == RandomCrop():
            return {"size": _size(step.size), "crop": Cover(resize=found["resize"])}
        raise _error(
            "Resize((height, width)), or Resize before a RandomCrop that pads, has no counterpart. Pack the images at "
            "this size (--resize), and leave Resize out"
        )
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


def _random_resized_crop(step: Any, found: Mapping[str, Any], images: _Images) -> dict[str, Any]:
    if found.get("crop") == "none":
        raise _error("Resize((height, width)) before RandomResizedCrop has no counterpart. Use Resize(shorter side)")
    return {
        "size": _size(step.size),
        "crop": RandomResizedCrop(tuple(step.scale), tuple(step.ratio)),
        "interpolation": _interpolation(step, images),
    }


def _resize(step: Any, found: Mapping[str, Any], images: _Images) -> dict[str, Any]:
    if step.max_size is not None:
        raise _error(f"Resize(max_size={step.max_size!r}) has no counterpart")
    if isinstance(step.size, int) or len(step.size) == 1:
        return {"resize": _side(step.size), "interpolation": _interpolation(step, images)}
    return {"size": _size(step.size), "crop": "none", "interpolation": _interpolation(step, images)}


def _resize_keep_ratio(step: Any, found: Mapping[str, Any], images: _Images) -> dict[str, Any]:
    if step.longest or step.random_scale_prob or step.random_aspect_prob:
        raise _error(
            "ResizeKeepRatio(longest, random_scale_prob, random_aspect_prob) of timm's modes 'border', 'rkrc' and "
            "'rkrr' has no counterpart. Use crop_mode='center' or 'squash', train_crop_mode='rrc'"
        )
    return {"cover": tuple(step.size), "interpolation": _interpolation(step, images)}


def _center_crop(step: Any, found: Mapping[str, Any], images: _Images) -> dict[str, Any]:
    if found.get("crop") == "none":  # Resize((height, width)) before it
        size = found["size"]
        return {"size": _size(step.size), "crop": CenterCrop((size, size) if isinstance(size, int) else size)}
    if "cover" in found:
        return {"size": _size(step.size), "crop": CenterCrop(cover=found["cover"]), "cover": None}
    if "resize" not in found:
        raise _error("CenterCrop without a Resize before it. Use Augment(crop='pad_or_crop')")
    return {"size": _size(step.size), "crop": CenterCrop(found["resize"])}


def _normalize(step: Any, found: Mapping[str, Any], images: _Images) -> dict[str, Any]:
    """One number stands for all three channels, as in torchvision."""
    images.become_floats("Normalize")
    images.is_normalized = True
    # timm's are float32, in tensors.
    mean, std = ([round(float(one), 7) * images.unit / 255 for one in numbers] for numbers in (step.mean, step.std))
    return {"normalize": Normalize(tuple(mean) * (3 // len(mean)), tuple(std) * (3 // len(std)))}


# A reader is given the transform, what was found before it, and what the images are there.
_READERS: dict[str, Callable[[Any, Mapping[str, Any], _Images], dict[str, Any]]] = {
    "Pad": _pad,
    "RandomCrop": _random_crop,
    "RandomResizedCrop": _random_resized_crop,
    "Resize": _resize,
    "timm's ResizeKeepRatio": _resize_keep_ratio,
    "CenterCrop": _center_crop,
    "RandomHorizontalFlip": lambda step, found, images: {"flip": float(step.p)},
    "RandomVerticalFlip": lambda step, found, images: {"vertical_flip": float(step.p)},
    "Normalize": _normalize,
}


def _pixels(step: Any, images: _Images) -> Any:
    """The transform of the same name in `gpuload.transforms`."""
    _check_torchvisions(step)
    name = _name(step)
    if name in _MADE_OF_OTHERS:
        inner = tuple(_pixels(one, images) for one in step.transforms)
        if name == "RandomOrder":
            return transforms.RandomOrder(inner)
        if name == "RandomChoice":
            return transforms.RandomChoice(inner, _plain(step.p))
        return transforms.RandomApply(inner, p=float(step.p))
    if name == "Grayscale":
        if step.num_output_channels != 3:
            raise _error("Grayscale(1) gives images of one channel. Use Grayscale(3), or Augment(mode='L')")
        return transforms.RandomGrayscale(1.0)
    if _timm_erasing(step):
        return _erasing(step)
    if name in POLICIES:
        return policy_of(step)
    if name not in _SAME_NAME:
        raise _error(
            f"{name} has no counterpart. Known: RandomResizedCrop, Resize, CenterCrop, "
            f"RandomCrop, Pad, flips, Normalize, Grayscale, {', '.join((*_MADE_OF_OTHERS, *_SAME_NAME))}. {_WAY_OUT}"
        )
    if images.dtype != "uint8" and images.unit == 1 and name not in (*_OF_ANY_RANGE, "RandomErasing"):
        raise _error(f"{name} gets {images.in_words}; expected 0..1. Put ToDtype(torch.float32, scale=True) before it")
    arguments = {key: _plain(getattr(step, key)) for key in _SAME_NAME[name]}
    if "fill" in arguments:
        arguments["fill"] = _levels(arguments["fill"], images.unit)
    elif name == "RandomSolarize":
        arguments["threshold"] *= images.unit
    elif name == "RandomErasing" and step.value is None:  # so v2 stores "random"
        arguments["value"] = "random"
    elif name == "ColorJitter":  # torchvision stores a strength of 0 as None
        arguments = {key: 0 if value is None else value for key, value in arguments.items()}
    return getattr(transforms, name)(**arguments)


def _timm_erasing(step: Any) -> bool:
    return _name(step) == "RandomErasing" and type(step).__module__.startswith("timm.")


def _erasing(step: Any) -> transforms.RandomErasing:
    """timm's, which erases several rectangles, and in colours that are drawn."""
    if step.num_splits > 1:
        raise _error("RandomErasing(num_splits) leaves a part of a batch alone, which has no counterpart. Leave it out")
    value: Any = {"rand": "color", "pixel": "random"}.get(step.mode, 0)
    ratio = tuple(np.exp(step.log_aspect_ratio).tolist())
    count = (step.min_count, step.max_count)
    return transforms.RandomErasing(step.probability, (step.min_area, step.max_area), ratio, value, count)


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
        raise _error(f"fill={fill!r}; expected one level, or three (R, G, B)")
    return tuple(level * unit for level in fill) if isinstance(fill, tuple) else fill * unit


def _interpolation(step: Any, images: _Images) -> str:
    if isinstance(step.interpolation, tuple | list):
        if {getattr(mode, "value", mode) for mode in step.interpolation} != {"bilinear", "bicubic"}:
            raise _error(f"interpolation {step.interpolation!r}; expected bilinear, bicubic or both")
        return "random"
    mode = getattr(step.interpolation, "value", step.interpolation)
    if mode == "bicubic" and images.dtype != "uint8":
        raise _error(f"{_name(step)}(interpolation='bicubic') of floats gives values beyond their range. Put it first")
    if mode not in ("bilinear", "bicubic"):
        raise _error(f"interpolation {mode!r}; expected bilinear or bicubic")
    if getattr(step, "antialias", True) is False:
        raise _error(f"{_name(step)}(antialias=False); here resizing always antialiases")
    return str(mode)


def _side(size: Any) -> int:
    return int(size if isinstance(size, int) else size[0])


def _size(size: Any) -> int | tuple[int, int]:
    if isinstance(size, int):
        return size
    height, width = (size[0], size[0]) if len(size) == 1 else size
    return int(height) if height == width else (int(height), int(width))


def _name(transform: Any) -> str:
    """Of its class, by which torchvision calls what it does."""
    kind = type(transform)
    if kind.__name__ == "GaussianBlur" and kind.__module__.startswith("dinov2."):
        return "RandomApply"  # of a GaussianBlur of torchvision's
    name = _ALIASES.get(kind.__name__, kind.__name__)
    is_timms = kind.__module__.startswith("timm.") and name == kind.__name__ and name != "RandomErasing"
    return f"timm's {name}" if is_timms else name
