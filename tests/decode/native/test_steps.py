"""Threads share the rows of a batch among them in compiled code, and leave to Python what it must do."""

import ast
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from gpuload.decode.native import jpeg
from gpuload.decode.native.cuts import crop_or_pad
from gpuload.decode.native.steps import Blocks, Step, kept
from gpuload.decode.native.values import Target

ROWS, SIDE = 40, 3
NO_OWN = np.zeros(0, np.int64)


class Pictures:
    """Single-coloured pictures of which `fill` makes a batch; those at `missing` are not decoded."""

    def __init__(self, missing: tuple[int, ...] = ()) -> None:
        self.pixels = np.repeat(np.arange(1, ROWS + 1, dtype=np.uint8), SIDE * SIDE * 3).reshape(ROWS, SIDE, SIDE, 3)
        self.rows = np.zeros((ROWS, 7), np.int64)
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
        return crop_or_pad(self.rows, windows, flips, sizes, fills, 0, Target(self.out, *constants))

    def left(self, block: int, fills: list[Step], alone: bool) -> list[int]:
        """Which blocks are left to the caller."""
        return list(Blocks(block, self.rows, None, fills, alone).remaining(self.taken, NO_OWN))

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
    for begin in Blocks(block, pictures.rows, None, [fill], False).remaining(pictures.taken, NO_OWN):
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


def test_arrays_live_until_they_are_kept() -> None:
    @njit
    def addresses(size: int) -> tuple[int, int, int]:
        first = np.empty(size, np.uint8)
        at = np.int64(first.ctypes.data)
        second = np.empty(size, np.uint8)  # in the same place, where numba has freed the first one
        return kept(first, second), at, np.int64(second.ctypes.data)

    _, at, second_at = addresses(1000)
    assert at != second_at


def test_compiled_code_keeps_what_it_takes_the_address_of() -> None:
    found = set()
    for path in Path(jpeg.__file__).parents[1].rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and "step" in map(ast.unparse, function.decorator_list):
                taken = set(re.findall(r"(\w+)\.ctypes\.data", ast.unparse(function)))
                found |= {function.name} if taken else set()
                assert taken <= set(re.findall(r"\w+", ast.unparse(function.body[-1]))), function.name
    assert found == {"resample_rows", "crop_or_pad_rows", "transform_rows"}
