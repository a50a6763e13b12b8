"""torchvision's RandomCrop with its padding: where the crop lies, and which pixel each pixel of the padding shows."""

from typing import Annotated, ClassVar, get_args

import numpy as np

from gpuload.augment.crops import Crops, Geometry, Images, Levels, PaddingMode, unscaled
from gpuload.checks import FLAG, Rule, choice, either, optional, settings, several, whole
from gpuload.errors import ArgumentError
from gpuload.types import I64

PADDING_MODES: tuple[PaddingMode, ...] = get_args(PaddingMode)  # compiled code knows them by their index
Padding = int | tuple[int, ...]

_LEVEL = whole(0, 255)
LEVELS: Rule[Levels] = either(
    "a level, a whole number in 0..255, or one for each channel", _LEVEL, several(_LEVEL, "", count=3)
)
_PIXELS = whole(0, 65_535)
_PADDING: Rule[Padding] = either(
    "pixels in 0..65,535: one number, (left and right, top and bottom) or (left, top, right, bottom)",
    _PIXELS,
    several(_PIXELS, "", count=2),
    several(_PIXELS, "", count=4),
)


@settings
class RandomCrop(Geometry):
    """torchvision's RandomCrop, as a `crop` of `Augment`: the image is padded, then a window of
    `size` is taken from it at a random position. Nothing is scaled.

    padding: pixels around the image: one number for all sides, (left and right, top and bottom) or (left, top, right,
        bottom).
    pad_if_needed: pads an image that is smaller than the crop, after `padding`, on both sides by what it lacks. Without
        it, such an image is an error.
    fill: level in 0..255 of all channels, or one for each of RGB, of padding_mode="constant"; of 16 bits and floats,
        that share of 65,535 or 1.
    padding_mode: what is in the padding. "constant": `fill`. "edge": the nearest pixel of the image. "reflect": the
        image mirrored at its outermost pixels, which are not repeated. "symmetric": mirrored at its edge, so that they
        are. Where the padding is wider than the image, it is mirrored again, as in numpy.pad.

    Raises:
        ArgumentError: a value out of its range; a `fill` with another padding_mode than "constant".
    """

    padding: Annotated[Padding | None, optional(_PADDING)] = None
    pad_if_needed: Annotated[bool, FLAG] = False
    fill: Annotated[Levels, LEVELS] = 0
    padding_mode: Annotated[PaddingMode, choice(*PADDING_MODES)] = "constant"

    draws: ClassVar[int] = 2  # position in y and in x
    flip: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        if self.fill != 0 and self.padding_mode != "constant":
            raise ArgumentError(
                f"RandomCrop(fill={self.fill!r}, padding_mode={self.padding_mode!r}): only padding_mode='constant' has "
                "a fill. Leave out one of them"
            )

    @property
    def outside(self) -> tuple[Levels, PaddingMode]:
        """As `Geometry.outside`."""
        return self.fill, self.padding_mode

    def draw(self, images: Images) -> Crops:
        """As `Geometry.draw`."""
        left, top, right, bottom = _four_sides(self.padding)
        size = np.array(images.size, np.float64)
        before = np.array([top, left], np.float64)
        padded = images.sources + before + np.array([bottom, right])
        missing = np.maximum(size - padded, 0)
        if missing.any() and not self.pad_if_needed:
            row = int(np.flatnonzero(missing.any(axis=1))[0])
            with_padding = f" with its padding ({padded[row, 1]:.0f} × {padded[row, 0]:.0f})" if any(before) else ""
            raise ArgumentError(
                f"RandomCrop: sample {images.samples[row]}, {images.widths[row]:.0f} × {images.heights[row]:.0f} "
                f"pixels, is{with_padding} smaller than the crop of {images.size[1]} × {images.size[0]}. Use "
                "RandomCrop(pad_if_needed=True)"
            )
        room = padded + 2 * missing - size
        return unscaled(np.floor(images.drawn.T * (room + 1)) - before - missing, images.size)


def _four_sides(padding: Padding | None) -> tuple[int, ...]:
    """Left, top, right, bottom."""
    sides = (padding or 0,) if isinstance(padding, int | None) else padding
    return sides * (4 // len(sides))


def source_of(at: I64, size: I64 | int, mode: PaddingMode) -> I64:
    """The pixel of a line of `size` pixels that is shown at each place, in 0..size-1; -1 where there is none, which
    gets the fill. Places outside of 0..size-1 are padding; with size they are broadcast.
    """
    if mode == "constant":
        return np.where((at >= 0) & (at < size), at, -1)
    if mode == "edge":
        return np.clip(at, 0, np.asarray(size) - 1)
    period = 2 * np.asarray(size) - (2 if mode == "reflect" else 0)
    within = at % np.maximum(period, 1)
    mirrored: I64 = np.where(within < size, within, period - within - (0 if mode == "reflect" else 1))
    return mirrored


def source_range(start: I64, stop: I64, size: I64, mode: PaddingMode) -> tuple[I64, I64]:
    """First and last + 1 of the pixels that are shown at places start..stop-1 of lines of `size`, or of some more; at
    least one.
    """
    low, high = start, stop
    if mode != "constant":
        low = np.where(stop > size, np.minimum(start, 2 * size - stop - 1), start)
        high = np.where(start < 0, np.maximum(stop, 1 - start), stop)
    low = np.clip(low, 0, size - 1)
    return low, np.maximum(np.clip(high, 0, size), low + 1)
