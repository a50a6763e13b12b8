"""The policies that AutoAugment's search found for three data sets.

Each is 25 pairs of changes, of which an image gets one pair. A change is its name, probability in tenths, and, where it
has a magnitude, the index of that in a table of ten. From Cubuk et al., "AutoAugment: Learning Augmentation Policies
from Data", CVPR 2019, tables 7, 8 and 9 of its appendix, as torchvision reads them.
"""

from typing import Literal, NamedTuple

Policy = Literal["imagenet", "cifar10", "svhn"]


class Change(NamedTuple):
    """A change of a policy: its name, its probability, and the index of its magnitude (None where it has none)."""

    name: str
    p: float
    magnitude: int | None


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
