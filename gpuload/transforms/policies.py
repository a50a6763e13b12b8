"""RandAugment, TrivialAugment, AutoAugment and AugMix as in torchvision, and the policies of timm by their texts.

All choose among the same changes, which `step_of` makes steps of. A *space* says how strong each change can be.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from gpuload import checks
from gpuload.checks import FLAG, LARGEST, POSITIVE, Rule, as_text, check_fields, choice, either, settings, whole
from gpuload.draws import Draws
from gpuload.transforms.ops import Op
from gpuload.transforms.steps import EACH, Steps, draw_mixture, join, normal_of, one_step
from gpuload.transforms.warps import FILL, INTERPOLATION, Fill, WarpInterpolation, rgb
from gpuload.types import F64, I64, Bools

__all__ = ["AugMix", "AutoAugment", "RandAugment", "TimmAutoAugment", "TrivialAugmentWide"]

Policy = Literal["imagenet", "cifar10", "svhn"]

# Pairs of changes: a name, tenths of a probability, and the index of a magnitude where the change has one.
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


class Change(NamedTuple):
    """A change of a policy: its name, its probability, and the index of its magnitude (None where it has none)."""

    name: str
    p: float
    magnitude: int | None


Pairs = tuple[tuple[Change, ...], ...]


def _change(text: str) -> Change:
    name, tenths, *magnitude = text.split()
    return Change(name, int(tenths) / 10, int(magnitude[0]) if magnitude else None)


def _policy(text: str) -> Pairs:
    pairs = [pair.split(",") for line in text.strip().splitlines() for pair in line.split("|")]
    return tuple(tuple(map(_change, pair)) for pair in pairs)


POLICIES: dict[Policy, Pairs] = {
    "imagenet": _policy(_IMAGENET),
    "cifar10": _policy(_CIFAR10),
    "svhn": _policy(_SVHN),
}


# ---- changes and their steps

Matrix = tuple[float | F64, ...]  # (2, 3), row by row, from output to input, pixels from the centre


def _rotation(degrees: F64, height: int, width: int) -> Matrix:
    """Counter-clockwise about the centre."""
    turn = np.radians(degrees)
    cos, sin = np.cos(turn), np.sin(turn)
    return cos, -sin, 0, sin, cos, 0


# By a level (N,), and the height and width of the image. Shears, in pixels a line or a column, are about the top left
# corner, as AutoAugment defines them; translations, in pixels, are to the right and down.
_MOVES: dict[str, Callable[[F64, int, int], Matrix]] = {
    "ShearX": lambda level, height, width: (1, level, level * (height / 2), 0, 1, 0),
    "ShearY": lambda level, height, width: (1, 0, 0, level, 1, level * (width / 2)),
    "TranslateX": lambda level, height, width: (1, 0, -level, 0, 1, 0),
    "TranslateY": lambda level, height, width: (1, 0, 0, 0, 1, -level),
    "Rotate": _rotation,
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


def step_of(
    name: str, level: F64, height: int, width: int, fill: Fill, interpolation: WarpInterpolation = "bilinear"
) -> Steps:
    """One change as a step of N images. level: (N,), the pixels or degrees of what moves, a factor, bits, a level in
    0..255, or the sigma of a blur."""
    if name in _MOVES:
        op = Op.AFFINE if interpolation == "nearest" else Op.AFFINE_BILINEAR
        return one_step(op, len(level), *_MOVES[name](level, height, width), *rgb(fill))
    if name == "GaussianBlur":
        return one_step(Op.GAUSSIAN_BLUR, len(level), level, 2 * width - 1, 2 * height - 1)
    return one_step(_FACTORS[name] if name in _FACTORS else _OTHERS[name], len(level), level)


# ---- torchvision's policies

_BINS = whole(2, 1000)
_WIDTH = whole(1, 16)
_ALPHA = checks.number(POSITIVE, LARGEST, "a number above 0 and up to 1e6")
_DEPTH = either("a whole number in 1..16, or -1", whole(-1, -1), whole(1, 16))

Space = dict[str, F64 | None]  # of each change, its magnitudes from weak to strong; None: it has none
_MIX_BINS = 10


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


def rand_space(bins: int, height: int, width: int) -> Space:
    """Of RandAugment."""
    return {
        "Identity": None,
        **dict.fromkeys(("ShearX", "ShearY"), linspace(0, 0.3, bins)),
        "TranslateX": linspace(0, 150 / 331 * width, bins),
        "TranslateY": linspace(0, 150 / 331 * height, bins),
        "Rotate": linspace(0, 30, bins),
        **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), linspace(0, 0.9, bins)),
        "Posterize": _bits(8, 4, bins),
        "Solarize": linspace(1, 0, bins),
        "AutoContrast": None,
        "Equalize": None,
    }


def trivial_space(bins: int) -> Space:
    """Of TrivialAugment (wide)."""
    return {
        **rand_space(bins, 1, 1),
        **dict.fromkeys(("ShearX", "ShearY", *_FACTORS), linspace(0, 0.99, bins)),
        **dict.fromkeys(("TranslateX", "TranslateY"), linspace(0, 32, bins)),
        "Rotate": linspace(0, 135, bins),
        "Posterize": _bits(8, 6, bins),
    }


def auto_space(height: int, width: int) -> Space:
    """Of AutoAugment: that of RandAugment in ten steps, and Invert."""
    return {**rand_space(10, height, width), "Invert": None}


def mix_space(height: int, width: int, all_ops: bool) -> Space:
    """Of AugMix."""
    space = {
        **rand_space(_MIX_BINS, height, width),
        "TranslateX": linspace(0, width / 3, _MIX_BINS),
        "TranslateY": linspace(0, height / 3, _MIX_BINS),
        "Posterize": _bits(4, 4, _MIX_BINS),
    }
    left_out = {"Identity"} if all_ops else {"Identity", *_FACTORS}
    return {name: table for name, table in space.items() if name not in left_out}


def _levels(name: str, table: F64 | None) -> F64:
    """(magnitudes, 2): the levels of a change as `step_of` takes them, and with the other sign, if it has one."""
    both = np.zeros((1, 2)) if table is None else np.stack([table, table], axis=1)
    if name in _MOVES or name in _FACTORS:
        both[:, 1] *= -1
    if name.startswith("Translate"):
        return np.trunc(both)  # whole pixels
    return 1 + both if name in _FACTORS else both * (255 if name == "Solarize" else 1)


@lru_cache(maxsize=32)  # of each size of a set of buckets; at most 1.3 MB each
def _all_steps(policy: "_Drawn", height: int, width: int) -> Steps:
    """Each step that a policy may draw, by its change: (2 * magnitudes, changes). Rows 2m and 2m + 1 are magnitude m
    with either sign."""
    levels = {name: _levels(name, table) for name, table in policy._space(height, width).items()}
    shape = max(map(len, levels.values())), 2
    return join(
        [
            step_of(name, np.broadcast_to(level, shape).ravel(), height, width, policy.fill, policy.interpolation)
            for name, level in levels.items()
        ]
    )


class _Drawn:
    """Base class of torchvision's policies, which draw a change, its magnitude and its sign."""

    defined_for: ClassVar[str] = "colours"
    fill: Fill
    interpolation: WarpInterpolation

    def _space(self, height: int, width: int) -> Space:
        """The changes and magnitudes for images of this size."""
        raise NotImplementedError

    def _step(self, size: tuple[int, int], change: F64 | I64, at: int | I64, negative: Bools) -> Steps:
        """One step for each of N images. change: (N,), indices, or numbers in [0, 1) that choose one. at: indices of
        magnitudes."""
        steps = _all_steps(self, *size)
        index = change if change.dtype == np.int64 else (change * steps.ops.shape[1]).astype(np.int64)
        chosen = 2 * at + negative, index
        return Steps(steps.ops[chosen][:, None], steps.args[chosen][:, None])


@settings
class RandAugment(_Drawn):
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
        # Numbers 2k and 2k + 1: change k, and its sign.
        size = height, width
        return join(
            [
                self._step(size, draws(2 * number), self.magnitude, draws(2 * number + 1) < 0.5)
                for number in range(self.num_ops)
            ]
        )

    def _space(self, height: int, width: int) -> Space:
        return rand_space(self.num_magnitude_bins, height, width)


@settings
class TrivialAugmentWide(_Drawn):
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
        at = (draws(2) * self.num_magnitude_bins).astype(np.int64)
        return self._step((height, width), draws(0), at, draws(1) < 0.5)

    def _space(self, height: int, width: int) -> Space:
        return trivial_space(self.num_magnitude_bins)


@settings
class AutoAugment(_Drawn):
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
        pair = _drawn_pair(POLICIES[self.policy], list(self._space(height, width)), draws(0))
        steps = []
        for number, (change, p, magnitude) in enumerate(pair):
            step = self._step((height, width), change, magnitude.astype(np.int64), draws(3 + number) < 0.5)
            steps.append(step.only(draws(1 + number) < p))
        return join(steps)

    def _space(self, height: int, width: int) -> Space:
        return auto_space(height, width)


@settings
class AugMix(_Drawn):
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
    mixture_width: Annotated[int, _WIDTH] = 3
    chain_depth: Annotated[int, _DEPTH] = -1
    alpha: Annotated[float, _ALPHA] = 1.0
    all_ops: Annotated[bool, FLAG] = True
    interpolation: Annotated[WarpInterpolation, INTERPOLATION] = "bilinear"
    fill: Annotated[Fill, FILL] = None

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        def change(draws: Draws) -> Steps:
            # Number 0: which; 1: its strength; 2: its sign.
            at = (draws(1) * self.severity).astype(np.int64)
            return self._step((height, width), draws(0), at, draws(2) < 0.5)

        return draw_mixture(self.mixture_width, self.chain_depth, self.alpha, draws, change)

    def _space(self, height: int, width: int) -> Space:
        return mix_space(height, width, self.all_ops)


def _drawn_pair(pairs: Pairs, names: list[str], drawn: F64) -> Iterator[tuple[I64, F64, F64]]:
    """Of the pair that is drawn for each of N images, each change: its index in `names`, its probability and its
    magnitude, all (N,)."""
    table = np.array([[(names.index(one.name), one.p, one.magnitude or 0) for one in pair] for pair in pairs])
    for change in np.moveaxis(table[(drawn * len(pairs)).astype(np.int64)], 1, 0):
        index, p, magnitude = change.T
        yield index.astype(np.int64), p, magnitude


# ---- timm's policies

_SHARE, _SHARE_MIXED = 0.45, 0.3  # of the side, the farthest translations

Level = Callable[[F64, F64], F64]  # of a strength, 1 for timm's magnitude of 10, and a random number in 0..1


def _signed(most: float) -> Level:
    return lambda strength, u: most * np.where(u < 0.5, -strength, strength)


def _growing_factor(strength: F64, u: F64) -> F64:
    return np.maximum(0.1, 1 + _signed(0.9)(strength, u))


def _four_bits(strength: F64, u: F64) -> F64:
    return np.trunc(4 * strength)


def _threshold(strength: F64, u: F64) -> F64:
    return np.minimum(256, np.trunc(256 * strength))


# By timm's names: the change, and its level, of translations as a share of the farthest.
_CHANGES: dict[str, tuple[str, Level]] = {
    **{name: (name, lambda strength, u: 0 * strength) for name in ("AutoContrast", "Equalize", "Invert")},
    "Rotate": ("Rotate", _signed(30)),
    "Posterize": ("Posterize", _four_bits),
    "PosterizeIncreasing": ("Posterize", lambda strength, u: 4 - _four_bits(strength, u)),
    "PosterizeOriginal": ("Posterize", lambda strength, u: 4 + _four_bits(strength, u)),
    "Solarize": ("Solarize", _threshold),
    "SolarizeIncreasing": ("Solarize", lambda strength, u: 256 - _threshold(strength, u)),
    "SolarizeAdd": ("SolarizeAdd", lambda strength, u: np.minimum(128, np.trunc(110 * strength))),
    **{name: (name, lambda strength, u: 1.8 * strength + 0.1) for name in _FACTORS},
    **{f"{name}Increasing": (name, _growing_factor) for name in _FACTORS},
    "ShearX": ("ShearX", _signed(0.3)),
    "ShearY": ("ShearY", _signed(0.3)),
    "TranslateXRel": ("TranslateX", _signed(-1)),
    "TranslateYRel": ("TranslateY", _signed(-1)),
    "Desaturate": ("Color", lambda strength, u: 0.5 - np.minimum(0.5 * strength, 0.5)),
    "GaussianBlur": ("GaussianBlur", lambda strength, u: np.minimum(0.1 + 1.9 * strength, 2)),
    "GaussianBlurRand": ("GaussianBlur", lambda strength, u: 0.1 + u * (2 * np.minimum(strength, 1) - 0.1)),
}
_NAMES = list(_CHANGES)
_GROWING = ("Posterize", "Solarize", *_FACTORS)


def _weights(text: str, growing: bool) -> dict[str, float]:
    """Of changes by timm's names; 1 where the text has none. growing: those that can grow with the magnitude do."""
    found = {}
    for one in text.split(","):
        name, *weight = one.split()
        found[f"{name}Increasing" if growing and name in _GROWING else name] = float(weight[0]) if weight else 1.0
    return found


_RAND = """AutoContrast, Equalize, Invert, Rotate, Posterize, Solarize, SolarizeAdd, Color, Contrast, Brightness,
    Sharpness, ShearX, ShearY, TranslateXRel, TranslateYRel"""
_AUGMIX = """AutoContrast, Color, Contrast, Brightness, Sharpness, Equalize, Rotate, Posterize, Solarize, ShearX,
    ShearY, TranslateXRel, TranslateYRel"""
_CHOSEN = {  # by the letters after "t"
    "weights": """Rotate 3, ShearX 2, ShearY 2, TranslateXRel, TranslateYRel, Color .25, Sharpness .25,
        AutoContrast .25, Solarize .05, SolarizeAdd .05, Contrast .05, Brightness .05, Equalize .05, Posterize .05,
        Invert .05""",
    "3aw": """Solarize 6, Desaturate 6, GaussianBlur 6, Rotate 3, ShearX 2, ShearY 2, Posterize, AutoContrast, Color,
        Sharpness, Contrast, Brightness, Equalize, Invert""",
    "3a": "Solarize, Desaturate, GaussianBlur",
}


def _timms(pairs: Pairs, posterize: str) -> Pairs:
    """The same by timm's names."""
    names = {"Posterize": posterize, "TranslateX": "TranslateXRel", "TranslateY": "TranslateYRel"}
    return tuple(tuple(one._replace(name=names.get(one.name, one.name)) for one in pair) for pair in pairs)


_TIMM_POLICIES: dict[str, Pairs] = {
    "original": _timms(POLICIES["imagenet"], "PosterizeOriginal"),
    "originalr": _timms(POLICIES["imagenet"], "PosterizeIncreasing"),
    "v0": _timms(_policy(_V0), "Posterize"),
    "v0r": _timms(_policy(_V0), "PosterizeIncreasing"),
    "3a": ((Change("Solarize", 1.0, 5),), (Change("Desaturate", 1.0, 10),), (Change("GaussianBlurRand", 1.0, 10),)),
}
# The options that the sections of a text set.
_OPTIONS: dict[str, dict[str, float]] = {
    "rand": {"m": 10, "n": 2, "p": 0.5, "mstd": 0, "mmax": 10, "inc": 0},
    "augmix": {"m": 3, "w": 3, "d": -1, "a": 1, "mstd": np.inf},
    **{name: {"mstd": 0} for name in _TIMM_POLICIES},
}
_LIMITS: dict[str, Rule[Any]] = {"n": whole(1, 64), "p": checks.PROBABILITY, "w": _WIDTH, "d": _DEPTH, "a": _ALPHA}


class Config(NamedTuple):
    """What a text says. kind: "rand", "augmix", or a policy of pairs. weights: of each change that is drawn."""

    kind: str
    options: Mapping[str, float]
    weights: Mapping[str, float]


def read_config(config: str) -> Config:
    """Raises ValueError or TypeError where timm has no such policy or option."""
    kind, *sections = config.split("-")
    options, chosen = dict(_OPTIONS.get(kind, {})), ""
    for section in sections:
        if kind == "rand" and section.startswith("t"):
            chosen = section[1:]
            continue
        found = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", section)
        if found is None or found[1] not in options:
            raise ValueError(config)
        options[found[1]] = float(found[2]) if "." in found[2] else int(found[2])
    if not options or chosen not in ("", *_CHOSEN):
        raise ValueError(config)
    if kind == "rand" and options["mstd"] > 100:
        options["mstd"] = np.inf
    for name, rule in _LIMITS.items():
        rule.read(options.get(name, 1))
    text = _AUGMIX if kind == "augmix" else _CHOSEN.get(chosen, _RAND)
    return Config(kind, options, _weights(text, growing=text is not _RAND or bool(options.get("inc"))))


def _as_config(value: object) -> str:
    read_config(as_text(value))
    return str(value)


_CONFIG = Rule(f"one of timm's {', '.join(_OPTIONS)}, with its sections, such as 'rand-m9-mstd0.5-inc1'", _as_config)


@settings
class TimmAutoAugment:
    """timm's `auto_augment`: RandAugment, AugMix, AutoAugment and 3-Augment, by the text that timm takes.

    config: "rand-m9-mstd0.5-inc1" and the like, "augmix-m3-w3-d2", "original", "originalr", "v0", "v0r" or "3a" (with
        "-mstd0.5"); sections as in timm, without augmix's "b1".
    fill: level (0..255), or three (R, G, B), where there is no pixel of the image; timm's are the mean of its model.

    Shears, translations and rotations weight four pixels, where timm draws bilinear or bicubic; blurs are Gaussian,
    where Pillow's are three averages. Boxes, masks and keypoints follow, except in AugMix.

    Raises:
        ArgumentError: a policy or a section that timm does not have.
    """

    config: Annotated[str, _CONFIG]
    fill: Annotated[Fill, FILL] = 128

    defined_for: ClassVar[str] = "colours"

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        kind, options, weights = read_config(self.config)

        def change(draws: Draws, which: I64, magnitude: float | F64, p: float | F64) -> Steps:
            # Number 0: which; 1: whether; 2, 3: its strength; 4: its sign.
            strength = _strength(magnitude, options, draws(2), draws(3))
            share = _SHARE_MIXED if kind == "augmix" else _SHARE
            return self._changes(which, strength, draws(4), share, height, width).only(draws(1) < p)

        if kind == "augmix":
            shape = int(options["w"]), int(options["d"]), options["a"]
            return draw_mixture(*shape, draws, lambda own: change(own, _drawn(weights, [own(0)])[0], options["m"], 1.0))
        if kind == "rand":
            each = [partial(_own_number, draws, layer) for layer in range(int(options["n"]))]
            which = _drawn(weights, [own(0) for own in each])
            return join([change(own, one, options["m"], options["p"]) for own, one in zip(each, which, strict=True)])
        return join(
            [
                change(partial(_own_number, draws, place), one, magnitude, p)
                for place, (one, p, magnitude) in enumerate(_drawn_pair(_TIMM_POLICIES[kind], _NAMES, draws(0)))
            ]
        )

    def _changes(self, which: I64, strength: F64, sign: F64, share: float, height: int, width: int) -> Steps:
        """One step for each of N images: a change, an index in `_NAMES`, of its strength."""
        farthest = {"TranslateX": share * width, "TranslateY": share * height}
        steps = one_step(Op.NOTHING, len(which))
        for number in np.unique(which).tolist():
            rows = np.flatnonzero(which == number)
            name, level_of = _CHANGES[_NAMES[number]]
            level = level_of(strength[rows], sign[rows]) * farthest.get(name, 1)
            steps.ops[rows], steps.args[rows] = step_of(name, level, height, width, self.fill)
        return steps


def _own_number(draws: Draws, place: int, number: int) -> F64:
    return draws(EACH * place + number)


def _strength(magnitude: float | F64, options: Mapping[str, float], first: F64, second: F64) -> F64:
    """(N,): 1 for a magnitude of 10."""
    spread = options["mstd"]
    drawn = magnitude * first if spread == np.inf else magnitude + spread * normal_of(first, second)
    return np.asarray(np.clip(drawn, 0, options.get("mmax", 10)) / 10, np.float64)


def _drawn(weights: Mapping[str, float], numbers: Sequence[F64]) -> list[I64]:
    """Which changes, as indices in `_NAMES`, int64 (N,) for each of the numbers (N,). Where their weights differ, none
    comes twice."""
    codes = np.array([_NAMES.index(name) for name in weights])
    left = np.tile(np.array(list(weights.values()), np.float64), (len(numbers[0]), 1))
    repeats, found = len(set(weights.values())) == 1, []
    for drawn in numbers:
        ends = left.cumsum(axis=1)
        place = (ends <= drawn[:, None] * ends[:, -1:]).sum(axis=1)
        found.append(codes[place])
        if not repeats:
            left[np.arange(len(place)), place] = 0
    return found
