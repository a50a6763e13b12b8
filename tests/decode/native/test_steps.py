"""Threads share the rows of a batch among them in compiled code, and leave to Python what it must do."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest

from gpuload.decode.native.cuts import crop_or_pad
from gpuload.decode.native.steps import SharedBlocks, Step
from gpuload.decode.native.values import PixelTarget
from gpuload.kernels.structs import PICTURE

ROWS, SIDE = 40, 3


class Pictures:
    """Single-coloured pictures of which `fill` makes a batch; those at `missing` are not decoded."""

    def __init__(self, missing: tuple[int, ...] = ()) -> None:
        self.pixels = np.repeat(np.arange(1, ROWS + 1, dtype=np.uint8), SIDE * SIDE * 3).reshape(ROWS, SIDE, SIDE, 3)
        self.rows = np.zeros(ROWS, PICTURE)
        for row in set(range(ROWS)) - set(missing):
            self.complete(row)
        self.out = np.zeros((ROWS, 3, SIDE, SIDE), np.uint8)
        self.taken = np.zeros(1, np.int64)

    def complete(self, row: int) -> None:
        self.rows[row] = (self.pixels[row].ctypes.data, SIDE, SIDE, SIDE * 3, 0, 0, 1)

    def fill(self) -> Step:
        constants = np.zeros(3, np.float32), np.ones(3, np.float32)
        windows, sizes = np.tile([0, 0, SIDE, SIDE], (ROWS, 1)), np.full((ROWS, 2), SIDE)
        flips, fills = np.zeros((ROWS, 2), np.bool_), np.zeros(3, np.uint8)
        return crop_or_pad(self.rows, windows, flips, sizes, fills, 0, PixelTarget(self.out, *constants))

    def left(self, block: int, fills: list[Step], alone: bool) -> list[int]:
        """Which blocks are left to the caller."""
        return list(SharedBlocks(block, self.rows, None, fills, alone).remaining(self.taken, None))

    def colors(self) -> list[int]:
        assert (self.out == self.out[:, :1, :1, :1]).all()
        return [int(color) for color in self.out[:, 0, 0, 0]]


@pytest.mark.parametrize(
    ("missing", "block", "expected"),
    [((), 1, []), ((), 7, []), ((), ROWS, []), ((), 100, []), ((4, 38), 5, [0, 35])],
)
def test_blocks_with_something_missing_are_left_to_the_caller_and_the_others_done(
    missing: tuple[int, ...], block: int, expected: list[int]
) -> None:
    pictures = Pictures(missing)
    fill, left = pictures.fill(), []
    for begin in SharedBlocks(block, pictures.rows, None, [fill], False).remaining(pictures.taken, None):
        left.append(begin)
        assert pictures.colors()[begin : begin + block] == [0] * block
        for row in range(begin, begin + block):
            pictures.complete(row)
        fill(begin, begin + block)
    assert left == expected and pictures.colors() == list(range(1, ROWS + 1))


def test_alone_each_block_is_left_to_the_caller_but_none_that_was_taken() -> None:
    pictures = Pictures()
    assert pictures.left(15, [], True) == [0, 15, 30]
    pictures.taken[0] = 1 << 62  # as an abandoned batch has it
    assert pictures.left(5, [pictures.fill()], True) == []
    assert pictures.colors() == [0] * ROWS


def test_threads_do_each_block_once() -> None:
    pictures = Pictures()
    with ThreadPoolExecutor(8) as pool:
        left = list(chain.from_iterable(pool.map(lambda _: pictures.left(3, [], True), range(8))))
    assert sorted(left) == list(range(0, ROWS, 3))
