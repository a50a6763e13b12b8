"""Augmentations of pixels, after crop and flips: the names and arguments are torchvision's.

They are specifications, which draw the steps of each image as numbers; nothing here needs torch. `apply` executes the
steps, and needs it.
"""

from gpuload.transforms.auto import AutoAugment, RandAugment, TrivialAugmentWide
from gpuload.transforms.color import (
    ColorJitter,
    GaussianBlur,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from gpuload.transforms.compose import RandomApply
from gpuload.transforms.erasing import RandomErasing

__all__ = [
    "AutoAugment",
    "ColorJitter",
    "GaussianBlur",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomApply",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
    "TrivialAugmentWide",
]
