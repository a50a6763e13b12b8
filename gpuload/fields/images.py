"""The image of a sample, encoded or as raw pixels, and the pixels of a set: how many channels of which type."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import Rule, as_text
from gpuload.fields.arrays import array_fault
from gpuload.fields.field import Field
from gpuload.fields.kind import BadRows, FieldSpec, Kind
from gpuload.fields.rows import DatasetView, PixelField
from gpuload.pictures import as_rgb, decode_image
from gpuload.types import ClassNames

# 16 bits and floats with several channels have no mode in Pillow.
_MODES = {"L": (1, "uint8"), "RGB": (3, "uint8"), "RGBA": (4, "uint8"), "I;16": (1, "uint16"), "F": (1, "float32")}
_PEAKS = {"uint8": 255, "uint16": 65_535, "float32": 1}
DTYPES = tuple(_PEAKS)
_STORED = {"uint8": "|u1", "uint16": "<u2", "float32": "<f4"}  # as NumPy writes them, little-endian
MOST_CHANNELS = 256
EXPECTED = "one of L, RGB, RGBA, I;16, F, or for arrays type and channels, such as uint16x4 or float32x7"

# Index column of a set that has it, large_binary: where the image may be decoded from, see packing/image/jpegs.py.
POINTS = "image_points"


class Pixels(NamedTuple):
    """Pixels of `channels` values each, of dtype "uint8", "uint16" or "float32"."""

    channels: int = 3
    dtype: str = "uint8"

    @property
    def is_rgb(self) -> bool:
        return self == RGB

    @property
    def mode(self) -> str:
        """Pillow's mode, or such as "float32x7"."""
        return next((name for name, one in _MODES.items() if one == self), f"{self.dtype}x{self.channels}")

    @property
    def peak(self) -> int:
        """The value that `Augment` takes for 1: the largest whole number; floats are taken as they are."""
        return _PEAKS[self.dtype]

    @property
    def stored(self) -> str:
        """The dtype of raw pixels in a shard, in NumPy's notation."""
        return _STORED[self.dtype]

    @property
    def bytes(self) -> int:
        """Of one pixel."""
        return self.channels * np.dtype(self.dtype).itemsize

    @property
    def in_words(self) -> str:
        return f"{self.channels} {'channel' if self.channels == 1 else 'channels'} of {self.dtype}"

    @classmethod
    def of_field(cls, field: Field) -> "Pixels":
        """Those of an image field; a field that says nothing of them holds RGB, as all did before 2026-11-22.

        Raises:
            ValueError: it says what cannot be; the message is the reason.
        """
        if field.dtype is None and not field.size:
            return RGB
        dtype = next((name for name, stored in _STORED.items() if stored == field.dtype), None)
        if dtype is None or not 1 <= field.size <= MOST_CHANNELS:
            raise ValueError(f"its pixels cannot be {field.size} × {field.dtype!r}")
        return cls(field.size, dtype)

    @classmethod
    def of_mode(cls, mode: str) -> "Pixels":
        """The inverse of `mode`.

        Raises:
            ValueError: there is no such mode.
        """
        if mode in _MODES:
            return cls(*_MODES[mode])
        found = re.fullmatch(r"(uint8|uint16|float32)x([1-9][0-9]{0,2})", mode)
        if found is None or int(found[2]) > MOST_CHANNELS:
            raise ValueError(f"there is no mode {mode!r}")
        return cls(int(found[2]), found[1])

    def in_field(self) -> dict[str, Any]:
        """The attributes of a `Field` that tell of them; RGB is told by none, as older versions wrote it."""
        return {} if self == RGB else {"size": self.channels, "dtype": self.stored}


RGB = Pixels()
GRAY = Pixels(1)
MODE = Rule(EXPECTED, lambda value: Pixels.of_mode(as_text(value)).mode)


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
