"""Translates pipelines of torchvision, timm, open_clip and DINOv2 to arguments of `Augment`, importing none of these.

A pipeline is read step by step: crops and resizes by `_CROPS`, the table of those that have a counterpart together, and
transforms of pixels by the names and arguments that they share with `gpuload.transforms`. Anything else is refused by
its name.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from typing import Any, get_args

import numpy as np
from PIL import Image

from gpuload import transforms
from gpuload.augment.crops import CenterCrop, Cover, RandomCrop, RandomResizedCrop, Stretch
from gpuload.augment.views import DType, Normalize
from gpuload.errors import ArgumentError
from gpuload.transforms.compose import parts_of
from gpuload.transforms.timm import OPTIONS

# Whose transforms are known. Of some classes, the name that torchvision has for the same.
_KNOWN = ("torchvision.", "timm.data.", "open_clip.transform", "dinov2.data.", "torch.nn.modules.container.Sequential")
_ALIASES = {
    "MaybeToTensor": "ToTensor",
    "MaybePILToTensor": "PILToTensor",
    "RandomResizedCropAndInterpolation": "RandomResizedCrop",
}
_NOTHING = ("Identity", "ToPureTensor", "MaybeConvertMode")
_TO_TENSOR = ("ToTensor", "PILToTensor", "ToImage")
_TO_DTYPE = ("ToDtype", "ConvertImageDtype")
_FLIPS = {"RandomHorizontalFlip": "flip", "RandomVerticalFlip": "vertical_flip"}
_MADE_OF_OTHERS = ("RandomApply", "RandomChoice", "RandomOrder")
# Of floats in 0..255, which torchvision's other transforms take for floats in 0..1.
_OF_ANY_RANGE = ("GaussianBlur", "RandomRotation", "RandomAffine", "RandomPerspective", "RandomErasing")
_STAGES = ("crop and resize", "transforms of pixels", "Normalize", "RandomErasing")
_CROP, _PIXELS, _NORMALIZE, _ERASE = range(len(_STAGES))
_WAY_OUT = (
    "Leave it out, give what it holds in `transforms`, or give it to gpuload as a function of a sample, "
    "transforms.Function(...)"
)

# What crops and resizes become that follow each other; the functions get what `_Pipeline.read_crop` made of each.
_RESIZE, _STRETCH, _COVER, _PADDED = "Resize", "Resize((height, width))", "timm's ResizeKeepRatio", "padded RandomCrop"
_CROPS: dict[tuple[str, ...], Callable[..., Any]] = {
    ("RandomResizedCrop",): lambda crop: crop,
    (_RESIZE, "RandomResizedCrop"): lambda side, crop: crop,
    (_STRETCH,): lambda size: Stretch(),
    (_STRETCH, "CenterCrop"): lambda size, crop: CenterCrop(size),
    (_RESIZE, "CenterCrop"): lambda side, crop: CenterCrop(side),
    (_COVER, "CenterCrop"): lambda size, crop: CenterCrop(cover=size),
    ("RandomCrop",): lambda crop: crop,
    (_RESIZE, "RandomCrop"): lambda side, crop: Cover(resize=side),
    (_PADDED,): lambda crop: crop,
    ("Pad", "RandomCrop"): lambda pad, crop: pad,
}
# What gpuload's transforms have beside the arguments of torchvision's.
_OURS = {"ColorJitter": "p", "GaussianBlur": "p", "RandomErasing": "count"}
_SAME_NAME = sorted({*transforms.__all__} - {"Function", "PixelTransform", "TimmAutoAugment"})
# Of timm's policies: the functions that make them of texts, and the beginnings and ends of these; and where an object
# has the options that are between.
_TIMM: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "timm's RandAugment": ("rand_augment_transform", ("rand",), ("", "-inc1", "-tweights", "-t3aw", "-t3a")),
    "timm's AutoAugment": ("auto_augment_transform", ("original", "originalr", "v0", "v0r", "3a"), ("",)),
    "timm's AugMixAugment": ("augment_and_mix_transform", ("augmix",), ("",)),
}
_TIMM_OPTIONS = {"m": "magnitude", "n": "num_layers", "w": "width", "d": "depth", "a": "alpha", "p": "prob"}
_TIMM_OPTIONS |= {"mstd": "magnitude_std", "mmax": "magnitude_max"}


def arguments_of(transform: Any) -> dict[str, Any]:
    """Arguments with which `Augment` does what a torchvision transform does: a `Compose` (of `transforms` or
    `transforms.v2`), one transform, or what `weights.transforms()` returns.

    Raises:
        ArgumentError: something that is none of these libraries' own; a transform, or an argument of one, that has no
            counterpart here; another order than this: one crop and resize, then what changes pixels, then Normalize,
            then RandomErasing; or a dtype or range of values that `Augment` does not make.
    """
    pipeline = _Pipeline()
    _check_known(transform)
    if _name(transform) == "ImageClassification":  # torchvision.transforms._presets
        return {
            "size": _size(transform.crop_size),
            "crop": CenterCrop(_size(transform.resize_size)),
            "normalize": Normalize(transform.mean, transform.std),
            "interpolation": pipeline.interpolation(transform),
        }
    for step in _flatten(transform):
        pipeline.read(step)
    return pipeline.result()


class _Pipeline:
    """What the steps of a pipeline do that are read so far, and what images are after them.

    crops: names of crops and resizes, and what these are. stage: the furthest one of `_STAGES`, and what is at it.
    kind: of images, "given": nothing has said it yet, they may be Pillow's or tensors; "pil" or "tensor".
    unit: the levels of 0..255 to which a value of 1 corresponds: 255 for floats in 0..1, else 1.
    """

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {"normalize": None}
        self.transforms: list[Any] = []
        self.crops: list[tuple[str, Any]] = []
        self.stage, self.latest = _CROP, ""
        self.kind, self.dtype, self.unit, self.is_normalized = "given", "uint8", 1, False

    def read(self, step: Any) -> None:
        """Adds a step."""
        name = _name(step)
        if name in _NOTHING or _converts(step):
            return
        if name in (*_TO_TENSOR, *_TO_DTYPE, "ToPILImage"):
            self.convert(step, name)
        elif name in _FLIPS:
            _check_flip(name, self.transforms)
            if _FLIPS[name] in self.arguments:
                raise _error(f"{name} comes twice; here it is done once")
            self.arguments[_FLIPS[name]] = float(step.p)
        elif name in ("RandomResizedCrop", _RESIZE, _COVER, "CenterCrop", "Pad", "RandomCrop"):
            self.come_to(_CROP, name)
            self.read_crop(step, name)
        elif name == "Normalize":
            self.come_to(_NORMALIZE, name)
            self.read_normalize(step)
        else:
            if name == "RandomErasing":
                self.become_floats(name)
            made = self.pixels(step, name)
            self.come_to(_ERASE if name == "RandomErasing" else _PIXELS, name, _is_pointwise(made))
            self.transforms.append(made)

    def come_to(self, stage: int, name: str, stays: bool = False) -> None:
        """Raises ArgumentError where a step does not come in the order in which `Augment` does things. stays: it may
        come before crop and resize, too."""
        if stage < self.stage:
            raise _error(f"{name} comes after {self.latest}; the order here is {', '.join(_STAGES)}")
        if not stays:
            self.stage, self.latest = stage, name

    def result(self) -> dict[str, Any]:
        """The arguments of `Augment`. Pillow's images become what ToTensor makes of them."""
        names = tuple(name for name, _ in self.crops)
        if (make := _CROPS.get(names)) is None:
            found = ", ".join(names) or "a pipeline without crop or resize, which gives the size,"
            known = "; ".join(map(", ".join, _CROPS))
            raise _error(
                f"{found} has no counterpart. Known are {known}, Augment(crop='pad_or_crop'), and images packed at a "
                "size (--resize)"
            )
        crop = make(*(crop for _, crop in self.crops))
        is_given = self.kind == "pil" or (self.kind == "given" and self.dtype == "uint8")
        dtype = "float32" if is_given and not self.is_normalized else self.dtype
        if not is_given and not self.is_normalized and self.dtype != "uint8" and self.unit == 1:
            self.arguments["normalize"] = Normalize((0.0,) * 3, (1 / 255,) * 3)
        return {"flip": 0.0, **self.arguments, "crop": crop, "transforms": tuple(self.transforms), "dtype": dtype}

    # Dtype and range of values

    def convert(self, step: Any, name: str) -> None:
        """Does what a conversion does.

        Raises:
            ArgumentError: the result has values that `Augment` does not make, or depends on what the images are.
        """
        if self.stage == _ERASE and not (name in _TO_DTYPE and self.dtype != "uint8"):
            raise _error(f"{name} comes after RandomErasing, whose values it would change. Put it before")
        if name in _TO_TENSOR:
            if self.kind == "given" and self.dtype != "uint8":
                raise _error(f"{name} comes after what has no effect on Pillow's images. Put it first")
            if self.kind != "tensor":
                self.kind = "tensor"
                self.cast("float32" if name == "ToTensor" else self.dtype, True, name)
        elif name == "ToPILImage":
            self.cast("uint8", True, name)
            self.kind = "pil"
        elif self.kind == "pil":
            raise _error(f"{name} has no effect on Pillow's images. Put ToImage() before it")
        else:
            dtype, scale = _dtype_of(step) or self.dtype, name == "ConvertImageDtype" or step.scale
            self.cast(dtype, scale, f"{name}({dtype}{', scale=True' if scale else ''})")

    def cast(self, dtype: str, scale: bool, name: str) -> None:
        if dtype == self.dtype:
            return
        if dtype not in get_args(DType):
            raise _error(f"{name}: expected one of {', '.join(get_args(DType))}, which batches may have")
        if dtype == "uint8":
            if self.is_normalized or not scale or self.unit == 1:
                raise _error(f"{name} gets {self.in_words}; expected scale=True and floats in 0..1. Leave it out")
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

    # Crops and constants

    def read_crop(self, step: Any, name: str) -> None:
        if name in ("RandomResizedCrop", _RESIZE, _COVER):
            self.arguments["interpolation"] = self.interpolation(step)
        if name != "Pad":
            self.arguments["size"] = _size(step.size)
        crop: Any = None
        if name == "RandomResizedCrop":
            crop = RandomResizedCrop(tuple(step.scale), tuple(step.ratio))
        elif name in ("Pad", "RandomCrop"):
            crop = self.random_crop(step, name)
            name = _PADDED if name == "RandomCrop" and crop != RandomCrop() else name
        elif name == _RESIZE:
            if step.max_size is not None:
                raise _error(f"Resize(max_size={step.max_size!r}) has no counterpart")
            is_shorter = isinstance(step.size, int) or len(step.size) == 1
            name, crop = (_RESIZE, _size(step.size)) if is_shorter else (_STRETCH, tuple(step.size))
        elif name == _COVER:
            if step.longest or step.random_scale_prob or step.random_aspect_prob:
                raise _error(f"{name}(longest, random_scale_prob, random_aspect_prob) has no counterpart")
            crop = tuple(step.size)
        self.crops.append((name, crop))

    def random_crop(self, step: Any, name: str) -> RandomCrop:
        padding, fill, mode = _plain(step.padding), self.levels(_plain(step.fill)) or 0, step.padding_mode
        if isinstance(padding, tuple) and name == "RandomCrop" and ".v2." in type(step).__module__:
            left, right, top, bottom = padding  # as v2's stores them
            padding = left, top, right, bottom
        if isinstance(padding, tuple) and len(set(padding)) == 1:
            padding = padding[0]
        if_needed = name == "RandomCrop" and bool(step.pad_if_needed)
        if not padding and not if_needed:  # neither a fill nor a mode has an effect
            return RandomCrop(padding)
        levels = tuple(map(round, fill)) if isinstance(fill, tuple) else round(fill)
        return RandomCrop(padding, if_needed, levels if mode == "constant" else 0, mode)

    def read_normalize(self, step: Any) -> None:
        """One number stands for all three channels, as in torchvision."""
        if self.is_normalized:
            raise _error("Normalize comes twice; here it is done once")
        self.become_floats("Normalize")
        self.is_normalized = True
        # timm's are float32, in tensors.
        mean, std = ([round(float(one), 7) * self.unit / 255 for one in numbers] for numbers in (step.mean, step.std))
        self.arguments["normalize"] = Normalize(tuple(mean) * (3 // len(mean)), tuple(std) * (3 // len(std)))

    def interpolation(self, step: Any) -> str:
        given = step.interpolation if isinstance(step.interpolation, tuple | list) else [step.interpolation]
        modes = {getattr(mode, "value", mode) for mode in given}
        if not modes <= {"bilinear", "bicubic"} or getattr(step, "antialias", True) is False:
            raise _error(f"{_name(step)}: expected interpolation bilinear or bicubic, with antialias, found {modes}")
        if modes == {"bicubic"} and self.dtype != "uint8":
            raise _error(f"{_name(step)} of floats, bicubic, gives values beyond their range. Put it first")
        return "random" if len(modes) > 1 else str(modes.pop())

    # Transforms of pixels

    def pixels(self, step: Any, name: str) -> Any:
        """The transform of the same name in `gpuload.transforms`."""
        _check_known(step)
        if name == "Grayscale":
            if step.num_output_channels != 3:
                raise _error("Grayscale(1) gives images of one channel. Use Grayscale(3), or Augment(mode='L')")
            return transforms.RandomGrayscale(1.0)
        if name == "RandomErasing" and type(step).__module__.startswith("timm."):
            return _erasing(step)
        if name in _TIMM:
            return _timm_policy(step, name)
        if name not in _SAME_NAME:
            raise _error(
                f"{name} has no counterpart. Known: crops, flips, Normalize, Grayscale, {', '.join(_SAME_NAME)}. "
                f"{_WAY_OUT}"
            )
        if self.dtype != "uint8" and self.unit == 1 and name not in (*_OF_ANY_RANGE, *_MADE_OF_OTHERS):
            raise _error(
                f"{name} gets {self.in_words}; expected 0..1. Put ToDtype(torch.float32, scale=True) before it"
            )
        kind = getattr(transforms, name)
        given = {one.name: _plain(getattr(step, one.name)) for one in fields(kind) if one.name != _OURS.get(name)}
        if "fill" in given:
            given["fill"] = self.levels(given["fill"])
        elif "transforms" in given:
            given["transforms"] = tuple(self.pixels(one, _name(one)) for one in step.transforms)
        elif name == "RandomSolarize":
            given["threshold"] *= self.unit
        elif name == "RandomErasing" and step.value is None:  # so v2 stores "random"
            given["value"] = "random"
        elif name == "ColorJitter":  # torchvision stores a strength of 0 as None
            given = {key: value or 0 for key, value in given.items()}
        return kind(**given)

    def levels(self, fill: Any) -> Any:
        """A fill in levels of 0..255: one for all channels, or three, or None."""
        if fill is None:
            return None
        if isinstance(fill, Mapping):
            raise _error(f"fill={fill!r}; expected one level, or three (R, G, B)")
        return tuple(level * self.unit for level in fill) if isinstance(fill, tuple) else fill * self.unit


def _erasing(step: Any) -> transforms.RandomErasing:
    """timm's, which erases several rectangles, and in colours that are drawn."""
    if step.num_splits > 1:
        raise _error("RandomErasing(num_splits) leaves a part of a batch alone, which has no counterpart. Leave it out")
    value: Any = {"rand": "color", "pixel": "random"}.get(step.mode, 0)
    ratio = tuple(np.exp(step.log_aspect_ratio).tolist())
    count = (step.min_count, step.max_count)
    return transforms.RandomErasing(step.probability, (step.min_area, step.max_area), ratio, value, count)


def _timm_policy(step: Any, name: str) -> transforms.TimmAutoAugment:
    """One of timm's policies, by the text of which timm itself makes an object with the same parts.

    Raises:
        ArgumentError: it was made by hand, or with options that no text has.
    """
    function, kinds, ends = _TIMM[name]
    first = step.policy[0][0] if hasattr(step, "policy") else step.ops[0]
    found = {**vars(step), **vars(first)}
    for kind in kinds if first.kwargs["resample"] != Image.Resampling.NEAREST else ():
        values = {option: found.get(_TIMM_OPTIONS.get(option, "")) for option in OPTIONS[kind]}
        chosen = {option: value for option, value in values.items() if value not in (None, OPTIONS[kind][option])}
        sections = "".join(f"-{option}{101 if value == np.inf else value}" for option, value in chosen.items())
        from_text = {"translate_pct", *(_TIMM_OPTIONS[option] for option in chosen)}
        given = {key: value for key, value in first.hparams.items() if key not in from_text}
        given |= {"translate_pct": 0.3} if kind == "augmix" else {}  # as `create_transform` has it
        for text in (f"{kind}{sections}{end}" for end in ends):
            theirs: Any = None
            with suppress(ValueError, AssertionError):  # of a number that no text has
                theirs = getattr(import_module(type(step).__module__), function)(text, dict(given))
            if _plainly(theirs) == _plainly(step):
                return transforms.TimmAutoAugment(text, tuple(first.kwargs["fillcolor"]))
    raise _error(
        f"{name} has no counterpart: timm makes no such policy of a text (without augmix's b1). Use one such as "
        "auto_augment='rand-m9-mstd0.5-inc1'"
    )


def _plainly(value: Any) -> Any:
    """An object of timm's as the parts that it is made of, which can be compared."""
    if type(value).__module__.startswith("timm."):
        return {name: _plainly(part) for name, part in vars(value).items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plainly(part) for part in value]
    return value


def _error(message: str) -> ArgumentError:
    return ArgumentError(f"Augment.torchvision: {message}")


def _check_known(step: Any) -> None:
    """Raises ArgumentError for what only has the name of a transform of torchvision's: it may do something else."""
    kind = type(step)
    if f"{kind.__module__}.{kind.__name__}".startswith(_KNOWN) or _converts(step):
        return
    name = getattr(step, "__qualname__", kind.__name__)
    module = getattr(step, "__module__", None) or kind.__module__
    raise _error(
        f"{module}.{name} is not an object of torchvision's own classes, and may do something else. {_WAY_OUT}"
    )


def _is_pointwise(transform: Any) -> bool:
    """Whether it does the same to each pixel of an image, whatever the others are, and nearly in proportion: then it
    may as well change the pixels of a resized crop."""
    return all(
        isinstance(one, transforms.RandomGrayscale | transforms.RandomInvert)
        or (isinstance(one, transforms.ColorJitter) and one.contrast in (0, (1.0, 1.0)))
        for one in parts_of([transform])
    )


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


def _check_flip(name: str, before: Any) -> None:
    """Raises ArgumentError where a flip would change what comes before it: flips are first here."""
    for transform in parts_of(before):
        if isinstance(transform, transforms.RandomRotation | transforms.RandomAffine):
            shear: Any = getattr(transform, "shear", None) or ()
            ranges: Any = [transform.degrees, shear[:2], shear[2:]]
            if transform.center is not None or any(limits and limits[0] != -limits[1] for limits in ranges):
                raise _error(
                    f"{name} comes after a {_name(transform)} that turns images to one side more than to the other; "
                    "here flips come first. Put it before"
                )


def _dtype_of(step: Any) -> str | None:
    """The name of the dtype that images get; None: their own."""
    dtype = step.dtype
    if isinstance(dtype, Mapping):  # by class of the tensors
        named = {getattr(kind, "__name__", kind): value for kind, value in dtype.items()}
        dtype = named.get("Image", named.get("Tensor", named.get("others")))
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _flatten(transform: Any) -> Iterator[Any]:
    _check_known(transform)
    if _name(transform) in ("Compose", "Sequential"):
        for step in getattr(transform, "transforms", transform):
            yield from _flatten(step)
    else:
        yield transform


def _plain(value: Any) -> Any:
    """torchvision stores tuples as lists, v2 also single numbers, and a policy as an enum."""
    if isinstance(value, list):
        return value[0] if len(value) == 1 else tuple(value)
    return getattr(value, "value", value)


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
