"""What is done to the images of a batch: `View`, drawn for each batch, and `Form`, the same for all batches."""

from typing import Literal, NamedTuple

from gpuload.augment.crops import Crops
from gpuload.augment.padding import Levels, PaddingMode
from gpuload.augment.planned import PlannedFunction
from gpuload.fields.pixels import Pixels
from gpuload.transforms.erasing import ErasedRegions
from gpuload.transforms.steps import Steps
from gpuload.types import I64

Crop = Literal["random", "center", "none", "pad_or_crop", "cover", "center_cover"]
Interpolation = Literal["bilinear", "bicubic"]
Normalize = Literal["constants", "image"]
DType = Literal["float32", "float16", "bfloat16", "uint8"]
Layout = Literal["NCHW", "channels_last"]
FunctionAt = Literal["after_crop", "before_crop"]


class View(NamedTuple):
    """What is to be done to a batch of N stored images, to make one output image of each.

    size: (height, width) of the output in pixels. steps, erased: of the N images; None where there is nothing to do.
    function: the user's, to be called for each image; None where there is none.
    """

    size: tuple[int, int]
    crops: Crops
    steps: Steps | None
    erased: ErasedRegions | None
    function: PlannedFunction | None = None

    def select(self, rows: I64 | slice) -> "View":
        """The same for some of the images."""
        return View(
            self.size,
            self.crops.select(rows),
            None if self.steps is None else self.steps.select(rows),
            None if self.erased is None else self.erased.select(rows),
            None if self.function is None else self.function.select(rows),
        )

    def without_transforms(self) -> "View":
        """Only crop, resize and flips; where there is nothing else, itself."""
        if self.steps is None and self.erased is None:
            return self
        return View(self.size, self.crops, None, None)


class Form(NamedTuple):
    """What is the same for all batches of a view, whatever is drawn for them: what a decoder is built for.

    normalize: "levels" are pixels as they are stored, which no user asks for. fill: level 0..255 of what is padded, or
    one for each channel. pads: whether a crop may extend beyond the image. flips_vertically, transforms: whether there
    may be any; pixel transforms and erasing count as transforms. padding_mode: of `RandomCrop`.
    function: where the user's function is called, "" where there is none. The others are arguments of `Augment`.
    """

    dtype: DType
    layout: Layout
    interpolation: Interpolation
    normalize: Normalize | Literal["levels"]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fill: Levels
    pads: bool
    flips_vertically: bool
    transforms: bool
    padding_mode: PaddingMode = "constant"
    function: FunctionAt | Literal[""] = ""

    def fills(self, channels: int) -> tuple[int, ...]:
        """The fill of each channel."""
        return (self.fill,) * channels if isinstance(self.fill, int) else self.fill

    @property
    def is_plain(self) -> bool:
        """Whether pixels are only cropped, resized, flipped, padded with a colour and normalised by constants."""
        constant = self.normalize != "image" or self.dtype == "uint8"
        return constant and not self.transforms and self.padding_mode == "constant"

    @property
    def channels(self) -> int:
        """Of the images, once the form is fitted to those of a set."""
        return len(self.mean)

    def fitted(self, pixels: Pixels) -> "Form":
        """The form for images of these pixels, against which its `Augment` was checked: constants that nothing depends
        on may be of another number."""
        if self.channels == pixels.channels:
            return self
        return self._replace(mean=(0.0,) * pixels.channels, std=(1.0,) * pixels.channels)

    def levels(self, pixels: Pixels) -> "Form":
        """The form of its pixels before they are transformed and normalised, (N, C, height, width): uint8, or the same
        numbers as float32 where they are not uint8."""
        if pixels.dtype == "uint8":
            return self._replace(dtype="uint8", layout="NCHW", normalize="constants", transforms=False, function="")
        return self._replace(dtype="float32", layout="NCHW", normalize="levels", transforms=False, function="")
