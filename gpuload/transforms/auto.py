"""RandAugment, TrivialAugment and AutoAugment, as in torchvision."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpuload.checks import check_fields, choice, whole
from gpuload.draws import Draws
from gpuload.transforms import geometry
from gpuload.transforms.geometry import FILL, Fill
from gpuload.transforms.ops import Op
from gpuload.transforms.policies import POLICIES, Policy
from gpuload.transforms.steps import Steps, join, one_step
from gpuload.transforms.warps import INTERPOLATION, WarpInterpolation
from gpuload.types import F64

__all__ = ["AutoAugment", "RandAugment", "TrivialAugmentWide"]

_MOVES = {
    "ShearX": geometry.shear_x,
    "ShearY": geometry.shear_y,
    "TranslateX": geometry.translate_x,
    "TranslateY": geometry.translate_y,
    "Rotate": geometry.rotate,
}
_FACTORS = {
    "Brightness": Op.BRIGHTNESS,
    "Color": Op.SATURATION,
    "Contrast": Op.CONTRAST,
    "Sharpness": Op.SHARPNESS,
}
_PLAIN = {
    "Identity": Op.NOTHING,
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
    "Invert": Op.INVERT,
}
_BINS = whole(2, 1000)


class Magnitudes(NamedTuple):
    """How strong a change can be: a table from weak to strong, and whether its sign is drawn."""

    table: F64
    signed: bool


class HowToMove(Protocol):
    """How pixels are moved: a policy."""

    @property
    def fill(self) -> Fill: ...

    @property
    def interpolation(self) -> WarpInterpolation: ...


Space = dict[str, Magnitudes | None]  # None: the change has no magnitude


@dataclass(frozen=True)
class RandAugment:
    """torchvision's RandAugment: `num_ops` of 14 changes, one after another, all of the same magnitude.

    num_ops: changes of an image, 1..64.
    magnitude: index into the table of magnitudes.
    num_magnitude_bins: length of that table.
    fill: level (0..255), or three (R, G, B), where there is no pixel of the image; None is black.
    interpolation: of shears, translations and rotations, "nearest" or "bilinear".

    Raises:
        ArgumentError: a value out of its range.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    fill: Fill = None
    interpolation: WarpInterpolation = "nearest"

    def __post_init__(self) -> None:
        check_fields(self, num_ops=whole(1, 64), num_magnitude_bins=_BINS, fill=FILL, interpolation=INTERPOLATION)
        check_fields(self, magnitude=whole(0, self.num_magnitude_bins - 1))

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        space = rand_space(self.num_magnitude_bins, height, width)
        steps = []
        # Numbers 2k and 2k + 1: change k, and its sign.
        for number in range(self.num_ops):
            choice = (draws(2 * number) * len(space)).astype(np.int64)
            at = np.full(len(choice), self.magnitude)
            steps.append(_one_of(space, choice, at, draws(2 * number + 1) < 0.5, height, width, self))
        return join(steps)


@dataclass(frozen=True)
class TrivialAugmentWide:
    """torchvision's TrivialAugmentWide: one of 14 changes, of any magnitude of a wide range.

    num_magnitude_bins: length of the table of magnitudes.
    fill: level (0..255), or three (R, G, B), where there is no pixel of the image; None is black.
    interpolation: of shears, translations and rotations, "nearest" or "bilinear".

    Raises:
        ArgumentError: a value out of its range.
    """

    num_magnitude_bins: int = 31
    fill: Fill = None
    interpolation: WarpInterpolation = "nearest"

    def __post_init__(self) -> None:
        check_fields(self, num_magnitude_bins=_BINS, fill=FILL, interpolation=INTERPOLATION)

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        # Number 0: the change; 1: its sign; 2: its magnitude.
        space = trivial_space(self.num_magnitude_bins)
        choice = (draws(0) * len(space)).astype(np.int64)
        at = (draws(2) * self.num_magnitude_bins).astype(np.int64)
        return _one_of(space, choice, at, draws(1) < 0.5, height, width, self)


@dataclass(frozen=True)
class AutoAugment:
    """torchvision's AutoAugment: one of 25 pairs of changes, each change with a probability of its own.

    policy: "imagenet", "cifar10" or "svhn", the data set that the pairs were found for.
    fill: level (0..255), or three (R, G, B), where there is no pixel of the image; None is black.
    interpolation: of shears, translations and rotations, "nearest" or "bilinear".

    Raises:
        ArgumentError: an unknown policy, a fill out of its range.
    """

    policy: Policy = "imagenet"
    fill: Fill = None
    interpolation: WarpInterpolation = "nearest"

    def __post_init__(self) -> None:
        check_fields(self, policy=choice(*POLICIES), fill=FILL, interpolation=INTERPOLATION)

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        # Number 0: the pair; 1, 2: whether its first and second change; 3, 4: their signs.
        space = auto_space(height, width)
        names, pairs = list(space), POLICIES[self.policy]
        pair = (draws(0) * len(pairs)).astype(np.int64)
        steps = []
        for number in range(2):
            choice = np.array([names.index(changes[number].name) for changes in pairs])[pair]
            chance = np.array([changes[number].p for changes in pairs])[pair]
            at = np.array([changes[number].magnitude or 0 for changes in pairs])[pair]
            step = _one_of(space, choice, at, draws(3 + number) < 0.5, height, width, self)
            steps.append(step.only(draws(1 + number) < chance))
        return join(steps)


def rand_space(bins: int, height: int, width: int) -> Space:
    """The changes of RandAugment and their magnitudes."""
    factor = Magnitudes(linspace(0, 0.9, bins), True)
    shear = Magnitudes(linspace(0, 0.3, bins), True)
    return {
        "Identity": None,
        "ShearX": shear,
        "ShearY": shear,
        "TranslateX": Magnitudes(linspace(0, 150 / 331 * width, bins), True),
        "TranslateY": Magnitudes(linspace(0, 150 / 331 * height, bins), True),
        "Rotate": Magnitudes(linspace(0, 30, bins), True),
        "Brightness": factor,
        "Color": factor,
        "Contrast": factor,
        "Sharpness": factor,
        "Posterize": Magnitudes(_bits(4, bins), False),
        "Solarize": Magnitudes(linspace(1, 0, bins), False),
        "AutoContrast": None,
        "Equalize": None,
    }


def trivial_space(bins: int) -> Space:
    """The changes of TrivialAugment (wide) and their magnitudes."""
    wide = Magnitudes(linspace(0, 0.99, bins), True)
    pixels = Magnitudes(linspace(0, 32, bins), True)
    changed = {
        **dict.fromkeys(("ShearX", "ShearY", "Brightness", "Color", "Contrast", "Sharpness"), wide),
        **dict.fromkeys(("TranslateX", "TranslateY"), pixels),
        "Rotate": Magnitudes(linspace(0, 135, bins), True),
        "Posterize": Magnitudes(_bits(6, bins), False),
    }
    return {**rand_space(bins, 1, 1), **changed}


def auto_space(height: int, width: int) -> Space:
    """The changes of AutoAugment's policies: those of RandAugment in ten steps, and Invert."""
    return {**rand_space(10, height, width), "Invert": None}


def linspace(first: float, last: float, count: int) -> F64:
    """torch.linspace, to its last bit, since magnitudes that are almost a whole number of pixels are truncated.

    It steps in float32 from both ends to the middle, each number rounded once (a fused multiply and add).
    """
    low, high = np.float32(first), np.float32(last)
    step, index = np.float64((high - low) / np.float32(count - 1)), np.arange(count)
    exact: F64 = np.where(index < count // 2, low + step * index, high - step * (count - 1 - index))
    return exact.astype(np.float32).astype(np.float64)


def _bits(lost: int, bins: int) -> F64:
    """Bits that posterizing keeps, from 8 down to 8 - lost."""
    index = np.arange(bins, dtype=np.float32)
    return np.asarray(np.rint(np.float32(8) - index / np.float32((bins - 1) / lost)), np.float64)


def _one_of(
    space: Mapping[str, Magnitudes | None],
    choice: npt.NDArray[np.int64],
    at: npt.NDArray[np.int64],
    negative: npt.NDArray[np.bool_],
    height: int,
    width: int,
    how: "HowToMove",
) -> Steps:
    """One step for each of N images: change `choice` (N,) of the space, with magnitude number `at` (N,)."""
    steps = one_step(Op.NOTHING, len(choice))
    for number, (name, magnitudes) in enumerate(space.items()):
        rows = np.flatnonzero(choice == number)
        if not len(rows):
            continue
        level = np.zeros(len(rows))
        if magnitudes is not None:
            level = magnitudes.table[at[rows]]
            if magnitudes.signed:
                level = np.where(negative[rows], -level, level)
        if name in _MOVES:
            step = _MOVES[name](level, height, width, how.fill)
            if how.interpolation == "bilinear":
                step.ops[:] = Op.AFFINE_BILINEAR
        elif name in _FACTORS:
            step = one_step(_FACTORS[name], len(rows), 1 + level)
        elif name == "Posterize":
            step = one_step(Op.POSTERIZE, len(rows), level)
        elif name == "Solarize":
            step = one_step(Op.SOLARIZE, len(rows), 255 * level)
        else:
            step = one_step(_PLAIN[name], len(rows))
        steps.ops[rows], steps.args[rows] = step
    return steps
