"""Augmentations of pixels, after crop and flip: specifications, and the steps that they draw.

Nothing here needs torch; what executes the steps does: `gpuload.transforms.apply`.
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
from gpuload.transforms.erasing import ErasedRegions, RandomErasing
from gpuload.transforms.geometry import affine_of
from gpuload.transforms.steps import Op, Steps, Transform, draw_steps, is_geometric, join, sample_draws

__all__ = [
    "AutoAugment",
    "ColorJitter",
    "ErasedRegions",
    "GaussianBlur",
    "Op",
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
    "Steps",
    "Transform",
    "TrivialAugmentWide",
    "affine_of",
    "draw_steps",
    "is_geometric",
    "join",
    "sample_draws",
]
