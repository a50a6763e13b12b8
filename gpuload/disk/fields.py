"""What a sample consists of."""

from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from gpuload.errors import FormatError

Kind = Literal["image", "class", "caption", "json"]

# The Arrow type in which a field's value lies in the index; an image has none, it stays in the shard.
COLUMN_TYPES: dict[str, pa.DataType] = {"class": pa.int64(), "caption": pa.large_string(), "json": pa.large_string()}


@dataclass(frozen=True)
class Field:
    """One field of every sample of a data set.

    kind: "image" (encoded bytes), "class" (class number), "caption" (text) or "json" (text of a JSON document).
    member: extension of the tar member that holds it; alternatives are joined by ";" as in "jpg;jpeg;png".
    """

    name: str
    kind: Kind
    member: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise FormatError(
                f"field {self.name!r} is of kind {self.kind!r}; this gpuload knows {', '.join(get_args(Kind))}. "
                "Was the set packed by a newer gpuload? Upgrade with `pip install -U gpuload`"
            )

    @property
    def offset_column(self) -> str:
        """Index column: byte offset of the member's data in its shard."""
        return f"{self.name}_offset"

    @property
    def bytes_column(self) -> str:
        """Index column: size of the member's data in bytes."""
        return f"{self.name}_bytes"


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
        if field.kind in COLUMN_TYPES:
            columns.append(pa.field(field.name, COLUMN_TYPES[field.kind]))
    return pa.schema(columns)
