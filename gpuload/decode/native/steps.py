"""The threads' work on a batch, in compiled code: each takes its share of the rows in one call.

The GIL is held only between calls. One call per image would cost 49 to 66 µs of Python for each image of 500×375, which
would limit 16 threads to some 15,000 images/s (2 cores, 2026-11).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gpuload.decode.native.compiled import address_of, cached, inlined
from gpuload.decode.native.intrinsics import add, call, longs_at
from gpuload.types import I64

_DONE, _FAILED = -1, -2


class Step:
    """A function compiled by `step` with its arguments; calling it with `begin, end` processes these rows.

    arguments: numbers, and arrays in C order, which it keeps alive. The function gets them as int64, arrays as their
    address, in `numbers`.
    held: the owners of addresses among the numbers.
    """

    def __init__(self, function: Callable[..., int], *arguments: Any, held: Any = None) -> None:
        self._function, self._held = function, (arguments, held)
        numbers = [one.ctypes.data if isinstance(one, np.ndarray) else one for one in arguments]
        self.numbers: I64 = np.array(numbers, np.int64)
        self.call: tuple[int, int] = address_of(function), self.numbers.ctypes.data

    def __call__(self, begin: int, end: int, own: I64 | None = None) -> None:
        """own: as for `Blocks.remaining`, of a function that needs it."""
        at = self.call[1]
        if own is not None:
            own[: len(self.numbers)] = self.numbers
            at = own.ctypes.data
        if not self._function(at, begin, end):
            raise MemoryError


def step(function: Callable[[int, int, int], int]) -> Callable[[int, int, int], int]:
    """Compiled as `cached` does it, for a `Step`: function(address of the arguments, begin, end) returns 1.

    If compiled code calls it by its address, it returns 0 on an exception, which can only be a lack of memory.
    """
    return cached(function, by_address=True)


@inlined
def kept(*arrays: Any) -> int:
    """1, the return value of a `step` that took the addresses of its own arrays. numba frees an array after the last
    use of its name, and taking an address is not a use."""
    return 1 if len(arrays) > 0 else 0


class Blocks:
    """What threads do to a batch, some rows of it at a time.

    block: so many rows. pictures: int64 (N, 7), see `resample`. decode: what completes those with an address of 0.
    fills: what is made of pictures then. alone: each block is left to Python after `decode`.
    """

    def __init__(self, block: int, pictures: I64, decode: Step | None, fills: Sequence[Step], alone: bool) -> None:
        self._block, self._pictures, self._alone, self._held = block, pictures, alone, (decode, fills)
        calls = [(0, 0, 0) if one is None else (*one.call, len(one.numbers)) for one in (decode, *fills)]
        self._calls: I64 = np.array(calls, np.int64)

    def remaining(self, taken: I64, own: I64) -> Iterator[int]:
        """One thread's share of the batch: the next block that no other thread has taken, until none are left.

        taken: int64 (1,), how many rows threads have taken. own: int64, the arguments of `decode` in this thread, of
            which the first ones, those of the batch, are set here.

        Yields where a block begins that is left to the caller, since a picture is missing or `alone` is set.
        """
        while (begin := _run(taken, self._block, self._pictures, self._calls, own, self._alone)) >= 0:
            yield begin
        if begin == _FAILED:
            raise MemoryError


def load_compiled() -> None:
    """Loads, or compiles, what goes through blocks; otherwise the first batch would."""
    nothing = np.zeros(1, np.int64)
    for _ in Blocks(1, np.zeros((0, 7), np.int64), None, (), False).remaining(nothing, nothing):
        pass


@cached
def _run(taken: I64, block: int, pictures: I64, steps: I64, own: I64, alone: bool) -> int:
    number, of_batch = len(pictures), longs_at(steps[0, 1])
    for index in range(steps[0, 2]):
        own[index] = of_batch[index]
    while True:
        begin: int = add(taken.ctypes.data, block)
        if begin >= number:
            return _DONE
        end = min(begin + block, number)
        if steps[0, 0] != 0 and call(steps[0, 0], own.ctypes.data, begin, end) == 0:
            return _FAILED
        left = alone
        for row in range(begin, end):
            left = left or pictures[row, 0] == 0
        if left:
            return begin
        for index in range(1, len(steps)):
            if call(steps[index, 0], steps[index, 1], begin, end) == 0:
                return _FAILED
