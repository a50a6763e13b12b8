"""What is done to each image: crops, flips and transforms, drawn as numbers before images are decoded."""

from gpuload.augment.augment import Augment
from gpuload.augment.crops import (
    CenterCrop,
    Cover,
    Letterbox,
    PadOrCrop,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ScaleJitter,
    Stretch,
    ZoomOut,
)
from gpuload.augment.schedule import Schedule
from gpuload.augment.views import Form, Normalize, View

__all__ = [
    "Augment",
    "CenterCrop",
    "Cover",
    "Form",
    "Letterbox",
    "Normalize",
    "PadOrCrop",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "ScaleJitter",
    "Schedule",
    "Stretch",
    "View",
    "ZoomOut",
]
