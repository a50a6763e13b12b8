"""The fields of a sample: one object for each kind of field, from the source to the batch.

A kind (`gpuload.fields.kind`) defines how a value is read from a source, stored in a shard, moved with its image,
verified and requested; each kind is a file here and an entry in the registry. A spec such as `Boxes("boxes",
format="xywh")` is checked when it is bound to data sets; the bound field turns the rows of a batch into arrays.
Everything is NumPy code that works on a whole batch at once.
"""

from gpuload.fields.bind import COMPUTED, bind_field
from gpuload.fields.field import Field
from gpuload.fields.kind import FieldSpec, Kind
from gpuload.fields.registry import KINDS, index_schema, kind_of
from gpuload.fields.rows import BoundField, PixelField, Rows, Value, View

__all__ = [
    "COMPUTED",
    "KINDS",
    "BoundField",
    "Field",
    "FieldSpec",
    "Kind",
    "PixelField",
    "Rows",
    "Value",
    "View",
    "bind_field",
    "index_schema",
    "kind_of",
]
