"""`Normalize`: the constants that pixels are normalised with."""

from typing import Annotated, Any

from gpuload.checks import LARGEST, POSITIVE, number, settings, several
from gpuload.errors import ArgumentError
from gpuload.fields.images import Pixels

_NUMBERS = "three numbers (R, G, B), for pixels in 0..1, or one a channel"
_MEAN = several(number(-LARGEST, LARGEST, ""), _NUMBERS)
_STD = several(number(POSITIVE, LARGEST, ""), _NUMBERS.replace("numbers", "numbers above 0"))


@settings
class Normalize:
    """(pixel - mean) / std, as torchvision's Normalize: for `Augment(size, normalize=Normalize(mean, std))`.

    mean, std: of each channel, for pixels in 0..1: 8 bits divided by 255, 16 bits by 65,535. Floats are taken as they
        are. ImageNet's by default, for RGB.

    Raises:
        ArgumentError: a std that is not above 0; not as many of one as of the other.
    """

    mean: Annotated[tuple[float, ...], _MEAN] = (0.485, 0.456, 0.406)
    std: Annotated[tuple[float, ...], _STD] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            name, given, other = "mean", self.mean, self.std
            if len(self.mean) == 3:
                name, given, other = "std", self.std, self.mean
            raise ArgumentError(
                f"Normalize({name}={given!r}): expected three numbers (R, G, B), or one a channel, as many as the "
                f"other has, {len(other)}"
            )

    def check_pixels(self, pixels: Pixels, are: str, measured: tuple[Any, Any] = (None, None)) -> None:
        """Raises ArgumentError where they are of another number of channels, or above 1 for pixels that are not floats.

        are: what is said of the pixels. measured: mean and std of the set, for the message.
        """
        if len(self.mean) != pixels.channels:
            such = f"{pixels.channels} of each"
            if all(measured):
                such = f"such as the measured mean={measured[0]}, std={measured[1]}"
            raise ArgumentError(
                f"Normalize(mean, std): {len(self.mean)} numbers each, expected {pixels.channels}, since {are}. "
                f"Give {such}"
            )
        if pixels.dtype != "float32":
            self.check_peak(pixels.peak)

    def check_peak(self, peak: int) -> None:
        """Raises ArgumentError where they are above 1. peak: the largest value of a pixel."""
        if max(*self.mean, *self.std) > 1:
            raise ArgumentError(
                f"Normalize(mean={self.mean!r}, std={self.std!r}): expected values for pixels in 0..1. Divide yours by "
                f"{peak}"
            )
