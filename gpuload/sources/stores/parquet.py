"""Parquet, as Hugging Face writes data sets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.sources.columns import Table
from gpuload.sources.files import Findings, Folder
from gpuload.sources.stores.store import StoreSource

_BATCH_ROWS = 64
_BATCH_BYTES = 128 << 20
# Encodings that store a value once for many rows.
_REPEATING = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}


class ParquetSource(StoreSource):
    """One file, or all `*.parquet` of a folder in sorted order: those in it, or else in its folder `data`, in folders
    that are called as splits are (see `splits`), or in such folders of `data`.

    The image is a struct of `bytes` and `path`, or bytes, or the path of a file in the Parquet file's folder. Class
    names come from the schema's metadata. Other columns are fields by their type. columns: as in a table, where names
    are not the usual.
    """

    form = "Parquet"
    suffixes = (".parquet",)
    # Arrow's errors, and those of texts that are not UTF-8 and times that Python does not have.
    faults = (Exception,)

    def table(self, path: Path, findings: Findings) -> Table:
        from pyarrow import parquet

        folder = Folder(path.parent)
        file = parquet.ParquetFile(path)

        def find(name: str) -> bytes:
            try:
                return folder.content(name)
            except (OSError, ValueError):
                fault = f"a row holds no image but the path {name!r}, and its folder no such file"
                advice = f"Put the images beside it, or give their folder as SOURCE, and --labels {path.name}"
                raise SourceError(f"{path}: {fault}. {advice}") from None

        rows = (row for batch in _batches(file) for row in batch.to_pylist())
        return Table.of_arrow(file.schema_arrow, rows, find)


def _batches(file: Any) -> Iterator[pa.RecordBatch]:
    """Batches of rows that take `_BATCH_BYTES` at most, or are a single row."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        row_bytes = 0.0
        for column in map(group.column, range(group.num_columns)):
            repeats = bool(_REPEATING & set(column.encodings))
            row_bytes += column.total_uncompressed_size / (
                1 if repeats else max(1, group.num_rows)
            )
        yield from file.iter_batches(
            max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(1, row_bytes)))), [number]
        )
