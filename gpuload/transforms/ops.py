"""What a step does, as a code, which `kernels/src/operations.h` shares. This file imports nothing of gpuload."""

from enum import IntEnum

ARGS = 12  # numbers that a step takes, at most
MAP_ARGS = 9  # those of a warp's matrix; its fill follows
FIRST_OWN = (
    64  # codes from here on, int8, are of `PixelTransform`; those below are of `Op`
)


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
    # Matrix (2, 3) from output to input, pixels from the centre (see `kernels/src/moves.c`); fill R, G, B.
    AFFINE = 13
    # Matrix (3, 3) of the same kind, times any factor; fill R, G, B.
    WARP_NEAREST = 14
    WARP_BILINEAR = 15  # the same
    AFFINE_BILINEAR = 16  # as AFFINE, of four pixels weighted
    SOLARIZE_ADD = 17  # what levels below 128 get more, 0..128
    # Of AugMix, what is between the first and the last of these:
    KEEP = 18  # share of this image in the mixture; the first chain begins
    # Share of this image in the mixture; the next chain begins, with the image kept.
    MIX = 19
    MIXED = 20  # share of this image in the mixture, which is what comes after


# Defined for three channels alone: images of others stay as they are.
OF_COLORS = frozenset({Op.SATURATION, Op.HUE, Op.GRAYSCALE})
