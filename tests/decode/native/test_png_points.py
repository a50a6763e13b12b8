"""Seek points of PNGs: the same pixels for every reader, whichever rows are decoded, and none from a point that is damaged."""

import io
import struct
import zlib
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
from decode.native.pictures import Window, decode_all
from fuzzing.pngs import KINDS, Recipe, assembled, compressed, stored_values, stream_of, write_png
from hypothesis import given, settings
from hypothesis import strategies as st
from images import photo
from PIL import Image

from gpuload.headers import png
from gpuload.packing.png_points import find_points, with_points

SIZE = (120, 90)
APART = 16


def made(color: int = 2, depth: int = 8, seed: int = 0, size: tuple[int, int] = SIZE, **options: Any) -> bytes:
    recipe = Recipe(color, depth, filters=options.pop("filters", (4, 2, 3, 1, 4)), **options)
    if color == 3:
        recipe.palette = bytes(n % 251 for n in range(3 << depth))
    return write_png(stored_values(np.random.default_rng(seed), *size, color, depth), recipe)


def pillows(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def divided(data: bytes, apart: int = APART) -> tuple[bytes, bytes]:
    written = with_points(data, apart)
    assert written is not None
    return written


def rows_of(points: bytes) -> list[int]:
    return [row for row, _ in struct.iter_unpack("<II", points[:-4])]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 1 << 30),
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.lists(st.integers(0, 4), min_size=1, max_size=7),
    st.sampled_from([0, 1, 6, 9]),
    st.sampled_from([zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_RLE, zlib.Z_HUFFMAN_ONLY]),
)
def test_all_readers_read_the_same_pixels(
    kind: tuple[int, int], seed: int, size: tuple[int, int], filters: list[int], level: int, strategy: int
) -> None:
    data = made(*kind, seed, size, filters=tuple(filters), level=level, strategy=strategy, chunk=300)
    file, points = divided(data, 4)
    np.testing.assert_array_equal(pillows(file), pillows(data))
    assert rows_of(points) == list(range(4, size[1], 4)) if points else size[1] <= 4
    assert find_points(file) == points
    if kind != (0, 16):
        assert decode_all([file], size)[0] is not None


WINDOWS: list[Window | None] = [
    None,
    (0, 0, 20, 120),
    (15, 3, 16, 4),
    (16, 0, 17, 120),
    (47, 30, 90, 60),
    (89, 0, 90, 1),
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", [(2, 8, "RGB"), (0, 8, "RGB"), (6, 8, "RGBA"), (0, 16, "I;16"), (2, 16, "RGB")])
def test_parts_are_decoded_from_the_point_before_them(kind: tuple[int, int, str], window: Window | None) -> None:
    color, depth, mode = kind
    file, points = divided(made(color, depth))
    (expected,) = decode_all([file], SIZE, window, mode=mode)
    (part,) = decode_all([file], SIZE, window, mode=mode, points=points)
    assert expected is not None and part is not None and part.place == expected.place
    np.testing.assert_array_equal(part.pixels, expected.pixels)


def spoilt(file: bytes, row: int, points: bytes) -> bytes:
    """With a byte changed in the rows before a point, and the checksum of their chunk right."""
    at = dict(struct.iter_unpack("<II", points[:-4]))[row]
    begin = next(begin for kind, begin, end in png.chunks(file) if kind == b"IDAT" and end == at - 8)
    middle = (begin + at) // 2
    changed = file[:middle] + bytes([file[middle] ^ 85]) + file[middle + 1 :]
    checksum = zlib.crc32(changed[begin + 4 : at - 12])
    return changed[: at - 12] + struct.pack(">I", checksum) + changed[at - 8 :]


def test_rows_before_a_point_are_not_read() -> None:
    file, points = divided(made())
    damaged = spoilt(file, 32, points)
    window = (33, 0, 60, 120)
    assert decode_all([damaged], SIZE, window) == [None]
    (part,) = decode_all([damaged], SIZE, window, points=points)
    assert part is not None
    np.testing.assert_array_equal(part.pixels, pillows(file)[33:60])


def test_the_checksums_of_chunks_that_are_read_count() -> None:
    file, points = divided(made())
    chunks = [(begin, end) for kind, begin, end in png.chunks(file) if kind == b"IDAT"]
    for number, (_, end) in enumerate(chunks):
        data = file[: end - 1] + bytes([file[end - 1] ^ 1]) + file[end:]
        is_read = 2 <= number <= 3  # rows 32 to 63
        assert (decode_all([data], SIZE, (33, 0, 60, 120), points=points) == [None]) >= is_read
        assert decode_all([data], SIZE, (33, 0, 60, 120)) == [None]


def test_a_damaged_point_changes_no_pixel() -> None:
    file, points = divided(made())
    other, _ = divided(made(seed=1))
    window = (50, 0, 70, 120)
    for data in (file, other):
        expected = pillows(data)[50:70]
        for bit in range(8 * len(points)):
            changed = bytearray(points)
            changed[bit // 8] ^= 1 << bit % 8
            (part,) = decode_all([data], SIZE, window, points=bytes(changed))
            assert part is not None
            np.testing.assert_array_equal(part.pixels, expected)


def with_checksum(pairs: list[tuple[int, int]], file: bytes) -> bytes:
    content = b"".join(struct.pack("<II", *pair) for pair in pairs)
    return content + struct.pack("<I", zlib.crc32(content) ^ zlib.crc32(struct.pack("<Q", len(file))))


@pytest.mark.parametrize("at", [0, 8, 50, 1 << 31])
def test_a_forged_point_outside_of_blocks_is_passed_over(at: int) -> None:
    file, _ = divided(made())
    (part,) = decode_all([file], SIZE, (50, 0, 70, 120), points=with_checksum([(48, at)], file))
    assert part is not None
    np.testing.assert_array_equal(part.pixels, pillows(file)[50:70])


def flushed(row: int, history: bool = False, between: bool = False, filters: tuple[int, ...] = (1,)) -> bytes:
    """A PNG as others may write it, with flushes each `row` rows in chunks that have nothing to do with them."""
    recipe = Recipe(2, 8, filters=filters, chunk=777)
    stream = stream_of(stored_values(np.random.default_rng(5), *SIZE, 2, 8), recipe)
    step = row * (1 + 3 * SIZE[0]) - between
    compressor = zlib.compressobj(9)
    kind = zlib.Z_SYNC_FLUSH if history else zlib.Z_FULL_FLUSH
    parts = [compressor.compress(stream[at : at + step]) + compressor.flush(kind) for at in range(0, len(stream), step)]
    return assembled(SIZE, b"".join(parts) + compressor.flush(), recipe)


def test_points_of_others_are_found_and_used() -> None:
    file = flushed(10)
    points = find_points(file)
    assert rows_of(points) == list(range(10, 90, 10))
    (part,) = decode_all([file], SIZE, (41, 7, 58, 90), points=points)
    assert part is not None
    np.testing.assert_array_equal(part.pixels, pillows(file)[41:58, 7:90])


@pytest.mark.parametrize(
    "file",
    [
        flushed(10, history=True),
        flushed(10, between=True),
        flushed(10, filters=(4,)),
        made(),
        made(interlaced=True),
        b"",
    ],
    ids=["history stays", "between rows", "rows need others", "none", "interlaced", "empty"],
)
def test_what_is_no_point(file: bytes) -> None:
    assert find_points(file) == b""


def test_points_that_only_some_flushes_are() -> None:
    """Where a match reaches over a flush, what lies before it belongs to the point before."""
    recipe = Recipe(2, 8, filters=(1,))
    stream = stream_of(stored_values(np.random.default_rng(5), *SIZE, 2, 8), recipe)
    step = 10 * (1 + 3 * SIZE[0])
    compressor = zlib.compressobj(9)
    kinds = islice(cycle([zlib.Z_FULL_FLUSH, zlib.Z_SYNC_FLUSH]), 9)
    parts = [
        compressor.compress(stream[n * step : (n + 1) * step]) + compressor.flush(kind) for n, kind in enumerate(kinds)
    ]
    file = assembled(SIZE, b"".join(parts) + compressor.flush(), recipe)
    assert rows_of(find_points(file)) == [10, 30, 50, 70]


@pytest.mark.parametrize(
    "data",
    [
        made(interlaced=True),
        made()[:-30],
        assembled(SIZE, compressed(b"\x07" * 90 * 361, Recipe(2, 8)), Recipe(2, 8)),
        assembled(SIZE, compressed(bytes(89 * 361), Recipe(2, 8)), Recipe(2, 8)),
        assembled(SIZE, compressed(bytes(91 * 361), Recipe(2, 8)), Recipe(2, 8)),
    ],
    ids=["interlaced", "cut", "filters", "too short", "too long"],
)
def test_what_is_not_divided(data: bytes) -> None:
    assert with_points(data, APART) is None


def test_dividing_a_photo_keeps_its_matches_and_other_chunks() -> None:
    image = photo(3, 700, 500)
    file = io.BytesIO()
    image.save(file, "PNG", icc_profile=b"a profile", dpi=(72, 72))
    data = file.getvalue()
    written, points = divided(data, 32)
    assert len(written) < 1.15 * len(data) and rows_of(points) == list(range(32, 500, 32))
    np.testing.assert_array_equal(pillows(written), np.asarray(image))
    kinds = [kind for kind, _, _ in png.chunks(data) if kind != b"IDAT"]
    assert [kind for kind, _, _ in png.chunks(written) if kind != b"IDAT"] == kinds
    assert divided(data, 32) == (written, points)
