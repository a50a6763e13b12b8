"""Measures each image of a split, decoded small by the loader: brightness, sharpness, detail, and a perceptual hash.

The hash is that of pHash (C. Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions", 2010): the
image as 32×32 gray pixels, its cosine transform, and of the 8×8 lowest frequencies, without those of the mean, a bit
each: whether it is above their median. Images that were scaled, recompressed or made a little brighter differ in few
bits; those that were cropped or mirrored differ in many.

Close pairs are found by bands (M. Norouzi et al., "Fast Search in Hamming Space with Multi-Index Hashing", 2012): two
hashes that differ in at most r bits are equal in one of r + 1 bands, so only hashes with an equal band are compared.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gpuload.augment import Augment
from gpuload.decode.arguments import OnCorrupt
from gpuload.disk.dataset import Dataset
from gpuload.fields.images import Pixels
from gpuload.loader.iterator import DaliIterator
from gpuload.loader.pipeline import Report
from gpuload.pictures import as_rgb
from gpuload.types import F32, I64, U8, U64, Array

_BATCH = 128
SIDE = 32  # of the gray images that are hashed
LARGEST_SIDE = 128  # to which images are decoded; as many as the shorter sides of most have, if that is less
SIGNATURE = 8
_LEVELS = 64  # of the histogram that the entropy is of
_BITS = 64
_KEPT = 8
RADIUS = 4  # bits in which near duplicates may differ
_MOST_NEIGHBOURS = 2_000  # in a band, with which a hash is compared


# What is measured of an image that decodes. number: in the whole set. bright, dark: the level that 95 % of the pixels
# stay below, and above. contrast: standard deviation of luma; all in 0..1. sharpness: standard deviation of the
# Laplacian, in levels of 255. entropy: of the histogram of luma, in bits, 0 to 6. hash: perceptual. signature: the
# image in 8×8 pixels.
LOOKS = np.dtype(
    [("number", np.int64)]
    + [
        (name, np.float32)
        for name in ("bright", "dark", "contrast", "sharpness", "entropy")
    ]
    + [("hash", np.uint64), ("signature", np.uint8, (SIGNATURE, SIGNATURE, 3))]
)


def side_for(shorter: I64) -> int:
    """The side to which images are decoded, so that most are not enlarged: a multiple of 32.

    Args:
        shorter: int64 (N,), the shorter side of each in pixels.
    """
    usual = int(np.percentile(shorter, 10)) if len(shorter) else LARGEST_SIDE
    return max(SIDE, min(LARGEST_SIDE, usual // SIDE * SIDE))


def look_at(
    dataset: Dataset, numbers: I64, side: int, progress: Callable[[int], None]
) -> tuple[Array, Report]:
    """Decodes samples in threads, and measures them. Returns what was measured, and the samples that do not decode.

    Returns what was measured, and the samples that do not decode.

    Args:
        dataset: That holds them.
        numbers: int64 (N,), their numbers in this data set, ascending.
        side: Pixels; a JPEG may be decoded smaller, but its sides not below this.
        progress: Called with the number of images since its last call.
    """
    parts = [np.empty(0, LOOKS)]
    if not len(numbers):
        return parts[0], Report(0, ())
    chosen = dataset if len(numbers) == len(dataset) else dataset.subset(numbers)
    augment = _whole(dataset.manifest.pixels, side)
    with quiet_loader(
        chosen,
        augment,
        _BATCH,
        (dataset.manifest.image.name, "index"),
        shuffle=False,
    ) as loader:
        for images, index, corrupt in loader:
            sound = ~corrupt
            parts.append(
                measure(
                    _as_levels(images[sound], dataset.manifest.pixels), index[sound]
                )
            )
            progress(len(index))
        return np.concatenate(parts), loader.report()


@contextmanager
def quiet_loader(
    dataset: Dataset,
    augment: Augment,
    batch_size: int,
    fields: Sequence[str],
    shuffle: bool = True,
) -> Iterator[DaliIterator]:
    """A loader on one CPU that marks undecodable samples, and warns neither of these nor of a loop that waits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with DaliIterator(
            dataset,
            min(batch_size, len(dataset)),
            augment=augment,
            fields=fields,
            device="cpu",
            shuffle=shuffle,
            drop_last=False,
            rank=0,
            world_size=1,
            output="numpy",
            on_corrupt=OnCorrupt("mark", most=1.0),
        ) as loader:
            yield loader


def _whole(pixels: Pixels, side: int) -> Augment:
    """Whole images as levels of 255, or where that does not hold them, in 0..1 and floats as they are."""
    if pixels.dtype == "uint8":
        return Augment(side, crop="none", dtype="uint8")
    return Augment(side, crop="none", normalize=None)


def _as_levels(images: Array, pixels: Pixels) -> U8:
    """uint8 (N, 3, height, width) of a batch as `_whole` makes it, as a person looks at it."""
    if pixels.is_rgb:
        return images
    if pixels.dtype == "uint16":
        images = np.rint(images * 255).astype(np.uint8)
    shown: U8 = as_rgb(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return shown


def measure(images: U8, numbers: I64) -> Array:
    """`LOOKS` (N,) of images (N, 3, side, side), side a multiple of 32."""
    luma = _luma(images)
    small = _shrink(luma, SIDE)
    colors = _shrink(images.reshape(-1, *images.shape[2:]), SIGNATURE).reshape(
        -1, 3, SIGNATURE, SIGNATURE
    )
    flat = np.sort(small.reshape(-1, SIDE * SIDE), axis=1) / np.float32(255)
    tail = flat.shape[1] // 20
    looks = np.empty(len(images), LOOKS)
    looks["number"] = numbers
    looks["bright"] = flat[:, -tail]
    looks["dark"] = flat[:, tail]
    looks["contrast"] = flat.std(axis=1)
    looks["sharpness"] = _sharpness(luma)
    looks["entropy"] = _entropy(luma)
    looks["hash"] = perceptual_hashes(small)
    looks["signature"] = np.rint(colors).transpose(0, 2, 3, 1)
    return looks


def _luma(images: U8) -> U8:
    """uint8 (N, side, side), by the weights of ITU-R BT.601 in 256ths."""
    luma = images[:, 0].astype(np.uint16) * 77
    luma += images[:, 1].astype(np.uint16) * 150
    luma += images[:, 2].astype(np.uint16) * 29
    return (luma >> 8).astype(np.uint8)


def _shrink(planes: U8, side: int) -> F32:
    """float32 (N, side, side): means of blocks."""
    block = planes.shape[-1] // side
    means: F32 = planes.reshape(-1, side, block, side, block).mean(
        axis=(2, 4), dtype=np.float32
    )
    return means


def _sharpness(luma: U8) -> F32:
    signed = luma.astype(np.int16)
    edges = 4 * signed[:, 1:-1, 1:-1]
    edges -= signed[:, :-2, 1:-1]
    edges -= signed[:, 2:, 1:-1]
    edges -= signed[:, 1:-1, :-2]
    edges -= signed[:, 1:-1, 2:]
    deviation: F32 = edges.astype(np.float32).std(axis=(1, 2))
    return deviation


def _entropy(luma: U8) -> F32:
    levels = (
        luma[:, ::2, ::2] // (256 // _LEVELS)
        + np.arange(len(luma), dtype=np.int32)[:, None, None] * _LEVELS
    )
    counts = np.bincount(levels.reshape(-1), minlength=len(luma) * _LEVELS).reshape(
        -1, _LEVELS
    )
    share = counts / counts.sum(axis=1, keepdims=True)
    bits: F32 = -(share * np.log2(np.where(share > 0, share, 1))).sum(axis=1)
    return np.abs(bits).astype(np.float32)


def choose(dataset: Dataset, most: int) -> I64:
    """Numbers of at most so many samples, ascending: all, or evenly spaced ones of evenly spaced shards.

    Whole shards are read, since reading a sample here and there of each would read them all.
    """
    total = len(dataset)
    sizes = dataset.shard_sizes
    if total <= most:
        return np.arange(total)
    ends = np.cumsum(sizes)
    shards = _spaced(len(sizes), max(1, -(-len(sizes) * most // total)))
    numbers = np.concatenate(
        [
            np.arange(ends[shard] - sizes[shard], ends[shard])
            for shard in shards.tolist()
        ]
    )
    spaced: I64 = numbers[_spaced(len(numbers), most)]
    return spaced


def _spaced(total: int, count: int) -> I64:
    """At most so many evenly spaced numbers below the total."""
    return np.unique(np.linspace(0, total - 1, min(count, total)).astype(int))


def shares(totals: list[int], most: int) -> Iterator[int]:
    """How many samples of each split are looked at: in proportion, but a small split as a whole where there is room."""
    rest = most
    splits = len(totals)
    counts = dict[int, int]()
    for place, number in enumerate(sorted(range(splits), key=lambda n: totals[n])):
        counts[number] = min(totals[number], rest // (splits - place))
        rest -= counts[number]
    return (counts[number] for number in range(splits))


# float32 (8, 32): rows 1 to 8 of the cosine transform (DCT-II), without its scale, which the median cancels.
_ANGLES = (
    np.pi * np.arange(1, _KEPT + 1)[:, None] * (2 * np.arange(SIDE) + 1) / (2 * SIDE)
)
_DCT: F32 = np.cos(_ANGLES).astype(np.float32)


def perceptual_hashes(gray: F32) -> U64:
    """uint64 (N,) of float32 (N, 32, 32)."""
    low = (_DCT @ gray @ _DCT.T).reshape(-1, _BITS)
    bits = low > np.median(low, axis=1, keepdims=True)
    hashes: U64 = np.packbits(bits, axis=1).view(np.uint64).reshape(-1)
    return hashes


_COUNTS: U8 = np.array(
    [bin(byte).count("1") for byte in range(256)], np.uint8
)  # of the bits of a byte


def close_pairs(hashes: U64, radius: int = RADIUS) -> Iterator[I64]:
    """The rows of similar hashes, in parts of at most N pairs, int64 (pairs, 2).

    A pair may come several times. Of hashes that are alike in a band, each is compared with the next 2,000 of them, so
    that it costs O(N log N) and these comparisons, and O(N) of memory, however many images are nearly the same.

    Args:
        hashes: uint64 (N,).
        radius: In how many bits two similar ones may differ.
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
            first = order[begin]
            second = order[begin + step]
            close = (
                _COUNTS[
                    (hashes[first] ^ hashes[second]).view(np.uint8).reshape(-1, 8)
                ].sum(axis=1)
                <= radius
            )
            if close.any():
                yield np.stack([first[close], second[close]], axis=1)


def join_groups(root: I64, pairs: I64) -> I64:
    """The smallest row that each row is connected with, over any number of steps, int64 (N,).

    Args:
        root: int64 (N,), what this returned of earlier pairs; at first each row itself (`np.arange`).
        pairs: int64 (P, 2), rows that are connected.
    """
    joined = np.arange(len(root))
    edges = root[pairs]
    while True:
        first = joined[edges[:, 0]]
        second = joined[edges[:, 1]]
        low = np.minimum(first, second)
        before = joined.copy()
        np.minimum.at(joined, first, low)
        np.minimum.at(joined, second, low)
        joined = joined[joined]
        if np.array_equal(before, joined):
            return joined[root]
