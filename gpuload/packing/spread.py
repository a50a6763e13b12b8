"""How the values of 16 bits and floats are spread: mean, standard deviation and percentiles of each channel.

They come from one pass over the measured images, in any order and from any number of shards alike: each image adds
numbers of its own, and sums over images are rounded once.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from gpuload.types import F32, F64, Array

# Of the percentiles that a manifest has; 0 and 100 are the smallest and the largest value.
PERCENTILES = (0, 0.1, 1, 2, 50, 98, 99, 99.9, 100)
_BINS = 1 << 16  # by the first half of a float32: sign, exponent and 7 bits
_HALF_BITS = 16
_DIGITS = 7  # that a float32 holds


class _OfImage(NamedTuple):
    """The values of one channel of an image.

    Attributes:
        size: How many of them are numbers.
        squares: Sum of the squares of their differences from their mean.
    """

    size: int
    mean: float
    squares: float


class ChannelSpread(NamedTuple):
    """How the values of each channel of all images are distributed.

    Attributes:
        mean: One number for each channel.
        std: One number for each channel.
        percentiles: Of each channel, by their numbers as texts, such as "99.9".
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    percentiles: dict[str, tuple[float, ...]]


class Spread:
    """Measures images, one after the other.

    Percentiles are found among values rounded to 8 bits: the first half of a float32, of which there are few.

    Args:
        channels: Of each image.
    """

    def __init__(self, channels: int) -> None:
        self._images: list[list[_OfImage]] = []
        self._bins = np.zeros((channels, _BINS), np.int64)
        self._ends: list[tuple[float, float] | None] = [None] * channels

    def add(self, pixels: Array) -> None:
        """Measures an image.

        Args:
            pixels: uint16 or float32 (height, width, channels). What is no number is left out.
        """
        of_image = []
        for channel, values in enumerate(np.moveaxis(pixels, 2, 0)):
            numbers = values[np.isfinite(values)].astype(np.float32)
            of_image.append(self._add_channel(channel, numbers))
        self._images.append(of_image)

    def as_json(self) -> dict[str, Any]:
        """What `spread_of` takes, of lists and numbers alone."""
        bins = []
        for counts in self._bins:
            used = np.flatnonzero(counts)
            pairs = zip(used.tolist(), counts[used].tolist(), strict=True)
            bins.append([list(pair) for pair in pairs])
        return {"images": self._images, "bins": bins, "ends": self._ends}

    def _add_channel(self, channel: int, numbers: F32) -> _OfImage:
        if not numbers.size:
            return _OfImage(0, 0.0, 0.0)
        keys = numbers.view(np.uint32) >> _HALF_BITS
        self._bins[channel] += np.bincount(keys, minlength=_BINS)
        low = float(numbers.min())
        high = float(numbers.max())
        before = self._ends[channel] or (low, high)
        self._ends[channel] = min(low, before[0]), max(high, before[1])
        exact = numbers.astype(np.float64)
        mean = float(exact.mean())
        return _OfImage(len(exact), mean, float(((exact - mean) ** 2).sum()))


def spread_of(parts: Iterable[Mapping[str, Any]], peak: int) -> ChannelSpread | None:
    """Of the images of all shards; None where nothing was measured, or a channel holds no number.

    Args:
        parts: Of each shard, what `Spread.as_json` gives.
        peak: That becomes 1 in mean and std; 1 for floats. Percentiles are values as stored.
    """
    measured = [part for part in parts if part.get("images")]
    if not measured:
        return None
    channels = []
    for number in range(len(measured[0]["images"][0])):
        channel = _channel_of(measured, number)
        if channel is None:
            return None
        channels.append(channel)
    rows = zip(*(channel.percentiles for channel in channels), strict=True)
    texts = [f"{percentile:g}" for percentile in PERCENTILES]
    return ChannelSpread(
        tuple(rounded(channel.mean / peak) for channel in channels),
        tuple(rounded(channel.std / peak) for channel in channels),
        dict(zip(texts, rows, strict=True)),
    )


class _Channel(NamedTuple):
    """The spread of one channel, as stored.

    Attributes:
        percentiles: Those of `PERCENTILES`.
    """

    mean: float
    std: float
    percentiles: list[float]


def _channel_of(parts: Sequence[Mapping[str, Any]], number: int) -> _Channel | None:
    """The spread of a channel; None where it holds no number.

    Args:
        parts: As `spread_of` takes them, with images.
    """
    images = [_OfImage(*image[number]) for part in parts for image in part["images"]]
    if not any(image.size for image in images):
        return None
    bins = chain.from_iterable(part["bins"][number] for part in parts)
    ends = [part["ends"][number] for part in parts if part["ends"][number]]
    return _Channel(*_mean_and_std(images), _percentiles(bins, ends))


def _mean_and_std(images: Sequence[_OfImage]) -> tuple[float, float]:
    """`fsum` is exact until it rounds, so that the order of the images does not count."""
    count = sum(image.size for image in images)
    mean = math.fsum(image.size * image.mean for image in images) / count
    between = (image.size * (image.mean - mean) ** 2 for image in images)
    within = (image.squares for image in images)
    return mean, math.sqrt(math.fsum(chain(between, within)) / count)


def _added(bins: Iterable[Sequence[int]]) -> Counter[int]:
    """The count of each key in all bins."""
    totals = Counter[int]()
    for key, count in bins:
        totals[key] += count
    return totals


def _percentiles(
    bins: Iterable[Sequence[int]], ends: Sequence[Sequence[float]]
) -> list[float]:
    """The percentiles of one channel.

    Args:
        bins: Keys with their counts.
        ends: Its smallest and largest value in each shard.
    """
    low = min(end[0] for end in ends)
    high = max(end[1] for end in ends)
    totals = _added(bins)
    values = (np.array(list(totals), np.uint32) << _HALF_BITS).view(np.float32)
    order = np.argsort(values, kind="stable")
    counts = np.array(list(totals.values()), np.int64)[order]
    shares: F64 = np.cumsum(counts) / counts.sum()
    ranked = values[order].clip(low, high)
    places = np.searchsorted(shares, np.array(PERCENTILES[1:-1]) / 100)
    inner = ranked[np.minimum(places, len(ranked) - 1)]
    return [rounded(low), *map(rounded, inner.tolist()), rounded(high)]


def rounded(value: float) -> float:
    """To the digits that a float32 holds."""
    return float(f"{value:.{_DIGITS}g}")
