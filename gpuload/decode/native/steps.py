"""What threads do to a batch, in compiled code: each takes its share of the rows in one call.

Python's lock is held between calls alone. With a call for each image, 49 to 66 µs of Python for each image of 500×375,
16 threads would end at some 15,000 images/s (2 cores, 2026-11).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gpuload.decode.native.compiled import address_of, cached, inlined
from gpuload.decode.native.pointers import add, call
from gpuload.types import I64

_DONE, _FAILED = -1, -2


class Step:
    """A function compiled by `step`, and what it works on; calling it with `begin, end` does that to these rows.

    arguments: numbers, and arrays in C order, which it holds. The function finds them as int64, of arrays the address,
    which are `numbers`.
    held: what the addresses among the numbers belong to.
    """

    def __init__(self, function: Callable[..., int], *arguments: Any, held: Any = None) -> None:
        self._function, self._held = function, (arguments, held)
        numbers = [one.ctypes.data if isinstance(one, np.ndarray) else one for one in arguments]
        self.numbers: I64 = np.array(numbers, np.int64)
        self.call: tuple[int, int] = address_of(function), self.numbers.ctypes.data

    def replaced(self, first: int, numbers: Sequence[int], held: Any) -> "Step":
        """The same with other last arguments, from number `first` on. It costs a tenth of a new one, and each thread
        needs its own for each batch. held: as the class's."""
        made = object.__new__(Step)
        made._function, made._held, made.numbers = self._function, (self._held, held), self.numbers.copy()
        made.numbers[first:] = numbers
        made.call = self.call[0], made.numbers.ctypes.data
        return made

    def __call__(self, begin: int, end: int) -> None:
        if not self._function(self.call[1], begin, end):
            raise MemoryError


def step(function: Callable[[int, int, int], int]) -> Callable[[int, int, int], int]:
    """Compiled as `cached` does it, for a `Step`: function(address of the arguments, begin, end) returns 1.

    Where compiled code calls it by its address, an exception in it, which can only be a lack of memory, makes it return
    0.
    """
    return cached(function, by_address=True)


@inlined
def kept(*arrays: Any) -> int:
    """1, what a `step` returns that took the addresses of these arrays of its own. numba frees an array after the last
    use of its name, and an address is none."""
    return 1 if len(arrays) > 0 else 0


def remaining_blocks(
    taken: I64, block: int, pictures: I64, decode: Step | None, fills: Sequence[Step], alone: bool
) -> Iterator[int]:
    """One thread's share of a batch: the next `block` rows that no other thread has taken, until none are left.

    taken: int64 (1,), how many rows threads have taken. pictures: int64 (N, 7), see `resample`. decode: what completes
    those with an address of 0. fills: what is made of pictures then.

    Yields where a block begins that is left to the caller after `decode`, since a picture is missing or `alone` is set.
    """
    steps = np.array([(0, 0) if one is None else one.call for one in (decode, *fills)], np.int64)
    while (begin := _run(taken.ctypes.data, block, pictures, steps, alone)) >= 0:
        yield begin
    if begin == _FAILED:
        raise MemoryError


def load_compiled() -> None:
    """Loads, or compiles, what goes through blocks; otherwise the first batch would."""
    for _ in remaining_blocks(np.zeros(1, np.int64), 1, np.zeros((0, 7), np.int64), None, (), False):
        pass


@cached
def _run(taken: int, block: int, pictures: I64, steps: I64, alone: bool) -> int:
    number = len(pictures)
    while True:
        begin: int = add(taken, block)
        if begin >= number:
            return _DONE
        end = min(begin + block, number)
        if steps[0, 0] != 0 and call(steps[0, 0], steps[0, 1], begin, end) == 0:
            return _FAILED
        left = alone
        for row in range(begin, end):
            left = left or pictures[row, 0] == 0
        if left:
            return begin
        for index in range(1, len(steps)):
            if call(steps[index, 0], steps[index, 1], begin, end) == 0:
                return _FAILED
