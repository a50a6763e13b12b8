"""Parquet files that hold the images themselves, as Hugging Face writes data sets, and what its save_to_disk writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.counted import counted
from gpuload.errors import GpuloadError, SourceError, some_of
from gpuload.sources.at_path import LocalSource
from gpuload.sources.columns import Features, Table
from gpuload.sources.files import Files, Findings
from gpuload.sources.listing import SPLIT, split_called
from gpuload.sources.local_folder import Folder
from gpuload.sources.rows import Row

_BATCH_ROWS = 64
_BATCH_BYTES = 128 << 20
# Encodings that store a value once for many rows.
_REPEATING = {"PLAIN_DICTIONARY", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY"}
_SAVED = ("dataset_dict.json", "state.json")  # beside what save_to_disk writes
_SUFFIXES = (".parquet", ".arrow")


class ParquetSource(LocalSource):
    """One file, or all `*.parquet` of a folder in sorted order: those in it, or else in its folder `data`, in folders
    that are called as splits are (see `splits`), or in such folders of `data`. Likewise the `*.arrow` of a folder that
    Hugging Face's save_to_disk wrote.

    Files of several splits, by their names or those of their folders, are the splits of the set, and so is a column of
    these. The image is a struct of `bytes` and `path`, or bytes, or the path of a file in the Parquet file's folder.
    Class names come from the schema's metadata. Other columns are fields by their type. columns: as in a table, where
    names are not the usual.
    """

    suffixes = (".parquet",)
    spools = True
    takes_columns = True
    needs_process = True

    @classmethod
    def fits(cls, files: Files) -> bool:
        return super().fits(files) or (isinstance(files, Folder) and _is_saved(files.path))

    def rows(self, findings: Findings) -> Iterator[Row]:
        paths = self._paths(findings)
        splits = self.splits_of(paths, findings)
        for number, path in enumerate(paths):
            try:
                for sample in _table(path).samples(self.title, self.columns, findings):
                    yield {**sample, SPLIT: splits[number]} if splits else sample
            except GpuloadError:
                raise
            except Exception as error:  # Arrow's, and of texts that are not UTF-8 and times that Python does not have
                kind, reason = path.suffix[1:].capitalize(), " ".join(str(error).splitlines()[:1])
                raise SourceError(
                    f"{path}: cannot be read as {kind} ({type(error).__name__}: {reason}). Copy or write it again"
                ) from None

    def _paths(self, findings: Findings) -> list[Path]:
        """The files, in sorted order.

        Raises:
            SourceError: there is none.
        """
        suffix = _SUFFIXES[self._local.is_dir() and _is_saved(self._local)]
        others = some_of(_others(self._local, suffix))
        try:
            paths = self.files_here(suffix)
        except SourceError as error:
            what = f", but in {others}, which are called as no splits are" if others else ""
            raise SourceError(str(error).replace(f"no {suffix}", f"no {suffix}{what}")) from None
        places = sorted({self.name_of(path).rpartition("/")[0] or "." for path in paths})
        findings.notes += [f"packed: {counted(len(paths), 'file')} in {some_of(places)}"] if places != ["."] else []
        findings.notes += [f"passed over {others}: not called as splits are"] if others else []
        return paths


def _table(path: Path) -> Table:
    schema, folder = _schema(path), Folder(path.parent)

    def find(name: str) -> bytes:
        try:
            return folder.read(folder.find(name).address)
        except (OSError, ValueError):
            raise SourceError(
                f"{path}: a row holds no image but the path {name!r}, and its folder no such file. Put the images "
                f"beside it; or give their folder as SOURCE, and --labels {path.name}; or load it with Hugging Face's "
                "datasets where the images are, and hand that to gpuload.pack()"
            ) from None

    rows: Iterator[Any] = (row for batch in _batches(path) for row in batch.to_pylist())
    return Table(schema.names, rows, Features.of_metadata(schema.metadata), find)


def _is_saved(folder: Path) -> bool:
    """Whether save_to_disk wrote this folder."""
    return any((folder / name).is_file() for name in _SAVED) and bool(
        [path for place in ("*.arrow", "*/*.arrow") for path in folder.glob(place)]
    )


def _others(folder: Path, suffix: str) -> list[str]:
    """Folders of such files that are not called as splits are."""
    if any(folder.glob(f"*{suffix}")):
        return []
    names = sorted({path.parent.name for path in folder.glob(f"*/*{suffix}")})
    return [name for name in names if not split_called(name) and name != "data"]


def _schema(path: Path) -> pa.Schema:
    from pyarrow import parquet

    if path.suffix != ".arrow":
        return parquet.read_schema(path)
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        return stream.schema


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Batches of rows that take `_BATCH_BYTES` at most, or are a single row."""
    from pyarrow import parquet

    if path.suffix == ".arrow":
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                step = (
                    1
                    if "dictionary<" in str(batch.schema)
                    else max(1, min(_BATCH_ROWS, _BATCH_BYTES * len(batch) // max(1, batch.nbytes)))
                )
                yield from (batch.slice(start, step) for start in range(0, len(batch), step))
        return
    with parquet.ParquetFile(path) as file:
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            row_bytes = 1
            for column in map(group.column, range(group.num_columns)):
                repeats = bool(_REPEATING & set(column.encodings))
                row_bytes += column.total_uncompressed_size // (1 if repeats else max(1, group.num_rows))
            yield from file.iter_batches(max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes)), [number])
