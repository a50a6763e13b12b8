"""All kinds of fields. To add a kind, add a file for it and an entry here."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from PIL import Image

from gpuload.errors import FormatError
from gpuload.fields.arrays import ArrayKind
from gpuload.fields.boxes import BoxesKind
from gpuload.fields.captions import CaptionKind, JsonKind
from gpuload.fields.class_numbers import ClassKind, LabelsKind
from gpuload.fields.field import Field
from gpuload.fields.images import ImageKind, RawKind
from gpuload.fields.keypoints import KeypointsKind
from gpuload.fields.kind import FieldSpec, Kind
from gpuload.fields.masks import MaskKind
from gpuload.fields.targets import TargetKind
from gpuload.machine.installed import upgrade_command

# In the order in which a table's fields are stored, and in which they are asked whether they claim a value
# (`Kind.claims`): JSON, which takes any value, is last.
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        ImageKind(),
        RawKind(),
        ClassKind(),
        TargetKind(),
        LabelsKind(),
        CaptionKind(),
        BoxesKind(),
        KeypointsKind(),
        MaskKind(),
        ArrayKind(),
        JsonKind(),
    )
}

SPECS: tuple[type[FieldSpec], ...] = tuple(spec for kind in KINDS.values() for spec in kind.specs)


def kind_of(field: Field) -> Kind:
    """The kind of a field.

    Raises:
        FormatError: the kind is unknown to this version of gpuload.
    """
    if field.kind not in KINDS:
        raise FormatError(
            f"field {field.name!r} has kind {field.kind!r}; this gpuload knows {', '.join(KINDS)}. "
            f"Was the set packed by a newer gpuload? Upgrade with `{upgrade_command()}`"
        )
    return KINDS[field.kind]


def draw_fields(
    picture: Image.Image, fields: Iterable[Field], look: Callable[[Field], Mapping[str, Any]]
) -> Image.Image:
    """A picture with these fields drawn on it. look: gives what `Kind.draw` takes."""
    for field in sorted(fields, key=lambda field: not kind_of(field).lies_beneath):
        picture = kind_of(field).draw(field, picture, look(field))
    return picture


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
        columns += [pa.field(name, type_) for name, type_ in kind_of(field).columns(field).items()]
    return pa.schema(columns)
