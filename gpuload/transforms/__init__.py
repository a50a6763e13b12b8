"""Augmentations of pixels, after crop and flips: the names and arguments are torchvision's.

They are specifications, which draw the steps of each image as numbers; nothing here needs torch. `apply` executes the
steps, and needs it. `PixelTransform` is the base class of one of your own, and `Function` calls a function of yours.
Each module lists in `__all__` what users use.
"""

from gpuload.functions.function import Function
from gpuload.transforms import color, compose, erasing, policies, timm, warps
from gpuload.transforms.color import *
from gpuload.transforms.compose import *
from gpuload.transforms.erasing import *
from gpuload.transforms.policies import *
from gpuload.transforms.timm import *
from gpuload.transforms.warps import *

_MODULES = (color, compose, erasing, policies, timm, warps)
__all__ = ["Function"]
__all__ += [name for module in _MODULES for name in module.__all__]
__all__.sort()
