"""What a sample consists of, and how each kind of field lies on the disk: see "On disk" in DESIGN.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from gpuload.errors import FormatError

Kind = Literal["image", "raw", "class", "caption", "json", "target", "labels", "boxes", "mask", "array"]

_BOX = pa.list_(pa.float32(), 4)


@dataclass(frozen=True)
class Field:
    """One field of every sample of a data set.

    kind: "image" (encoded bytes), "raw" (an image as uint8 pixels), "class" (class number), "caption" (text), "json"
        (text of a JSON document), "target" (one float, or `size` of them), "labels" (any number of class numbers),
        "boxes" (any number, each with a class number), "mask" (class number of each pixel, a gray PNG) or "array".
    member: extension of the tar member that holds it; alternatives are joined by ";" as in "jpg;jpeg;png".
    classes: names for the class numbers of "labels" and "boxes"; those of a "class" are the manifest's.
    size: numbers in a "target"; 0 is a single number without a dimension.
    dtype: of an "array", as NumPy writes it, such as "<i8".
    """

    name: str
    kind: Kind
    member: str
    classes: tuple[str, ...] | None = None
    size: int = 0
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise FormatError(
                f"field {self.name!r} is of kind {self.kind!r}; this gpuload knows {', '.join(get_args(Kind))}. "
                "Was the set packed by a newer gpuload? Upgrade with `pip install -U gpuload`"
            )

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Field":
        """What `dataclasses.asdict` gave, after a way through JSON."""
        classes = entry.get("classes")
        return cls(**{**entry, "classes": None if classes is None else tuple(classes)})

    @property
    def offset_column(self) -> str:
        """Index column: byte offset of the member's data in its shard; of "raw" and "array", of the first element."""
        return f"{self.name}_offset"

    @property
    def bytes_column(self) -> str:
        """Index column: size of the member's data in bytes; of "raw" and "array", of the elements alone."""
        return f"{self.name}_bytes"

    @property
    def class_column(self) -> str:
        """Index column: class number of each box."""
        return f"{self.name}_class"

    @property
    def shape_column(self) -> str:
        """Index column: shape of an array."""
        return f"{self.name}_shape"

    @property
    def stays_in_shard(self) -> bool:
        """Whether it is too large for the index, which then says only where it lies."""
        return self.kind in ("image", "raw", "mask", "array")

    @property
    def value_columns(self) -> dict[str, pa.DataType]:
        """Index columns that hold the value itself, and their types."""
        types: dict[str, dict[str, pa.DataType]] = {
            "class": {self.name: pa.int64()},
            "caption": {self.name: pa.large_string()},
            "json": {self.name: pa.large_string()},
            "target": {self.name: pa.list_(pa.float32(), self.size) if self.size else pa.float32()},
            "labels": {self.name: pa.list_(pa.int64())},
            "boxes": {self.name: pa.list_(_BOX), self.class_column: pa.list_(pa.int64())},
            "array": {self.shape_column: pa.list_(pa.int32())},
        }
        return types.get(self.kind, {})


IMAGE = Field("image", "image", "jpg")
LABEL = Field("label", "class", "cls")


def index_schema(fields: tuple[Field, ...]) -> pa.Schema:
    """The columns of `index.arrow` for these fields: key, source, width, height, then those of each field."""
    columns = [
        pa.field("key", pa.large_string()),
        pa.field("source", pa.large_string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
    ]
    for field in fields:
        columns += [pa.field(field.offset_column, pa.int64()), pa.field(field.bytes_column, pa.int64())]
        columns += [pa.field(name, kind) for name, kind in field.value_columns.items()]
    return pa.schema(columns)
