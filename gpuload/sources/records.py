"""Files of samples that hold their images: Parquet, as Hugging Face writes data sets, and LMDB (extra `sources`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.sources.columns import Features, Table
from gpuload.sources.files import Files, Findings, Folder, readable
from gpuload.sources.listing import SPLIT
from gpuload.sources.source import (
    CERTAIN,
    ColumnOptions,
    Row,
    Sight,
    Source,
)

_BATCH_ROWS = 64
_BATCH_BYTES = 128 << 20
# Encodings that store a value once for many rows.
_REPEATING = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}
_PICKLE = b"\x80"  # and a protocol number: the first byte of every binary pickle
_IMAGES = (
    b"\xff",
    b"\x89",
    b"R",
    b"G",
    b"B",
    b"I",
)  # JPEG, PNG, WebP, GIF, BMP, TIFF; no map begins so


class ParquetSource(Source):
    """One file, or all `*.parquet` of a folder in sorted order: those in it, or else in its folder `data`, in folders
    that are called as splits are (see `splits`), or in such folders of `data`.

    Files of several splits, by their names or those of their folders, are the splits of the set, and so is a column of
    these. The image is a struct of `bytes` and `path`, or bytes, or the path of a file in the Parquet file's folder.
    Class names come from the schema's metadata. Other columns are fields by their type. columns: as in a table, where
    names are not the usual.
    """

    Options = ColumnOptions
    options: ColumnOptions
    suffixes = (".parquet",)
    needs_process = True

    def rows(self, findings: Findings) -> Iterator[Row]:
        paths = self.files_here(".parquet")
        splits = self.splits_of(paths, findings)
        for number, path in enumerate(paths):
            # Arrow's errors, and those of texts that are not UTF-8 and times that Python does not have.
            with readable(path, "Parquet", Exception):
                for sample in _table(path).samples(
                    self.title, self.options.columns, findings
                ):
                    yield {**sample, SPLIT: splits[number]} if splits else sample


def _table(path: Path) -> Table:
    from pyarrow import parquet

    folder, file = Folder(path.parent), parquet.ParquetFile(path)

    def find(name: str) -> bytes:
        try:
            return folder.read(folder.find(name).address)
        except (OSError, ValueError):
            what = f"a row holds no image but the path {name!r}, and its folder no such file"
            advice = f"Put the images beside it, or give their folder as SOURCE, and --labels {path.name}"
            raise SourceError(f"{path}: {what}. {advice}") from None

    rows: Iterator[Any] = (row for batch in _batches(file) for row in batch.to_pylist())
    return Table(
        file.schema_arrow.names,
        rows,
        Features.of_metadata(file.schema_arrow.metadata),
        find,
    )


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


class LmdbSource(Source):
    """A folder with `data.mdb`, in the order of its keys.

    A value is a MessagePack map of what belongs to the sample, such as {"image": bytes, "label": 3}, or an encoded
    image alone, and the key its name; never a pickle. columns: the names in the map by what they hold, where they are
    not the usual.
    """

    Options = ColumnOptions
    options: ColumnOptions
    needs = ("lmdb", "msgpack")
    needs_process = True

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        if files.suffix in (".mdb", ".lmdb"):
            return Sight(CERTAIN, f"its name ends in {files.suffix}")
        if isinstance(files, Folder) and (files.path / "data.mdb").exists():
            return Sight(CERTAIN, "holds 'data.mdb'")
        return None

    def rows(self, findings: Findings) -> Iterator[Row]:
        import lmdb
        import msgpack

        with readable(
            self._local, "LMDB, a folder with data.mdb or that file", lmdb.Error
        ):
            store = lmdb.open(
                str(self._local), readonly=True, lock=False, subdir=self._local.is_dir()
            )
            with store, store.begin() as transaction:
                for key, value in transaction.cursor():
                    yield self._sample(msgpack, bytes(key), bytes(value), findings)

    def _sample(
        self, msgpack: Any, key: bytes, value: bytes, findings: Findings
    ) -> Row:
        name = key.decode("utf-8", "replace")
        title = f"{self._local}: key {name!r}"
        if value[:1] in _IMAGES:
            return {"image": value, "name": f"{name}."}
        errors = (
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
            msgpack.UnpackException,
        )
        with readable(
            title,
            "an image or a MessagePack map; gpuload.pack() takes such samples as dicts",
            *errors,
        ):
            if value[:1] == _PICKLE and len(value) > 1 and value[1] in range(2, 6):
                raise ValueError(
                    "a pickle, which could run anything and is never opened"
                )
            row = {
                str(column): entry
                for column, entry in msgpack.unpackb(value, raw=False).items()
            }
        (sample,) = Table(list(row), [row]).samples(
            title, self.options.columns, findings
        )
        return {**sample, "name": f"{name}."}
