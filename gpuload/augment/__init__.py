"""What is done to each image: crops, flips and transforms, drawn as numbers before images are decoded."""

from gpuload.augment.augment import Augment
from gpuload.augment.geometries import CenterCrop, Cover, PadOrCrop, RandomResizedCrop, Stretch
from gpuload.augment.normalize import Normalize
from gpuload.augment.placed import Letterbox, RandomCrop, Resize, ScaleJitter, ZoomOut
from gpuload.augment.schedule import Schedule
from gpuload.augment.views import Form, View

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
