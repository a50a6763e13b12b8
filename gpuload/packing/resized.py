"""Further pictures where the packer resizes images: each by the ratio of its image, or by its own size, or not at all;
what becomes of values that are numbers is said by the user, or the picture is refused.
"""

import io
from typing import Any

import numpy as np
from PIL import Image

from gpuload.errors import ArgumentError, DecodeError
from gpuload.fields.field import Field
from gpuload.fields.images import GRAY, RGB, Pixels, is_raw, picture_columns
from gpuload.fields.kind import StoredMember
from gpuload.fields.motion import Placement, place
from gpuload.packing.image import resampled, smooth_filter, store_picture
from gpuload.packing.options import Encoding, Resizing
from gpuload.types import Array, Bools, WidthHeight

_MOST_APART = 2.0  # pixels by which the sides of a picture may differ from those of its image, scaled
_COLOURS = ("RGB", "RGBA")  # modes of pictures that are no numbers


def resizing_of(field: Field, encoding: Encoding) -> Resizing:
    """What becomes of a picture where images are resized.

    Args:
        field: Of the picture or the list of pictures, whose mode is known.
        encoding: Of the set, which resizes images.

    Raises:
        ArgumentError: its values may be numbers, and nothing is said of them; or they cannot be such.
    """
    asked: dict[str, Any] = dict(entry.split("=") for entry in encoding.resize)
    pixels = Pixels.of_field(field)
    how: Resizing | None = asked.get(field.name)
    if how is None and pixels.mode in _COLOURS:
        how = "smooth"
    name = field.name
    if how is None:
        raise ArgumentError(
            f"--size resizes images, and {name!r} holds {pixels.in_words}, which may be numbers. Give --resize "
            f"{name}=nearest where they stay what they are (depth, ids), {name}=width for disparities, {name}=flow, "
            f"{name}=smooth for gray levels, {name}=own by its own size, or {name}=keep"
        )
    if how == "width" and pixels.channels != 1:
        raise ArgumentError(
            f"--resize {name}=width: disparities have one channel, and {name!r} holds {pixels.in_words}"
        )
    if how == "flow" and pixels != Pixels(2, "float32"):
        raise ArgumentError(
            f"--resize {name}=flow: expected u and v as float32, and {name!r} holds {pixels.in_words}. Convert "
            "KITTI's PNGs to .flo"
        )
    return how


def resized_picture(
    stored: StoredMember, field: Field, encoding: Encoding, of_image: Placement
) -> StoredMember:
    """A further picture, resized as its field is to be.

    Args:
        stored: As it is stored without a change of size.
        field: Of the picture or the list.
        encoding: Of the set, which resizes images.
        of_image: Where the sample's image was placed.

    Raises:
        DecodeError: it has other proportions than its image, so that no crop or padding of the two is the same.
    """
    how = resizing_of(field, encoding)
    width_column, height_column, _ = picture_columns(field.name)
    size = stored.values[width_column], stored.values[height_column]
    if how == "keep":
        return stored
    if how == "own":
        placement = place(size, encoding.size, encoding.fit, encoding.enlarge)
    else:
        placement = placed_alike(size, of_image)
    if not placement.changes:
        return stored
    values = _values_of(stored, field)
    if how in ("smooth", "own"):
        as_jpeg = is_jpeg(field, encoding)
        method = smooth_filter(size, placement.resized, to_jpeg=as_jpeg)
        moved = resampled(values, placement, method)
        return store_picture(moved, field, encoding, as_jpeg=as_jpeg)
    moved = resampled(values, placement, Image.Resampling.NEAREST)
    ratio = np.array(placement.resized) / size
    if how == "width":
        moved = _scaled(moved, ratio[:1])
    if how == "flow":
        moved = _scaled(moved, ratio)
        moved[~_inside(values, placement)] = np.nan
    return store_picture(moved, field, encoding)


def is_jpeg(field: Field, encoding: Encoding) -> bool:
    """Whether a picture that is resized smoothly becomes a JPEG, as the images of the set do."""
    is_lossy = encoding.encode == "jpeg" and not encoding.lossless
    return is_lossy and not is_raw(field) and Pixels.of_field(field) in (RGB, GRAY)


def placed_alike(size: WidthHeight, of_image: Placement) -> Placement:
    """The placement of a picture that shows what its image shows, which may be of another size.

    Raises:
        DecodeError: as `resized_picture`.
    """
    if size == of_image.source:
        return of_image._replace(turn=1)
    across = size[0] / of_image.source[0]
    down = size[1] / of_image.source[1]
    if abs(across / down - 1) * max(size) > _MOST_APART:
        raise DecodeError(
            f"is {size[0]} x {size[1]}, of other proportions than its image, {of_image.source[0]} x "
            f"{of_image.source[1]}: --resize NAME=own or NAME=keep leaves its proportions"
        )

    def scaled(sides: tuple[int, int], least: int) -> tuple[int, int]:
        wide = round(sides[0] * across)
        high = round(sides[1] * down)
        return max(least, wide), max(least, high)

    corner = round(of_image.corner[0] * across), round(of_image.corner[1] * down)
    return Placement(
        size, scaled(of_image.resized, 1), corner, scaled(of_image.canvas, 1)
    )


def _values_of(stored: StoredMember, field: Field) -> Array:
    """(height, width, channels): the pixels of a stored picture."""
    pixels = Pixels.of_field(field)
    width, height, _ = picture_columns(field.name)
    shape = stored.values[height], stored.values[width], pixels.channels
    if is_raw(field):
        numbers = np.frombuffer(stored.content, pixels.stored, offset=stored.header)
        return numbers.reshape(shape)
    with Image.open(io.BytesIO(stored.content)) as image:
        is_in_mode = pixels.dtype != "uint8" or image.mode == pixels.mode
        shown = image if is_in_mode else image.convert(pixels.mode)
        return np.asarray(shown).astype(pixels.dtype).reshape(shape)


def _inside(values: Array, placement: Placement) -> Bools:
    """bool (height, width): where a canvas shows the picture."""
    everywhere = Image.new("L", values.shape[1::-1], 1)
    shown = placement.resample(everywhere, Image.Resampling.NEAREST)
    inside: Bools = np.asarray(shown) != 0
    return inside


def _scaled(values: Array, factors: Array) -> Array:
    """The values times a factor for each channel, rounded where they are whole numbers."""
    scaled = values * factors
    if values.dtype.kind == "u":
        most = np.iinfo(values.dtype).max
        scaled = np.minimum(np.rint(scaled), most)
    return scaled.astype(values.dtype)
