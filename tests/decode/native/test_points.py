"""Seek points: pixels are those of a decode from the beginning, or the points were forged, which `points_hold` tells."""

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from images import encode
from PIL import Image
from test_jpeg import FACTORS, KINDS, decode

from gpuload.kernels import jpeg

SIZE = 467, 310  # width, height
WINDOWS = [(0, 0, 310, 467), (100, 0, 130, 467), (200, 300, 260, 380), (0, 440, 20, 467), (290, 5, 310, 9)]


def make(seed: int = 0, mode: str = "RGB", **options: Any) -> bytes:
    rough = np.random.default_rng(seed).integers(0, 256, (60, 90, 3), np.uint8)
    return encode(Image.fromarray(rough).resize(SIZE, Image.Resampling.BICUBIC).convert(mode), **options)


def points_of(data: bytes, most_share: float = 100) -> bytes:
    found = jpeg.find_points(data, SIZE[1], SIZE[0], most_share)
    assert found is not None
    return found


def numbers_of(points: bytes, rows: int, columns: int) -> tuple[list[int], list[int], list[list[int]]]:
    """The number of bits of each number of the points, its kind (docs/format.md), and its value, row by row."""
    apart, widths = points[0], list(points[1:6])
    number = -(-columns // apart)
    kinds = [0] * (rows - 1) + [1] * (rows * (number - 1)) + [2, 3, 4] * (rows * number)
    bits = "".join(f"{byte:08b}" for byte in points[6:])
    values = []
    for kind in kinds:
        values.append(int(bits[: widths[kind]] or "0", 2))
        bits = bits[widths[kind] :]
    steps = rows - 1 + rows * (number - 1)
    return widths, kinds, [values[: rows - 1], values[rows - 1 : steps], values[steps:]]


def moved(points: bytes, rows: int, columns: int) -> bytes:
    """Points that agree with each other, where each row but the first has those of the row below it."""
    widths, kinds, (distances, steps, coefficients) = numbers_of(points, rows, columns)
    steps_of_row, coefficients_of_row = len(steps) // rows, len(coefficients) // rows
    distances = [distances[0] + distances[1], *distances[2:], distances[-1]]
    steps = steps[:steps_of_row] + steps[2 * steps_of_row :] + steps[-steps_of_row:]
    coefficients = (
        coefficients[:coefficients_of_row]
        + coefficients[2 * coefficients_of_row :]
        + coefficients[-coefficients_of_row:]
    )
    values = [*distances, *steps, *coefficients]
    widths[0] += 1  # the first distance is that of two rows
    bits = "".join(f"{value:0{widths[kind]}b}" for kind, value in zip(kinds, values, strict=True) if widths[kind])
    padded = bits + "0" * (-len(bits) % 8)
    content = bytes(int(padded[begin : begin + 8], 2) for begin in range(0, len(padded), 8))
    return bytes([points[0], *widths]) + content + points[-8:]


def lies(points: bytes, rng: Random) -> Iterator[bytes]:
    """Endless changes of points: bits, bytes, numbers that are shifted, and sizes."""
    while True:
        lie = bytearray(points)
        for _ in range(rng.choice((1, 1, 2, 20))):
            place = rng.randrange(len(lie))
            match rng.randrange(4):
                case 0 | 1:
                    lie[place] ^= 1 << rng.randrange(8)
                case 2:
                    lie[place] = rng.randrange(256)
                case _:
                    end = rng.randrange(place, len(lie)) + 1
                    shifted = int.from_bytes(lie[place:end], "big") + rng.choice((-8, -1, 1, 6, 64))
                    lie[place:end] = (shifted % 256 ** (end - place)).to_bytes(end - place, "big")
        yield bytes(lie[: rng.choice((None, None, None, len(lie) - 1, 3))])


def same(data: bytes, points: bytes, window: Any, factor: int = 1) -> bool:
    (pixels, place), (expected, expected_place) = (  # type: ignore[misc]
        decode(data, SIZE, window, factor, points=one) for one in (points, b"")
    )
    return place == expected_place and np.array_equal(pixels, expected)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("options", [{}, {"quality": 98}, {"optimize": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_a_decode_from_the_beginning(
    kind: str, options: dict[str, Any], window: Any, factor: int
) -> None:
    data = make(**KINDS[kind], **options)
    assert same(data, points_of(data), window, factor)


def test_what_lies_above_and_beside_is_not_read() -> None:
    """So that a fault there is not seen, and it costs nothing."""
    data, window = make(), (200, 300, 260, 380)
    at = data.index(b"\xff\xda") + 30
    spoilt = data[:at] + b"\xff\x00" * 500 + data[at + 1000 :]
    assert decode(spoilt, SIZE, window) is None
    (pixels, _), (expected, _) = decode(spoilt, SIZE, window, points=points_of(data)), decode(data, SIZE, window)  # type: ignore[misc]
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"restart_marker_rows": 3}])
def test_changed_points_change_nothing(options: dict[str, Any]) -> None:
    data, rng = make(**options), Random(0)
    points = points_of(data)
    for _, lie in zip(range(300), lies(points, rng), strict=False):
        assert same(data, lie, rng.choice(WINDOWS))
        assert lie == points or not jpeg.points_hold(data, lie, SIZE[1], SIZE[0])
    assert same(data, points_of(make(1)), WINDOWS[2])  # of another file


def test_a_bit_of_the_last_row_changes_nothing() -> None:
    """Behind it there is no point to compare with."""
    data = make()
    points = points_of(data)
    for place in range(len(points) - 40, len(points)):
        for bit in range(8):
            lie = points[:place] + bytes([points[place] ^ 1 << bit]) + points[place + 1 :]
            assert same(data, lie, WINDOWS[4]) and same(data, lie, (300, 440, 310, 467))


ROWS, COLUMNS = 39, 59  # of MCUs of 8×8 pixels


def test_points_that_agree_with_each_other_are_refused_by_their_checksum() -> None:
    data = make(subsampling=0)
    points = points_of(data)
    lie = moved(points, ROWS, COLUMNS)
    assert all(same(data, lie, window) for window in WINDOWS)
    assert not jpeg.points_hold(data, lie, SIZE[1], SIZE[0])
    without = lie[:-8] + bytes(8)
    assert not all(same(data, without, window) for window in WINDOWS)  # it is a lie that only `points_hold` can tell
    assert not jpeg.points_hold(data, without, SIZE[1], SIZE[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}])
@pytest.mark.parametrize("most_share", [100, 0.02])
def test_points_hold_with_and_without_a_checksum(kind: str, options: dict[str, Any], most_share: float) -> None:
    """Sets that were packed until 2026-11-28 have zeros in its place."""
    data = make(**KINDS[kind], **options)
    points = points_of(data, most_share)
    older = points[:-8] + bytes(8)
    assert points[-8:] != bytes(8)
    assert jpeg.points_hold(data, points, SIZE[1], SIZE[0])
    assert jpeg.points_hold(data, older, SIZE[1], SIZE[0])
    assert all(same(data, older, window) for window in WINDOWS)
    at = data.index(b"\xff\xda") + 30
    spoilt = data[:at] + b"\xff\x00" * 500 + data[at + 1000 :]
    assert decode(spoilt, SIZE, WINDOWS[2], points=older) is not None  # they are in use
    assert not jpeg.points_hold(spoilt, older, SIZE[1], SIZE[0])
    assert not jpeg.points_hold(data, b"", SIZE[1], SIZE[0])


@pytest.mark.parametrize("rows", [1, 3])
def test_restart_markers_between_rows_are_entered(rows: int) -> None:
    data = make(restart_marker_rows=rows)
    points = points_of(data)
    assert all(same(data, points, window) for window in WINDOWS)
    at, before = data.index(b"\xff\xd0"), bytes([0xFF, 0xD0 + 6 // rows - 1])  # the crop begins in row 6
    assert decode(data.replace(before, b"\xff\xd7"), SIZE, WINDOWS[1], points=points) is None
    spoilt = data[: at - 40] + b"\xff\x00" * 20 + data[at:]
    assert decode(spoilt, SIZE, WINDOWS[1]) is None
    assert decode(spoilt, SIZE, WINDOWS[1], points=points) is not None


def test_files_with_restart_markers_within_rows_have_none() -> None:
    """Behind a marker nothing is left of a coefficient that lied before it."""
    data = make(restart_marker_blocks=5)
    assert points_of(data) == b""
    assert same(data, points_of(make()), WINDOWS[2])


def test_a_fault_in_what_is_shown_is_seen_as_without_points() -> None:
    data = make()
    points = points_of(data)
    assert decode(data[:-2], SIZE, WINDOWS[2], points=points) is None
    middle = len(data) // 2
    assert decode(data[:middle] + b"\xff\xd9" + data[middle:], SIZE, points=points) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xd8", make()[:-2], make(progressive=True), make()[:3000] + b"\xff\xd9" + make()[3000:]],
    ids=["empty", "start alone", "without an end", "progressive", "an end in the middle"],
)
def test_what_is_not_decoded_has_none(data: bytes) -> None:
    assert jpeg.find_points(data, SIZE[1], SIZE[0]) is None


def test_they_take_a_hundredth_of_the_file_at_most() -> None:
    data = make(quality=97)
    found = points_of(data, 0.01)
    assert 0 < len(found) <= len(data) / 100
    assert same(data, found, WINDOWS[2])
    assert points_of(data, 0.0001) == b""
    assert jpeg.find_points(data, 10, 10) is None  # of another size than the index says
