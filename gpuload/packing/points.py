"""Seek points of stored images, of JPEGs and of PNGs: found, written into PNGs, and compared."""

from gpuload.headers import jpeg as jpeg_headers
from gpuload.headers import png as png_headers
from gpuload.kernels import jpeg
from gpuload.packing import png_points

_POINTS_SHARE = 0.01  # of the bytes of a JPEG, for its seek points
# Of smaller images, what a crop does not show costs less than the rest of a batch: random crops of 64×64 pixels became
# 1.03 times as fast, of 500×375 1.4 times (2026-11).
_LEAST_PIXELS = 100_000
# Rows from point to point: of narrow images, a flush adds more to the bytes of so many rows.
_ROWS_APART = 64
_ROWS_APART_IF_WIDE = 32
_WIDE = 1024


def find_points(data: bytes, width: int, height: int) -> bytes | None:
    """The seek points of an image of this size, b"" where it has none.

    Of a JPEG all coded pixels are read, and None means that it is not known whether it is sound: it is of a kind that
    is not read here, or has a fault. A PNG has points where its writer has made some.
    """
    is_large = width * height >= _LEAST_PIXELS
    if data.startswith(png_headers.START):
        return png_points.find_points(data) if is_large else b""
    return jpeg.find_points(data, height, width, _POINTS_SHARE if is_large else 0.0)


def with_points(data: bytes, width: int, height: int) -> tuple[bytes, bytes] | None:
    """A PNG with seek points, and these; None where it has some, is small, is interlaced, or has a fault."""
    if width * height < _LEAST_PIXELS or png_points.find_points(data):
        return None
    return png_points.with_points(
        data, _ROWS_APART_IF_WIDE if width >= _WIDE else _ROWS_APART
    )


def points_hold(data: bytes, points: bytes, width: int, height: int) -> bool:
    """Whether these are the points of an image of this size. All of its coded pixels are read."""
    if data.startswith(png_headers.START):
        return png_points.find_points(data) == points
    is_jpeg = data.startswith(jpeg_headers.START)
    return is_jpeg and jpeg.points_hold(data, points, height, width)
