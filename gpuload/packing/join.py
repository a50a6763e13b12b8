"""Adds columns to a packed set by key, without touching its shards: `gpuload index --join table SET`.

Values are read from the table batch by batch and converted to the columns of their fields at once: numbers into a
temporary file, all else into Arrow's arrays. Then each shard's samples are looked up, and its rows go
into one file beside the index. The manifest, which names that file, is replaced last.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from gpuload.checks import check_option, choice
from gpuload.disk.commit import settle, sync
from gpuload.disk.dataset import Dataset
from gpuload.disk.index import index_digests
from gpuload.disk.joined import joined_schema
from gpuload.disk.manifest import FILE_NAME, JOINED_NAME, JoinedFile, Manifest
from gpuload.errors import ArgumentError, SourceError, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import LABEL, Field
from gpuload.fields.images import POINTS
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import numbers_of
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
_LABELS_NAMES = ("labels", "tags")
_CLASSES_OF = "_class"  # ends the name of the column with the classes of boxes
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
        folder: A packed folder, such as shards/train.
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
    path = Path(table)
    with ExitStack() as stack:
        stack.enter_context(cannot_write("Free some space", Path(folder)))
        scratch = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="gpuload-join-")
        )
        settle(Path(folder))
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
        _clear(Path(folder), dataset.manifest)
        batches = _batches(dataset, values, fields, places.rows)
        file = write_joined(Path(folder), fields, batches)
        manifest = _with(dataset.manifest, file, values)
        manifest.check()
        manifest.write(Path(folder))
        sync(Path(folder))
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
    if there and not is_replacing:
        raise SourceError(
            f"{table.path}: the set has the fields {some_of(there)}. Give --replace to replace them, or rename the "
            "columns"
        )
    if dataset.manifest.image.name in there:
        raise SourceError(f"{table.path}: images are not joined. Leave the column out")


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
        companions = {f"{name}{_CLASSES_OF}" for name in columns}
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

    def read(self, scratch: Path) -> list["_Column"]:
        """The values of all rows.

        Raises:
            SourceError: a value is missing, or is not as those of its column.
        """
        import pyarrow.compute as pc

        features = Features.of_metadata(self._schema.metadata)
        columns = [
            _column_of(
                name, self._schema, column_name, features.all.get(column_name), scratch
            )
            for name, column_name in self._columns.items()
        ]
        keys = []
        for batch in self._batches:
            keys.append(pc.cast(batch.column(self._key), pa.large_string()))
            for column in columns:
                column.add(batch)
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
        return open_batches(path)
    return table.schema, table.to_batches(_BATCH_ROWS)


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
            raise SourceError(
                f"{table.path}: has no row for {len(absent):,} of {len(rows):,} samples, such as {some_of(names)}. Add "
                "them, or give --missing skip"
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


class _Column:
    """The values of one field, in the rows of the table: those of Arrow's arrays.

    Args:
        name: Of the field.
        kind: Of the field.
        column_name: The name of the table's column.
        classes: Names of its class numbers, where the table has them.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        column_name: str,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.column_name = column_name
        self.classes = None if classes is None else tuple(classes)
        self.size = 0
        self._parts = dict[str, list[pa.Array]]()

    def field(self, dataset: Dataset) -> Field:
        """The field of the set that it becomes."""
        if self.kind == "class":
            return LABEL
        member = f"{self.name}.{'txt' if self.kind == 'caption' else 'json'}"
        return Field(self.name, self.kind, member, self.classes, self.size)

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the values of the next rows.

        Raises:
            SourceError: one is missing.
        """
        values = batch.column(self.column_name)
        if values.null_count:
            raise SourceError(
                f"column {self.column_name!r} lacks {values.null_count:,} values. Leave these rows out, and give "
                "--missing skip"
            )
        for column, array in self.convert(values, batch).items():
            self._parts.setdefault(column, []).append(array)

    def convert(
        self, values: pa.Array, batch: pa.RecordBatch
    ) -> Mapping[str, pa.Array]:
        """The columns of the index, of some rows."""
        (kind,) = self.types().values()
        return {self.name: values.cast(kind)}

    def types(self) -> Mapping[str, pa.DataType]:
        field = Field(self.name, self.kind, "json", size=self.size)
        return kind_of(field).columns(field)

    def take(self, rows: I64) -> list[pa.Array]:
        """The columns of these rows; -1 is a row without a value.

        Raises:
            SourceError: a value cannot be empty.
        """
        columns = []
        for name, kind in self.types().items():
            if len(self._parts[name]) > 1:
                self._parts[name] = [pa.concat_arrays(self._parts[name])]
            (array,) = self._parts[name]
            if (rows < 0).any():
                array = pa.concat_arrays([array, array_of([self._empty(kind)], kind)])
            columns.append(
                array.take(array_of(np.where(rows < 0, len(array) - 1, rows)))
            )
        return columns

    def _empty(self, kind: pa.DataType) -> Any:
        if pa.types.is_large_string(kind):
            return "null" if self.kind == "json" else ""
        if pa.types.is_list(kind):
            return []
        raise SourceError(
            f"column {self.column_name!r} has no value that means none, and samples lack one. Give each a row"
        )


class _Numbers(_Column):
    """Numbers, as many in each row, in a temporary file."""

    def __init__(
        self,
        name: str,
        kind: str,
        column_name: str,
        size: int,
        dtype: Any,
        scratch: Path,
    ) -> None:
        super().__init__(name, kind, column_name)
        self.size = size
        self._dtype = np.dtype(dtype)
        self._path = scratch / f"{len(list(scratch.iterdir()))}.numbers"
        self._path.touch()

    def add(self, batch: pa.RecordBatch) -> None:
        values = batch.column(self.column_name)
        if values.null_count:
            super().add(batch)
        flat = values.flatten() if self.size else values
        if len(flat) != len(values) * max(1, self.size) or flat.null_count:
            raise SourceError(
                f"column {self.column_name!r} has {self.size} numbers in its first row, and not in all. Give each as "
                "many"
            )
        if self._dtype.kind == "i":
            flat = self._whole(flat)
        numbers: Any = numbers_of(flat).astype(self._dtype)
        if self._dtype.kind == "f" and not np.isfinite(numbers).all():
            raise SourceError(
                f"column {self.column_name!r} has numbers that are not finite"
            )
        with self._path.open("ab") as file:
            file.write(memoryview(numbers).cast("B"))

    def _whole(self, numbers: pa.Array) -> pa.Array:
        """Whole numbers as int64.

        Raises:
            SourceError: one does not fit.
        """
        try:
            return numbers.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise SourceError(
                f"column {self.column_name!r} has a number that int64 does not hold ({error}). Give such numbers as "
                "texts, or leave it out"
            ) from error

    def take(self, rows: I64) -> list[pa.Array]:
        row_bytes = self._dtype.itemsize * max(1, self.size)
        before = np.concatenate([[-1], rows[:-1]])
        begins = np.flatnonzero((before < 0) | (rows != before + 1))
        ends = np.append(begins[1:], len(rows))
        # Read, and not mapped: around each row, a map takes up to a megabyte into the memory of the process.
        with self._path.open("rb", buffering=0) as file:
            pieces = [
                os.pread(file.fileno(), count * row_bytes, max(0, row) * row_bytes)
                for row, count in zip(
                    rows[begins].tolist(), (ends - begins).tolist(), strict=True
                )
            ]
        taken = np.frombuffer(bytearray().join(pieces), self._dtype)
        taken = taken.reshape(-1, max(1, self.size))
        if (rows < 0).any():
            taken[rows < 0] = self._none()
        flat = array_of(taken.reshape(-1))
        if not self.size:
            return [flat]
        return [pa.FixedSizeListArray.from_arrays(flat, self.size)]

    def _none(self) -> float:
        if self._dtype.kind == "f":
            return float("nan")
        self._empty(pa.int64())
        raise AssertionError


class _Classes(_Column):
    """Names of classes, which are numbered in sorted order; of one in each row, or of lists."""

    def convert(
        self, values: pa.Array, batch: pa.RecordBatch
    ) -> Mapping[str, pa.Array]:
        import pyarrow.compute as pc

        return {self.name: pc.cast(values, self._text())}

    def _text(self) -> pa.DataType:
        text = pa.large_string()
        return text if self.kind == "class" else pa.list_(text)

    def take(self, rows: I64) -> list[pa.Array]:
        if self.classes is None:
            self._number()
        return super().take(rows)

    def _number(self) -> None:
        """Replaces names by numbers."""
        import pyarrow.compute as pc

        array = pa.concat_arrays(self._parts[self.name])
        flat = array if self.kind == "class" else array.flatten()
        names = sorted(pc.unique(flat).to_pylist())
        numbers = pc.index_in(flat, array_of(names, pa.large_string())).cast(pa.int64())
        if self.kind != "class":
            numbers = pa.ListArray.from_arrays(array.offsets, numbers)
        self.classes = tuple(names)
        self._parts[self.name] = [numbers]

    def field(self, dataset: Dataset) -> Field:
        if self.classes is None:
            self._number()
        return super().field(dataset)


class _Boxes(_Column):
    """Lists of boxes x0 y0 x1 y1, with the column of their classes."""

    def convert(
        self, values: pa.Array, batch: pa.RecordBatch
    ) -> Mapping[str, pa.Array]:
        boxes, classes = self.types()
        corners = values.cast(self.types()[boxes])
        classes_name = f"{self.column_name}{_CLASSES_OF}"
        if classes_name not in batch.schema.names:
            raise SourceError(
                f"column {self.column_name!r} has boxes, and there is no column {classes_name!r} of their classes. Add "
                "it"
            )
        class_numbers = batch.column(classes_name)
        if not pa.types.is_integer(class_numbers.type.value_type):
            raise SourceError(
                f"column {classes_name!r} has {class_numbers.type.value_type}, expected numbers of classes from 0. "
                "Number them"
            )
        numbers = class_numbers.cast(self.types()[classes])
        if not numbers.offsets.equals(corners.offsets):
            class_counts = np.diff(numbers_of(numbers.offsets))
            if not np.array_equal(class_counts, np.diff(numbers_of(corners.offsets))):
                raise SourceError(
                    f"columns {self.column_name!r} and {classes_name!r} differ in how many boxes they have"
                )
        return {boxes: corners, classes: numbers}


class _Documents(_Column):
    """Values of any other type, as JSON."""

    def convert(
        self, values: pa.Array, batch: pa.RecordBatch
    ) -> Mapping[str, pa.Array]:
        try:
            texts = [
                json.dumps(value, ensure_ascii=False) for value in values.to_pylist()
            ]
        except TypeError as error:
            raise SourceError(
                f"column {self.column_name!r} has {values.type}, which JSON does not hold ({error}). Give numbers or "
                "texts, or leave it out"
            ) from error
        return {self.name: array_of(texts, pa.large_string())}


def _column_of(
    name: str,
    schema: pa.Schema,
    column_name: str,
    classes: Sequence[str] | None,
    scratch: Path,
) -> _Column:
    """What takes the values of a column, by its type and name."""
    kind = schema.field(column_name).type
    is_class = name == LABEL.name
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_integer(kind) and is_class:
        return _Column(LABEL.name, "class", column_name, classes)
    if types.is_boolean(kind) or types.is_integer(kind):
        return _Numbers(name, "integers", column_name, 0, "<i8", scratch)
    if types.is_floating(kind):
        return _Numbers(name, "target", column_name, 0, "<f4", scratch)
    if types.is_string(kind) or types.is_large_string(kind):
        if is_class:
            return _Classes(LABEL.name, "class", column_name)
        return _Column(name, "caption", column_name)
    if types.is_temporal(kind):  # in a CSV, any text that looks like a date
        return _Column(name, "caption", column_name)
    if (
        types.is_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_large_list(kind)
    ):
        has_classes = f"{column_name}{_CLASSES_OF}" in schema.names
        return _list_column(name, kind, column_name, classes, scratch, has_classes)
    return _Documents(name, "json", column_name)


def _list_column(
    name: str,
    kind: Any,
    column_name: str,
    classes: Sequence[str] | None,
    scratch: Path,
    has_classes: bool,
) -> _Column:
    types = pa.types
    inner = kind.value_type
    if types.is_nested(inner):
        of_number = getattr(inner, "value_type", inner)
        is_whole = types.is_integer(of_number) and has_classes
        if types.is_floating(of_number) or is_whole:
            return _Boxes(name, "boxes", column_name, classes)
    if types.is_floating(inner):
        return _Lists(name, "target", column_name, "<f4", scratch)
    if types.is_integer(inner):
        if name in _LABELS_NAMES:
            return _Column(name, "labels", column_name, classes)
        return _Lists(name, "integers", column_name, "<i8", scratch)
    is_text = types.is_string(inner) or types.is_large_string(inner)
    if is_text and name in _LABELS_NAMES:
        return _Classes(name, "labels", column_name)
    return _Documents(name, "json", column_name)


class _Lists(_Numbers):
    """Lists of numbers, whose first one says how many there are in each row."""

    def __init__(
        self, name: str, kind: str, column_name: str, dtype: Any, scratch: Path
    ) -> None:
        super().__init__(name, kind, column_name, 0, dtype, scratch)

    def add(self, batch: pa.RecordBatch) -> None:
        values = batch.column(self.column_name)
        if not self.size and len(values) and not values.null_count:
            self.size = len(values.flatten()) // len(values)
            if not self.size:
                raise SourceError(
                    f"column {self.column_name!r} has empty lists. Leave it out"
                )
        super().add(batch)


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
    values: Sequence[_Column],
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


def _with(manifest: Manifest, file: JoinedFile, values: Iterable[_Column]) -> Manifest:
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
