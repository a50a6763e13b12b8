"""The image of a sample: encoded, or as raw pixels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.fields.arrays import array_fault
from gpuload.fields.field import Field
from gpuload.fields.kind import BadRows, FieldSpec, Kind
from gpuload.fields.pixels import Pixels
from gpuload.fields.rows import DatasetView, PixelField
from gpuload.pictures.shown import as_rgb, decode_image
from gpuload.types import ClassNames

# Index column of a set that has it, large_binary: where the image may be decoded from, see packing/image/points.py.
POINTS = "image_points"


def has_points(schema: pa.Schema) -> bool:
    """Whether an index of this schema has seek points."""
    return POINTS in schema.names and pa.types.is_large_binary(schema.field(POINTS).type)


class ImageKind(Kind):
    """An encoded image. gpuload.packing.image stores it, and gpuload.decode decodes it."""

    name = "image"
    stays_in_shard = True
    usual_names = ("image", "images", "img", "imgs", "x", "input_image", "data", "pixels")

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {}

    def field_fault(self, field: Field) -> str:
        try:
            Pixels.of_field(field)
        except ValueError as error:
            return str(error)
        return ""

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return {}

    def find_fault(self, field: Field, row: Mapping[str, Any], content: bytes, header: int, image_size: Any) -> str:
        width, height = image_size(content)
        if (width, height) != (row["width"], row["height"]):
            return f"is {width} x {height}, the index says {row['width']} x {row['height']}"
        return ""

    def look(self, field: Field, row: Mapping[str, Any], read: Callable[[], bytes]) -> dict[str, Any]:
        return {field.name: decode_image(read())}

    def meaning(self, field: Field, set_classes: ClassNames) -> dict[str, object]:
        return {"mode": Pixels.of_field(field).mode}  # how the images are stored makes no difference to batches

    def bind(self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]) -> PixelField:
        return PixelField(field.name, "image")


class RawKind(ImageKind):
    """An image as pixels (height, width, channels) in a `.npy` member: uint8 RGB, or what the field says."""

    name = "raw"

    def look(self, field: Field, row: Mapping[str, Any], read: Callable[[], bytes]) -> dict[str, Any]:
        pixels = Pixels.of_field(field)
        levels = np.frombuffer(read(), pixels.stored).reshape(row["height"], row["width"], pixels.channels)
        return {field.name: Image.fromarray(as_rgb(levels))}

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        """Members that are not as large as their pixels, or do not begin where such values can."""
        pixels = Pixels.of_field(field)
        offset, size, height, width = (
            rows.column(name).to_numpy().astype(np.int64)
            for name in (field.offset_column, field.bytes_column, "height", "width")
        )
        needed = pixels.bytes * height * width
        yield BadRows(
            np.flatnonzero(size != needed),
            lambda row: f"its pixels as {size[row]:,} bytes, but height x width x {pixels.bytes} are {needed[row]:,}",
        )
        each = np.dtype(pixels.dtype).itemsize
        yield BadRows(
            np.flatnonzero(offset % each),
            lambda row: f"its pixels at byte {offset[row]:,}, which is no multiple of {each}",
        )

    def find_fault(self, field: Field, row: Mapping[str, Any], content: bytes, header: int, image_size: Any) -> str:
        pixels = Pixels.of_field(field)
        return array_fault(content, header, (row["height"], row["width"], pixels.channels), pixels.stored)
