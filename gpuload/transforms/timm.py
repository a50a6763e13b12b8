"""timm's automatic policies, by the texts that its `auto_augment` takes."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np

from gpuload.checks import Rule, as_text, settings
from gpuload.draws import Draws
from gpuload.transforms.auto import ALPHA, DEPTH, POLICIES, V0, WIDTH, Change, one_of
from gpuload.transforms.steps import EACH, Steps, draw_mixture, join, normal_of
from gpuload.transforms.warps import FILL, Fill, WarpInterpolation
from gpuload.types import F64, I64

__all__ = ["TimmAutoAugment"]

FARTHEST, FARTHEST_MIXED = 0.45, 0.3  # translations, as shares of the side

Level = Callable[[F64, F64], F64]  # of a strength, 1 for timm's magnitude of 10, and a random number in 0..1


def _signed(most: float) -> Level:
    return lambda strength, u: most * np.where(u < 0.5, -strength, strength)


def _factor(strength: F64, u: F64) -> F64:
    return 1.8 * strength + 0.1


def _growing_factor(strength: F64, u: F64) -> F64:
    return np.maximum(0.1, 1 + _signed(0.9)(strength, u))


def _bits(strength: F64, u: F64) -> F64:
    return np.trunc(4 * strength)


def _threshold(strength: F64, u: F64) -> F64:
    return np.minimum(256, np.trunc(256 * strength))


def _plain(strength: F64, u: F64) -> F64:
    return np.zeros(len(strength))


# By timm's names: the change of `one_of`, and its level, of translations as a share of the farthest.
_CHANGES: dict[str, tuple[str, Level]] = {
    **{name: (name, _plain) for name in ("AutoContrast", "Equalize", "Invert")},
    "Rotate": ("Rotate", _signed(30)),
    "Posterize": ("Posterize", _bits),
    "PosterizeIncreasing": ("Posterize", lambda strength, u: 4 - _bits(strength, u)),
    "PosterizeOriginal": ("Posterize", lambda strength, u: 4 + _bits(strength, u)),
    "Solarize": ("Solarize", _threshold),
    "SolarizeIncreasing": ("Solarize", lambda strength, u: 256 - _threshold(strength, u)),
    "SolarizeAdd": ("SolarizeAdd", lambda strength, u: np.minimum(128, np.trunc(110 * strength))),
    **{name: (name, _factor) for name in ("Color", "Contrast", "Brightness", "Sharpness")},
    **{f"{name}Increasing": (name, _growing_factor) for name in ("Color", "Contrast", "Brightness", "Sharpness")},
    "ShearX": ("ShearX", _signed(0.3)),
    "ShearY": ("ShearY", _signed(0.3)),
    "TranslateXRel": ("TranslateX", _signed(-1)),
    "TranslateYRel": ("TranslateY", _signed(-1)),
    "Desaturate": ("Color", lambda strength, u: 0.5 - np.minimum(0.5 * strength, 0.5)),
    "GaussianBlur": ("GaussianBlur", lambda strength, u: np.minimum(0.1 + 1.9 * strength, 2)),
    "GaussianBlurRand": ("GaussianBlur", lambda strength, u: 0.1 + u * (2 * np.minimum(strength, 1) - 0.1)),
}
_NAMES = list(_CHANGES)
_GROWING = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")


def _weights(text: str, growing: bool = False) -> dict[str, float]:
    """Of changes by timm's names; 1 where the text has none. growing: those that can grow with the magnitude do."""
    found = {}
    for one in text.split(","):
        name, *weight = one.split()
        suffix = "Increasing" if growing and name in _GROWING else ""
        found[name + suffix] = float(weight[0]) if weight else 1.0
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
_THREE = tuple((Change(name, 1.0, at),) for name, at in (("Solarize", 5), ("Desaturate", 10), ("GaussianBlurRand", 10)))


def _pairs(policy: tuple[tuple[Change, ...], ...], posterize: str) -> tuple[tuple[Change, ...], ...]:
    """By timm's names."""
    names = {"Posterize": posterize, "TranslateX": "TranslateXRel", "TranslateY": "TranslateYRel"}
    return tuple(tuple(one._replace(name=names.get(one.name, one.name)) for one in pair) for pair in policy)


TIMM_POLICIES = {
    "original": _pairs(POLICIES["imagenet"], "PosterizeOriginal"),
    "originalr": _pairs(POLICIES["imagenet"], "PosterizeIncreasing"),
    "v0": _pairs(V0, "Posterize"),
    "v0r": _pairs(V0, "PosterizeIncreasing"),
    "3a": _THREE,
}
_DEFAULTS: dict[str, Mapping[str, float]] = {
    "rand": {"m": 10, "n": 2, "p": 0.5, "mstd": 0, "mmax": 10, "inc": 0},
    "augmix": {"m": 3, "w": 3, "d": -1, "a": 1, "mstd": np.inf, "b": 0},
    **{name: {"mstd": 0} for name in TIMM_POLICIES},
}


class Config(NamedTuple):
    """What a text says. kind: "rand", "augmix", or one of TIMM_POLICIES. weights: of each change that is drawn."""

    kind: str
    options: Mapping[str, float]
    weights: Mapping[str, float]


def read_config(config: str) -> Config:
    """Raises ValueError where timm has no such policy or option."""
    kind, *sections = config.split("-")
    options, chosen = dict(_DEFAULTS.get(kind, {})), ""
    if not options:
        raise ValueError(config)
    for section in sections:
        if kind == "rand" and section.startswith("t"):
            chosen = section[1:]
            continue
        found = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", section)
        if found is None or found[1] not in options:
            raise ValueError(config)
        options[found[1]] = float(found[2]) if "." in found[2] else int(found[2])
    if kind == "rand" and options["mstd"] > 100:
        options["mstd"] = np.inf
    if options.get("b") or options.get("n", 1) not in range(1, 65) or chosen not in ("", *_CHOSEN):
        raise ValueError(config)
    if not 0 <= options.get("p", 0) <= 1:
        raise ValueError(config)
    if kind == "augmix":
        for name, rule in (("w", WIDTH), ("d", DEPTH), ("a", ALPHA)):
            rule.read(options[name])
    text = _AUGMIX if kind == "augmix" else _CHOSEN.get(chosen, _RAND)
    return Config(kind, options, _weights(text, growing=text is not _RAND or bool(options.get("inc"))))


def _as_config(value: object) -> str:
    read_config(as_text(value))
    return str(value)


_CONFIG = Rule(f"one of timm's {', '.join(_DEFAULTS)}, with its sections, such as 'rand-m9-mstd0.5-inc1'", _as_config)


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

    @property
    def interpolation(self) -> WarpInterpolation:
        return "bilinear"

    def draw(self, draws: Draws, height: int, width: int) -> Steps:
        """As `Transform`."""
        kind, options, weights = read_config(self.config)
        share = FARTHEST_MIXED if kind == "augmix" else FARTHEST
        farthest = {"TranslateX": share * width, "TranslateY": share * height}

        def change(draws: Draws, which: I64, magnitude: float | F64, p: float | F64) -> Steps:
            # Number 0: which; 1: whether; 2, 3: its strength; 4: its sign.
            strength, sign = _strength(magnitude, options, draws(2), draws(3)), draws(4)

            def level(number: int, rows: I64) -> F64:
                name, made = _CHANGES[_NAMES[number]]
                return made(strength[rows], sign[rows]) * farthest.get(name, 1)

            kinds = [name for name, _ in _CHANGES.values()]
            return one_of(kinds, which, level, height, width, self).only(draws(1) < p)

        if kind == "augmix":
            of_chains = int(options["w"]), int(options["d"]), options["a"]
            return draw_mixture(
                *of_chains, draws, lambda own: change(own, _drawn(weights, [own(0)])[0], options["m"], 1.0)
            )
        if kind == "rand":
            each = [partial(_own_number, draws, layer) for layer in range(int(options["n"]))]
            drawn = _drawn(weights, [own(0) for own in each])
            return join(
                [change(own, which, options["m"], options["p"]) for own, which in zip(each, drawn, strict=True)]
            )
        pairs = TIMM_POLICIES[kind]
        pair, steps = (draws(0) * len(pairs)).astype(np.int64), []
        for place, changes in enumerate(zip(*pairs, strict=True)):
            which = np.array([_NAMES.index(one.name) for one in changes])[pair]
            magnitude, p = np.array([(one.magnitude or 0, one.p) for one in changes])[pair].T
            steps.append(change(partial(_own_number, draws, place), which, magnitude, p))
        return join(steps)


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
