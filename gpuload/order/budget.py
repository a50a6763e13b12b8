"""Batches by a number of tokens: how many tokens an image has, and which samples share a batch.

An image of its own size is a grid of patches, its tokens, and a batch is padded to the longest image in it. Samples of
nearly equal length are put into one bucket, so that little is padded; each bucket has batches of its own size, all of
about as many tokens. What is left in the buckets at the end of a pass is joined, the longest images first:

    bucket    512 tokens  12 samples, batches of 8      8, and 4 left
              256 tokens  20 samples, batches of 16    16, and 4 left
    at the end                                          8: those of 512 and of 256 tokens that were left
"""

from dataclasses import dataclass
from math import ceil
from typing import Annotated

import numpy as np

from gpuload.checks import COUNT, optional, settings, whole
from gpuload.errors import ArgumentError
from gpuload.types import F64, I64

MOST_PX = 65_535  # along a side of an image
MOST_TOKENS = 65_535  # of an image

# The shortest image of a bucket has at least this share of the tokens of its longest one, so that at most the rest is
# padded.
_SHORTEST = 0.95


@settings
class Budget:
    """Tokens in a batch, for images of their own sizes: `DaliIterator(batch_size=Budget(16_384))` with a crop of
    `Patches`.

    A batch has as many samples as fit: images times tokens of the longest of them, so with padding, are at most
    `tokens`.

    Args:
        tokens: In a batch of this process.
        multiple: Samples of all ranks together come in multiples of it, which must be one of the number of ranks; by
            default that number. A run resumes exactly on any number of ranks that divides it, if tokens times ranks
            stays the same.

    Raises:
        ArgumentError: A value that is not a whole number of at least 1.
    """

    tokens: Annotated[int, whole(1, 2**31 - 1)]
    multiple: Annotated[int | None, optional(COUNT)] = None


@dataclass(frozen=True)
class PatchGrid:
    """How images are divided into patches.

    Attributes:
        patch: Side of a patch in pixels.
        max_tokens: Patches of an image, at most: a larger image is made smaller.
    """

    patch: int
    max_tokens: int

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes the grid of an image."""
        return f"patches-{self.patch}-{self.max_tokens}"

    def shapes(self, heights: F64, widths: F64) -> I64:
        """int64 (N, 2): rows and columns of patches of images of these sizes in pixels.

        Each side is the nearest number of patches, and at least one.
        """
        sides = np.stack([heights, widths], axis=1).astype(np.float64)
        pixels = float(self.max_tokens * self.patch**2)
        area = sides.prod(axis=1, keepdims=True)
        scale = np.minimum(1, np.sqrt(pixels / area))
        exact = sides * scale / self.patch
        shapes = np.maximum(np.rint(exact), 1)
        is_over = shapes.prod(axis=1) > self.max_tokens
        shapes[is_over] = np.maximum(np.floor(exact[is_over]), 1)
        # Of images so narrow that one patch is more than their share.
        shorter = shapes.min(axis=1, keepdims=True)
        longest = np.minimum(self.max_tokens // shorter, MOST_PX // self.patch)
        limited: I64 = np.minimum(shapes, longest).astype(np.int64)
        return limited

    @property
    def lengths(self) -> I64:
        """int64, ascending: tokens of the longest image of each bucket."""
        lengths = [self.max_tokens]
        while lengths[-1] > 1:
            lengths.append(ceil(_SHORTEST * lengths[-1]) - 1)
        return np.array(lengths[::-1])


# A part of a batch: bucket, and the first and the end of its samples among those left in the bucket.
Left = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class BatchSizes:
    """How many samples the batches of each bucket have, over all ranks.

    Attributes:
        of_buckets: int64 (buckets,), samples of a whole batch.
        left: The batches at the end of a pass, of what is left in the buckets.
    """

    of_buckets: I64
    left: tuple[tuple[Left, ...], ...]


def find_batch_sizes(
    lengths: I64,
    totals: I64,
    tokens: int,
    multiple: int,
    *,
    drops_rest: bool,
) -> BatchSizes:
    """The batches of a pass.

    Args:
        lengths: int64 (buckets,), tokens of the longest image of each bucket.
        totals: int64 (buckets,), samples of each.
        tokens: Of a batch over all ranks, with padding.
        multiple: What divides the samples of a batch.
        drops_rest: Whether the last samples are left out, fewer than `multiple`.

    Raises:
        ArgumentError: A batch of the longest images has more tokens.
    """
    longest = int(lengths[totals > 0].max())
    if tokens // longest < multiple:
        raise ArgumentError(
            f"Budget: {tokens:,} tokens over all ranks, and {multiple:,} images of {longest:,} tokens, the longest, "
            "have more. Use more tokens, a smaller multiple, or Patches(max_tokens=…)"
        )
    sizes = np.maximum(tokens // lengths // multiple, 1) * multiple
    left = _join_left(sizes, totals % sizes, multiple, drops_rest=drops_rest)
    return BatchSizes(sizes, left)


def _join_left(
    sizes: I64, rests: I64, multiple: int, *, drops_rest: bool
) -> tuple[tuple[Left, ...], ...]:
    """The batches of what is left in the buckets, of the longest images first."""
    batches: list[list[Left]] = []
    space = 0
    for bucket in reversed(range(len(sizes))):
        first = 0
        rest = int(rests[bucket])
        while first < rest:
            if not space:
                batches.append([])
                space = int(sizes[bucket])
            stop = min(rest, first + space)
            batches[-1].append((bucket, first, stop))
            space -= stop - first
            first = stop
    if batches:
        batches[-1:] = _divided(batches[-1], multiple, drops_rest=drops_rest)
    return tuple(tuple(batch) for batch in batches)


def _divided(batch: list[Left], multiple: int, *, drops_rest: bool) -> list[list[Left]]:
    """The last batch, of which a multiple of samples comes first, and the rest by itself, or not at all."""
    samples = sum(stop - first for _, first, stop in batch)
    space = samples - samples % multiple
    whole_batch: list[Left] = []
    rest: list[Left] = []
    for bucket, first, stop in batch:
        middle = min(stop, first + space)
        if first < middle:
            whole_batch.append((bucket, first, middle))
        if middle < stop:
            rest.append((bucket, middle, stop))
        space -= middle - first
    if drops_rest:
        rest = []
    return [part for part in (whole_batch, rest) if part]
