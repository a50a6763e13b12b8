"""The fields of a sample: one object for each kind of field, from the source to the batch.

A kind (`gpuload.fields.kind`) defines how a value is read from a source, stored in a shard, moved with its image,
verified and requested. A spec such as `Boxes("boxes", format="xywh")` is checked when it is bound to data sets; the
bound field turns the rows of a batch into arrays. Everything is NumPy code that works on a whole batch at once.
"""

from gpuload.fields.arrays import PaddedTokens, Tokens
from gpuload.fields.bind import COMPUTED, bind_field
from gpuload.fields.boxes import Boxes, PaddedBoxes
from gpuload.fields.class_numbers import OneHot
from gpuload.fields.field import Field
from gpuload.fields.keypoints import Keypoints, PaddedKeypoints
from gpuload.fields.kind import FieldSpec, Kind
from gpuload.fields.labels import MultiHot
from gpuload.fields.masks import Mask
from gpuload.fields.registry import KINDS, index_schema, kind_of
from gpuload.fields.rows import BoundField, PixelField, Rows, Value, View
from gpuload.fields.targets import Target

__all__ = [
    "COMPUTED",
    "KINDS",
    "BoundField",
    "Boxes",
    "Field",
    "FieldSpec",
    "Keypoints",
    "Kind",
    "Mask",
    "MultiHot",
    "OneHot",
    "PaddedBoxes",
    "PaddedKeypoints",
    "PaddedTokens",
    "PixelField",
    "Rows",
    "Target",
    "Tokens",
    "Value",
    "View",
    "bind_field",
    "index_schema",
    "kind_of",
]
