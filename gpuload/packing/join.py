"""Adds columns to a packed set by key, without touching its shards: `gpuload index --join table SET`.

Values are read from the table batch by batch and converted to the columns of their fields at once: numbers into a
temporary file, all else into Arrow's arrays. Then each shard's samples are looked up, and its rows go
into one file beside the index. The manifest, which names that file, is replaced last.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from gpuload.checks import check_option, choice
from gpuload.disk.commit import settle, sync
from gpuload.disk.dataset import Dataset
from gpuload.disk.index import index_digests
from gpuload.disk.joined import joined_schema
from gpuload.disk.manifest import FILE_NAME, JOINED_NAME, JoinedFile, Manifest
from gpuload.disk.places import packed_folder
from gpuload.errors import ArgumentError, SourceError, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import LABEL, Field
from gpuload.fields.images import POINTS
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import numbers_of
from gpuload.packing.joined_columns import CLASSES_OF, JoinedColumn, joined_column
from gpuload.packing.options import Missing
from gpuload.packing.output import cannot_write
from gpuload.sources.columns import Features, open_batches
from gpuload.sources.files import readable
from gpuload.store.files import temporaries
from gpuload.store.url import refuse_urls
from gpuload.types import I64

Duplicates = Literal["fail", "first"]

_BATCH_ROWS = 8_192
_BUFFER_BYTES = 1 << 20  # of each column that is read
_KEYS = (
    "key",
    "source",
    "path",
    "file_name",
    "filename",
    "file",
    "image",
    "name",
    "id",
)
_KEY_ROLE = "key"
# Columns that every index or batch has, and no field.
_RESERVED = ("key", "source", "width", "height", "index", "dataset", POINTS)
_CSV = (".csv", ".tsv", ".txt")
_JSON_LINES = (".jsonl", ".ndjson")


class JoinReport(NamedTuple):
    """What a join has done.

    Args:
        manifest: Of the set, as it is now.
        fields: That were added or replaced.
        missing: The number of samples without a row in the table, which got empty values.
        unused: The number of rows of the table that no sample has.
        duplicates: The number of rows whose key another one before had.
    """

    manifest: Manifest
    fields: tuple[Field, ...]
    missing: int
    unused: int
    duplicates: int


def join(
    folder: str | Path,
    table: str | Path,
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    replace_fields: bool = False,
    missing: Missing = "fail",
    duplicates: Duplicates = "fail",
) -> JoinReport:
    """Adds the columns of a table to a packed set, each row to the sample with its key.

    Numbers become a target, whole ones integers, lists of floats a target, texts captions; a column named label is the
    class, labels a list of these, and lists of four numbers are boxes, with the column NAME_class for their classes.
    Any other value is JSON.

    Args:
        folder: A packed folder, such as shards/train, or the one above it, if that has no other split.
        table: Parquet, Arrow, Feather, CSV, TSV or JSONL, by its name.
        columns: Names of columns by what they hold: "key", and "label" for the class. The key is that of the samples,
            or their source, the name of the file that was packed.
        replace_fields: Whether fields of the set with the names of columns are replaced; else that is an error.
        missing: What becomes of a sample without a row: "fail", or "skip", by which it gets an empty text or list, or
            NaN.
        duplicates: What becomes of several rows with one key: "fail", or "first", by which the first one counts.

    A run that is interrupted leaves the set as it was.

    Raises:
        ArgumentError: an argument is wrong. SourceError: the table cannot be read, or does not fit the set.
        FormatError: `folder` is no packed set, or damaged. OutputError: it cannot be written.
    """
    check_option("--missing", missing, choice(*get_args(Missing)))
    check_option("--duplicates", duplicates, choice(*get_args(Duplicates)))
    refuse_urls("--join", folder, "Join the local folder, and upload it")
    refuse_urls("--join", table, "Download it")
    roles = _roles_of(columns or {})
    folder = packed_folder(Path(folder))
    path = Path(table)
    with ExitStack() as stack:
        stack.enter_context(cannot_write("Free some space", folder))
        scratch = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="gpuload-join-")
        )
        settle(folder)
        dataset = Dataset(folder)
        with readable(path, "a table", pa.ArrowException, ValueError):
            reader = _JoinedTable(path, roles)
            _refuse_packed(dataset, reader, replace_fields)
            values = reader.read(Path(scratch))
        fields = tuple(column.field(dataset) for column in values)
        _refuse_taken(dataset.manifest, path, fields)
        places = _RowsOfSamples.find(dataset, reader, missing, duplicates)
        reader.keys = None  # they are not needed any more
        pa.default_memory_pool().release_unused()
        _clear(folder, dataset.manifest)
        batches = _batches(dataset, values, fields, places.rows)
        file = write_joined(folder, fields, batches)
        manifest = _with(dataset.manifest, file, values)
        manifest.check()
        manifest.write(folder)
        sync(folder)
    return JoinReport(
        manifest, fields, places.missing, places.unused, places.duplicates
    )


def _roles_of(columns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The names of columns by what they hold.

    Raises:
        ArgumentError: they hold something else than keys and classes.
    """
    roles = {role: names[0] for role, names in columns.items()}
    unknown = sorted(set(roles) - {_KEY_ROLE, LABEL.name})
    if unknown:
        raise ArgumentError(
            f"--column {unknown[0]}=: of a joined table only key= and label= are named. Leave it out"
        )
    return roles


def _refuse_packed(dataset: Dataset, table: "_JoinedTable", is_replacing: bool) -> None:
    """Raises SourceError if the set has a field with the name of a column, or that of the image."""
    there = [name for name in table.names if name in dataset.fields]
    if dataset.manifest.image.name in there:
        raise SourceError(f"{table.path}: images are not joined. Leave the column out")
    if there and not is_replacing:
        raise SourceError(
            f"{table.path}: the set has the fields {some_of(there)}. Give --replace to replace them, or rename the "
            "columns"
        )


def _refuse_taken(manifest: Manifest, path: Path, fields: Iterable[Field]) -> None:
    """Raises SourceError if a joined field would take the place of a column that is not of the field it replaces, such
    as the widths of the stored images.

    Args:
        manifest: Of the set.
        path: Of the table.
        fields: That are joined.
    """
    joined = [field for file in manifest.joined for field in file.fields]
    for field in fields:
        owners = dict.fromkeys(_RESERVED, "gpuload reserves for every set")
        for other in (*manifest.fields, *joined):
            if other.name != field.name:
                columns = (
                    other.offset_column,
                    other.bytes_column,
                    *kind_of(other).columns(other),
                )
                owners |= dict.fromkeys(columns, f"field {other.name!r} uses already")
        for name in kind_of(field).columns(field):
            if name in owners:
                raise SourceError(
                    f"{path}: field {field.name!r} needs a column {name!r}, a name that {owners[name]}. Rename the "
                    "table's column, or leave it out"
                )


class _JoinedTable:
    """A table, whose rows are read once.

    Args:
        path: Of the file.
        roles: Names of columns by what they hold.
    """

    def __init__(self, path: Path, roles: Mapping[str, str]) -> None:
        self.path = path
        self._schema, self._batches = _opened(path, roles)
        columns = self._schema.names
        if absent := [name for name in roles.values() if name not in columns]:
            raise SourceError(
                f"{path}: has no column {absent[0]!r}; its columns are {some_of(columns, 8)}. Correct --column"
            )
        key = _key_among(columns, roles)
        if key is None:
            raise SourceError(
                f"{path}: its columns are {some_of(columns, 8)}; which one holds the keys? Give --column key=NAME"
            )
        self._key = key
        self.keys: pa.Array = array_of([], pa.large_string())
        label = roles.get(LABEL.name)
        companions = {f"{name}{CLASSES_OF}" for name in columns}
        self._columns = {
            LABEL.name if name == label else name: name
            for name in columns
            if name != self._key and name not in companions
        }
        if not self._columns:
            raise SourceError(f"{path}: has no column but its key. Give it some")

    @property
    def names(self) -> list[str]:
        """Of the fields."""
        return list(self._columns)

    def read(self, scratch: Path) -> list[JoinedColumn]:
        """The values of all rows.

        Raises:
            SourceError: a value is missing, or is not as those of its column.
        """
        import pyarrow.compute as pc

        features = Features.of_metadata(self._schema.metadata)
        keys = []
        try:
            columns = [
                joined_column(
                    name,
                    self._schema,
                    column_name,
                    features.all.get(column_name),
                    scratch,
                )
                for name, column_name in self._columns.items()
            ]
            for batch in self._batches:
                keys.append(pc.cast(batch.column(self._key), pa.large_string()))
                for column in columns:
                    column.add(batch)
        except SourceError as error:
            raise SourceError(f"{self.path}: {error}") from None
        self.keys = pa.concat_arrays([*keys, array_of([], pa.large_string())])
        keys.clear()
        pa.default_memory_pool().release_unused()
        if self.keys.null_count:
            raise SourceError(f"{self.path}: a row has no key. Correct it")
        return columns


def _key_among(columns: Sequence[str], roles: Mapping[str, str]) -> str | None:
    """The name of the column of keys; None where none is called so."""
    usual = (name for name in _KEYS if name in columns)
    return roles.get(_KEY_ROLE) or next(usual, None)


def _opened(
    path: Path, roles: Mapping[str, str]
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """The schema and the batches of a table, which are read one by one where its format allows it.

    Args:
        path: Of the file.
        roles: Names of columns by what they hold.
    """
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        from pyarrow import parquet

        file = parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        return file.schema_arrow, file.iter_batches(_BATCH_ROWS)
    if suffix in _JSON_LINES:
        from pyarrow import json as arrow_json

        table = arrow_json.read_json(path)
    elif suffix in _CSV:
        from pyarrow import csv as arrow_csv

        delimiter = "\t" if suffix == ".tsv" else ","
        options = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        with arrow_csv.open_csv(path, parse_options=options) as head:
            key = _key_among(head.schema.names, roles)
        # Keys are texts: 007 is no 7.
        texts = {} if key is None else {key: pa.string()}
        conversion = arrow_csv.ConvertOptions(column_types=texts)
        table = arrow_csv.read_csv(
            path, parse_options=options, convert_options=conversion
        )
    else:
        with _known_as_table(path):
            return open_batches(path)
    return table.schema, table.to_batches(_BATCH_ROWS)


@contextmanager
def _known_as_table(path: Path) -> Iterator[None]:
    """Raises SourceError with the formats of tables where a file of none of their names is not Arrow's."""
    try:
        yield
    except pa.ArrowInvalid:
        raise SourceError(
            f"{path}: is no table. Give one called .parquet, .arrow, .feather, .csv, .tsv or .jsonl, by its format"
        ) from None


@dataclass(frozen=True)
class _RowsOfSamples:
    """Which row of the table each sample has.

    Attributes:
        rows: int64 (N,), -1 where there is none.
    """

    rows: I64
    missing: int
    unused: int
    duplicates: int

    @classmethod
    def find(
        cls,
        dataset: Dataset,
        table: _JoinedTable,
        missing: Missing,
        duplicates: Duplicates,
    ) -> "_RowsOfSamples":
        """Raises SourceError for missing or repeated keys, where these are errors, and for samples that share one."""
        rows = _looked_up(dataset, table)
        absent = np.flatnonzero(rows < 0)
        if len(absent) and (missing == "fail" or len(absent) == len(rows)):
            names = dataset.keys(absent[:3])
            keys = some_of(table.keys.slice(0, 3).to_pylist(), 3) or "none"
            raise SourceError(
                f"{table.path}: has no row for {len(absent):,} of {len(rows):,} samples, such as {some_of(names)}; its "
                f"keys are such as {keys}. Add them, give --missing skip, or name the column of keys, of samples or "
                "their sources, with --column key=NAME"
            )
        is_used = np.zeros(len(table.keys), np.bool_)
        is_used[rows[rows >= 0]] = True
        used = int(is_used.sum())
        distinct = len(table.keys)
        if used < distinct:  # else no key can come twice
            distinct = _count_distinct(table, duplicates)
        return cls(rows, len(absent), distinct - used, len(table.keys) - distinct)


def _count_distinct(table: _JoinedTable, duplicates: Duplicates) -> int:
    """The number of different keys in a table.

    Raises:
        SourceError: one comes twice, where that is an error.
    """
    encoded = table.keys.dictionary_encode()
    distinct = len(encoded.dictionary)
    repeated = len(table.keys) - distinct
    if repeated and duplicates == "fail":
        counts = np.bincount(numbers_of(encoded.indices), minlength=distinct)
        places = array_of(np.flatnonzero(counts > 1)[:3])
        names = encoded.dictionary.take(places).to_pylist()
        raise SourceError(
            f"{table.path}: {repeated:,} rows repeat a key, such as {some_of(names)}. Correct it, or give --duplicates "
            "first"
        )
    return distinct


def _looked_up(dataset: Dataset, table: _JoinedTable) -> I64:
    """int64 (N,): the first row of each sample's key in the table, or -1: of its key, or of its source where more of
    the first shard are there.

    Raises:
        SourceError: several samples have one row.
    """
    import pyarrow.compute as pc

    index = dataset.index
    first = index.shard(0)
    matches = {
        name: pc.sum(pc.is_in(table.keys, first.column(name))).as_py() or 0
        for name in ("key", "source")
    }
    name = "source" if matches["source"] > matches["key"] else "key"
    chunks = [index.shard(number).column(name) for number in range(len(index))]
    places = pc.index_in(pa.chunked_array(chunks, pa.large_string()), table.keys)
    rows = numbers_of(pc.fill_null(places, -1)).astype(np.int64)
    _refuse_shared(dataset, table, name, rows)
    return rows


def _refuse_shared(
    dataset: Dataset, table: _JoinedTable, column: str, rows: I64
) -> None:
    """Raises SourceError if several samples have one row: all but one would get the values of another sample.

    Args:
        column: Of the index, in which the table's keys were looked up: "key" or "source".
        rows: int64 (N,): the row of each sample, -1 where there is none.
    """
    samples_of_row = np.bincount(rows[rows >= 0], minlength=len(table.keys))
    shared = np.flatnonzero(samples_of_row > 1)
    if not len(shared):
        return
    names = table.keys.take(array_of(shared[:3])).to_pylist()
    count = int(samples_of_row[shared].sum())
    other = "source" if column == "key" else "key"
    raise SourceError(
        f"{table.path}: {count:,} of {len(rows):,} samples share a {column} with another one, such as "
        f"{some_of(names)}, so a row does not tell which of them it describes. Give the table a column {other!r} "
        f"instead, with values of gpuload.Dataset({str(dataset.folder)!r}).column({other!r})"
    )


def write_joined(
    folder: Path, fields: tuple[Field, ...], batches: Iterable[pa.RecordBatch]
) -> JoinedFile:
    """Writes the joined columns of each shard into a file, which gets its name once it is complete and on disk.

    Args:
        folder: Of the split.
        fields: That the columns hold.
        batches: Of each shard.
    """
    schema = joined_schema(fields)
    temporary = folder / f"joined-{'0' * 16}.arrow.{os.getpid()}.tmp"
    try:
        with (
            pa.OSFile(str(temporary), "wb") as file,
            pa.ipc.new_file(file, schema) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)
        sync(temporary)
        digests = index_digests(temporary)
        sha256 = digests["index_sha256"]
        name = f"joined-{sha256[:16]}.arrow"
        os.replace(temporary, folder / name)
    finally:
        temporary.unlink(missing_ok=True)
    sync(folder)
    return JoinedFile(
        name, fields, sha256, digests["index_parts"], digests["index_offsets"]
    )


def _batches(
    dataset: Dataset,
    values: Sequence[JoinedColumn],
    fields: tuple[Field, ...],
    rows: I64,
) -> Iterator[pa.RecordBatch]:
    """The joined columns of each shard.

    Args:
        rows: int64 (N,), the row of the table that each sample has.
    """
    schema = joined_schema(fields)
    first_samples = dataset.first_samples[:-1].tolist()
    for shard, first in zip(dataset.manifest.shards, first_samples, strict=True):
        rows_of_shard = rows[first : first + shard.samples]
        arrays = [array for column in values for array in column.take(rows_of_shard)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        _check(dataset, fields, batch, first)
        yield batch


def _clear(folder: Path, manifest: Manifest) -> None:
    """Removes the files of joins that were interrupted, or whose fields were replaced since."""
    named = {file.name for file in manifest.joined}
    for unfinished in temporaries(folder, [FILE_NAME]):
        unfinished.unlink(missing_ok=True)
    for path in folder.glob("joined-*"):
        name, _, ending = path.name.partition(".arrow")
        is_own = JOINED_NAME.fullmatch(f"{name}.arrow") is not None
        if (
            is_own
            and path.name not in named
            and (not ending or ending.endswith(".tmp"))
        ):
            path.unlink(missing_ok=True)


def _check(
    dataset: Dataset, fields: Iterable[Field], batch: pa.RecordBatch, first: int
) -> None:
    """Raises SourceError for a value that no field of its kind has."""
    for field in fields:
        kind = kind_of(field)
        bad_classes = kind.bad_classes(field, batch, None)
        for bad in (*kind.bad_rows(field, batch), *bad_classes):
            for row in bad.rows[:1].tolist():
                (key,) = dataset.keys([first + row])
                raise SourceError(
                    f"the joined table gives sample {key!r} {bad.found(row)}. Correct it"
                )


def _with(
    manifest: Manifest, file: JoinedFile, values: Iterable[JoinedColumn]
) -> Manifest:
    """The manifest with a new file of joined columns. Files keep the fields that it does not replace; others go."""
    names = {field.name for field in file.fields}
    kept = [
        old
        for old in manifest.joined
        if not {field.name for field in old.fields} <= names
    ]
    both = [field.name for old in kept for field in old.fields if field.name in names]
    if both:
        raise SourceError(
            f"{some_of(both)} was joined together with other fields. Replace these together"
        )
    classes = manifest.classes
    for column in values:
        if column.kind == "class":
            classes = column.classes
    return replace(manifest, joined=(*kept, file), classes=classes)
