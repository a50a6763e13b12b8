"""Which decoder notices which damage is what the table in docs/lab/decode.md says.

Each decoder is asked as the loader asks it, DALI's CPU decoder after the look at headers; an image that is not of the size
that the index says counts as refused only if the decoder says so.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode
from made_batches import make_batch, no_spare
from opened import open_guard
from PIL import Image

from gpuload import Augment
from gpuload.decode.interface import Stored

PAGE = Path(__file__).parents[2] / "docs" / "lab" / "decode.md"
BEGIN, END = "<!-- measured by tests/decode/test_noticed.py -->", "<!-- end -->"
WIDTH, HEIGHT, FILES = 160, 120, 3

Rng = np.random.Generator

# By kind of file: options, what is before the coded pixels, bytes after them.
KINDS: dict[str, tuple[dict[str, Any], bytes, int]] = {
    "JPEG": ({"quality": 90}, b"\xff\xda", 2),
    "progressive JPEG": ({"quality": 90, "progressive": True}, b"\xff\xda", 2),
    "PNG": ({"format": "PNG"}, b"IDAT", 16),
}
TITLES = {"native": "native", "DALI (CPU)": "dali"}


def make(kind: str, rng: Rng, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """A smooth image with some noise."""
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize((width, height))
    pixels = np.asarray(coarse).astype(np.int16) + rng.integers(-8, 9, (height, width, 1))
    return encode(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), **KINDS[kind][0])


def begin_of(kind: str, data: bytes) -> int:
    """Where the coded pixels begin."""
    return data.index(KINDS[kind][1]) + 12


def within(kind: str, data: bytes, rng: Rng, size: int = 1) -> int:
    """A place in the coded pixels."""
    return int(rng.integers(begin_of(kind, data), len(data) - KINDS[kind][2] - size))


def size_at(data: bytes) -> int:
    """Where the low bytes of the height are."""
    if data.startswith(b"\x89PNG"):
        return 22
    return next(at + 5 for at in range(len(data)) if data[at] == 0xFF and data[at + 1] in (0xC0, 0xC2))


def flip(data: bytes, at: int, rng: Rng) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def zero(data: bytes, begin: int, size: int) -> bytes:
    return (data[:begin] + bytes(size) + data[begin + size :])[: len(data)]


DAMAGE: dict[str, Callable[[str, bytes, Rng], bytes]] = {
    "none": lambda kind, data, rng: data,
    "empty": lambda kind, data, rng: b"",
    "first 64 bytes zeroed": lambda kind, data, rng: zero(data, 0, 64),
    "truncated in the header": lambda kind, data, rng: data[: int(rng.integers(2, begin_of(kind, data)))],
    "truncated in the pixels": lambda kind, data, rng: data[: within(kind, data, rng)],
    "end marker missing": lambda kind, data, rng: data[: -KINDS[kind][2]],
    "end marker zeroed": lambda kind, data, rng: zero(data, len(data) - KINDS[kind][2], KINDS[kind][2]),
    "second half zeroed": lambda kind, data, rng: zero(data, len(data) // 2, len(data)),
    "a bit of the size flipped": lambda kind, data, rng: flip(data, size_at(data) + int(rng.integers(2)), rng),
    "a bit of the header flipped": lambda kind, data, rng: flip(data, int(rng.integers(begin_of(kind, data))), rng),
    "a bit of the pixels flipped": lambda kind, data, rng: flip(data, within(kind, data, rng), rng),
    "200 bytes of the pixels zeroed": lambda kind, data, rng: zero(data, within(kind, data, rng, 200), 200),
    "swapped, of another size": lambda kind, data, rng: make(kind, rng, WIDTH + 24, HEIGHT + 16),
    "swapped, of the same size": lambda kind, data, rng: make(kind, rng),
}


def written() -> dict[tuple[str, str], str]:
    """The cells of the page's table, by row and column."""
    text = PAGE.read_text(encoding="utf-8")
    lines = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], column): cell for row in rows[2:] for column, cell in zip(rows[0][1:], row[1:], strict=True)}


def test_the_table_has_all_cells() -> None:
    columns = {f"{kind}, {title}" for kind in KINDS for title in TITLES}
    assert set(written()) == {(name, column) for name in DAMAGE for column in columns}
    assert set(written().values()) == {"all", "some", "none"}


@pytest.mark.parametrize("title", TITLES)
def test_the_table_is_what_is_measured(title: str) -> None:
    """On few files: what the decoder refuses of all files, or of none, it refuses, or not, in each of them."""
    augment, table, found = Augment((HEIGHT, WIDTH), crop="none", flip=0, dtype="uint8"), written(), {}
    guard = open_guard(TITLES[title], [augment.form], Stored(), FILES, "mark", num_threads=1)
    for kind in KINDS:
        rng = np.random.default_rng(7)
        sound = [make(kind, rng) for _ in range(FILES)]
        for name, change in DAMAGE.items():
            files = [np.frombuffer(change(kind, data, rng), np.uint8) for data in sound]
            (one,) = guard.decode(iter([make_batch(augment, files, [(WIDTH, HEIGHT)] * FILES)]), no_spare)
            cell = {FILES: "all", 0: "none"}.get(len(one.faults), "some")
            if (expected := table[name, f"{kind}, {title}"]) != "some":
                found[name, kind] = cell, expected
    guard.close()
    assert {place: cells for place, cells in found.items() if cells[0] != cells[1]} == {}
