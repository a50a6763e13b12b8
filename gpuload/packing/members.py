"""A field of a sample as a tar member and as columns of the index."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuload.errors import DecodeError
from gpuload.fields.field import Field
from gpuload.packing.image.masks import store_mask
from gpuload.packing.image.pixels import npy_header
from gpuload.packing.image.placement import Placement


def store_field(field: Field, value: Any, placement: Placement) -> tuple[bytes, int, dict[str, Any]]:
    """The content of the member, the bytes in it before the first element of an array, and values for the index.

    value: for a mask or an array its bytes or array, else its index columns. Boxes and masks follow the image.

    Raises:
        DecodeError: a mask or an array cannot be stored; the message is why.
    """
    if field.kind == "mask":
        return store_mask(value, placement), 0, {}
    if field.kind == "array":
        array = np.ascontiguousarray(value)
        if array.dtype.str != field.dtype:
            raise DecodeError(f"{field.name!r} is an array of {array.dtype.str}, those before are of {field.dtype}")
        header = npy_header(array)
        return header + array.tobytes(), len(header), {field.shape_column: list(array.shape)}
    if field.kind == "boxes":
        moved, kept = placement.move_boxes(np.array(value[field.name], np.float32).reshape(-1, 4))
        boxes = [_numbers(box) for box in moved]
        classes = [value[field.class_column][number] for number in kept.tolist()]
        content = json.dumps({"boxes": boxes, "classes": classes})
        return content.encode(), 0, {field.name: boxes, field.class_column: classes}
    content = value[field.name]
    if field.kind == "target":
        text = json.dumps(_numbers(np.array(content, np.float32).reshape(-1)) if field.size else _number(content))
    elif field.kind == "labels":
        text = json.dumps(content)
    else:
        text = str(content)
    return text.encode(), 0, value


def _numbers(values: npt.NDArray[np.float32]) -> list[float]:
    return [_number(value) for value in values]


def _number(value: float) -> float:
    """A float32 as the shortest decimal that is read back as it."""
    return float(str(np.float32(value)))
