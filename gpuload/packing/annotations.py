"""Annotations that were drawn on another version of their image: before its Exif orientation, or at another size."""

import io
from dataclasses import replace

from PIL import Image

from gpuload.errors import DecodeError
from gpuload.headers.jpeg import ORIENTATION
from gpuload.packing.image import StoredImage
from gpuload.types import Array, WidthHeight

# Remarks, see `Kind.remarks`.
TURNED = "images with annotations for the image before its Exif orientation: {}, turned"
SCALED = "images with annotations for another size: {}, scaled"
SAME_SIZE = (
    "images with an Exif orientation that keeps their size: {}, annotations are taken as those of the upright image; "
    "where a tool that ignores Exif drew them, remove the orientation from the files"
)

_QUARTER_TURNS = (5, 6, 7, 8)  # the orientations that exchange width and height
_SAME_SIZE = (2, 3, 4)  # mirrored, or turned by a half


def fit_annotations(
    image: StoredImage, data: bytes | Array, drawn_on: WidthHeight
) -> StoredImage:
    """The image with the placement that moves its annotations to where they belong.

    Orientations 2 to 4 leave the size as it is: then the annotations are those of the upright image, and are counted.

    Args:
        image: Ready to be stored.
        data: The image as the source has it.
        drawn_on: (width, height) of the image that annotations were drawn on, as their file says; 0, 0 where that is
            unknown.

    Raises:
        DecodeError: the image has another size, which neither its orientation nor a resize explains.
    """
    upright = image.placement.source
    if drawn_on == upright and image.placement.exif in _SAME_SIZE:
        return replace(image, remarks={**image.remarks, SAME_SIZE: 1})
    if 0 in drawn_on or drawn_on == upright:
        return image
    swapped = drawn_on[::-1]
    orientation = _orientation(data)
    is_turned = orientation in _QUARTER_TURNS and _is_resized(swapped, upright)
    if is_turned and (swapped == upright or not _is_resized(drawn_on, upright)):
        placement = image.placement._replace(source=drawn_on, turn=orientation)
        return replace(image, placement=placement, remarks={**image.remarks, TURNED: 1})
    if _is_resized(drawn_on, upright):
        placement = image.placement._replace(source=drawn_on)
        return replace(image, placement=placement, remarks={**image.remarks, SCALED: 1})
    raise DecodeError(
        f"has {upright[0]} x {upright[1]} pixels, its annotations are for {drawn_on[0]} x {drawn_on[1]}, which neither "
        "its Exif orientation nor a resize explains"
    )


def _is_resized(size: WidthHeight, resized: WidthHeight) -> bool:
    """Whether one factor makes both sides, to the rounding of each to whole pixels."""
    low = max((side - 1) / before for side, before in zip(resized, size, strict=True))
    high = min((side + 1) / before for side, before in zip(resized, size, strict=True))
    return low < high


def _orientation(data: bytes | Array) -> int:
    if not isinstance(data, bytes):
        return 1
    with Image.open(io.BytesIO(data)) as opened:  # which the packer has decoded before
        return int(opened.getexif().get(ORIENTATION, 1))
