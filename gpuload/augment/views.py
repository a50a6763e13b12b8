"""How the images of a batch become its views: `View`, drawn for each batch, and `Form`, the same for all of them."""

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import numpy as np

from gpuload.augment.crops import Crops, Levels, PaddingMode
from gpuload.checks import LARGEST, POSITIVE, number, settings, several
from gpuload.errors import ArgumentError
from gpuload.fields.images import Pixels
from gpuload.functions.function import Function
from gpuload.transforms.erasing import ErasedRegions
from gpuload.transforms.steps import Steps
from gpuload.types import I32, I64, U64, Bools

Interpolation = Literal["bilinear", "bicubic", "random"]
DType = Literal["float32", "float16", "bfloat16", "uint8"]
Layout = Literal["NCHW", "channels_last"]

# Mean and std of a set, as its packer has measured them; None where it has not.
Measured = tuple[tuple[float, ...] | None, tuple[float, ...] | None]

_NUMBERS = "three numbers (R, G, B), for pixels in 0..1, or one a channel"
_MEAN = several(number(-LARGEST, LARGEST, ""), _NUMBERS)
_STD = several(
    number(POSITIVE, LARGEST, ""), _NUMBERS.replace("numbers", "numbers above 0")
)


@settings
class Normalize:
    """(pixel - mean) / std, as torchvision's Normalize: for `Augment(size, normalize=Normalize(mean, std))`.

    Args:
        mean: Of each channel, for pixels in 0..1: 8 bits divided by 255, 16 bits by 65,535. Floats are taken as they
            are. ImageNet's by default, for RGB.
        std: Of each channel, for the same pixels. ImageNet's by default, for RGB.

    Raises:
        ArgumentError: a std that is not above 0; not as many of one as of the other.
    """

    mean: Annotated[tuple[float, ...], _MEAN] = (0.485, 0.456, 0.406)
    std: Annotated[tuple[float, ...], _STD] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ArgumentError(
                f"Normalize(mean={self.mean!r}, std={self.std!r}): expected three numbers (R, G, B), or one a channel, "
                "as many of one as of the other"
            )

    def check_pixels(
        self, pixels: Pixels, are: str, measured: Measured = (None, None)
    ) -> None:
        """Raises ArgumentError where they are of another number of channels, or above 1 for pixels that are not floats.

        Args:
            pixels: What the set stores: its channels and the range of their values.
            are: What is said of the pixels in the message, such as "the images are".
            measured: Mean and std of the set, for the message.
        """
        if len(self.mean) != pixels.channels:
            such = (
                f", such as the measured mean={measured[0]}, std={measured[1]}"
                if all(measured)
                else ""
            )
            raise ArgumentError(
                f"Normalize(mean, std): {len(self.mean)} numbers each, and {are}. Give {pixels.channels} of each{such}"
            )
        if pixels.dtype != "float32":
            self.check_peak(pixels.peak)

    def check_peak(self, peak: int) -> None:
        """Raises ArgumentError where they are above 1.

        Args:
            peak: The largest value of a pixel.
        """
        if max(*self.mean, *self.std) > 1:
            raise ArgumentError(
                f"Normalize(mean={self.mean!r}, std={self.std!r}): expected values for pixels in 0..1. Divide yours by "
                f"{peak}"
            )


class PlannedFunction(NamedTuple):
    """A function that is to be called for each of N images of a view.

    Attributes:
        function: What the user gave, an object of `gpuload.transforms.Function`.
        view: The number of the view.
        keys: uint64 (N, 2), the key of each sample's generator.
        origin: uint64 (N, 3), the seed, the epoch and the repeat that the view was drawn with.
        redraw: `Augment.draw` of the same crops and flips.
    """

    function: Function
    view: int
    keys: U64
    origin: U64
    redraw: Callable[[int, int, I64, I32, I32, int, I64], "View"]

    def crop(self, row: int, sample: int, height: int, width: int) -> Crops:
        """The crop and flips of one image, as they are drawn for an image of this size: N = 1.

        Args:
            row: Of the image in its batch.
            sample: Its index in stored order.
            height: In pixels, of what the function returned.
            width: The same.
        """
        seed, epoch, repeat = self.origin[row].tolist()
        sides = np.array([width, height], np.int32)
        samples = np.array([sample])
        repeats = np.array([repeat], np.int64)
        return self.redraw(
            seed, epoch, samples, sides[:1], sides[1:], self.view, repeats
        ).crops


class View(NamedTuple):
    """What is to be done to a batch of N stored images, to make one output image of each.

    Attributes:
        frame: (height, width) of the output in pixels; where each image has its own size, the number that divides the
            height and width of the batch.
        crops: The window of each image, its scale and its flips.
        steps: Of the N images; None where there is nothing to do.
        erased: Regions of the images, one after another; None where there is nothing to do.
        function: The user's, to be called for each image; None where there is none.
        cubic: Which images are resized by a bicubic filter, where that is drawn for each.
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
        return -(-height // self.frame) * self.frame, -(
            -width // self.frame
        ) * self.frame

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
        return self._replace(steps=None, erased=None, function=None)

    def moved(self, corners: I64, sizes: I64) -> "View":
        """The same of parts of images. What lies beyond a part is the image around it.

        Args:
            corners: int64 (N, 2), the top and left of each in its image.
            sizes: int64 (N, 2), height and width of the images.
        """
        crops = self.crops
        moved = crops._replace(start=crops.start + corners.astype(np.int32))
        return self._replace(crops=moved.widened(sizes))


class Form(NamedTuple):
    """What is the same for all batches of a view, whatever is drawn for them: what a decoder is built for.

    Attributes:
        dtype: As of `Augment`.
        layout: As of `Augment`.
        interpolation: As of `Augment`; "nearest" of masks and maps.
        normalize: "constants": (pixel - mean) / std; "image": by each image's own; "levels": pixels as they are stored,
            which no user asks for.
        mean: Of each channel, subtracted from pixels in 0..1.
        std: Of each channel, by which the difference is divided.
        fill: Level 0..255 of what is padded, or one for each channel.
        pads: Whether a crop may extend beyond the image.
        flips_vertically: Whether images may be flipped vertically.
        transforms: Whether there may be any transforms, of which erasing is one.
        erases: Whether images may be erased.
        places: Whether images may be scaled and padded.
        sizes: Whether all images of a batch have one size, or come as a list of their own ones, or padded to the
            largest.
        padding_mode: Of the crop.
        function: Where the user's function is called, "" where there is none.
        ops: Codes of steps that are drawn; rare ones may be missing.
        patch: Side of the patches into which padded images are divided; 0 where they are not.
    """

    dtype: DType
    layout: Layout
    interpolation: Interpolation | Literal["nearest"]
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
    ops: tuple[int, ...] = ()
    patch: int = 0

    def fills(self, channels: int) -> tuple[int, ...]:
        """The fill of each channel."""
        return (self.fill,) * channels if isinstance(self.fill, int) else self.fill

    @property
    def is_plain(self) -> bool:
        """Whether pixels are only cropped, resized, flipped, padded and normalised by constants."""
        return not self.transforms and (
            self.normalize != "image" or self.dtype == "uint8"
        )

    @property
    def channels(self) -> int:
        """Of the images, once the form is fitted to those of a set."""
        return len(self.mean)

    def fitted(self, pixels: Pixels) -> "Form":
        """The form for images of these pixels, against which its `Augment` was checked: constants that nothing depends
        on may be of another number."""
        if self.channels == pixels.channels:
            return self
        return self._replace(
            mean=(0.0,) * pixels.channels, std=(1.0,) * pixels.channels
        )

    def levels(self, pixels: Pixels) -> "Form":
        """The form of its pixels before they are transformed and normalised, (N, C, height, width): uint8, or the same
        numbers as float32 where they are not uint8."""
        plain = self._replace(
            layout="NCHW", transforms=False, erases=False, function="", ops=()
        )
        if pixels.dtype == "uint8":
            return plain._replace(dtype="uint8", normalize="constants")
        return plain._replace(dtype="float32", normalize="levels")
