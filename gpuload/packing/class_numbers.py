"""Further pictures that hold class numbers or ids, as masks do: what is packed of files with palettes and few bits."""

import io
from typing import NamedTuple

from PIL import Image

from gpuload.fields.field import Field
from gpuload.fields.picture_lists import LISTS_OF_MASKS, PicturesKind
from gpuload.formats.masks import class_numbers, has_indices
from gpuload.packing.image import refuse_size
from gpuload.packing.options import Encoding
from gpuload.types import Array


class PictureValues(NamedTuple):
    """What is packed of a further picture.

    Attributes:
        data: Its file, or the class numbers (height, width).
        scale: Of class numbers, as of `ClassNumbers`; else "".
        lost_indices: Whether its file has indices of a palette, whose colours are packed.
    """

    data: bytes | Array
    scale: str = ""
    lost_indices: bool = False


def values_of_picture(
    data: bytes | Array, field: Field, encoding: Encoding
) -> PictureValues:
    """What is packed of a picture: class numbers, where its field holds such by `--class-numbers` or as a list called
    "masks"; else the picture as it is.

    Args:
        data: Content of its file, or its pixels.
        field: Of the picture or the list.
        encoding: Of the set.

    Raises:
        DecodeError: as `class_numbers`; or it has more pixels than the encoding allows.
    """
    are_indices = has_indices(data)
    is_list_of_masks = field.kind == PicturesKind.name and field.name in LISTS_OF_MASKS
    is_asked = field.name in encoding.class_numbers
    if not (is_asked or (is_list_of_masks and are_indices)):
        return PictureValues(data, lost_indices=are_indices)
    _refuse_large(data, encoding)
    mask = class_numbers(data, encoding.masks)
    return PictureValues(data if mask.plain else mask.numbers, mask.scale)


def _refuse_large(data: bytes | Array, encoding: Encoding) -> None:
    """Raises DecodeError if a file tells of more pixels than may be decoded."""
    if not isinstance(data, bytes):
        return
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
    except Exception:  # no image of Pillow's, of which the reader of masks says why
        return
    refuse_size(width, height, encoding)
