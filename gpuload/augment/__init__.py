"""What is done to each image: crops, flips and transforms, drawn as numbers before images are decoded."""

from gpuload.augment import crops
from gpuload.augment.augment import Augment
from gpuload.augment.crops import *
from gpuload.augment.schedule import Schedule
from gpuload.augment.views import Form, Normalize, View

__all__ = ["Augment", "Form", "Normalize", "Schedule", "View", *crops.__all__]
