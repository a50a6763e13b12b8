"""timm's automatic policies, by the texts that its `auto_augment` takes. Their changes are those of `policies`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from gpuload.checks import PROBABILITY, Rule, as_text, settings, whole
from gpuload.draws import Draws
from gpuload.transforms.ops import Op
from gpuload.transforms.policies import (
    ALPHA,
    DEPTH,
    FACTORS,
    POLICIES,
    WIDTH,
    Pairs,
    drawn_pair,
    policy_of,
    step_of,
)
from gpuload.transforms.steps import (
    EACH,
    Steps,
    draw_mixture,
    join,
    normal_of,
    one_step,
)
from gpuload.transforms.warps import FILL, Fill
from gpuload.types import F64, I64

__all__ = ["TimmAutoAugment"]

# Of timm's "v0" and "v0r", which come from the TPU implementation of EfficientNet, and are in no paper.
_V0 = """
    Equalize 8 1, ShearY 8 4        | Color 4 9, Equalize 6 3         | Color 4 1, Rotate 6 8
    Solarize 8 3, Equalize 4 7      | Solarize 4 2, Solarize 6 2      | Color 2 0, Equalize 8 8
    Equalize 4 8, SolarizeAdd 8 3   | ShearX 2 9, Rotate 6 8          | Color 6 1, Equalize 10 2
    Invert 4 9, Rotate 6 0          | Equalize 10 9, ShearY 6 3       | Color 4 7, Equalize 6 0
    Posterize 4 6, AutoContrast 4 7 | Solarize 6 8, Color 6 9         | Solarize 2 4, Rotate 8 9
    Rotate 10 7, TranslateYRel 8 9  | ShearX 0 0, Solarize 8 4        | ShearY 8 0, Color 6 4
    Color 10 0, Rotate 6 2          | Equalize 8 4, Equalize 0 8      | Equalize 10 4, AutoContrast 6 2
    ShearY 4 7, SolarizeAdd 6 7     | Posterize 8 2, Solarize 6 10    | Solarize 6 8, Equalize 6 1
    Color 8 6, Rotate 4 5
"""

# The farthest translations, as shares of the side.
_SHARE = 0.45
_SHARE_MIXED = 0.3

# Of a strength, 1 for timm's magnitude of 10, and a random number in 0..1.
Level = Callable[[F64, F64], F64]


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
    **{
        name: (name, lambda strength, u: 0 * strength)
        for name in ("AutoContrast", "Equalize", "Invert")
    },
    "Rotate": ("Rotate", _signed(30)),
    "Posterize": ("Posterize", _four_bits),
    "PosterizeIncreasing": (
        "Posterize",
        lambda strength, u: 4 - _four_bits(strength, u),
    ),
    "PosterizeOriginal": ("Posterize", lambda strength, u: 4 + _four_bits(strength, u)),
    "Solarize": ("Solarize", _threshold),
    "SolarizeIncreasing": (
        "Solarize",
        lambda strength, u: 256 - _threshold(strength, u),
    ),
    "SolarizeAdd": (
        "SolarizeAdd",
        lambda strength, u: np.minimum(128, np.trunc(110 * strength)),
    ),
    **{name: (name, lambda strength, u: 1.8 * strength + 0.1) for name in FACTORS},
    **{f"{name}Increasing": (name, _growing_factor) for name in FACTORS},
    "ShearX": ("ShearX", _signed(0.3)),
    "ShearY": ("ShearY", _signed(0.3)),
    "TranslateXRel": ("TranslateX", _signed(-1)),
    "TranslateYRel": ("TranslateY", _signed(-1)),
    "Desaturate": ("Color", lambda strength, u: 0.5 - np.minimum(0.5 * strength, 0.5)),
    "GaussianBlur": (
        "GaussianBlur",
        lambda strength, u: np.minimum(0.1 + 1.9 * strength, 2),
    ),
    "GaussianBlurRand": (
        "GaussianBlur",
        lambda strength, u: 0.1 + u * (2 * np.minimum(strength, 1) - 0.1),
    ),
}
_NAMES = list(_CHANGES)
_GROWING = ("Posterize", "Solarize", *FACTORS)


def _weights(text: str, growing: bool) -> dict[str, float]:
    """Of changes by timm's names; 1 where the text has none.

    Args:
        growing: Those that can grow with the magnitude do.
    """
    weights = {}
    for part in text.split(","):
        name, *weight = part.split()
        weights[f"{name}Increasing" if growing and name in _GROWING else name] = (
            float(weight[0]) if weight else 1.0
        )
    return weights


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


def _with(posterize: str, pairs: Pairs) -> Pairs:
    """The same with another kind of posterizing."""
    return tuple(
        tuple(
            (posterize if change[0] == "Posterize" else change[0], *change[1:])
            for change in pair
        )
        for pair in pairs
    )


_POLICIES: dict[str, Pairs] = {
    "original": _with("PosterizeOriginal", POLICIES["imagenet"]),
    "originalr": _with("PosterizeIncreasing", POLICIES["imagenet"]),
    "v0": policy_of(_V0),
    "v0r": _with("PosterizeIncreasing", policy_of(_V0)),
    "3a": policy_of("Solarize 10 5 | Desaturate 10 10 | GaussianBlurRand 10 10"),
}
# The options that the sections of a text set.
OPTIONS: dict[str, dict[str, float]] = {
    "rand": {"m": 10, "n": 2, "p": 0.5, "mstd": 0, "mmax": 10, "inc": 0},
    "augmix": {"m": 3, "w": 3, "d": -1, "a": 1, "mstd": np.inf},
    **{name: {"mstd": 0} for name in _POLICIES},
}
_LIMITS: dict[str, Rule[Any]] = {
    "n": whole(1, 64),
    "p": PROBABILITY,
    "w": WIDTH,
    "d": DEPTH,
    "a": ALPHA,
}


def _read(config: str) -> tuple[str, Mapping[str, float], Mapping[str, float]]:
    """What a text says: "rand", "augmix", or a policy of pairs; options; and the weight of each change that is drawn.
    Raises ValueError or TypeError where timm has no such policy or option."""
    kind, *sections = config.split("-")
    options = dict(OPTIONS.get(kind, {}))
    chosen = ""
    for section in sections:
        if kind == "rand" and section.startswith("t"):
            chosen = section[1:]
        else:
            _set_option(options, section)
    if not options or chosen not in ("", *_CHOSEN):
        raise ValueError(config)
    if kind == "rand" and options["mstd"] > 100:
        options["mstd"] = np.inf
    for name, rule in _LIMITS.items():
        rule.read(options.get(name, 1))
    text = _AUGMIX if kind == "augmix" else _CHOSEN.get(chosen, _RAND)
    is_growing = text is not _RAND or bool(options.get("inc"))
    return kind, options, _weights(text, growing=is_growing)


def _set_option(options: dict[str, float], section: str) -> None:
    """Sets what a section such as "m9" or "mstd0.5" says; raises ValueError where there is no such option."""
    match = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", section)
    if match is None or match[1] not in options:
        raise ValueError(section)
    name, number = match.groups()
    options[name] = float(number) if "." in number else int(number)


def _as_config(value: object) -> str:
    _read(as_text(value))
    return str(value)


_CONFIG = Rule(
    f"one of timm's {', '.join(OPTIONS)}, with its sections, such as 'rand-m9-mstd0.5-inc1'",
    _as_config,
)


@settings
class TimmAutoAugment:
    """timm's `auto_augment`: RandAugment, AugMix, AutoAugment and 3-Augment, by the text that timm takes.

    Args:
        config: "rand-m9-mstd0.5-inc1" and the like, "augmix-m3-w3-d2", "original", "originalr", "v0", "v0r" or "3a"
            (with "-mstd0.5"); sections as in timm, without augmix's "b1".
        fill: Level (0..255), or three (R, G, B), where there is no pixel of the image; timm's are the mean of its
            model.

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
        kind, options, weights = _read(self.config)

        def change(
            draws: Draws, which: I64, p: float | F64, magnitude: float | I64
        ) -> Steps:
            # Number 0: which; 1: whether; 2, 3: its strength; 4: its sign.
            strength = _strength(magnitude, options, draws(2), draws(3))
            share = _SHARE_MIXED if kind == "augmix" else _SHARE
            return self._changes(which, strength, draws(4), share, height, width).only(
                draws(1) < p
            )

        if kind == "augmix":
            shape = int(options["w"]), int(options["d"]), options["a"]
            return draw_mixture(
                *shape,
                draws,
                lambda own_draws: change(
                    own_draws, _drawn(weights, [own_draws(0)])[0], 1.0, options["m"]
                ),
            )
        if kind == "rand":
            numbers = [draws(EACH * layer) for layer in range(int(options["n"]))]
            chosen: Iterable[Any] = (
                (which, options["p"], options["m"])
                for which in _drawn(weights, numbers)
            )
        else:
            chosen = drawn_pair(_POLICIES[kind], _NAMES, draws(0))

        def draws_of(place: int) -> Draws:
            return lambda number: draws(EACH * place + number)

        return join(
            [
                change(draws_of(place), *arguments)
                for place, arguments in enumerate(chosen)
            ]
        )

    def _changes(
        self,
        which: I64,
        strength: F64,
        sign: F64,
        share: float,
        height: int,
        width: int,
    ) -> Steps:
        """One step for each of N images: a change, an index in `_NAMES`, of its strength."""
        farthest = {"TranslateX": share * width, "TranslateY": share * height}
        steps = one_step(Op.NOTHING, len(which))
        for number in np.unique(which).tolist():
            rows = np.flatnonzero(which == number)
            name, level_of = _CHANGES[_NAMES[number]]
            level = level_of(strength[rows], sign[rows]) * farthest.get(name, 1)
            steps.ops[rows], steps.args[rows] = step_of(
                name, level, height, width, self.fill
            )
        return steps


def _strength(
    magnitude: float | I64, options: Mapping[str, float], first: F64, second: F64
) -> F64:
    """(N,): 1 for a magnitude of 10."""
    spread = options["mstd"]
    drawn = (
        magnitude * first
        if spread == np.inf
        else magnitude + spread * normal_of(first, second)
    )
    return np.asarray(np.clip(drawn, 0, options.get("mmax", 10)) / 10, np.float64)


def _drawn(weights: Mapping[str, float], numbers: Sequence[F64]) -> list[I64]:
    """Which changes, as indices in `_NAMES`, int64 (N,) for each of the numbers (N,). Where their weights differ, none
    comes twice."""
    codes = np.array([_NAMES.index(name) for name in weights])
    remaining = np.tile(
        np.array(list(weights.values()), np.float64), (len(numbers[0]), 1)
    )
    repeats = len(set(weights.values())) == 1
    indices = []
    for drawn in numbers:
        ends = remaining.cumsum(axis=1)
        place = (ends <= drawn[:, None] * ends[:, -1:]).sum(axis=1)
        indices.append(codes[place])
        if not repeats:
            remaining[np.arange(len(place)), place] = 0
    return indices
