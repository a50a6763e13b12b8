"""What a step does, as a code. Compiled code depends on this file, which imports nothing of gpuload."""

from enum import IntEnum
from typing import NamedTuple

ARGS = 12  # numbers that a step takes, at most
MAP_ARGS = 9  # those of a warp's matrix; its fill follows
FIRST_OWN = 64  # codes from here on, int8, are of `PixelTransform`; those below are of `Op`


class Op(IntEnum):
    """What a step does, and the numbers it takes (`Steps.args`). Unlisted numbers are 0.

    The names and the arithmetic are those of torchvision.transforms.v2.functional for uint8.
    """

    NOTHING = 0
    BRIGHTNESS = 1  # factor
    CONTRAST = 2  # factor
    SATURATION = 3  # factor
    HUE = 4  # factor, -0.5..0.5
    GRAYSCALE = 5
    GAUSSIAN_BLUR = 6  # sigma in pixels, kernel size in x, in y
    SOLARIZE = 7  # threshold, 0..255
    POSTERIZE = 8  # bits kept, 0..8
    AUTOCONTRAST = 9
    EQUALIZE = 10
    INVERT = 11
    SHARPNESS = 12  # factor
    AFFINE = 13  # matrix (2, 3) from output to input, pixels from the centre (see geometry.py); fill R, G, B
    WARP_NEAREST = 14  # matrix (3, 3) of the same kind, times any factor; fill R, G, B
    WARP_BILINEAR = 15  # the same
    AFFINE_BILINEAR = 16  # as AFFINE, of four pixels weighted
    SOLARIZE_ADD = 17  # what levels below 128 get more, 0..128
    # Of AugMix, what is between the first and the last of these:
    KEEP = 18  # share of this image in the mixture; the first chain begins
    MIX = 19  # share of this image in the mixture; the next chain begins, with the image kept
    MIXED = 20  # share of this image in the mixture, which is what comes after


class Traits(NamedTuple):
    """Of an operation.

    compiled: the name of the function in `decode.native.transforms` that does it. any_channels: whether it is defined
    for any number of channels; otherwise images of other than three stay as they are, since compiled code would read
    and write beyond them. table: 1 if it is a table of levels; 2 if that needs no statistics, and may follow others in
    the same table.
    """

    compiled: str
    any_channels: bool = False
    table: int = 0


TRAITS = {
    Op.BRIGHTNESS: Traits("points", any_channels=True, table=2),
    Op.CONTRAST: Traits("points", any_channels=True, table=1),
    Op.SATURATION: Traits("saturation"),
    Op.HUE: Traits("hue"),
    Op.GRAYSCALE: Traits("saturation"),
    Op.GAUSSIAN_BLUR: Traits("blur", any_channels=True),
    Op.SOLARIZE: Traits("points", any_channels=True, table=2),
    Op.POSTERIZE: Traits("points", any_channels=True, table=2),
    Op.AUTOCONTRAST: Traits("points", any_channels=True, table=1),
    Op.EQUALIZE: Traits("points", any_channels=True, table=1),
    Op.INVERT: Traits("points", any_channels=True, table=2),
    Op.SHARPNESS: Traits("sharpness", any_channels=True),
    Op.AFFINE: Traits("move", any_channels=True),
    Op.WARP_NEAREST: Traits("move", any_channels=True),
    Op.WARP_BILINEAR: Traits("move", any_channels=True),
    Op.AFFINE_BILINEAR: Traits("move", any_channels=True),
    Op.SOLARIZE_ADD: Traits("points", any_channels=True, table=2),
    Op.KEEP: Traits("mix", any_channels=True),
    Op.MIX: Traits("mix", any_channels=True),
    Op.MIXED: Traits("mix", any_channels=True),
}
