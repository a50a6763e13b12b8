"""Output sizes by bucket, and which bucket each sample belongs to."""

import hashlib
import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from gpuload.checks import SIDE, Rule, as_numbers, checked, number, optional, settings, several, whole
from gpuload.counted import counted
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError
from gpuload.types import F64, U8, HeightWidth

MOST = 256  # buckets: the number of a sample's bucket takes one byte
STEP, MAX_ASPECT = 64, 2.0


def _as_pixels(value: Any) -> npt.NDArray[Any]:
    found = as_numbers(value)
    if found.dtype == bool or found.min(initial=1) < 1:
        raise TypeError
    return found


_PIXELS = Rule("pixels, whole numbers (n,) from 1", _as_pixels)
_SIZES = several(several(SIDE, "", count=2), "(height, width) pairs in pixels, such as [(1024, 1024), (832, 1216)]")
_AREA = optional(whole(1, 65_535**2, "pixels, a whole number such as 1024 * 1024"))
_ASPECT = optional(number(1, 65_535, "the longer side over the shorter one, a number from 1"))


@settings
class Buckets:
    """Output sizes of which each sample gets the nearest, for `Augment(size=Buckets(…), crop="cover")`.

    sizes: (height, width) of each bucket in pixels, which numbers them; 256 at most. Or they are made of the others:
    area: the largest number of pixels, such as 1024 * 1024. A bucket for each shorter side that is a multiple of
        `step`, with the longest other side that is one, too; the buckets are numbered from the narrowest to the widest.
    step: divides all sides; 64 by default. max_aspect: of the longer side to the shorter one, at most; 2 by default.

    Raises:
        ArgumentError: neither sizes nor area, or both; a size that is there twice; more than 256; no size fits.
    """

    sizes: Annotated[Sequence[HeightWidth] | None, optional(_SIZES)] = None
    area: Annotated[int | None, _AREA] = None
    step: Annotated[int | None, optional(SIDE)] = None
    max_aspect: Annotated[float | None, _ASPECT] = None

    def __post_init__(self) -> None:
        if (self.sizes is None) == (self.area is None):
            found = "neither" if self.area is None else "both"
            raise ArgumentError(f"Buckets(sizes, area): expected one of them, found {found}. Give sizes, or an area")
        if self.area is None:
            for name in ("step", "max_aspect"):
                if getattr(self, name) is not None:
                    raise ArgumentError(f"Buckets({name}={getattr(self, name)}): is for area=, and sizes are given")
        else:
            object.__setattr__(self, "sizes", self._make_sizes(self.area))
        sizes = self.all_sizes
        if twice := [size for size in sizes if sizes.count(size) > 1]:
            raise ArgumentError(f"Buckets(sizes): {twice[0]} is there twice. Leave one of them out")
        if len(sizes) > MOST:
            raise ArgumentError(f"Buckets: {counted(len(sizes), 'size')}, expected at most {MOST}. Use a larger step")

    def _make_sizes(self, area: int) -> tuple[HeightWidth, ...]:
        step, most = self.step or STEP, self.max_aspect or MAX_ASPECT
        sides = [(short, area // short // step * step) for short in range(step, math.isqrt(area) + 1, step)]
        fitting = [(short, long) for short, long in sides if short <= long <= min(short * most, 65_535)]
        found = [size for short, long in fitting for size in ((short, long), (long, short))]
        if not found:
            raise ArgumentError(
                f"Buckets(area={area}, step={step}, max_aspect={most:g}): no size fits. Use a smaller step or a larger "
                "max_aspect"
            )
        return tuple(sorted(dict.fromkeys(found), key=lambda size: (size[1] / size[0], size)))

    def __len__(self) -> int:
        return len(self.all_sizes)

    @property
    def all_sizes(self) -> tuple[HeightWidth, ...]:
        """(height, width) of each bucket, by its number."""
        assert self.sizes is not None
        return tuple((height, width) for height, width in self.sizes)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the sizes or their numbers."""
        return hashlib.sha256(repr(self.all_sizes).encode()).hexdigest()[:16]

    @checked("Buckets.numbers", widths=_PIXELS, heights=_PIXELS)
    def numbers(self, widths: npt.ArrayLike, heights: npt.ArrayLike) -> U8:
        """uint8 (N,): the bucket of images of these widths and heights, in pixels, from 1.

        It is the one whose width / height is nearest in ratio, so in the difference of logarithms; an image exactly
        between two gets the narrower one. Of buckets of the same shape it is the one whose area is nearest in ratio;
        exactly between two, the smaller one.

        Raises:
            ArgumentError: widths and heights are not as many.
        """
        wide, high = np.asarray(widths, np.float64), np.asarray(heights, np.float64)
        shapes: dict[float, list[int]] = {}
        if wide.shape != high.shape:
            raise ArgumentError(f"Buckets.numbers(widths, heights): {len(wide):,} and {len(high):,}, expected as many")
        sizes = self.all_sizes
        for bucket, (height, width) in enumerate(sizes):
            shapes.setdefault(width / height, []).append(bucket)
        aspects = sorted(shapes)
        shape = np.searchsorted(_middles(aspects), wide / high, side="left")
        found = np.empty(wide.shape, np.uint8)
        for place, aspect in enumerate(aspects):
            rows = shape == place
            same = sorted(shapes[aspect], key=lambda bucket: sizes[bucket])
            areas = [float(math.prod(sizes[bucket])) for bucket in same]
            found[rows] = np.array(same, np.uint8)[np.searchsorted(_middles(areas), (wide * high)[rows], side="left")]
        return found


def _middles(values: Sequence[float]) -> F64:
    """Geometric means of neighbours, of ascending values. Multiplication, division and square roots are rounded in the
    same way on every machine, logarithms are not."""
    ascending = np.array(values, np.float64)
    middles: F64 = np.sqrt(ascending[:-1] * ascending[1:])
    return middles


def number_samples(dataset: Dataset, buckets: Buckets) -> U8:
    """uint8 (len,): the bucket of each sample of a data set, by the width and height in the index.

    Costs O(samples) once, and one byte for each.

    Raises:
        ShardError: the index holds a width or height below 1. ArgumentError: the samples are tiles.
    """
    if dataset.tiling is not None:
        raise ArgumentError("Buckets: are for whole images, and tiles have one size. Use Augment(size)")
    heights, widths = dataset.image_sizes(dataset.stored_samples(np.arange(len(dataset))), "buckets").T
    return buckets.numbers(widths, heights)
