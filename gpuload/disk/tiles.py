"""Tiles: windows of large images, of a regular grid, which are the samples of a data set."""

from typing import NamedTuple

import numpy as np

from gpuload.types import I32, I64, HeightWidth


class Grid(NamedTuple):
    """Windows of one size that cover an image, numbered row by row, from the upper left corner.

    Attributes:
        size: (height, width) in pixels.
        overlap: Pixels that neighbours share. Where the size of the image leaves a rest, the last windows move back to
            the edge; an image that is smaller than a window has one window of its own size.
    """

    size: HeightWidth
    overlap: int

    @property
    def _steps(self) -> I64:
        return np.array(self.size) - self.overlap

    def counts(self, images: I64) -> I64:
        """Rows and columns of windows, int64 (N, 2).

        Args:
            images: int64 (N, 2), heights and widths of images in pixels.
        """
        counts: I64 = 1 - np.minimum(self.size - images, 0) // self._steps
        return counts

    def corners(self, numbers: I64 | I32, images: I64) -> I64:
        """The place (top, left) in pixels of a window of each of N images, int64 (N, 2).

        Args:
            numbers: (N,), which window of each image.
            images: int64 (N, 2), their heights and widths in pixels.
        """
        places = np.stack(np.divmod(numbers, self.counts(images)[:, 1]), axis=1)
        corners: I64 = np.minimum(
            places * self._steps, np.maximum(images - self.size, 0)
        )
        return corners


class TileWindows(NamedTuple):
    """Where N tiles lie in their images.

    Attributes:
        numbers: int64 (N,), which window of its image each is.
        corners: int64 (N, 2), their places (top, left) in pixels.
        sizes: int64 (N, 2), heights and widths in pixels.
    """

    numbers: I64
    corners: I64
    sizes: I64


class Tiles(NamedTuple):
    """Which windows of their images the samples of a data set are.

    Attributes:
        grid: The windows of each image.
        numbers: int32 (len,), which window of its image each sample is.
    """

    grid: Grid
    numbers: I32

    def windows(self, samples: I64, images: I64) -> TileWindows:
        """Where tiles lie in their images.

        Args:
            samples: int64 (N,), numbers of the tiles in the data set.
            images: int64 (N, 2), the heights and widths of their images in pixels.
        """
        numbers = self.numbers[samples].astype(np.int64)
        return TileWindows(
            numbers,
            self.grid.corners(numbers, images),
            np.minimum(images, self.grid.size),
        )
