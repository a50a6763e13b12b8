"""Seek points: pixels are those of a decode from the beginning, whatever the points say."""

from random import Random
from typing import Any

import numpy as np
import pytest
from images import encode
from PIL import Image
from test_jpeg import FACTORS, KINDS, decode

from gpuload.decode.native import jpeg

SIZE = 467, 310  # width, height
WINDOWS = [(0, 0, 310, 467), (100, 0, 130, 467), (200, 300, 260, 380), (0, 440, 20, 467), (290, 5, 310, 9)]


def make(seed: int = 0, mode: str = "RGB", **options: Any) -> bytes:
    rough = np.random.default_rng(seed).integers(0, 256, (60, 90, 3), np.uint8)
    return encode(Image.fromarray(rough).resize(SIZE, Image.Resampling.BICUBIC).convert(mode), **options)


def points_of(data: bytes, most_share: float = 100) -> bytes:
    found = jpeg.find_points(data, SIZE[1], SIZE[0], most_share)
    assert found is not None
    return found


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
def test_points_that_lie_change_nothing(options: dict[str, Any]) -> None:
    data, rng = make(**options), Random(0)
    points = points_of(data)
    for _ in range(300):
        lie = bytearray(points)
        for _ in range(rng.choice((1, 1, 2, 20))):
            lie[rng.randrange(len(lie))] ^= 1 << rng.randrange(8)
        assert same(data, bytes(lie[: rng.choice((None, len(lie) - 1, 3))]), rng.choice(WINDOWS))
    assert same(data, points_of(make(1)), WINDOWS[2])  # of another file


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
