"""Augmentations of pixels, after crop and flips: the names and arguments are torchvision's.

They are specifications, which draw the steps of each image as numbers; nothing here needs torch. `apply` executes the
steps, and needs it. `PixelTransform` is the base class of one of your own. Each module lists in `__all__` what users
use.
"""

from gpuload.transforms import auto, color, compose, erasing, own, warps
from gpuload.transforms.auto import *
from gpuload.transforms.color import *
from gpuload.transforms.compose import *
from gpuload.transforms.erasing import *
from gpuload.transforms.own import *
from gpuload.transforms.warps import *

__all__ = sorted([*auto.__all__, *color.__all__, *compose.__all__, *erasing.__all__, *own.__all__, *warps.__all__])
