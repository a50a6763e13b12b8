"""A table of paths and what belongs to them, beside a folder or archive of images: `--labels table.csv`."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.kind import Kind
from gpuload.fields.registry import KINDS
from gpuload.sources.columns import USUAL, find_column
from gpuload.sources.field_columns import FieldColumns
from gpuload.sources.files import Files, Found
from gpuload.sources.files.source import FilesSource, files_table
from gpuload.sources.listing import Listing, some_of


class TableSource(FilesSource):
    """Images named by a CSV, TSV, JSONL or Parquet table.

    root: the folder, or archive, that paths in the table are relative to.
    columns: names of columns by what they hold: "path", "label" (a class), "target" (one or more columns of floats),
        "labels" (several classes), "caption", "boxes" (x0 y0 x1 y1 and perhaps a class, as a list of lists),
        "keypoints" (a list of instances), "mask" (the path of one). A role without a name takes the first of its usual
        names that the table has.

    Labels that are all whole numbers are class numbers. Any other text is a class name, and classes are numbered in
    sorted order. Samples are in the order of the table.
    """

    def __init__(
        self, root: str | Path | Files, table: str | Path, columns: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        super().__init__(root)
        self.table = Path(table)
        self.columns = dict(columns or {})

    def list_samples(self) -> Listing:
        """Every row of the table.

        Raises:
            SourceError: the table cannot be read or lacks a column; a file is missing or named twice; a value is
                missing, or is not what its column should hold.
        """
        self.check_root(f"Give the folder that the paths in {self.table} start from")
        rows = self._read_table()
        path = self._column(rows, "path", "--path-column", USUAL["path"])
        kinds = {kind.role or kind.name: kind for kind in KINDS.values() if kind.in_tables}
        asked = {role: self._column(rows, role) for role in kinds}
        if asked["label"] and asked["label"][0] in asked["target"]:
            asked["label"] = ()
        if not path:
            self._lacking(rows, "--path-column", USUAL["path"])
        if not any(asked.values()):
            self._lacking(rows, "--label-column", USUAL["label"])
        names = [None if name is None else str(name) for name in rows.column(path[0]).to_pylist()]
        if not names:
            raise SourceError(f"{self.table}: has a header but no rows. Give it a row for each image")
        self._refuse([str(line) for line, name in enumerate(names, 2) if not name], "an empty path", "lines")
        files = self._files(names)
        twice = [str(name) for name, count in Counter(names).items() if count > 1]
        self._refuse(twice, "a path in more than one row", "rows for")
        found = FieldColumns(str(self.table))
        for role, kind in kinds.items():
            if asked[role]:
                self._add(found, kind, role, [rows.column(name) for name in asked[role]])
        return Listing(files_table(files, found.fields, found.columns), tuple(found.fields), found.classes)

    def _add(self, found: FieldColumns, kind: Kind, role: str, columns: list[pa.ChunkedArray]) -> None:
        """Adds the field of a role, out of the table's columns for it."""
        if kind.stays_in_shard:
            addresses = [file.address for file in self._files(columns[0].to_pylist())]
            found.add(kind.name, role, addresses)
            return
        try:
            cells = zip(*(column.to_pylist() for column in columns), strict=True)
            values = [kind.parse_cells(row) for row in cells]
        except (ValueError, TypeError) as error:
            raise SourceError(f"{self.table}: {error}. Correct the column {role!r}") from None
        found.add(kind.name, role, values)

    def _read_table(self) -> pa.Table:
        from pyarrow import csv  # this and pyarrow.compute cost 40 ms, for which workers need not wait

        try:
            if self.table.suffix.lower() in (".jsonl", ".ndjson"):
                from pyarrow import json

                return json.read_json(self.table)
            if self.table.suffix.lower() in (".parquet", ".pq"):
                from pyarrow import parquet

                return parquet.read_table(self.table)
            with self.table.open(encoding="utf-8-sig") as file:
                header = file.readline()
            columns = [name.strip().strip('"') for name in header.strip().split(_delimiter(header))]
            text = dict.fromkeys(columns, pa.large_string())
            return csv.read_csv(
                self.table,
                parse_options=csv.ParseOptions(delimiter=_delimiter(header), newlines_in_values=True),
                convert_options=csv.ConvertOptions(column_types=text, strings_can_be_null=False),
            )
        except OSError as error:
            raise SourceError(
                f"{self.table}: cannot be read ({error.strerror}). --labels takes a CSV, TSV, JSONL or Parquet table"
            ) from None
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise SourceError(
                f"{self.table}: not a CSV or TSV table in UTF-8 with a header line, nor JSONL or Parquet by its name "
                f"({str(error).splitlines()[0]}). Save it again as CSV"
            ) from None

    def _column(self, rows: pa.Table, role: str, option: str = "", usual: tuple[str, ...] = ()) -> tuple[str, ...]:
        return find_column(str(self.table), rows.column_names, role, self.columns, option, usual)

    def _lacking(self, rows: pa.Table, option: str, usual: tuple[str, ...]) -> None:
        raise SourceError(
            f"{self.table}: has none of the columns {', '.join(usual)}; its columns are {rows.column_names}. "
            f"Name one with {option}"
        )

    def _files(self, names: list[Any]) -> list[Found]:
        files, missing = self.find_all(names)
        if missing:
            raise SourceError(
                f"{self.table}: names {len(missing):,} of {len(names):,} files that are not in {self.root}: "
                f"{some_of(missing)}. Paths are relative to SOURCE; correct them or remove the rows"
            )
        return files

    def _refuse(self, wrong: list[str], what: str, unit: str) -> None:
        if wrong:
            raise SourceError(
                f"{self.table}: {what}, {len(wrong):,} times ({unit} {some_of(wrong)}). Remove those rows"
            )


def _delimiter(header: str) -> str:
    return max(",\t;", key=header.count)
