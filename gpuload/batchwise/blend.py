"""Mixing of images: the share of each, the random numbers for it, and the weighted sum.

Written once for NumPy's and CuPy's arrays. CuPy is not imported here: where an array is CuPy's, it has been.
"""

import sys
from typing import Any, NamedTuple

import numpy as np

from gpuload.types import F64, I64

# Images that are mixed at a time: one with NumPy, so that it stays in the CPU's caches. On a GPU each launch of a
# kernel costs time, while the copy of a block must not fill the memory.
_BLOCK = {"numpy": 1, "cupy": 64}


class Mix(NamedTuple):
    """How each of N images is mixed with its partner.

    box: int64 (N, 4), top, left, bottom, right; outside of it, there is the image alone. in_box: float64 (N,), share of
    the image within the box; the rest is the partner's. label: float64 (N,), share of its own label.
    """

    box: I64
    in_box: F64
    label: F64


def array_module(array: Any) -> Any:
    """NumPy or CuPy, whichever made the array."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def symmetric_beta(alpha: float, first: F64, second: F64) -> F64:
    """Beta(alpha, alpha), exactly, from two uniform numbers each, for any alpha above 0.

    (1 + T / sqrt(2 alpha + T**2)) / 2 is Beta(alpha, alpha) where T is Student's t with 2 alpha degrees of freedom, and
    sqrt(2 alpha (u**(-1 / alpha) - 1)) cos(2 pi v) is such a T: R. W. Bailey, "Polar generation of random variates with
    the t-distribution", Mathematics of Computation 62 (1994); L. Devroye, "Random variate generation in one line of
    code", Winter Simulation Conference 1996. There is no rejection, so a sample always needs two numbers.
    """
    cosine = np.cos(2 * np.pi * second)
    log_power = np.log(np.maximum(first, 2.0**-54)) / alpha  # of u**(1 / alpha); 0 has no logarithm
    inverse = np.exp(log_power) / -np.expm1(log_power)
    result: F64 = 0.5 + 0.5 * cosine / np.sqrt(cosine**2 + inverse)
    return result


def mix_images(images: Any, mix: Mix) -> None:
    """Mixes in place, from the last image to the first, so that each image's partner is still unchanged."""
    xp = array_module(images)
    block = _BLOCK[xp.__name__]
    last = images[-1:].copy()
    for stop in range(len(images), 0, -block):
        start = max(stop - block, 0)
        boxes, shares = mix.box[start:stop], mix.in_box[start:stop]
        (top, left), (bottom, right) = boxes[:, :2].min(0), boxes[:, 2:].max(0)
        part = images[start:stop, :, top:bottom, left:right]
        if not part.size:
            continue
        partner = images[max(start - 1, 0) : stop - 1, :, top:bottom, left:right]
        if start == 0:
            partner = xp.concatenate([last[..., top:bottom, left:right], partner])
        if stop - start == 1 and shares[0] == 0:
            part[...] = partner  # a copy costs half as much as a sum
        else:
            _blend(xp, part, partner, _shares_in(xp, boxes, shares, (top, left, bottom, right)))


def _shares_in(xp: Any, boxes: I64, shares: F64, around: tuple[int, int, int, int]) -> Any:
    """float32 (N, 1, height, width), or (N, 1, 1, 1): the share of the image at each pixel of the area `around`."""
    top, left, bottom, right = around
    if (boxes == np.array(around)).all():
        return xp.asarray(shares.astype(np.float32)[:, None, None, None])
    first_y, first_x, last_y, last_x = xp.asarray(boxes.T[..., None])
    y, x = xp.arange(top, bottom), xp.arange(left, right)
    inside = ((y >= first_y) & (y < last_y))[:, :, None] & ((x >= first_x) & (x < last_x))[:, None, :]
    return xp.where(inside, xp.asarray(shares.astype(np.float32)[:, None, None]), np.float32(1))[:, None]


def _blend(xp: Any, part: Any, partner: Any, share: Any) -> None:
    """part = share * part + (1 - share) * partner, in float32. The two overlap, so the partner is read first."""
    others = (1 - share) * partner
    if part.dtype == np.float32:
        part *= share
        part += others
        return
    others += share * part
    part[...] = xp.rint(others) if part.dtype == np.uint8 else others
