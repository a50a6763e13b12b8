"""A table of paths and what belongs to them, beside a folder or archive of images: `--labels table.csv`."""

import posixpath
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.counted import counted
from gpuload.errors import ArgumentError, SourceError
from gpuload.fields.kind import Kind
from gpuload.fields.parsing import is_number, is_whole
from gpuload.fields.registry import KINDS
from gpuload.sources.caption_columns import CaptionLists
from gpuload.sources.columns import USUAL, Names, find_column
from gpuload.sources.field_columns import FieldColumns
from gpuload.sources.files import Files, Found
from gpuload.sources.files.source import FilesSource, files_table
from gpuload.sources.layout import names_alike
from gpuload.sources.listing import Listing, some_of
from gpuload.sources.named_files import NamedFiles
from gpuload.sources.splits import SPLIT, SourceSplits, split_called, splits_of_column, splits_of_paths
from gpuload.sources.table_file import place_of, read_table
from gpuload.store.url import URL, as_location

# What a column may hold, by its role.
_KINDS: dict[str, Kind] = {kind.role or kind.name: kind for kind in KINDS.values() if kind.in_tables}
_KINDS["captions"] = CaptionLists()

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


class TableSource(FilesSource):
    """Images named by a CSV, TSV, JSONL or Parquet table.

    root: the folder, or archive, that paths in the table are relative to. They may lack the extension.
    columns: names of columns by what they hold: "path", "label" (a class), "target" (one or more columns of floats),
        "labels" (several classes), "caption", "boxes" (x0 y0 x1 y1 and perhaps a class, as a list of lists),
        "keypoints" (a list of instances), "mask" (the path of one), "split". A role without a name takes the first of
        its usual names that the table has.

    Labels that are all whole numbers are class numbers. Any other text is a class name, and classes are numbered in
    sorted order. Samples are in the order of the table. Its splits are those of a column that names them, else those of
    the folders in which the images lie, where each lies in one that is called as splits are.
    """

    def __init__(
        self, root: str | Path | Files, table: str | Path, columns: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        super().__init__(root)
        self.table: Path | URL = as_location(table) if isinstance(table, str) else table
        if isinstance(self.table, str):
            self.table = Path(self.table)
        self.columns = dict(columns or {})
        if "path" not in self.columns and "image" in self.columns:  # in a table an image is its path
            self.columns["path"] = self.columns.pop("image")
        roles = ["path", SPLIT, *_KINDS]
        if unknown := sorted(set(self.columns) - set(roles)):
            raise ArgumentError(
                f"--column {unknown[0]}={','.join(self.columns[unknown[0]])}: a table holds no such field. Give one of "
                f"{', '.join(roles)}"
            )

    def list_samples(self) -> Listing:
        """Every row of the table.

        Raises:
            SourceError: the table cannot be read or lacks a column; a file is missing or named twice; a value is
                missing, or is not what its column should hold.
        """
        self.check_root(f"Give the folder that the paths in {self.table} start from")
        rows = read_table(self.table)
        path = self._column(rows, "path", "--path-column")
        asked = {role: self._column(rows, role) for role in _KINDS}
        if asked["label"] and asked["label"][0] in asked["target"]:
            asked["label"] = ()
        if not path:
            raise self._lacking(rows, USUAL["path"], "Name one with --path-column")
        if not any(asked.values()):
            raise self._lacking(rows, USUAL["label"], _how_to_name(rows, path))
        names = [None if name is None else str(name) for name in rows.column(path[0]).to_pylist()]
        if not names:
            raise SourceError(f"{self.table}: has a header but no rows. Give it a row for each image")
        self._refuse([place_of(self.table, row) for row, name in enumerate(names) if not name], "an empty path")
        images = self._named_files(path[0], [str(name) for name in names])
        twice = Counter(posixpath.normpath(file.name) for file in images.found)
        self._refuse([name for name, count in twice.items() if count > 1], "a path in more than one row", "rows for ")
        found = FieldColumns(str(self.table))
        notes = images.notes()
        for role, kind in _KINDS.items():
            if asked[role]:
                notes += self._add(found, kind, role, asked[role], rows)
        own, more = self._splits(rows, asked, images.found)
        notes += more
        masks = [str(name) for name in rows.column(asked["mask"][0]).to_pylist()] if asked["mask"] else []
        notes += self.beside([*(file.name for file in images.found), *masks], str(self.table))
        notes += _case_notes(found)
        notes += self._unused(rows, [path, *asked.values(), self._column(rows, SPLIT)])
        table = files_table(images.found, found.fields, found.columns)
        return Listing(table, tuple(found.fields), found.classes, (), tuple(notes), own)

    def _add(self, found: FieldColumns, kind: Kind, role: str, names: Names, rows: pa.Table) -> list[str]:
        """Adds the field of a role, out of the table's columns for it; gives notes."""
        columns = [rows.column(name) for name in names]
        if kind.stays_in_shard:
            files = self._named_files(names[0], [str(name) for name in columns[0].to_pylist()])
            found.add(kind.name, role, [file.address for file in files.found])
            return files.notes()
        if role == "label":
            self._check_labels(names[0], columns[0].to_pylist())
        try:
            cells = zip(*(column.to_pylist() for column in columns), strict=True)
            values = [kind.parse_cells(row) for row in cells]
        except (ValueError, TypeError) as error:
            raise SourceError(f"{self.table}: {error}. Correct the column {role!r}") from None
        found.add(kind.name, role, values)
        return []

    def _check_labels(self, column: str, values: list[Any]) -> None:
        """Raises SourceError where a label is missing, or where they are numbers that count nothing."""
        texts = ["" if value is None else str(value).strip() for value in values]
        lacking = [row for row, text in enumerate(texts) if not text]
        if lacking:
            raise SourceError(
                f"{self.table}: {counted(len(lacking), 'row has', 'rows have')} no label (first in "
                f"{place_of(self.table, lacking[0])}). "
                "Fill or remove them"
            )
        different = sorted(set(texts))
        if all(_DECIMAL_COMMA.fullmatch(text) for text in different):
            raise SourceError(
                f"{self.table}: column {column!r} holds numbers with a decimal comma, such as {different[0]!r}. Write "
                f"a point, and give --column target={column} for numbers to be predicted"
            )
        broken = [text for text in different if not is_whole(text)]
        if broken and all(is_number(text) for text in different):
            raise SourceError(
                f"{self.table}: labels must be whole numbers or names of classes, found {some_of(broken)}. Give "
                f"another --label-column, or --column target={column} for a number to be predicted"
            )

    def _splits(
        self, rows: pa.Table, asked: Mapping[str, Names], images: list[Found]
    ) -> tuple[SourceSplits | None, list[str]]:
        """The splits of the samples, if the source has any, and notes."""
        if not self.own_splits:
            return None, []
        notes = []
        title = str(self.table)
        used = {name for names in asked.values() for name in names}
        for column in set(self._column(rows, SPLIT)) - used:
            values = rows.column(column).to_pylist()
            own = splits_of_column(title, column, values, SPLIT in self.columns)
            if own is not None or all(map(split_called, values)):
                return own, []
            some = some_of(sorted({str(value) for value in values}))
            notes.append(f"the column {column!r} holds no names of splits but {some}, so it is not used")
        return splits_of_paths(title, [file.name for file in images], strict=False), notes

    def _unused(self, rows: pa.Table, used: list[Names]) -> list[str]:
        left = [name for name in rows.column_names if name not in {column for names in used for column in names}]
        return (
            [f"columns of {self.table} that are not packed: {some_of(left)}; --column ROLE=NAME packs them"]
            if left
            else []
        )

    def _column(self, rows: pa.Table, role: str, option: str = "") -> Names:
        return find_column(str(self.table), rows.column_names, role, self.columns, option)

    def _lacking(self, rows: pa.Table, usual: Names, advice: str) -> SourceError:
        return SourceError(
            f"{self.table}: has none of the columns {', '.join(usual)}; its columns are {rows.column_names}. {advice}"
        )

    def _named_files(self, column: str, names: list[str]) -> NamedFiles:
        found = NamedFiles.find(self, column, names)
        if found.missing:
            raise SourceError(
                f"{self.table}: names {len(found.missing):,} of {len(names):,} files that are not in {self.root} "
                f"(column {column!r}): {some_of(found.missing)}. {found.advice(self)}"
            )
        return found

    def _refuse(self, wrong: list[str], what: str, unit: str = "") -> None:
        if wrong:
            raise SourceError(
                f"{self.table}: {what}, {counted(len(wrong), 'time')} ({unit}{some_of(wrong)}). Remove those rows"
            )


def _how_to_name(rows: pa.Table, path: Names) -> str:
    """What to do where no column has a usual name for a label."""
    floats = [name for name in rows.column_names if name not in path and _are_floats(rows.column(name).to_pylist())]
    target = f"--column target={floats[0] if floats else 'NAME'}"
    return (
        f"Name one with --label-column, or with {target} for a number to be predicted; for images alone give "
        "--no-labels in place of --labels"
    )


def _are_floats(values: list[Any]) -> bool:
    return all(map(is_number, values)) and not all(map(is_whole, values))


def _case_notes(found: FieldColumns) -> list[str]:
    alike = names_alike(list(found.classes or ()))
    return [f"classes that differ only in case are different classes: {some_of(alike)}"] if alike else []
