"""Translates pipelines of torchvision, timm, open_clip, DINOv2 and lightly to arguments of `Augment`, importing none of
these.

A pipeline is read step by step, by the names of classes: each becomes a `PipelineStep`, whose numbers are in levels of
0..255, or changes the `Values` that images have. `pipeline.arguments` then makes one `Augment` of the steps, or says
which two cannot change places. Anything else is refused by its name.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from gpuload import transforms
from gpuload.augment import pipeline
from gpuload.augment.crops import (
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Stretch,
    ZoomOut,
)
from gpuload.augment.foreign import (
    WAY_OUT,
    applied_by,
    check_known,
    converts_to_rgb,
    error,
    name_of,
)
from gpuload.augment.pipeline import (
    AXES,
    Axis,
    Crop,
    Erasing,
    Flip,
    Normalization,
    PipelineStep,
    PixelChange,
)
from gpuload.augment.timm_text import NAMES as TIMM_POLICIES
from gpuload.augment.timm_text import policy_of_timm
from gpuload.augment.values import CONVERSIONS, Values, plain
from gpuload.types import HeightWidth

# What changes no image in RGB.
_NOTHING = ("Identity", "MaybeConvertMode", "RGB")
# What changes boxes and keypoints alone, which come from the loader as its own fields ask for.
_OF_BOXES = (
    "ClampBoundingBoxes",
    "ClampKeyPoints",
    "SanitizeBoundingBoxes",
    "SanitizeKeyPoints",
)
_SEQUENCES = ("Compose", "Sequential")
_MADE_OF_OTHERS = ("RandomApply", "RandomChoice", "RandomOrder")
# What gpuload's transforms have beside the arguments of torchvision's.
_OURS = {"ColorJitter": "p", "GaussianBlur": "p", "RandomErasing": "count"}
_SAME_NAME = sorted(
    {*transforms.__all__} - {"Function", "PixelTransform", "TimmAutoAugment"}
)
_SIGMAS = 4  # of a blur of Pillow's, which has no kernel size: how far ours reaches
# Of shares of an image's area up to this one, a window fits nearly always; if none does, the middle is taken.
_MOSTLY_FITS = 0.5
_REMEDIES = {
    "ScaleJitter": "With FixedSizeCrop it is Augment(size, crop=gpuload.ScaleJitter(scale, fill)). ",
    "RandomIoUCrop": "It needs boxes, thus transforms.Function(..., before_crop=True). ",
}


def arguments_of(transform: Any) -> dict[str, Any]:
    """Arguments with which `Augment` does what a torchvision transform does: a `Compose` (of `transforms` or
    `transforms.v2`), one transform, or what `weights.transforms()` returns.

    Raises:
        ArgumentError: something that is none of these libraries' own; a transform, or an argument of one, that has no
            counterpart here; an order that gives something else than the order here: crop and resize, flips, what
            changes pixels, Normalize, RandomErasing; or a dtype or range of values that `Augment` does not make.
    """
    reader = _PipelineReader()
    for step in _flatten(transform):
        reader.read(step)
    return reader.result()


def _flatten(transform: Any) -> Iterator[Any]:
    """The steps of a pipeline, without what only holds them."""
    held = applied_by(transform)
    if held is not None:
        yield from _flatten(held)
        return
    if converts_to_rgb(transform):
        return
    check_known(transform)
    name = name_of(transform)
    if name in _SEQUENCES:
        for step in getattr(transform, "transforms", transform):
            yield from _flatten(step)
    elif name.startswith("lightly's") and hasattr(transform, "transforms"):
        raise error(
            f"{name} makes {len(transform.transforms)} views, and an Augment makes one. Translate each: "
            "[Augment.torchvision(view) for view in it.transforms]"
        )
    else:
        yield transform


class _PipelineReader:
    """Reads the steps of a pipeline.

    Attributes:
        steps: Those that are read.
        values: The images' after them.
        size: (height, width) of the images after them in pixels; None where it depends on the image.
    """

    def __init__(self) -> None:
        self.steps: list[PipelineStep] = []
        self.values = Values()
        self.size: HeightWidth | None = None

    def read(self, step: Any) -> None:
        """Adds a step."""
        name = name_of(step)
        if name in (*_NOTHING, *_OF_BOXES) or (
            name == "ConvertBoundingBoxFormat" and plain(step.format) == "XYXY"
        ):
            return
        if name in CONVERSIONS:
            self.values.convert(step, name)
        else:
            self._READERS.get(name, _PipelineReader.read_pixels)(self, step, name)

    def result(self) -> dict[str, Any]:
        """The arguments of `Augment`."""
        arguments = pipeline.arguments(self.steps)
        dtype, normalize = self.values.output
        arguments["dtype"] = dtype
        arguments["normalize"] = arguments["normalize"] or normalize
        return arguments

    # Crops and resizes

    def add_crop(self, crop: Crop) -> None:
        self.steps.append(crop)
        self.size = crop.size

    def read_random_resized_crop(self, step: Any, name: str) -> None:
        crop = RandomResizedCrop(tuple(step.scale), tuple(step.ratio))
        lopsided: dict[Axis, str] = {}
        if crop.scale[0] > _MOSTLY_FITS:
            reason = f"{name}(scale={crop.scale}) takes the middle where no window fits, which may be a pixel beside it"
            lopsided = dict.fromkeys(AXES, reason)
        interpolation = self.interpolation(step, name)
        size = _size(step.size)
        self.add_crop(
            Crop(
                name,
                name,
                crop,
                size,
                True,
                interpolation=interpolation,
                lopsided=lopsided,
            )
        )

    def read_resize(self, step: Any, name: str) -> None:
        self.resize(name, step.size, step.max_size, self.interpolation(step, name))

    def resize(
        self, name: str, size: Any, max_size: int | None, interpolation: str
    ) -> None:
        """Adds torchvision's Resize.

        Args:
            name: Of the step.
            size: The shorter side, or both, or None, as torchvision stores it.
            max_size: The longer side at most, or None.
            interpolation: As that of `Crop`.
        """
        sides = (size,) if isinstance(size, int | None) else tuple(size)
        if len(sides) == 2:
            crop = Crop(
                name,
                pipeline.STRETCH,
                Stretch(),
                _size(sides),
                True,
                interpolation=interpolation,
            )
        else:
            kind = pipeline.RESIZE if max_size is None else pipeline.RESIZE_WITHIN
            crop = Crop(
                name,
                kind,
                Resize(sides[0], max_size),
                None,
                True,
                interpolation=interpolation,
            )
        self.add_crop(crop)

    def read_shortest_size(self, step: Any, name: str) -> None:
        crop = Resize(tuple(step.min_size), step.max_size)
        self.add_crop(
            Crop(
                name,
                name,
                crop,
                None,
                True,
                interpolation=self.interpolation(step, name),
            )
        )

    def read_random_resize(self, step: Any, name: str) -> None:
        """Of each size from the first to the last but one, with the same probability."""
        crop = Resize(tuple(range(step.min_size, step.max_size)))
        self.add_crop(
            Crop(
                name,
                name,
                crop,
                None,
                True,
                interpolation=self.interpolation(step, name),
            )
        )

    def read_covering(self, step: Any, name: str) -> None:
        if step.longest or step.random_scale_prob or step.random_aspect_prob:
            raise error(
                f"{name}(longest, random_scale_prob, random_aspect_prob) has no counterpart"
            )
        interpolation = self.interpolation(step, name)
        self.add_crop(
            Crop(
                name,
                pipeline.COVER,
                None,
                _size(step.size),
                True,
                interpolation=interpolation,
            )
        )
        self.size = None  # of one side at least

    def read_center_crop(self, step: Any, name: str) -> None:
        self.center_crop(name, step.size)

    def center_crop(self, name: str, size: Any) -> None:
        """Adds torchvision's CenterCrop."""
        height, width = _size(size)
        lopsided: dict[Axis, str] = {}
        rests = (
            (None, None)
            if self.size is None
            else (self.size[1] - width, self.size[0] - height)
        )
        for axis, rest in zip(AXES, rests, strict=True):
            if rest is None or rest % 2:
                lopsided[axis] = (
                    f"{name} leaves one pixel more on one side where the rest is odd"
                )
        self.add_crop(Crop(name, name, None, (height, width), lopsided=lopsided))

    def read_pad(self, step: Any, name: str) -> None:
        self.add_crop(self._padded(step, name, name, False))

    def read_random_crop(self, step: Any, name: str) -> None:
        padded = self._padded(step, name, pipeline.PADDED, bool(step.pad_if_needed))
        if padded.crop == RandomCrop():
            padded = Crop(name, name, RandomCrop(), padded.size)
        self.add_crop(padded)

    def _padded(self, step: Any, name: str, kind: str, if_needed: bool) -> Crop:
        padding = _padding(step, name)
        size = None if kind == "Pad" else _size(step.size)
        if padding is None and not if_needed:  # neither a fill nor a mode has an effect
            return Crop(name, kind, RandomCrop(), size)
        mode = step.padding_mode
        levels = self._fill(step, name)
        is_constant = mode == "constant"
        crop = RandomCrop(padding, if_needed, levels if is_constant else 0, mode)
        left, top, right, bottom = _sides(padding)
        lopsided: dict[Axis, str] = {}
        if left != right:
            lopsided["horizontal"] = (
                f"{name} pads {left} pixels on the left and {right} on the right"
            )
        if top != bottom:
            lopsided["vertical"] = (
                f"{name} pads {top} pixels at the top and {bottom} at the bottom"
            )
        return Crop(
            name,
            kind,
            crop,
            size,
            fill=crop.fill if is_constant else None,
            lopsided=lopsided,
        )

    def _fill(self, step: Any, name: str) -> Any:
        """The level, or those of the channels, with which a step fills what it adds."""
        fill = self.values.levels(step.fill, name) or 0
        return tuple(map(round, fill)) if isinstance(fill, tuple) else round(fill)

    def read_zoom_out(self, step: Any, name: str) -> None:
        levels = self._fill(step, name)
        self.add_crop(
            Crop(
                name,
                name,
                ZoomOut(tuple(step.side_range), float(step.p), levels),
                fill=levels,
            )
        )

    def interpolation(self, step: Any, name: str) -> str:
        """As that of `Augment`.

        Raises:
            ArgumentError: it is another one, without antialiasing, or gives floats beyond their range.
        """
        interpolations = (
            step.interpolation
            if isinstance(step.interpolation, tuple | list)
            else [step.interpolation]
        )
        modes = {plain(mode) for mode in interpolations}
        if not modes <= {"bilinear", "bicubic"}:
            raise error(
                f"{name}: expected interpolation bilinear or bicubic, found {modes}"
            )
        antialias = getattr(step, "antialias", True)
        # Pillow's images are resized with antialiasing in any case.
        if not antialias and (
            self.values.are_tensors
            or (self.values.kind == "given" and antialias is False)
        ):
            raise error(
                f"{name}(antialias={antialias}) resizes tensors without antialiasing. Use antialias=True"
            )
        if "bicubic" in modes and self.values.dtype != "uint8":
            raise error(
                f"{name} of floats, bicubic, gives values beyond their range. Put it first"
            )
        return "random" if len(modes) > 1 else str(modes.pop())

    # Flips, constants, and whole presets

    def read_horizontal_flip(self, step: Any, name: str) -> None:
        self.steps.append(Flip(name, "horizontal", float(step.p)))

    def read_vertical_flip(self, step: Any, name: str) -> None:
        self.steps.append(Flip(name, "vertical", float(step.p)))

    def read_normalize(self, step: Any, name: str) -> None:
        """One number stands for all three channels, as in torchvision."""
        constants = []
        for numbers in (step.mean, step.std):
            values = np.atleast_1d(np.asarray(numbers, np.float64)).tolist()
            # timm's are float32, in tensors.
            values = [round(value, 7) for value in values]
            constants.append(tuple(values * 3 if len(values) == 1 else values))
        mean, std = constants
        self.steps.append(Normalization(name, self.values.normalize(mean, std)))

    def read_preset(self, step: Any, name: str) -> None:
        """What `weights.transforms()` gives: see torchvision.transforms._presets."""
        if getattr(step, "resize_size", None) is not None:
            self.resize(
                "Resize", step.resize_size, None, self.interpolation(step, name)
            )
        if name == "ImageClassification":
            self.center_crop("CenterCrop", step.crop_size)
        self.values.become_tensors("ToTensor")
        if name != "ObjectDetection":
            self.read_normalize(step, "Normalize")

    # Transforms of pixels

    def read_erasing(self, step: Any, name: str) -> None:
        may_be_pillows = self.values.kind == "given" and self.values.dtype == "uint8"
        if may_be_pillows and ".v2." in type(step).__module__ and step.value != [0]:
            raise error(
                f"{name} of torchvision.transforms.v2 takes its value for levels of 0..255 where images are Pillow's, "
                "and for 0..1 where they are tensors of floats. Put ToImage() and ToDtype(torch.float32, scale=True) "
                "before it"
            )
        self.values.become_floats(name)
        erasing = self.pixels(step, name)
        self.values.is_erased = True
        self.steps.append(Erasing(name, erasing))

    def read_rotate(self, step: Any, name: str) -> None:
        """lightly's, by a fixed angle; of a probability of 0 it does nothing."""
        if step.prob > 0:
            self.read_pixels(step, name)

    def read_pixels(self, step: Any, name: str) -> None:
        change = self.pixels(step, name)
        self.steps.append(
            PixelChange(name, change, lopsided=pipeline.lopsided_changes(name, change))
        )

    def pixels(self, step: Any, name: str) -> Any:
        """The transform in `gpuload.transforms` that does the same."""
        check_known(step)
        if name.startswith("lightly's") and self.values.are_tensors:
            raise error(
                f"{name} makes Pillow's images of tensors, of other values. Put it before ToTensor()"
            )
        if name in _CHANGES:
            return _CHANGES[name](step)
        if name == "RandomErasing" and type(step).__module__.startswith("timm."):
            return _erasing_of_timm(step)
        if name in TIMM_POLICIES:
            return policy_of_timm(step, name)
        if name not in _SAME_NAME:
            raise error(
                f"{name} has no counterpart. Known: crops, flips, Normalize, Grayscale, {', '.join(_SAME_NAME)}. "
                f"{_REMEDIES.get(name, '')}{WAY_OUT}"
            )
        change = getattr(transforms, name)(**self._arguments_of_same(step, name))
        if name not in (*_MADE_OF_OTHERS, "RandomErasing") and not pipeline.is_linear(
            change
        ):
            self._check_range(name)
        return change

    def _check_range(self, name: str) -> None:
        """Raises ArgumentError where floats are in another range than 0..1, for which torchvision takes them."""
        if (
            self.values.dtype != "uint8"
            and self.values.unit == 1
            and self.values.constants is None
        ):
            raise error(
                f"{name} gets {self.values.in_words}; expected 0..1. Put ToDtype(torch.float32, scale=True) before it"
            )

    def _arguments_of_same(self, step: Any, name: str) -> dict[str, Any]:
        """Of a transform that has the same name and arguments as torchvision's."""
        names = [
            parameter.name
            for parameter in fields(getattr(transforms, name))
            if parameter.name != _OURS.get(name)
        ]
        arguments = {argument: plain(getattr(step, argument)) for argument in names}
        if "fill" in arguments:
            arguments["fill"] = self.values.levels(step.fill, name)
        if "transforms" in arguments:
            arguments["transforms"] = tuple(
                self._whole(part) for part in step.transforms
            )
        if name == "RandomSolarize":
            arguments["threshold"] *= self.values.unit
        if name == "RandomErasing" and step.value is None:  # so v2 stores "random"
            arguments["value"] = "random"
        if name == "ColorJitter":  # torchvision stores a strength of 0 as None
            arguments = {argument: value or 0 for argument, value in arguments.items()}
        return arguments

    def _whole(self, part: Any) -> Any:
        """One transform for a part of a RandomApply, RandomChoice or RandomOrder, which may be a Compose of several, or
        something that changes nothing."""
        changes = tuple(
            self.pixels(step, name_of(step))
            for step in _flatten(part)
            if name_of(step) not in _NOTHING
        )
        if len(changes) == 1:
            return changes[0]
        return (
            transforms.RandomApply(changes, 1.0)
            if changes
            else transforms.RandomGrayscale(0.0)
        )

    _READERS: ClassVar[Mapping[str, Callable[["_PipelineReader", Any, str], None]]] = {
        "RandomResizedCrop": read_random_resized_crop,
        "Resize": read_resize,
        "RandomShortestSize": read_shortest_size,
        "RandomResize": read_random_resize,
        "RandomZoomOut": read_zoom_out,
        pipeline.COVER: read_covering,
        "CenterCrop": read_center_crop,
        "Pad": read_pad,
        "RandomCrop": read_random_crop,
        "RandomHorizontalFlip": read_horizontal_flip,
        "RandomVerticalFlip": read_vertical_flip,
        "Normalize": read_normalize,
        "RandomErasing": read_erasing,
        "ImageClassification": read_preset,
        "SemanticSegmentation": read_preset,
        "ObjectDetection": read_preset,
        "lightly's RandomRotate": read_rotate,
    }


def _gray(step: Any) -> transforms.RandomGrayscale:
    if step.num_output_channels != 3:
        raise error(
            "Grayscale(1) gives images of one channel. Use Grayscale(3), or Augment(mode='L')"
        )
    return transforms.RandomGrayscale(1.0)


def _erasing_of_timm(step: Any) -> transforms.RandomErasing:
    """timm's erases several rectangles, and in colours that are drawn."""
    if step.num_splits > 1:
        raise error(
            "RandomErasing(num_splits) leaves a part of a batch alone, which has no counterpart. Leave it out"
        )
    value: Any = {"rand": "color", "pixel": "random"}.get(step.mode, 0)
    ratio = tuple(np.exp(step.log_aspect_ratio).tolist())
    count = (step.min_count, step.max_count)
    return transforms.RandomErasing(
        step.probability, (step.min_area, step.max_area), ratio, value, count
    )


def _blur_of_lightly(step: Any) -> transforms.GaussianBlur:
    """Pillow's blur, which are three averages that are nearly Gaussian together."""
    low, high = step.sigmas
    return transforms.GaussianBlur(
        2 * math.ceil(_SIGMAS * high) + 1, (low, high), step.prob
    )


def _solarization_of_lightly(step: Any) -> transforms.RandomSolarize:
    return transforms.RandomSolarize(step.threshold, step.prob)


def _rotation_of_lightly(step: Any) -> transforms.RandomApply:
    rotation = transforms.RandomRotation((step.angle, step.angle))
    return transforms.RandomApply((rotation,), step.prob)


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "Grayscale": _gray,
    "lightly's GaussianBlur": _blur_of_lightly,
    "lightly's RandomSolarization": _solarization_of_lightly,
    "lightly's RandomRotate": _rotation_of_lightly,
}


def _padding(step: Any, name: str) -> Any:
    """That of a Pad or RandomCrop, as gpuload's RandomCrop takes it; None where there is none."""
    padding = plain(step.padding)
    if (
        isinstance(padding, tuple)
        and name == "RandomCrop"
        and ".v2." in type(step).__module__
    ):
        left, right, top, bottom = padding  # as v2's stores them
        padding = (left, top, right, bottom)
    sides = _sides(padding)
    if not any(sides):
        return None
    return sides[0] if len(set(sides)) == 1 else padding


def _sides(padding: Any) -> tuple[int, int, int, int]:
    """Left, top, right and bottom."""
    if not isinstance(padding, tuple):
        return (padding or 0,) * 4
    left, top, right, bottom = padding * (4 // len(padding))
    return left, top, right, bottom


def _size(size: Any) -> HeightWidth:
    """(height, width) of a size that may be one number."""
    if isinstance(size, int):
        return size, size
    return int(size[0]), int(size[-1])
