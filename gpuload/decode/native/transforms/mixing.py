"""Blends what chains of steps make of the same image."""

import numpy as np

from gpuload.decode.native.pointers import bytes_at, floats_at, signed_at
from gpuload.decode.native.transforms.image import KEPT, image_at, operation
from gpuload.decode.native.transforms.pixels import level
from gpuload.transforms.ops import Op

_KEEP, _MIXED = int(Op.KEEP), int(Op.MIXED)


@operation
def mix(arguments: int, begin: int, end: int) -> int:
    """Adds the image's share to the mixture; then comes the image kept, or the mixture."""
    image, result, channels, height, width, ops, args, scratch = image_at(arguments, begin)
    values, code, share = channels * height * width, signed_at(ops)[0], floats_at(args)[0]
    first, mixture = bytes_at(scratch - KEPT * values), floats_at(scratch - 4 * values)
    source, to = bytes_at(image), bytes_at(result)
    for at in range(values):
        part = share * np.float32(source[at])
        if code == _KEEP:
            mixture[at], first[at] = part, source[at]
        else:
            mixture[at] += part
        to[at] = level(mixture[at]) if code == _MIXED else first[at]
    return 1
