"""Columns that were added to a packed set by key: files beside the index, which the manifest names.

A file has one record batch for each shard, as the index has, and only the columns of its fields' values. It never
changes: another join writes another file, whose name begins its SHA-256. So the manifest alone, which is replaced in
one step, says which columns a set has.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from gpuload.disk.index import Index
from gpuload.disk.manifest import Manifest
from gpuload.errors import FormatError
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.store.url import URL


def joined_schema(fields: Iterable[Field]) -> pa.Schema:
    """The columns of a file with the values of these fields."""
    columns = [
        column for field in fields for column in kind_of(field).columns(field).items()
    ]
    return pa.schema(columns)


def open_joined(
    manifest: Manifest, folder: Path, url: URL | None = None
) -> list[Index]:
    """The files of joined columns of a set, opened.

    Args:
        manifest: Of the set.
        folder: Where they lie, or are downloaded to.
        url: Where they are downloaded from, as a whole.

    Raises:
        FormatError: one is missing or damaged. RemoteError: it cannot be downloaded.
    """
    if url is not None and manifest.joined:
        from gpuload.disk.fetch import fetch_joined  # asyncio and obstore

        fetch_joined(url, folder, manifest)
    return [
        Index(
            folder / file.name,
            (),
            file.spans,
            len(manifest.shards),
            required=joined_schema(file.fields),
        )
        for file in manifest.joined
    ]


def merged_schema(index: Index, joined: Sequence[Index]) -> pa.Schema:
    """The columns of the index and of joined files, which take the place of those with their names."""
    schema = index.schema
    for file in joined:
        for column in file.schema:
            number = schema.get_field_index(column.name)
            schema = schema.append(column) if number < 0 else schema.set(number, column)
    return schema


def merged_rows(
    rows: pa.RecordBatch, joined: Sequence[Index], shard: int
) -> pa.RecordBatch:
    """The rows of a shard with their joined columns.

    Args:
        rows: Of the index.
        joined: Files of joined columns.
        shard: Its number.

    Raises:
        FormatError: a file has another number of rows, or is damaged. RemoteError: it cannot be read.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    for file in joined:
        more = file.shard(shard)
        if len(more) != len(rows):
            raise FormatError(
                f"{file.path}: has {len(more):,} rows for shard {shard}, the index has {len(rows):,}. Join it again"
            )
        columns |= zip(more.schema.names, more.columns, strict=True)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
