"""The range of a source's floats: whether they are levels of an image is decided by all of them."""

from dataclasses import dataclass, replace
from math import inf, isfinite, isnan

import numpy as np

from gpuload.formats.raster import EIGHT_BITS
from gpuload.types import Array


@dataclass(frozen=True)
class FloatRange:
    """What is known of all images that are arrays of floats.

    Attributes:
        count: Of such images.
        low: The smallest value; NaN where one is no number.
        high: The largest value; NaN where one is no number.
        are_whole: Whether all values are whole numbers.
    """

    count: int = 0
    low: float = inf
    high: float = -inf
    are_whole: bool = True

    def including(self, image: Array) -> "FloatRange":
        """The range with one more image."""
        if not image.size:  # which packing rejects
            return replace(self, count=self.count + 1)
        return FloatRange(
            self.count + 1,
            # Python's `min` loses a NaN, NumPy's does not.
            float(np.minimum(self.low, image.min())),
            float(np.maximum(self.high, image.max())),
            self.are_whole and bool((image == np.rint(image)).all()),
        )

    @property
    def white(self) -> int:
        """The value that is white: 1, or 255 of whole numbers; 0 where the values do not tell."""
        if not self.count or (self.low >= 0 and self.high <= 1):
            return 1
        if self.are_whole and self.low >= 0 and self.high <= EIGHT_BITS:
            return EIGHT_BITS
        return 0

    @property
    def in_words(self) -> str:
        """The ends of the range, for messages."""
        if isnan(self.low):
            return "some of whose values are no numbers (NaN)"
        return f"{self.low:g} to {self.high:g}"

    @property
    def scale(self) -> str:
        """What `--scale` may be given for such values; a placeholder where they do not tell."""
        if not self.count or not (isfinite(self.low) and isfinite(self.high)):
            return "LOW:HIGH"
        if self.low >= 0 and EIGHT_BITS / 2 < self.high <= EIGHT_BITS:
            return f"0:{EIGHT_BITS}"
        return f"{self.low:g}:{self.high:g}"
