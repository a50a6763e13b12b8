"""Perceptual hashes of images, and pairs of images whose hashes are close.

The hash is that of pHash (C. Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions", 2010): the
image as 32×32 gray pixels, its cosine transform, and of the 8×8 lowest frequencies, without those of the mean, a bit
each: whether it is above their median. Images that were scaled, recompressed or made a little brighter differ in few
bits; those that were cropped or mirrored differ in many.

Close pairs are found by bands (M. Norouzi et al., "Fast Search in Hamming Space with Multi-Index Hashing", 2012): two
hashes that differ in at most r bits are equal in one of r + 1 bands, so only hashes with an equal band are compared.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gpuload.types import F32, I64, U8, U64

SIDE = 32
_BITS, _KEPT = 64, 8
RADIUS = 4  # bits in which near duplicates may differ
# Neighbours in a band with which a hash is compared.
_MOST_NEIGHBOURS = 2_000


def _cosines() -> F32:
    """float32 (8, 32): rows 1 to 8 of the cosine transform (DCT-II), without its scale, which the median cancels."""
    frequency, place = np.arange(1, _KEPT + 1)[:, None], np.arange(SIDE)
    cosines: F32 = np.cos(np.pi * frequency * (2 * place + 1) / (2 * SIDE)).astype(np.float32)
    return cosines


_DCT = _cosines()


def perceptual_hashes(gray: F32) -> U64:
    """uint64 (N,) of float32 (N, 32, 32)."""
    low = (_DCT @ gray @ _DCT.T).reshape(-1, _BITS)
    bits = low > np.median(low, axis=1, keepdims=True)
    hashes: U64 = np.packbits(bits, axis=1).view(np.uint64).reshape(-1)
    return hashes


def close_pairs(hashes: U64, radius: int = RADIUS) -> Iterator[I64]:
    """The rows of hashes that differ in at most `radius` bits, in parts of at most N pairs, int64 (pairs, 2).

    A pair may come several times. Of hashes that are alike in a band, each is compared with the next 2,000 of them, so
    that it costs O(N log N) and these comparisons, and O(N) of memory, however many images are nearly the same.
    """
    edges = np.linspace(0, _BITS, radius + 2).astype(int)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        band = (hashes >> np.uint64(low)) & np.uint64((1 << (high - low)) - 1)
        order = np.argsort(band, kind="stable")
        band = band[order]
        begin = np.arange(len(order))
        for step in range(1, _MOST_NEIGHBOURS + 1):
            begin = begin[begin + step < len(order)]
            begin = begin[band[begin] == band[begin + step]]
            if not len(begin):
                break
            one, other = order[begin], order[begin + step]
            close = (
                np.bitwise_count(hashes[one] ^ hashes[other]) <= radius
                if _HAS_COUNT
                else _close(hashes[one], hashes[other], radius)
            )
            if close.any():
                yield np.stack([one[close], other[close]], axis=1)


_HAS_COUNT = hasattr(np, "bitwise_count")  # NumPy 2
_COUNTS: U8 = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


def _close(one: U64, other: U64, radius: int) -> npt.NDArray[np.bool_]:
    differing = _COUNTS[(one ^ other).view(np.uint8).reshape(-1, 8)].sum(axis=1)
    close: npt.NDArray[np.bool_] = differing <= radius
    return close


def join_groups(root: I64, pairs: I64) -> I64:
    """int64 (N,): the smallest row that each row is connected with, over any number of steps, by pairs (P, 2) and by
    those that were joined before.

    root: what this returned of the pairs before, at first each row itself (`np.arange`).
    """
    joined, edges = np.arange(len(root)), root[pairs]
    while True:
        one, other = joined[edges[:, 0]], joined[edges[:, 1]]
        low = np.minimum(one, other)
        before = joined.copy()
        np.minimum.at(joined, one, low)
        np.minimum.at(joined, other, low)
        joined = joined[joined]
        if np.array_equal(before, joined):
            return joined[root]
