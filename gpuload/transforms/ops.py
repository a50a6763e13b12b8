"""What a step does, as a code. Compiled code depends on this file, which imports nothing of gpuload."""

from enum import IntEnum

ARGS = 12  # numbers that a step takes, at most
MAP_ARGS = 9  # those of a warp's matrix; its fill follows
FIRST_OWN = (
    64  # codes from here on, int8, are of `PixelTransform`; those below are of `Op`
)


class Op(IntEnum):
    """What a step does, and the numbers it takes (`Steps.args`). Unlisted numbers are 0.

    The names and the arithmetic are those of torchvision.transforms.v2.functional for uint8.

    Attributes:
        compiled: The name of the function in `decode.native.transforms` that does it.
        any_channels: Whether it is defined for any number of channels; otherwise images of other than three stay as
            they are, since compiled code would read and write beyond them.
        table: 1 if it is a table of levels; 2 if that needs no statistics, and may follow others in the same table.
    """

    compiled: str
    any_channels: bool
    table: int

    def __new__(
        cls, code: int, compiled: str = "", any_channels: bool = True, table: int = 0
    ) -> "Op":
        op = int.__new__(cls, code)
        op._value_ = code
        op.compiled = compiled
        op.any_channels = any_channels
        op.table = table
        return op

    NOTHING = 0, "", False, 2
    BRIGHTNESS = 1, "points", True, 2  # factor
    CONTRAST = 2, "points", True, 1  # factor
    SATURATION = 3, "saturation", False  # factor
    HUE = 4, "hue", False  # factor, -0.5..0.5
    GRAYSCALE = 5, "saturation", False
    GAUSSIAN_BLUR = 6, "blur"  # sigma in pixels, kernel size in x, in y
    SOLARIZE = 7, "points", True, 2  # threshold, 0..255
    POSTERIZE = 8, "points", True, 2  # bits kept, 0..8
    AUTOCONTRAST = 9, "points", True, 1
    EQUALIZE = 10, "points", True, 1
    INVERT = 11, "points", True, 2
    SHARPNESS = 12, "sharpness"  # factor
    # Matrix (2, 3) from output to input, pixels from the centre (see `kernels/src/moves.c`); fill R, G, B.
    AFFINE = 13, "move"
    # Matrix (3, 3) of the same kind, times any factor; fill R, G, B.
    WARP_NEAREST = 14, "move"
    WARP_BILINEAR = 15, "move"  # the same
    AFFINE_BILINEAR = 16, "move"  # as AFFINE, of four pixels weighted
    SOLARIZE_ADD = 17, "points", True, 2  # what levels below 128 get more, 0..128
    # Of AugMix, what is between the first and the last of these:
    KEEP = 18, "mix"  # share of this image in the mixture; the first chain begins
    # Share of this image in the mixture; the next chain begins, with the image kept.
    MIX = 19, "mix"
    MIXED = 20, "mix"  # share of this image in the mixture, which is what comes after
