"""Padded images as patches: what NaFlexVit and other transformers take of images of their own sizes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gpuload.augment import View
from gpuload.decode.interface import Buffers
from gpuload.decode.runner import Job, Stage, Work
from gpuload.types import I64, Array, Bools

# Images that a thread takes at a time.
_AT_ONCE = 4


class MakePatches(Stage):
    """Divides the images of the batches of earlier stages, which come padded, into patches.

    Of (N, height, width, C) it makes (N, L, patch * patch * C): row by row from the upper left, with zeros up to L, the
    number of patches of the largest image.

    Args:
        name: Of the image.
        patch: Side of a patch in pixels.
        threads: Number that work on a batch in host memory.
        buffers: Memory for batches.
    """

    name = "patches"

    def __init__(self, name: str, patch: int, threads: int, buffers: Buffers) -> None:
        self.threads = threads
        self._image = name
        self._patch = patch
        self._buffers = buffers

    def begin(self, job: Job) -> Work | None:
        """As `Stage.begin`. On a GPU the batch is complete."""
        (images,) = job.decoded.pictures[self._image]
        shapes = patch_shapes(job.batch.views_of(self._image)[0], self._patch)
        longest = int(shapes.prod(axis=1).max(initial=1))
        size = self._patch**2 * images.shape[-1]
        rows = iter(range(0, len(shapes), _AT_ONCE))
        work = None
        if isinstance(images, np.ndarray):
            patches = self._buffers.take(len(shapes), (longest, size))

            def work() -> None:
                self._divide(images, shapes, patches, rows)

        else:  # a tensor of torch, from `Finish`
            patches = images.new_empty((len(shapes), longest, size))
            self._divide(images, shapes, patches, rows)
        pictures = {**job.decoded.pictures, self._image: (patches,)}
        job.decoded = replace(job.decoded, pictures=pictures)
        return work

    def _divide(
        self, images: Any, shapes: I64, patches: Any, rows: Iterator[int]
    ) -> None:
        """One thread's share: images that no other thread has taken."""
        patch = self._patch
        for first in rows:  # taking one is atomic
            block = shapes[first : first + _AT_ONCE].tolist()
            for row, (high, wide) in enumerate(block, start=first):
                channels = images.shape[-1]
                used = images[row, : high * patch, : wide * patch]
                divided = used.reshape(high, patch, wide, patch, channels)
                grid = patches[row, : high * wide]
                grid.reshape(high, wide, patch, patch, channels)[:] = divided.swapaxes(
                    1, 2
                )
                patches[row, high * wide :] = 0


def patch_shapes(view: View, patch: int) -> I64:
    """int64 (N, 2): rows and columns of patches of each image of a view."""
    assert view.crops.sizes is not None
    shapes: I64 = view.crops.sizes // patch
    return shapes


def patch_places(shapes: I64, longest: int) -> tuple[Array, Bools]:
    """Where patches lie, and which there are.

    Args:
        shapes: int64 (N, 2), rows and columns of patches of each image.
        longest: Patches in a row of the batch, L.

    Returns:
        int64 (N, L, 2), row and column of each patch, zeros for padding; bool (N, L), False for padding.
    """
    numbers = np.broadcast_to(np.arange(longest), (len(shapes), longest))
    is_valid = numbers < shapes.prod(axis=1)[:, None]
    coordinates = np.stack(np.divmod(numbers, shapes[:, 1:]), axis=-1)
    coordinates[~is_valid] = 0
    return coordinates, is_valid
