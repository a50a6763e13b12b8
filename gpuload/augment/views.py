"""What is done to the images of a batch: `View`, drawn for each batch, and `Form`, the same for all batches."""

from typing import Literal, NamedTuple

from gpuload.augment.crops import Crops
from gpuload.transforms.erasing import ErasedRegions
from gpuload.transforms.steps import Steps
from gpuload.types import I64

Crop = Literal["random", "center", "none", "pad_or_crop", "cover", "center_cover"]
Interpolation = Literal["bilinear", "bicubic"]
Normalize = Literal["constants", "image"]
DType = Literal["float32", "float16", "bfloat16", "uint8"]
Layout = Literal["NCHW", "channels_last"]


class View(NamedTuple):
    """What is to be done to a batch of N stored images, to make one output image of each.

    size: (height, width) of the output in pixels. steps, erased: of the N images; None where there is nothing to do.
    """

    size: tuple[int, int]
    crops: Crops
    steps: Steps | None
    erased: ErasedRegions | None

    def select(self, rows: I64 | slice) -> "View":
        """The same for some of the images."""
        return View(
            self.size,
            self.crops.select(rows),
            None if self.steps is None else self.steps.select(rows),
            None if self.erased is None else self.erased.select(rows),
        )

    def without_transforms(self) -> "View":
        """Only crop, resize and flips; where there is nothing else, itself."""
        if self.steps is None and self.erased is None:
            return self
        return View(self.size, self.crops, None, None)


class Form(NamedTuple):
    """What is the same for all batches of a view, whatever is drawn for them: what a decoder is built for.

    fill: level 0..255 of what is padded. pads: whether a crop may extend beyond the image. flips_vertically,
    transforms: whether there may be any; pixel transforms and erasing count as transforms. The others are arguments of
    `Augment`.
    """

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
        """Whether pixels are only cropped, resized, flipped and normalised by constants."""
        return not self.transforms and (self.normalize == "constants" or self.dtype == "uint8")

    @property
    def levels(self) -> "Form":
        """The form of its pixels before they are transformed and normalised: uint8 (N, 3, height, width)."""
        return self._replace(dtype="uint8", layout="NCHW", normalize="constants", transforms=False)
