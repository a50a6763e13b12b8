"""Operations on the neighbours of a pixel: sharpness (3 × 3), and Gaussian blur, one direction after the other."""

import numpy as np

from gpuload.decode.native.compiled import exact
from gpuload.decode.native.intrinsics import bytes_at, floats_at, halves_at
from gpuload.decode.native.transforms.image import fused, image_at, level, operation

F = np.float32
_THIRTEENTH = 5042  # of 1 << 16: right for quotients up to 255


@operation
def sharpness(arguments: int, begin: int, end: int) -> int:
    """Blends with a blur of weights 1, 5 in the centre, over 13; a border of one pixel stays as it is."""
    image, result, channels, height, width, _ops, args, scratch = image_at(arguments, begin)
    rest, pixels, sums = F(1) - floats_at(args)[0], height * width, halves_at(scratch)
    for plane in range(channels):
        source = image + plane * pixels
        to, above, line, below = (
            bytes_at(result + plane * pixels),
            bytes_at(source - width),
            bytes_at(source),
            bytes_at(source + width),
        )
        for at in range(width, pixels - width):  # as one long line, which leaves one rest to vectors, not many
            sums[at] = np.uint16(above[at]) + np.uint16(line[at]) + np.uint16(below[at])
        for at in range(width + 1, pixels - width - 1):
            total = np.uint16(sums[at - 1] + sums[at] + sums[at + 1] + 4 * np.uint16(line[at]) + 6)
            smooth = np.uint16((np.uint32(total) * np.uint32(_THIRTEENTH)) >> np.uint32(16))
            to[at] = level(F(line[at]) + F(np.int16(smooth - line[at])) * rest)
        for x in range(width):
            to[x], to[pixels - 1 - x] = line[x], line[pixels - 1 - x]
        for y in range(0, pixels, width):
            to[y], to[y + width - 1] = line[y], line[y + width - 1]
    return 1


@exact
def _reach(sigma: np.float32, size: np.float32, weights: int) -> int:
    """The normal density at 0..reach, over its sum, to this address. Beyond five sigmas, weights are less than a
    millionth of the sum, and omitted."""
    reach, density, total = min(int(np.ceil(F(5) * sigma)), int(size) // 2), floats_at(weights), F(0)
    for away in range(reach + 1):
        density[away] = np.exp(F(-0.5) * (F(away) / sigma) * (F(away) / sigma))
        total += density[away] if away == 0 else F(2) * density[away]
    for away in range(reach + 1):
        density[away] /= total
    return reach


@exact
def _mirrored(at: int, size: int) -> int:
    at = abs(at)
    return at if at < size else 2 * size - 2 - at


@exact
def _row_blurred(image: int, width: int, reach: int, weights: int, line: int, sums: int) -> None:
    """line: address of float32 (width + 2 reach,), scratch memory. sums: of float32 (width,)."""
    levels, padded, density, total = bytes_at(image), floats_at(line), floats_at(weights), floats_at(sums)
    for x in range(width):
        padded[reach + x] = levels[x]
    for x in range(reach):
        padded[x] = levels[reach - x]
        padded[reach + width + x] = levels[width - 2 - x]
    for x in range(width):
        total[x] = density[0] * padded[reach + x]
    for away in range(1, reach + 1):
        weight, before, after = (
            density[away],
            floats_at(line + 4 * (reach - away)),
            floats_at(line + 4 * (reach + away)),
        )
        for x in range(width):
            total[x] = fused(weight, before[x] + after[x], total[x])


@operation
def blur(arguments: int, begin: int, end: int) -> int:
    """The edge is reflected."""
    image, result, channels, height, width, _ops, args, scratch = image_at(arguments, begin)
    numbers, plane, weights_x = floats_at(args), scratch, scratch + 4 * (height + 1) * width
    weights_y, line = weights_x + 4096, weights_x + 8192
    reach_x, reach_y = _reach(numbers[0], numbers[1], weights_x), _reach(numbers[0], numbers[2], weights_y)
    density, sums_at = floats_at(weights_y), plane + 4 * height * width
    sums = floats_at(sums_at)
    for channel in range(channels):
        begin = channel * height * width
        for y in range(height):
            _row_blurred(image + begin + y * width, width, reach_x, weights_x, line, plane + 4 * y * width)
        for y in range(height):
            to, middle = bytes_at(result + begin + y * width), floats_at(plane + 4 * y * width)
            for x in range(width):
                sums[x] = density[0] * middle[x]
            for away in range(1, reach_y + 1):
                weight = density[away]
                above = floats_at(plane + 4 * _mirrored(y - away, height) * width)
                below = floats_at(plane + 4 * _mirrored(y + away, height) * width)
                for x in range(width):
                    sums[x] = fused(weight, above[x] + below[x], sums[x])
            for x in range(width):
                to[x] = level(np.rint(sums[x]))
    return 1
