"""What is done to the images of a batch: `View`, drawn for each batch, and `Form`, the same for all batches."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from gpuload.augment.crops import Crops, Levels, PaddingMode
from gpuload.fields.pixels import Pixels
from gpuload.functions.function import Function
from gpuload.transforms.erasing import ErasedRegions
from gpuload.transforms.steps import Steps
from gpuload.types import I32, I64, U64, Bools

Interpolation = Literal["bilinear", "bicubic", "random"]
DType = Literal["float32", "float16", "bfloat16", "uint8"]
Layout = Literal["NCHW", "channels_last"]


class PlannedFunction(NamedTuple):
    """A function that is to be called for each of N images of a view.

    view: the number of the view. keys: uint64 (N, 2), the key of each sample's generator. origin: uint64 (N, 3), the
    seed, the epoch and the repeat that the view was drawn with. redraw: `Augment.draw` of the same crops and flips.
    """

    function: Function
    view: int
    keys: U64
    origin: U64
    redraw: Callable[[int, int, I64, I32, I32, int, I64], "View"]

    def crop(self, row: int, sample: int, height: int, width: int) -> Crops:
        """The crop and flips of one image, as they are drawn for an image of this size: N = 1."""
        seed, epoch, repeat = self.origin[row].tolist()
        sides = np.array([width, height], np.int32)
        samples, repeats = np.array([sample]), np.array([repeat], np.int64)
        return self.redraw(seed, epoch, samples, sides[:1], sides[1:], self.view, repeats).crops


class View(NamedTuple):
    """What is to be done to a batch of N stored images, to make one output image of each.

    frame: (height, width) of the output in pixels; where each image has its own size, the number that divides the
    height and width of the batch. steps: of the N images; erased: one after another; None where there is nothing to
    do. cubic: which images are resized by a bicubic filter, where that is drawn for each.
    function: the user's, to be called for each image; None where there is none.
    """

    frame: tuple[int, int] | int
    crops: Crops
    steps: Steps | None
    erased: tuple[ErasedRegions, ...] | None
    function: PlannedFunction | None = None
    cubic: Bools | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the batch in pixels, which are those of the largest image where each has its own."""
        if not isinstance(self.frame, int):
            return self.frame
        assert self.crops.sizes is not None
        height, width = self.crops.sizes.max(axis=0, initial=1).tolist()
        return -(-height // self.frame) * self.frame, -(-width // self.frame) * self.frame

    def own_size(self, row: int) -> tuple[int, int]:
        """(height, width) in pixels of the output of one image."""
        if self.crops.sizes is None:
            return self.size
        height, width = self.crops.sizes[row].tolist()
        return height, width

    def without_transforms(self) -> "View":
        """Only crop, resize and flips; where there is nothing else, itself."""
        if self.steps is None and self.erased is None:
            return self
        return View(self.frame, self.crops, None, None, cubic=self.cubic)

    def moved(self, corners: I64) -> "View":
        """The same of parts of images. corners: int64 (N, 2), the top and left of each in its image."""
        return self._replace(crops=self.crops._replace(start=self.crops.start + corners.astype(np.int32)))


class Form(NamedTuple):
    """What is the same for all batches of a view, whatever is drawn for them: what a decoder is built for.

    normalize: "constants": (pixel - mean) / std; "image": by each image's own; "levels": pixels as they are stored,
    which no user asks for. fill: level 0..255 of what is padded, or one for each channel. pads: whether a crop may
    extend beyond the image. flips_vertically, transforms, erases: whether there may be any; erasing counts as a
    transform. places: whether images may be scaled and padded. sizes: whether all images of a batch have one size, or
    come as a list of their own ones, or padded to the largest. padding_mode: of the crop. function: where the user's
    function is called, "" where there is none. The others are arguments of `Augment`.
    """

    dtype: DType
    layout: Layout
    interpolation: Interpolation
    normalize: Literal["constants", "image", "levels"]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fill: Levels
    pads: bool
    flips_vertically: bool
    transforms: bool
    erases: bool = False
    places: bool = False
    sizes: Literal["one", "list", "padded"] = "one"
    padding_mode: PaddingMode = "constant"
    function: Literal["after_crop", "before_crop", ""] = ""

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
        plain = self._replace(layout="NCHW", transforms=False, erases=False, function="")
        if pixels.dtype == "uint8":
            return plain._replace(dtype="uint8", normalize="constants")
        return plain._replace(dtype="float32", normalize="levels")
