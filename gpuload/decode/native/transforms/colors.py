"""Operations that mix the channels of a pixel, of images of three channels."""

import numpy as np

from gpuload.decode.native.compiled import exact
from gpuload.decode.native.pointers import bytes_at, floats_at, signed_at
from gpuload.decode.native.transforms.image import image_at, operation
from gpuload.decode.native.transforms.pixels import fused, gray, level
from gpuload.transforms.ops import Op

F = np.float32
_GRAYSCALE = int(Op.GRAYSCALE)


@operation
def saturation(arguments: int, begin: int, end: int) -> int:
    """Also grayscale, which is a saturation of 0."""
    image, result, _channels, height, width, ops, args, _scratch = image_at(arguments, begin)
    pixels = height * width
    factor = F(0) if signed_at(ops)[0] == _GRAYSCALE else floats_at(args)[0]
    rest = F(1) - factor
    red, green, blue = bytes_at(image), bytes_at(image + pixels), bytes_at(image + 2 * pixels)
    to_red, to_green, to_blue = bytes_at(result), bytes_at(result + pixels), bytes_at(result + 2 * pixels)
    for at in range(pixels):
        r, g, b = F(red[at]), F(green[at]), F(blue[at])
        whole = F(gray(r, g, b))
        to_red[at] = level(fused(whole, rest, r * factor))
        to_green[at] = level(fused(whole, rest, g * factor))
        to_blue[at] = level(fused(whole, rest, b * factor))
    return 1


@exact
def _corner(turn: np.float32, middle: np.float32) -> np.float32:
    """How far a hue is from a channel's middle, 0..1: 1 from two sixths on."""
    return min(max(abs(turn - middle) - F(1), F(0)), F(1))


@operation
def hue(arguments: int, begin: int, end: int) -> int:
    """Turns the hexagon of HSV, as `gpuload.transforms.kernels.hue`."""
    image, result, _channels, height, width, _ops, args, _scratch = image_at(arguments, begin)
    pixels, shift, scale = height * width, F(6) * floats_at(args)[0], F(255.999 / 255)
    red, green, blue = bytes_at(image), bytes_at(image + pixels), bytes_at(image + 2 * pixels)
    to_red, to_green, to_blue = bytes_at(result), bytes_at(result + pixels), bytes_at(result + 2 * pixels)
    for at in range(pixels):
        r, g, b = np.int32(red[at]), np.int32(green[at]), np.int32(blue[at])
        high, low = max(max(r, g), b), min(min(r, g), b)
        chroma, least = F(high - low), F(low)
        apart = g - b if high == r else (b - r if high == g else r - g)
        base = F(0) if high == r else (F(2) if high == g else F(4))
        turn = F(apart) / max(chroma, F(1)) + base + shift
        turn -= F(6) * np.floor(turn * F(1 / 6))  # 0..6: red, yellow, green, cyan, blue, magenta
        to_red[at] = level((_corner(turn, F(3)) * chroma + least) * scale)
        to_green[at] = level(((F(1) - _corner(turn, F(2))) * chroma + least) * scale)
        to_blue[at] = level(((F(1) - _corner(turn, F(4))) * chroma + least) * scale)
    return 1
