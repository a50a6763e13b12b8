"""RandAugment, TrivialAugment, AutoAugment and AugMix as in torchvision.

All choose among the same changes, which `step_of` makes steps of. A *space* says how strong each change can be.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import numpy as np

from gpuload.checks import (
    FLAG,
    LARGEST,
    POSITIVE,
    check_fields,
    choice,
    either,
    number,
    settings,
    whole,
)
from gpuload.draws import Draws
from gpuload.transforms.ops import Op
from gpuload.transforms.steps import Steps, draw_mixture, join, one_step
from gpuload.transforms.warps import FILL, INTERPOLATION, Fill, WarpInterpolation, rgb
from gpuload.types import F64, I64, Bools

__all__ = ["AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide"]

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


# Its name, its probability, and the index of its magnitude, where it has one.
Change = tuple[str, float, int | None]
Pairs = tuple[tuple[Change, ...], ...]


def _change(text: str) -> Change:
    name, tenths, *magnitude = text.split()
    return name, int(tenths) / 10, int(magnitude[0]) if magnitude else None


def policy_of(text: str) -> Pairs:
    """The pairs of a text such as those above."""
    pairs = [
        pair.split(",")
        for line in text.strip().splitlines()
        for pair in line.split("|")
    ]
    return tuple(tuple(map(_change, pair)) for pair in pairs)


POLICIES: dict[Policy, Pairs] = {
    "imagenet": policy_of(_IMAGENET),
    "cifar10": policy_of(_CIFAR10),
    "svhn": policy_of(_SVHN),
}


# ---- changes and their steps

# (2, 3), row by row, from output to input, pixels from the centre.
Matrix = tuple[float | F64, ...]


def _rotation(degrees: F64, height: int, width: int) -> Matrix:
    """Counter-clockwise about the centre."""
    turn = np.radians(degrees)
    cos = np.cos(turn)
    sin = np.sin(turn)
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
FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")
_OPS = {
    "Brightness": Op.BRIGHTNESS,
    "Color": Op.SATURATION,
    "Contrast": Op.CONTRAST,
    "Sharpness": Op.SHARPNESS,
    "Identity": Op.NOTHING,
    "AutoContrast": Op.AUTOCONTRAST,
    "Equalize": Op.EQUALIZE,
    "Invert": Op.INVERT,
    "Posterize": Op.POSTERIZE,
    "Solarize": Op.SOLARIZE,
    "SolarizeAdd": Op.SOLARIZE_ADD,
}


def step_of(
    name: str,
    level: F64,
    height: int,
    width: int,
    fill: Fill,
    interpolation: WarpInterpolation = "bilinear",
) -> Steps:
    """One change as a step of N images.

    Args:
        name: As torchvision's policies call the change, such as "TranslateX" or "Posterize".
        level: (N,), the pixels or degrees of what moves, a factor, bits, a level in 0..255, or the sigma of a blur.
        height: Of the images in pixels.
        width: Of the images in pixels.
        fill: Level of what moves in, or one for each of R, G and B.
        interpolation: Of what moves.
    """
    if name in _MOVES:
        op = Op.AFFINE if interpolation == "nearest" else Op.AFFINE_BILINEAR
        return one_step(op, len(level), *_MOVES[name](level, height, width), *rgb(fill))
    if name == "GaussianBlur":
        return one_step(
            Op.GAUSSIAN_BLUR, len(level), level, 2 * width - 1, 2 * height - 1
        )
    return one_step(_OPS[name], len(level), level)


# ---- torchvision's policies

_BINS = whole(2, 1000)
WIDTH = whole(1, 16)
ALPHA = number(POSITIVE, LARGEST, "a number above 0 and up to 1e6")
DEPTH = either("a whole number in 1..16, or -1", whole(-1, -1), whole(1, 16))

# Of each change, its magnitudes from weak to strong; None: it has none.
Space = dict[str, F64 | None]
_MIX_BINS = 10


def linspace(first: float, last: float, count: int) -> F64:
    """torch.linspace, to its last bit, since magnitudes that are almost a whole number of pixels are truncated.

    It steps in float32 from both ends to the middle, each number rounded once (a fused multiply and add).
    """
    low = np.float32(first)
    high = np.float32(last)
    step = np.float64((high - low) / np.float32(count - 1))
    index = np.arange(count)
    exact: F64 = np.where(
        index < count // 2, low + step * index, high - step * (count - 1 - index)
    )
    return exact.astype(np.float32).astype(np.float64)


def _bits(most: int, lost: int, bins: int) -> F64:
    """Bits that posterizing keeps, from `most` down to most - lost."""
    index = np.arange(bins, dtype=np.float32)
    return np.asarray(
        np.rint(np.float32(most) - index / np.float32((bins - 1) / lost)), np.float64
    )


def _space_of(bins: int, height: int, width: int) -> Space:
    """Of RandAugment, from which the others differ."""
    return {
        "Identity": None,
        **dict.fromkeys(("ShearX", "ShearY"), linspace(0, 0.3, bins)),
        "TranslateX": linspace(0, 150 / 331 * width, bins),
        "TranslateY": linspace(0, 150 / 331 * height, bins),
        "Rotate": linspace(0, 30, bins),
        **dict.fromkeys(
            ("Brightness", "Color", "Contrast", "Sharpness"), linspace(0, 0.9, bins)
        ),
        "Posterize": _bits(8, 4, bins),
        "Solarize": linspace(1, 0, bins),
        "AutoContrast": None,
        "Equalize": None,
    }


def _levels(name: str, table: F64 | None) -> F64:
    """(magnitudes, 2): the levels of a change as `step_of` takes them, and with the other sign, if it has one."""
    magnitudes = np.zeros(1) if table is None else table
    both = np.stack([magnitudes, magnitudes], axis=1)
    if name in _MOVES or name in FACTORS:
        both[:, 1] *= -1
    if name.startswith("Translate"):
        return np.trunc(both)  # whole pixels
    if name in FACTORS:
        return 1 + both
    return both * 255 if name == "Solarize" else both


@lru_cache(maxsize=32)  # of each size of a set of buckets; at most 1.3 MB each
def _all_steps(policy: "_DrawnPolicy", height: int, width: int) -> Steps:
    """Each step that a policy may draw, by its change: (2 * magnitudes, changes). Rows 2m and 2m + 1 are magnitude m
    with either sign."""
    levels = {
        name: _levels(name, table)
        for name, table in policy._space(height, width).items()
    }
    shape = max(map(len, levels.values())), 2
    return join(
        [
            step_of(
                name,
                np.broadcast_to(level, shape).ravel(),
                height,
                width,
                policy.fill,
                policy.interpolation,
            )
            for name, level in levels.items()
        ]
    )


class _DrawnPolicy:
    """Base class of torchvision's policies, which draw a change, its magnitude and its sign."""

    defined_for: ClassVar[str] = "colours"
    fill: Fill
    interpolation: WarpInterpolation

    def _space(self, height: int, width: int) -> Space:
        """The changes and magnitudes for images of this size."""
        raise NotImplementedError

    def _step(
        self,
        size: tuple[int, int],
        change: F64 | I64,
        magnitude: int | I64,
        negative: Bools,
    ) -> Steps:
        """One step for each of N images.

        Args:
            change: (N,), indices, or numbers in [0, 1) that choose one.
            magnitude: Indices of magnitudes.
        """
        steps = _all_steps(self, *size)
        count = steps.ops.shape[1]
        is_index = change.dtype == np.int64
        column = change if is_index else (change * count).astype(np.int64)
        row = 2 * magnitude + negative
        return steps.chosen(row[:, None], column[:, None])


@settings
class RandAugment(_DrawnPolicy):
    """torchvision's RandAugment: `num_ops` of 14 changes, one after another, all of the same magnitude.

    Args:
        num_ops: Changes of an image, 1..64.
        magnitude: Index into the table of magnitudes.
        num_magnitude_bins: Length of that table.
        fill: Level (0..255), or three (R, G, B), where there is no pixel of the image; None is black.
        interpolation: Of shears, translations and rotations, "nearest" or "bilinear".

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
        numbers = range(0, 2 * self.num_ops, 2)
        return join(
            [
                self._step(size, draws(number), self.magnitude, draws(number + 1) < 0.5)
                for number in numbers
            ]
        )

    def _space(self, height: int, width: int) -> Space:
        return _space_of(self.num_magnitude_bins, height, width)


@settings
class TrivialAugmentWide(_DrawnPolicy):
    """torchvision's TrivialAugmentWide: one of 14 changes, of any magnitude of a wide range.

    Args:
        num_magnitude_bins: Length of the table of magnitudes.
        fill: Level (0..255), or three (R, G, B), where there is no pixel of the image; None is black.
        interpolation: Of shears, translations and rotations, "nearest" or "bilinear".

    Raises:
        ArgumentError: a value out of its range.
    """

    num_magnitude_bins: Annotated[int, _BINS] = 31
    fill: Annotated[Fill, FILL] = None
    interpolation: Annotated[WarpInterpolation, INTERPOLATION] = "nearest"

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        # Number 0: the change; 1: its sign; 2: its magnitude.
        magnitude = (draws(2) * self.num_magnitude_bins).astype(np.int64)
        return self._step((height, width), draws(0), magnitude, draws(1) < 0.5)

    def _space(self, height: int, width: int) -> Space:
        bins = self.num_magnitude_bins
        return {
            **_space_of(bins, height, width),
            **dict.fromkeys(("ShearX", "ShearY", *FACTORS), linspace(0, 0.99, bins)),
            **dict.fromkeys(("TranslateX", "TranslateY"), linspace(0, 32, bins)),
            "Rotate": linspace(0, 135, bins),
            "Posterize": _bits(8, 6, bins),
        }


@settings
class AutoAugment(_DrawnPolicy):
    """torchvision's AutoAugment: one of 25 pairs of changes, each change with a probability of its own.

    Args:
        policy: "imagenet", "cifar10" or "svhn", the data set that the pairs were found for.
        fill: Level (0..255), or three (R, G, B), where there is no pixel of the image; None is black.
        interpolation: Of shears, translations and rotations, "nearest" or "bilinear".

    Raises:
        ArgumentError: an unknown policy, a fill out of its range.
    """

    policy: Annotated[Policy, choice(*POLICIES)] = "imagenet"
    fill: Annotated[Fill, FILL] = None
    interpolation: Annotated[WarpInterpolation, INTERPOLATION] = "nearest"

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        # Number 0: the pair; 1, 2: whether its first and second change; 3, 4: their signs.
        pair = drawn_pair(
            POLICIES[self.policy], list(self._space(height, width)), draws(0)
        )
        return join(
            [
                self._step(
                    (height, width), change, magnitude, draws(3 + place) < 0.5
                ).only(draws(1 + place) < p)
                for place, (change, p, magnitude) in enumerate(pair)
            ]
        )

    def _space(self, height: int, width: int) -> Space:
        return {**_space_of(10, height, width), "Invert": None}


@settings
class AugMix(_DrawnPolicy):
    """torchvision's AugMix: chains of changes, each begun with the image itself, blended with it and each other.

    Boxes, masks and keypoints stay where they are in the image, as in torchvision.

    Args:
        severity: Changes have one of this many lowest magnitudes of 10.
        mixture_width: Chains, 1..16.
        chain_depth: Changes of a chain, 1..16; -1 draws 1, 2 or 3 for each.
        alpha: Above 0; the shares of the chains, and of the image itself, are drawn from Dirichlet(alpha, alpha, …).
        all_ops: Brightness, color, contrast and sharpness change, too.
        interpolation: Of shears, translations and rotations, "bilinear" or "nearest".
        fill: Level (0..255), or three (R, G, B), where there is no pixel of the image; None is black.

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
        def change(draws: Draws) -> Steps:
            # Number 0: which; 1: its strength; 2: its sign.
            magnitude = (draws(1) * self.severity).astype(np.int64)
            return self._step((height, width), draws(0), magnitude, draws(2) < 0.5)

        return draw_mixture(
            self.mixture_width, self.chain_depth, self.alpha, draws, change
        )

    def _space(self, height: int, width: int) -> Space:
        space = {
            **_space_of(_MIX_BINS, height, width),
            "TranslateX": linspace(0, width / 3, _MIX_BINS),
            "TranslateY": linspace(0, height / 3, _MIX_BINS),
            "Posterize": _bits(4, 4, _MIX_BINS),
        }
        left_out = ("Identity",) if self.all_ops else ("Identity", *FACTORS)
        return {name: table for name, table in space.items() if name not in left_out}


def drawn_pair(
    pairs: Pairs, names: list[str], drawn: F64
) -> Iterator[tuple[I64, F64, I64]]:
    """The pair that is drawn for each of N images, as one item for each change: its index, its probability and its
    magnitude, all (N,).

    Args:
        pairs: Each of as many changes: name, probability and magnitude.
        names: What an index counts.
        drawn: A random number in [0, 1) for each image.
    """
    table = np.array(
        [
            [(names.index(name), p, magnitude or 0) for name, p, magnitude in pair]
            for pair in pairs
        ]
    )
    for change in np.moveaxis(table[(drawn * len(pairs)).astype(np.int64)], 1, 0):
        index, p, magnitude = change.T
        yield index.astype(np.int64), p, magnitude.astype(np.int64)
