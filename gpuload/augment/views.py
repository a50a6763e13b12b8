"""What a batch's images go through: `View`, drawn for each batch, and `Form`, the same for all batches of a view."""

from typing import Literal, NamedTuple

from gpuload.augment.crops import Crops
from gpuload.transforms import ErasedRegions, Steps

Interpolation = Literal["bilinear", "bicubic"]
Normalize = Literal["constants", "image"]
DType = Literal["float32", "float16", "bfloat16", "uint8"]
Layout = Literal["NCHW", "channels_last"]


class View(NamedTuple):
    """What is to be done to a batch of N images, to make one image of each.

    size: (height, width) of the output in pixels. steps, erased: of N images; None where there is nothing to do.
    """

    size: tuple[int, int]
    crops: Crops
    steps: Steps | None
    erased: ErasedRegions | None

    def select(self, rows: slice) -> "View":
        """The same for some of the images."""
        return View(
            self.size,
            self.crops.select(rows),
            None if self.steps is None else self.steps.select(rows),
            None if self.erased is None else self.erased.select(rows),
        )


class Form(NamedTuple):
    """What is the same for all batches of a view, whatever is drawn for them: what a decoder is built for."""

    dtype: DType
    layout: Layout
    interpolation: Interpolation
    normalize: Normalize
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    fill: int
    pads: bool
    flips_vertically: bool
    transforms: bool

    @property
    def is_plain(self) -> bool:
        """Whether nothing changes pixels but crop, resize, flips and normalisation by constants."""
        return not self.transforms and (self.normalize == "constants" or self.dtype == "uint8")
