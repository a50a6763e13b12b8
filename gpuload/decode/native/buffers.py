"""Memory for batches, used again once nobody holds the batch."""

import math
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]


class Buffers:
    """Page faults in fresh memory would take as long as filling it. A tensor made of an array, and every view of it,
    holds a reference to the array, so its reference count tells whether it is in use.

    rows: of each array, at most. kept: arrays to keep. allocate: makes an array of a shape and dtype. An array is used
    for any shape that takes at least half of it, so that batches of several sizes share the same few.
    """

    def __init__(self, rows: int, dtype: str, kept: int, allocate: Allocate = np.empty) -> None:
        self._rows = rows
        self._dtype, self._allocate = np.dtype(dtype), allocate
        self._arrays: deque[npt.NDArray[Any]] = deque(maxlen=kept)

    def take(self, count: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """An array (count, *shape) that nobody else holds; its contents are undefined."""
        size = math.prod(shape)
        needed = self._rows * size
        for array in self._arrays:
            # in the deque, in `array`, and as getrefcount's argument
            if needed <= array.size <= 2 * needed and sys.getrefcount(array) == 3:
                break
        else:
            array = self._allocate((needed,), self._dtype)
            self._arrays.append(array)
        return array[: count * size].reshape(count, *shape)
