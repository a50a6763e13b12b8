"""What a batch holds besides its images: how each field is asked for, and made out of index and shards.

A spec such as `Boxes("boxes", format="xywh")` is bound to data sets, which checks it; a bound field turns the rows of a
batch into arrays. All of it is NumPy, for a whole batch at once.
"""

from gpuload.fields.bind import COMPUTED, bind_field
from gpuload.fields.rows import BoundField, PaddedBoxes, PaddedTokens, PixelField, Rows, Value, View
from gpuload.fields.spec import Boxes, FieldSpec, Mask, MultiHot, OneHot, Target, Tokens

__all__ = [
    "COMPUTED",
    "BoundField",
    "Boxes",
    "FieldSpec",
    "Mask",
    "MultiHot",
    "OneHot",
    "PaddedBoxes",
    "PaddedTokens",
    "PixelField",
    "Rows",
    "Target",
    "Tokens",
    "Value",
    "View",
    "bind_field",
]
