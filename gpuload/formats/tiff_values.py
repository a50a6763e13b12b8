"""What tifffile decodes: a page, or the channels of an image whose channels are pages of their own."""

import io
from importlib import import_module
from typing import Any

import numpy as np

from gpuload.errors import DecodeError
from gpuload.types import Array, WidthHeight

_ORIENTATION = 274
_PROFILE = 34_675
_PLANES = 2


def decode_page(data: bytes, number: int | None, size: WidthHeight) -> Array:
    """(height, width) or (height, width, bands) of a page, as stored.

    Args:
        data: The file.
        number: In the chain of pages; None for the first page below another one that has this size.
        size: (width, height) of the page.
    """
    with import_module("tifffile").TiffFile(io.BytesIO(data)) as file:
        page = file.pages[number] if number is not None else _below(file, size)
        values: Array = np.asarray(page.asarray())
        is_planar = values.ndim == 3 and page.planarconfig == _PLANES
    return np.moveaxis(values, 0, 2) if is_planar else values


def read_tags(data: bytes, number: int | None) -> tuple[int, bytes]:
    """The Exif orientation of a page and its ICC profile; of the first page where the page is below another."""
    with import_module("tifffile").TiffFile(io.BytesIO(data)) as file:
        tags = file.pages[number or 0].tags
        turn = tags.valueof(_ORIENTATION, 1)
        profile = tags.valueof(_PROFILE, b"")
    return (turn if isinstance(turn, int) else 1), bytes(profile)


def count_channels(data: bytes) -> int:
    """How many channels the first image has, where each is a page, as OME and ImageJ write them; else 0.

    0 also for stacks of several times or depths, whose pages are images of their own.
    """
    with import_module("tifffile").TiffFile(io.BytesIO(data)) as file:
        if not (file.is_ome or file.is_imagej) or not file.series:
            return 0
        series = file.series[0]
        lengths = dict(zip(series.axes, series.shape, strict=True))
    others = [count for axis, count in lengths.items() if axis not in "CYX"]
    channels: int = lengths.get("C", 0)
    return 0 if any(count > 1 for count in others) or channels < 2 else channels


def decode_channels(data: bytes) -> Array:
    """(height, width, channels) of the first image, of which `count_channels` tells the number."""
    with import_module("tifffile").TiffFile(io.BytesIO(data)) as file:
        series = file.series[0]
        values: Array = np.asarray(series.asarray())
        axes = series.axes
    places = [axes.index(axis) for axis in "YXC"]
    rest = [place for place in range(values.ndim) if place not in places]
    return values.transpose(*places, *rest).reshape(
        *(values.shape[place] for place in places)
    )


def _below(file: Any, size: WidthHeight) -> Any:
    for page in file.pages:
        for inner in page.pages or ():
            if (inner.imagewidth, inner.imagelength) == size:
                return inner
    raise DecodeError("its full image cannot be found")
