"""RandAugment, TrivialAugment, AutoAugment with its policies, and AugMix, as in torchvision."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, Protocol

import numpy as np

from gpuload import checks
from gpuload.checks import FLAG, LARGEST, POSITIVE, Rule, as_whole, check_fields, choice, settings, whole
from gpuload.draws import Draws
from gpuload.transforms import warps
from gpuload.transforms.ops import ARGS, Op
from gpuload.transforms.steps import Steps, draw_mixture, join, one_step
from gpuload.transforms.warps import FILL, INTERPOLATION, Fill, WarpInterpolation
from gpuload.types import F64, I64, Bools

__all__ = ["AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide"]

Policy = Literal["imagenet", "cifar10", "svhn"]

_IMAGENET = """
    Posterize 4 8, Rotate 6 9       | Solarize 6 5, AutoContrast 6    | Equalize 8, Equalize 6
    Posterize 6 7, Posterize 6 6    | Equalize 4, Solarize 2 4        | Equalize 4, Rotate 8 8
    Solarize 6 3, Equalize 6        | Posterize 8 5, Equalize 10      | Rotate 2 3, Solarize 6 8
    Equalize 6, Posterize 4 6       | Rotate 8 8, Color 4 0           | Rotate 4 9, Equalize 6
    Equalize 0, Equalize 8          | Invert 6, Equalize 10           | Color 6 4, Contrast 10 8
    Rotate 8 8, Color 10 2          | Color 8 8, Solarize 8 7         | Sharpness 4 7, Invert 6
    ShearX 6 5, Equalize 10         | Color 4 0, Equalize 6           | Equalize 4, Solarize 2 4
    Solarize 6 5, AutoContrast 6    | Invert 6, Equalize 10           | Color 6 4, Contrast 10 8
    Equalize 8, Equalize 6
"""

_CIFAR10 = """
    Invert 1, Contrast 2 6          | Rotate 7 2, TranslateX 3 9      | Sharpness 8 1, Sharpness 9 3
    ShearY 5 8, TranslateY 7 9      | AutoContrast 5, Equalize 9      | ShearY 2 7, Posterize 3 7
    Color 4 3, Brightness 6 7       | Sharpness 3 9, Brightness 7 9   | Equalize 6, Equalize 5
    Contrast 6 7, Sharpness 6 5     | Color 7 7, TranslateX 5 8       | Equalize 3, AutoContrast 4
    TranslateY 4 3, Sharpness 2 6   | Brightness 9 6, Color 2 8       | Solarize 5 2, Invert 0
    Equalize 2, AutoContrast 6      | Equalize 2, Equalize 6          | Color 9 9, Equalize 6
    AutoContrast 8, Solarize 2 8    | Brightness 1 3, Color 7 0       | Solarize 4 5, AutoContrast 9
    TranslateY 9 9, TranslateY 7 9  | AutoContrast 9, Solarize 8 3    | Equalize 8, Invert 1
    TranslateY 7 9, AutoContrast 9
"""

_SVHN = """
    ShearX 9 4, Invert 2            | ShearY 9 8, Invert 7            | Equalize 6, Solarize 6 6
    Invert 9, Equalize 6            | Equalize 6, Rotate 9 3          | ShearX 9 4, AutoContrast 8
    ShearY 9 8, Invert 4            | ShearY 9 5, Solarize 2 6        | Invert 9, AutoContrast 8
    Equalize 6, Rotate 9 3          | ShearX 9 4, Solarize 3 3        | ShearY 8 8, Invert 7
    Equalize 9, TranslateY 6 6      | Invert 9, Equalize 6            | Contrast 3 3, Rotate 8 4
    Invert 8, TranslateY 0 2        | ShearY 7 6, Solarize 4 8        | Invert 6, Rotate 8 4
    ShearY 3 7, TranslateX 9 3      | ShearX 1 6, Invert 6            | Solarize 7 2, TranslateY 6 7
    ShearY 8 4, Invert 8            | ShearX 7 9, TranslateY 8 3      | ShearY 8 5, AutoContrast 7
    ShearX 7 2, Invert 1
"""

# Of timm's "v0" and "v0r", which come from the TPU implementation of EfficientNet, and are in no paper.
_V0 = """
    Equalize 8 1, ShearY 8 4        | Color 4 9, Equalize 6 3         | Color 4 1, Rotate 6 8
    Solarize 8 3, Equalize 4 7      | Solarize 4 2, Solarize 6 2      | Color 2 0, Equalize 8 8
    Equalize 4 8, SolarizeAdd 8 3   | ShearX 2 9, Rotate 6 8          | Color 6 1, Equalize 10 2
    Invert 4 9, Rotate 6 0          | Equalize 10 9, ShearY 6 3       | Color 4 7, Equalize 6 0
    Posterize 4 6, AutoContrast 4 7 | Solarize 6 8, Color 6 9         | Solarize 2 4, Rotate 8 9
    Rotate 10 7, TranslateY 8 9     | ShearX 0 0, Solarize 8 4        | ShearY 8 0, Color 6 4
    Color 10 0, Rotate 6 2          | Equalize 8 4, Equalize 0 8      | Equalize 10 4, AutoContrast 6 2
    ShearY 4 7, SolarizeAdd 6 7     | Posterize 8 2, Solarize 6 10    | Solarize 6 8, Equalize 6 1
    Color 8 6, Rotate 4 5
"""

_MOVES = {
    "ShearX": warps.shear_x,
    "ShearY": warps.shear_y,
    "TranslateX": warps.translate_x,
    "TranslateY": warps.translate_y,
    "Rotate": warps.rotate,
}
_FACTORS = {
    "Brightness": Op.BRIGHTNESS,
    "Color": Op.SATURATION,
    "Contrast": Op.CONTRAST,
    "Sharpness": Op.SHARPNESS,
}
_OTHERS = {
    "Identity": Op.NOTHING,
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
    "Invert": Op.INVERT,
    "Posterize": Op.POSTERIZE,
    "Solarize": Op.SOLARIZE,
    "SolarizeAdd": Op.SOLARIZE_ADD,
}
_BINS = whole(2, 1000)
_MIX_BINS = 10

WIDTH = whole(1, 16)
ALPHA = checks.number(POSITIVE, LARGEST, "a number above 0 and up to 1e6")

LevelOf = Callable[[int, I64], F64]  # what the steps of change i of a space take, in these rows


class Change(NamedTuple):
    """A change of a policy: its name, its probability, and the index of its magnitude (None where it has none)."""

    name: str
    p: float
    magnitude: int | None


def _change(text: str) -> Change:
    name, tenths, *magnitude = text.split()
    return Change(name, int(tenths) / 10, int(magnitude[0]) if magnitude else None)


def _policy(text: str) -> tuple[tuple[Change, Change], ...]:
    pairs = [pair.split(",") for line in text.strip().splitlines() for pair in line.split("|")]
    return tuple((_change(first), _change(second)) for first, second in pairs)


POLICIES: dict[Policy, tuple[tuple[Change, Change], ...]] = {
    "imagenet": _policy(_IMAGENET),
    "cifar10": _policy(_CIFAR10),
    "svhn": _policy(_SVHN),
}
V0 = _policy(_V0)


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


class Drawing(HowToMove, Protocol):
    """A policy whose magnitudes are of tables."""

    def _space(self, height: int, width: int) -> "Space": ...


def _as_depth(value: object) -> int:
    found = as_whole(value)
    if not (found == -1 or 1 <= found <= 16):
        raise ValueError
    return found


DEPTH = Rule("a whole number in 1..16, or -1", _as_depth)

Space = dict[str, Magnitudes | None]  # None: the change has no magnitude


@settings
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

    num_ops: Annotated[int, whole(1, 64)] = 2
    magnitude: int = 9
    num_magnitude_bins: Annotated[int, _BINS] = 31
    fill: Annotated[Fill, FILL] = None
    interpolation: Annotated[WarpInterpolation, INTERPOLATION] = "nearest"

    def __post_init__(self) -> None:
        check_fields(self, magnitude=whole(0, self.num_magnitude_bins - 1))

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        made, steps = all_steps(self, height, width), []
        # Numbers 2k and 2k + 1: change k, and its sign.
        for number in range(self.num_ops):
            choice = (draws(2 * number) * len(made.ops)).astype(np.int64)
            steps.append(_chosen(made, choice, self.magnitude, draws(2 * number + 1) < 0.5))
        return join(steps)

    def _space(self, height: int, width: int) -> Space:
        return rand_space(self.num_magnitude_bins, height, width)


@settings
class TrivialAugmentWide:
    """torchvision's TrivialAugmentWide: one of 14 changes, of any magnitude of a wide range.

    num_magnitude_bins: length of the table of magnitudes.
    fill: level (0..255), or three (R, G, B), where there is no pixel of the image; None is black.
    interpolation: of shears, translations and rotations, "nearest" or "bilinear".

    Raises:
        ArgumentError: a value out of its range.
    """

    num_magnitude_bins: Annotated[int, _BINS] = 31
    fill: Annotated[Fill, FILL] = None
    interpolation: Annotated[WarpInterpolation, INTERPOLATION] = "nearest"

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        # Number 0: the change; 1: its sign; 2: its magnitude.
        made = all_steps(self, height, width)
        choice = (draws(0) * len(made.ops)).astype(np.int64)
        at = (draws(2) * self.num_magnitude_bins).astype(np.int64)
        return _chosen(made, choice, at, draws(1) < 0.5)

    def _space(self, height: int, width: int) -> Space:
        return trivial_space(self.num_magnitude_bins)


@settings
class AutoAugment:
    """torchvision's AutoAugment: one of 25 pairs of changes, each change with a probability of its own.

    policy: "imagenet", "cifar10" or "svhn", the data set that the pairs were found for.
    fill: level (0..255), or three (R, G, B), where there is no pixel of the image; None is black.
    interpolation: of shears, translations and rotations, "nearest" or "bilinear".

    Raises:
        ArgumentError: an unknown policy, a fill out of its range.
    """

    policy: Annotated[Policy, choice(*POLICIES)] = "imagenet"
    fill: Annotated[Fill, FILL] = None
    interpolation: Annotated[WarpInterpolation, INTERPOLATION] = "nearest"

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        # Number 0: the pair; 1, 2: whether its first and second change; 3, 4: their signs.
        made, names, pairs = all_steps(self, height, width), list(self._space(height, width)), POLICIES[self.policy]
        pair = (draws(0) * len(pairs)).astype(np.int64)
        steps = []
        for number in range(2):
            choice = np.array([names.index(changes[number].name) for changes in pairs])[pair]
            chance = np.array([changes[number].p for changes in pairs])[pair]
            at = np.array([changes[number].magnitude or 0 for changes in pairs])[pair]
            one = _chosen(made, choice, at, draws(3 + number) < 0.5)
            steps.append(one.only(draws(1 + number) < chance))
        return join(steps)

    def _space(self, height: int, width: int) -> Space:
        return auto_space(height, width)


@settings
class AugMix:
    """torchvision's AugMix: chains of changes, each begun with the image itself, blended with it and each other.

    Boxes, masks and keypoints stay where they are in the image, as in torchvision.

    severity: changes have one of this many lowest magnitudes of 10.
    mixture_width: chains, 1..16.
    chain_depth: changes of a chain, 1..16; -1 draws 1, 2 or 3 for each.
    alpha: above 0; the shares of the chains, and of the image itself, are drawn from Dirichlet(alpha, alpha, …).
    all_ops: brightness, color, contrast and sharpness change, too.
    interpolation: of shears, translations and rotations, "bilinear" or "nearest".
    fill: level (0..255), or three (R, G, B), where there is no pixel of the image; None is black.

    Raises:
        ArgumentError: a value out of its range.
    """

    severity: Annotated[int, whole(1, _MIX_BINS)] = 3
    mixture_width: Annotated[int, WIDTH] = 3
    chain_depth: Annotated[int, DEPTH] = -1
    alpha: Annotated[float, ALPHA] = 1.0
    all_ops: Annotated[bool, FLAG] = True
    interpolation: Annotated[WarpInterpolation, INTERPOLATION] = "bilinear"
    fill: Annotated[Fill, FILL] = None

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        made = all_steps(self, height, width)

        def change(draws: Draws) -> Steps:
            # Number 0: which; 1: its strength; 2: its sign.
            choice, at = (draws(0) * len(made.ops)).astype(np.int64), (draws(1) * self.severity).astype(np.int64)
            return _chosen(made, choice, at, draws(2) < 0.5)

        return draw_mixture(self.mixture_width, self.chain_depth, self.alpha, draws, change)

    def _space(self, height: int, width: int) -> Space:
        return mix_space(height, width, self.all_ops)


@lru_cache(maxsize=32)  # of each size of a set of buckets; at most 1.3 MB each
def all_steps(policy: Drawing, height: int, width: int) -> Steps:
    """Each step that a policy may draw: (changes, magnitudes, 2, 1), by change, magnitude, and sign."""
    space = policy._space(height, width)
    shape = len(space), max(len(one.table) for one in space.values() if one), 2
    choice, at, negative = np.indices(shape).reshape(3, -1)
    made = one_of(space, choice, _levels_of(space, at, negative == 1), height, width, policy)
    return Steps(made.ops.reshape(*shape, 1), made.args.reshape(*shape, 1, ARGS))


def _chosen(made: Steps, choice: I64, at: int | I64, negative: Bools) -> Steps:
    """One step for each of N images, of `all_steps`: change `choice` (N,), of magnitude `at` of its table."""
    places = choice, at, negative.astype(np.int64)
    return Steps(made.ops[places], made.args[places])


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
        "Posterize": Magnitudes(_bits(8, 4, bins), False),
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
        "Posterize": Magnitudes(_bits(8, 6, bins), False),
    }
    return {**rand_space(bins, 1, 1), **changed}


def auto_space(height: int, width: int) -> Space:
    """The changes of AutoAugment's policies: those of RandAugment in ten steps, and Invert."""
    return {**rand_space(10, height, width), "Invert": None}


def mix_space(height: int, width: int, all_ops: bool) -> Space:
    """The changes of AugMix and their magnitudes."""
    space = rand_space(_MIX_BINS, height, width)
    for name, side in (("TranslateX", width), ("TranslateY", height)):
        space[name] = Magnitudes(linspace(0, side / 3, _MIX_BINS), True)
    space["Posterize"] = Magnitudes(_bits(4, 4, _MIX_BINS), False)
    left_out = {"Identity"} if all_ops else {"Identity", *_FACTORS}
    return {name: magnitudes for name, magnitudes in space.items() if name not in left_out}


def linspace(first: float, last: float, count: int) -> F64:
    """torch.linspace, to its last bit, since magnitudes that are almost a whole number of pixels are truncated.

    It steps in float32 from both ends to the middle, each number rounded once (a fused multiply and add).
    """
    low, high = np.float32(first), np.float32(last)
    step, index = np.float64((high - low) / np.float32(count - 1)), np.arange(count)
    exact: F64 = np.where(index < count // 2, low + step * index, high - step * (count - 1 - index))
    return exact.astype(np.float32).astype(np.float64)


def _bits(most: int, lost: int, bins: int) -> F64:
    """Bits that posterizing keeps, from `most` down to most - lost."""
    index = np.arange(bins, dtype=np.float32)
    return np.asarray(np.rint(np.float32(most) - index / np.float32((bins - 1) / lost)), np.float64)


def _levels_of(space: Space, at: I64, negative: Bools) -> LevelOf:
    """What `one_of` asks for. at: which magnitude of its table each of N images has; negative: its sign, if any."""

    def level(number: int, rows: I64) -> F64:
        name, magnitudes = list(space.items())[number]
        if magnitudes is None:
            return np.zeros(len(rows))
        found = magnitudes.table[at[rows]]
        if magnitudes.signed:
            found = np.where(negative[rows], -found, found)
        if name.startswith("Translate"):  # whole pixels
            return np.trunc(found)
        return 1 + found if name in _FACTORS else found * (255 if name == "Solarize" else 1)

    return level


def one_of(
    names: Iterable[str],
    choice: I64,
    level_of: LevelOf,
    height: int,
    width: int,
    how: HowToMove,
) -> Steps:
    """One step for each of N images: change `choice` (N,) of these.

    level_of: pixels and degrees of what moves, factors, bits, levels, and sigmas of blurs.
    """
    steps = one_step(Op.NOTHING, len(choice))
    for number, name in enumerate(names):
        rows = np.flatnonzero(choice == number)
        if not len(rows):
            continue
        level = level_of(number, rows)
        if name in _MOVES:
            step = _MOVES[name](level, height, width, how.fill)
            if how.interpolation == "bilinear":
                step.ops[:] = Op.AFFINE_BILINEAR
        elif name == "GaussianBlur":
            step = one_step(Op.GAUSSIAN_BLUR, len(rows), level, 2 * width - 1, 2 * height - 1)
        else:
            step = one_step(_FACTORS[name] if name in _FACTORS else _OTHERS[name], len(rows), level)
        steps.ops[rows], steps.args[rows] = step
    return steps
