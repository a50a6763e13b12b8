"""Memory for batches, reused once a batch has been released."""

import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]


class Buffers:
    """A pool of arrays: page faults in fresh memory would take as long as filling it.

    Each array handed out has a `_Lease` as its base. Its views, tensors and DLPack capsules all keep the base alive;
    when the last of them is freed, in whichever thread, the memory returns to the pool.

    rows: of each array, at most. kept: unused arrays to keep. allocate: makes an array of a shape and dtype. An array
    serves any shape that takes at least half of it, so that batches of several sizes share the same few.
    """

    def __init__(self, rows: int, dtype: str, kept: int, allocate: Allocate = np.empty) -> None:
        self._rows = rows
        self._dtype, self._allocate = np.dtype(dtype), allocate
        # No lock: the garbage collector may return memory at any point of any thread. Each access is atomic.
        self._free: deque[npt.NDArray[Any]] = deque(maxlen=kept)

    def take(self, count: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """An array (count, *shape) with undefined contents, in use nowhere else."""
        memory = self._find_free(self._rows * math.prod(shape))
        lease = _Lease(memory, (count, *shape))
        weakref.finalize(lease, self._free.append, memory).atexit = False
        return np.asarray(lease)

    def _find_free(self, needed: int) -> npt.NDArray[Any]:
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:
                break
            if needed <= memory.size <= 2 * needed:
                return memory
            self._free.appendleft(memory)
        return self._allocate((needed,), self._dtype)


class _Lease:
    """The right to use an array's memory, as an array of another shape, while this object lives."""

    def __init__(self, memory: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
        self.__array_interface__ = {**memory.__array_interface__, "shape": shape, "strides": None}
