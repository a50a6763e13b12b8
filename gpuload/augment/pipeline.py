"""The steps of a pipeline, which of them may change places, and the arguments of `Augment` that do them all.

`Augment` works in a fixed order: crop and resize, flips, transforms of pixels, Normalize, RandomErasing. A pipeline in
another order is the same only where each two steps that change places commute, which `obstacle` says of two steps.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, ClassVar, Literal

from gpuload import transforms
from gpuload.augment.crops import CenterCrop, Cover, Geometry, Levels, Resize
from gpuload.augment.foreign import error
from gpuload.augment.views import Normalize
from gpuload.transforms.compose import parts_of
from gpuload.types import HeightWidth

Axis = Literal["horizontal", "vertical"]
AXES: tuple[Axis, ...] = ("horizontal", "vertical")
_ORDER = "crop and resize, flips, transforms of pixels, Normalize, RandomErasing"
_BLACK = (0, (0, 0, 0))


@dataclass(frozen=True)
class PipelineStep:
    """A step of a pipeline.

    Attributes:
        stage: Its place in the order of `Augment`.
        name: As torchvision calls it.
        lopsided: By axis, why the mirror image of what the step makes is not, with the same probability, what it makes
            of the mirror image. No entry: it is, and flips along that axis may be done before or after.
    """

    stage: ClassVar[int]

    name: str
    lopsided: Mapping[Axis, str] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class Crop(PipelineStep):
    """Something that gives images another size.

    Attributes:
        kind: By which `_CROPS` knows it: the name, or more where that has several meanings.
        crop: What it is alone, as a crop of `Augment`; None if it is not one.
        size: (height, width) of its output in pixels; None where that depends on the image.
        resamples: Whether it mixes pixels, rather than only choosing them.
        fill: Colour of the padding, in levels of 0..255; None: there is none, or it repeats pixels of the image.
        interpolation: As that of `Augment`, of what resamples.
    """

    stage = 0

    kind: str
    crop: Any = None
    size: HeightWidth | None = None
    resamples: bool = False
    fill: Levels | None = None
    interpolation: str | None = None


@dataclass(frozen=True)
class Flip(PipelineStep):
    """A random flip.

    Attributes:
        axis: The coordinate that is mirrored.
        p: The probability of a flip.
    """

    stage = 1

    axis: Axis
    p: float


@dataclass(frozen=True)
class PixelChange(PipelineStep):
    """One of `gpuload.transforms`, whose numbers are in levels of 0..255."""

    stage = 2

    transform: Any


@dataclass(frozen=True)
class Normalization(PipelineStep):
    """Normalize, with constants for pixels in 0..1."""

    stage = 3

    constants: Normalize


@dataclass(frozen=True)
class Erasing(PipelineStep):
    """A RandomErasing, whose value is in units of the batch."""

    stage = 4

    transform: transforms.RandomErasing


# ---- what commutes


def check_order(steps: Sequence[PipelineStep]) -> None:
    """Raises ArgumentError where the steps, in the order of `Augment`, do something else than in their own order."""
    for earlier, later in combinations(steps, 2):
        if earlier.stage > later.stage and (reason := obstacle(earlier, later)):
            raise error(
                f"{later.name} comes after {earlier.name}, and {reason}. The order here is {_ORDER}: put {later.name} "
                f"before {earlier.name}"
            )


def obstacle(earlier: PipelineStep, later: PipelineStep) -> str:
    """Why a step that `Augment` does before another one may not come after it in a pipeline; "" if it may: both orders
    give each result with the same probability."""
    if isinstance(later, Flip):
        return earlier.lopsided.get(later.axis, "")
    if isinstance(earlier, Flip):
        return later.lopsided.get(earlier.axis, "")
    if isinstance(earlier, Erasing):
        return f"{later.name} would change what is written into the rectangles"
    if isinstance(earlier, PixelChange) and isinstance(later, Crop):
        return _obstacle_to_crop(earlier, later)
    if isinstance(later, PixelChange) and not is_linear(later.transform):
        return f"{later.name} depends on the range of values"
    # Normalize does the same to each pixel, in proportion, and the padding of a crop is told in levels.
    return ""


def _obstacle_to_crop(change: PixelChange, crop: Crop) -> str:
    """Why pixels may not be changed after a crop rather than before it; "" if they may."""
    for part in parts_of([change.transform]):
        if not _is_pointwise(part):
            return f"{change.name} depends on other pixels of the image"
        if crop.resamples and not _is_in_proportion(part):
            return f"{change.name} does not change levels in proportion, while {crop.name} mixes them"
        if crop.fill is not None and not (crop.fill in _BLACK and _keeps_black(part)):
            return f"{change.name} would change the padding, too"
    return ""


def is_linear(transform: Any) -> bool:
    """Whether it only moves pixels or mixes them with weights of sum 1, so that their range makes no difference."""
    moves = (
        transforms.RandomRotation
        | transforms.RandomAffine
        | transforms.RandomPerspective
        | transforms.GaussianBlur
    )
    return all(isinstance(part, moves) for part in parts_of([transform]))


def _is_pointwise(transform: Any) -> bool:
    """Whether a new pixel depends on the old one alone."""
    if isinstance(transform, transforms.ColorJitter):
        return transform.contrast in (0, (1.0, 1.0))
    kinds = (
        transforms.RandomGrayscale
        | transforms.RandomInvert
        | transforms.RandomPosterize
        | transforms.RandomSolarize
    )
    return isinstance(transform, kinds)


def _is_in_proportion(transform: Any) -> bool:
    """Whether a pointwise transform of a mean of pixels is the mean of the transformed ones: no level is clipped."""
    if isinstance(transform, transforms.ColorJitter):
        factors = (transform.brightness, transform.saturation)
        return transform.hue in (0, (0.0, 0.0)) and all(
            _highest(factor) <= 1 for factor in factors
        )
    return isinstance(transform, transforms.RandomGrayscale | transforms.RandomInvert)


def _highest(factor: float | tuple[float, float]) -> float:
    """The highest factor of a ColorJitter."""
    return factor[1] if isinstance(factor, tuple) else 1 + factor


def _keeps_black(transform: Any) -> bool:
    """Whether a pointwise transform leaves black as it is."""
    if isinstance(transform, transforms.RandomSolarize):
        return transform.threshold > 0
    return not isinstance(transform, transforms.RandomInvert)


def lopsided_changes(name: str, transform: Any) -> dict[Axis, str]:
    """`PipelineStep.lopsided` of a transform of pixels."""
    policies = (
        transforms.RandAugment
        | transforms.TrivialAugmentWide
        | transforms.AutoAugment
        | transforms.AugMix
        | transforms.TimmAutoAugment
    )
    for part in parts_of([transform]):
        reason = ""
        if isinstance(part, policies):
            reason = f"{name} shears about the upper left corner"
        elif isinstance(
            part, transforms.RandomRotation | transforms.RandomAffine
        ) and _prefers_a_side(part):
            reason = f"{name} turns images to one side more than to the other"
        if reason:
            return dict.fromkeys(AXES, reason)
    return {}


def _prefers_a_side(transform: Any) -> bool:
    shear: Any = getattr(transform, "shear", None) or ()
    ranges: Any = [transform.degrees, shear[:2], shear[2:]]
    return transform.center is not None or any(
        limits and limits[0] != -limits[1] for limits in ranges
    )


# ---- arguments of Augment

RESIZE = "Resize"
RESIZE_WITHIN = "Resize(max_size)"
STRETCH = "Resize((height, width))"
COVER = "timm's ResizeKeepRatio"
PADDED = "padded RandomCrop"


def _alone(step: Crop) -> Geometry:
    return step.crop


def _window_of_resized(resized: Crop, window: Crop) -> Geometry:
    """A window of the image itself, which shows no less than one of a resized image, if that is no smaller."""
    _check_is_larger(resized, window, "which blurs its windows. Leave the Resize out")
    return window.crop


def _window_of_padded(padded: Crop, window: Crop) -> Geometry:
    return padded.crop


def _centre_of_resized(resized: Crop, window: Crop) -> Geometry:
    _check_is_larger(resized, window, "which pads it with black. Use a larger Resize")
    return CenterCrop(resized.crop.size)


def _centre_of_stretched(stretched: Crop, window: Crop) -> Geometry:
    _check_is_larger(stretched, window, "which pads it with black. Use a larger Resize")
    return CenterCrop(stretched.size)


def _centre_of_covering(covering: Crop, window: Crop) -> Geometry:
    return CenterCrop(cover=covering.size)


def _part_of_resized(resized: Crop, window: Crop) -> Geometry:
    _check_is_larger(resized, window, "for which it is too small. Use a larger Resize")
    return Cover(resize=resized.crop.size)


def _check_is_larger(resized: Crop, window: Crop, consequence: str) -> None:
    """Raises ArgumentError where a resized image may be smaller than the output of what comes next."""
    assert window.size is not None
    sides = resized.size or (resized.crop.size,) * 2
    if any(side < least for side, least in zip(sides, window.size, strict=True)):
        size = sides if resized.size else sides[0]
        raise error(
            f"Resize({size}) comes before {window.name}({window.size[0]}, {window.size[1]}), {consequence}, or pack "
            "images of that size (pack --size)"
        )


def _stretched_canvas(canvas: Crop, stretched: Crop) -> Geometry:
    return canvas.crop


# What crops and resizes become that follow each other.
_CROPS: dict[tuple[str, ...], Callable[..., Geometry]] = {
    (): Resize,
    (RESIZE,): _alone,
    (RESIZE_WITHIN,): _alone,
    ("RandomShortestSize",): _alone,
    ("RandomResize",): _alone,
    ("RandomResizedCrop",): _alone,
    (RESIZE, "RandomResizedCrop"): _window_of_resized,
    (STRETCH,): _alone,
    (STRETCH, "CenterCrop"): _centre_of_stretched,
    (RESIZE, "CenterCrop"): _centre_of_resized,
    (COVER, "CenterCrop"): _centre_of_covering,
    ("RandomCrop",): _alone,
    (RESIZE, "RandomCrop"): _part_of_resized,
    (PADDED,): _alone,
    ("Pad", "RandomCrop"): _window_of_padded,
    ("RandomZoomOut", STRETCH): _stretched_canvas,
}


def arguments(steps: Sequence[PipelineStep]) -> dict[str, Any]:
    """The arguments of `Augment` that do the same as the steps.

    Raises:
        ArgumentError: crops and resizes that have no counterpart together; steps in an order that cannot be changed to
            that of `Augment`.
    """
    check_order(steps)
    crops = [step for step in steps if isinstance(step, Crop)]
    normalize = [step.constants for step in steps if isinstance(step, Normalization)]
    return {
        "size": _size_of(crops),
        "crop": _crop_of(crops),
        "flip": _flip_of(steps, "horizontal"),
        "vertical_flip": _flip_of(steps, "vertical"),
        "interpolation": next(
            (step.interpolation for step in reversed(crops) if step.interpolation),
            "bilinear",
        ),
        "transforms": tuple(
            step.transform
            for kind in (PixelChange, Erasing)
            for step in steps
            if isinstance(step, kind)
        ),
        "normalize": normalize[-1] if normalize else None,
    }


def _size_of(crops: Sequence[Crop]) -> int | HeightWidth | None:
    """As that of `Augment`: one number where the output is a square."""
    size = crops[-1].size if crops else None
    return size[0] if size is not None and size[0] == size[1] else size


def _crop_of(crops: Sequence[Crop]) -> Geometry:
    make = _CROPS.get(tuple(step.kind for step in crops))
    if make is None:
        known_crops = "; ".join(", ".join(kinds) for kinds in _CROPS if kinds)
        raise error(
            f"{', '.join(step.kind for step in crops)} has no counterpart. Known are {known_crops}, "
            "Augment(crop='pad_or_crop'), and images packed at a size (pack --size)"
        )
    return make(*crops)


def _flip_of(steps: Iterable[PipelineStep], axis: Axis) -> float:
    """The probability that an image is mirrored along this axis, by an odd number of flips."""
    probability = 0.0
    for step in steps:
        if isinstance(step, Flip) and step.axis == axis:
            probability += step.p - 2 * probability * step.p
    return probability
