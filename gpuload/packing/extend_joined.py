"""Joined columns of a set to which shards are appended: those of the new samples are what these give, or empty, as
`index --join --missing skip` makes them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.counted import counted
from gpuload.disk.index import Index
from gpuload.disk.joined import joined_schema, open_joined
from gpuload.disk.manifest import JoinedFile, Manifest
from gpuload.errors import SourceError, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.captions import JsonKind
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.packing.join import write_joined

_JSON_OF_NONE = "null"


def joined_fields(manifest: Manifest) -> dict[str, Field]:
    """The joined fields of a split by their names."""
    return {field.name: field for file in manifest.joined for field in file.fields}


def have_one_form(field: Field, other: Field) -> bool:
    """Whether the values of one field have the form of another's."""
    return (field.kind, field.size, field.dtype) == (
        other.kind,
        other.size,
        other.dtype,
    )


def check_extendable(split: str, manifest: Manifest, given: Iterable[Field]) -> None:
    """Raises SourceError if a joined field has no value that means none, and the new samples have no such field.

    Args:
        split: The name of the split.
        manifest: Of the split.
        given: The fields of the new samples.
    """
    for field in _left_empty(manifest, given):
        for kind in kind_of(field).columns(field).values():
            if _none_of(field, kind) is None:
                raise SourceError(
                    f"--append: {split} has the joined field {field.name!r} ({field.kind}), which has no value "
                    "that means none, and the new samples lack one. Give it to them, or pack them into a folder of "
                    "their own, join their fields, and mix the sets"
                )


def notes_on_empty(
    split: str, manifest: Manifest, given: Iterable[Field], samples: int
) -> list[str]:
    """A sentence for the user if new samples got empty values of joined fields.

    Args:
        split: The name of the split.
        manifest: Of the split before the new samples.
        given: The fields of the new samples.
        samples: The number of new samples.
    """
    names = [field.name for field in _left_empty(manifest, given)]
    if not names or not samples:
        return []
    return [
        f"{counted(samples, 'new sample')} of {split!r} got empty values of the joined {some_of(names)}. Join them "
        "with `python -m gpuload index --join TABLE --replace`"
    ]


def _given(manifest: Manifest, given: Iterable[Field]) -> dict[str, Field]:
    """The fields of new samples whose values those of joined fields are, by name."""
    joined = joined_fields(manifest)
    return {
        field.name: field
        for field in given
        if field.name in joined and have_one_form(field, joined[field.name])
    }


def _left_empty(manifest: Manifest, given: Iterable[Field]) -> list[Field]:
    """The joined fields that samples with these fields lack."""
    names = _given(manifest, given)
    return [
        field for field in joined_fields(manifest).values() if field.name not in names
    ]


def extend_joined(
    folder: Path,
    base_folder: Path,
    base: Manifest,
    new_shards: Sequence[pa.RecordBatch],
    given: Iterable[Field],
) -> tuple[JoinedFile, ...]:
    """Writes files with the joined columns of all shards, and describes them.

    Args:
        folder: Of the split.
        base_folder: Holds the joined files of the shards that were there before.
        base: The manifest of these.
        new_shards: The rows of the index of each new shard, with the columns of the fields that its samples have.
        given: The fields of the new samples, whose classes begin with those of the set.

    Raises:
        FormatError: a file is missing or damaged. OSError: one cannot be written.
    """
    own = _given(base, given)
    files = []
    for file, index in zip(base.joined, open_joined(base, base_folder), strict=True):
        fields = tuple(_with_classes(field, own) for field in file.fields)
        batches = _batches(fields, own, index, base, new_shards)
        files.append(write_joined(folder, fields, batches))
    return tuple(files)


def _with_classes(field: Field, own: Mapping[str, Field]) -> Field:
    """A joined field with the classes of the new samples, if they have such a field."""
    if field.name not in own:
        return field
    given = own[field.name]
    return replace(field, classes=given.classes, category_ids=given.category_ids)


def _batches(
    fields: Sequence[Field],
    own: Collection[str],
    before: Index,
    base: Manifest,
    new_shards: Sequence[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The joined columns of each shard.

    Args:
        fields: Of one joined file.
        own: The names of those that new samples give.
        before: The file.
        base: The manifest of the shards that were there before.
        new_shards: The rows of each new shard.
    """
    schema = joined_schema(fields)
    for number in range(len(base.shards)):
        yield before.shard(number).select(schema.names)
    for rows in new_shards:
        columns = list[pa.Array]()
        for field in fields:
            columns += _columns_of(field, rows, field.name in own)
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _columns_of(
    field: Field, rows: pa.RecordBatch, is_given: bool
) -> Iterator[pa.Array]:
    """The columns of a field for new samples: their own, or empty ones."""
    for name, kind in kind_of(field).columns(field).items():
        if is_given:
            yield rows.column(name).cast(kind)
        else:
            yield _repeated(_none_of(field, kind), kind, len(rows))


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """An array of one value."""
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        flat = _repeated(float("nan"), kind.value_type, size * count)
        return pa.FixedSizeListArray.from_arrays(flat, size)
    if pa.types.is_floating(kind):
        return array_of(np.full(count, value, kind.to_pandas_dtype()))
    return array_of([value] * count, kind)


def _none_of(field: Field, kind: pa.DataType) -> Any:
    """What a column of a field holds for a sample without a value; None if nothing means that."""
    if pa.types.is_large_string(kind):
        return _JSON_OF_NONE if field.kind == JsonKind.name else ""
    if pa.types.is_fixed_size_list(kind):
        return _none_of(field, kind.value_type)
    if pa.types.is_floating(kind):
        return float("nan")
    return [] if pa.types.is_list(kind) else None
