"""A table of paths and what belongs to them, beside a folder or archive of images: `--labels table.csv`."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.field import Field
from gpuload.sources import values
from gpuload.sources.columns import USUAL, find_column
from gpuload.sources.files import Files, Found
from gpuload.sources.files.source import FilesSource, files_table
from gpuload.sources.listing import Listing, some_of

_LABEL_COLUMNS = ("label", "class", "target")


class TableSource(FilesSource):
    """Images named by a CSV, TSV, JSONL or Parquet table.

    root: the folder, or archive, that paths in the table are relative to.
    columns: names of columns by what they hold: "path", "label" (a class), "target" (one or more columns of floats),
        "labels" (several classes), "caption", "boxes" (x0 y0 x1 y1 and perhaps a class, as a list of lists), "mask"
        (the path of one). A role without a name takes the first of its usual names that the table has.

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
        others = {role: self._column(rows, role) for role in ("target", "labels", "caption", "boxes", "mask")}
        label = self._column(rows, "label", "--label-column", _LABEL_COLUMNS)
        if label and label[0] in others["target"]:
            label = ()
        if not path:
            self._lacking(rows, "--path-column", USUAL["path"])
        if not label and not any(others.values()):
            self._lacking(rows, "--label-column", _LABEL_COLUMNS)
        names = [None if name is None else str(name) for name in rows.column(path[0]).to_pylist()]
        if not names:
            raise SourceError(f"{self.table}: has a header but no rows. Give it a row for each image")
        self._refuse([str(line) for line, name in enumerate(names, 2) if not name], "an empty path", "lines")
        files = self._files(names)
        twice = [str(name) for name, count in Counter(names).items() if count > 1]
        self._refuse(twice, "a path in more than one row", "rows for")
        fields: list[Field] = []
        columns: list[Any] = []
        classes = None
        if label:
            found, classes = values.class_column(str(self.table), rows.column(label[0]))
            field, found = values.label_field(found)
            fields.append(field)
            columns += found
        for role, asked in others.items():
            if asked:
                field, found = self._field(role, [rows.column(name).to_pylist() for name in asked])
                fields.append(field)
                columns += found
        return Listing(files_table(files, fields, columns), tuple(fields), classes)

    def _field(self, role: str, cells: list[list[Any]]) -> tuple[Field, values.Columns]:
        where = str(self.table)
        if role == "target":
            numbers = cells[0] if len(cells) == 1 else [list(row) for row in zip(*cells, strict=True)]
            return values.target_column(where, role, numbers)
        if role == "caption":
            return values.caption_column(where, role, cells[0])
        if role == "mask":
            masks = [found.address for found in self._files(cells[0])]
            return Field("mask", "mask", "mask.png"), [pa.array(masks, pa.large_string())]
        try:
            lists = [values.parse_list(cell) for cell in cells[0]]
        except SourceError as error:
            raise SourceError(f"{where}: {error}. Correct the column {role!r}") from None
        if role == "labels":
            return values.labels_column(where, role, lists)
        boxes = [[list(box)[:4] for box in row] for row in lists]
        numbers = [[box[4] if len(box) > 4 else 0 for box in row] for row in lists]
        return values.boxes_column(where, role, boxes, numbers)

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
