"""A table of paths and fields, beside a folder or archive of images: `--labels table.csv`."""

import csv
import posixpath
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.counted import counted
from gpuload.errors import ArgumentError, RemoteError, SourceError
from gpuload.fields.captions import JsonKind
from gpuload.fields.kind import Kind, is_number, is_whole
from gpuload.fields.registry import KINDS
from gpuload.machine.untrusted import parse_json
from gpuload.sources.annotations import NamedFiles
from gpuload.sources.at_path import FilesSource
from gpuload.sources.columns import USUAL, Features, check_columns, usual_column
from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Findings, Ref
from gpuload.sources.listing import SPLIT, some_of, split_called, splits_of_column
from gpuload.sources.rows import Names, Row
from gpuload.store.url import URL, as_location

_FILE = re.compile(rf"\.({'|'.join(sorted(IMAGE_EXTENSIONS))})(\s|$)", re.IGNORECASE)  # in what should be a header
_JSON_LINES, _PARQUET = (".jsonl", ".ndjson"), (".parquet", ".pq")


class _CaptionLists(JsonKind):
    """Several texts for each image, a field of kind "json" as those of COCO are.

    They are the texts of several columns, or of one whose cells are lists, JSON lists or lines.
    """

    def parse_cells(self, cells: Sequence[Any]) -> list[str]:
        found = [text for cell in cells for text in _texts(cell)]
        if not found:
            raise ValueError("a row has no caption")
        return found


def _texts(cell: Any) -> list[str]:
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = parse_json(cell)
        except ValueError:
            raise ValueError(f"{cell[:60]!r} is not a JSON list of captions") from None
    texts = [] if cell is None else cell.splitlines() if isinstance(cell, str) else cell
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{str(cell)[:60]!r} is not a list of captions")
    return [text.strip() for text in texts if text.strip()]


# The kind of field in a column, by the role of the column.
_KINDS: dict[str, Kind] = {kind.role or kind.name: kind for kind in KINDS.values() if kind.in_tables}
_KINDS["captions"] = _CaptionLists()

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


class TableSource(FilesSource):
    """Images named by a CSV, TSV, JSONL or Parquet table.

    root: the folder, or archive, that paths in the table are relative to. They may lack the extension.
    columns: names of columns by what they hold: "path", "label" (a class), "target" (one or more columns of floats),
        "labels" (several classes), "caption", "boxes" (x0 y0 x1 y1 and perhaps a class, as a list of lists),
        "keypoints" (a list of instances), "mask" (the path of one), "split". A role without a name takes the first of
        its usual names that the table has.

    Labels that are all whole numbers are class numbers. Any other text is a class name, and classes are numbered in
    sorted order. Samples are in the order of the table. A column gives their splits, or else the folders of the images,
    if each is named after a split.
    """

    takes_labels = True
    takes_columns = True

    def __init__(self, root: str | Path | Files, table: str | Path, columns: Mapping[str, Names] | None = None) -> None:
        super().__init__(root)
        location = as_location(table)
        self.table: Path | URL = location if isinstance(location, URL) else Path(location)
        self.columns = dict(columns or {})
        if "path" not in self.columns and "image" in self.columns:  # in a table an image is its path
            self.columns["path"] = self.columns.pop("image")
        roles = ["path", SPLIT, *_KINDS]
        if unknown := sorted(set(self.columns) - set(roles)):
            raise ArgumentError(
                f"--column {unknown[0]}={','.join(self.columns[unknown[0]])}: a table holds no such field. Give one of "
                f"{', '.join(roles)}"
            )

    @property
    def title(self) -> str:
        return str(self.table)

    @property
    def advice(self) -> str:  # type: ignore[override]
        return f"Give the folder that the paths in {self.table} start from"

    def rows(self, findings: Findings) -> Iterator[Row]:
        table = read_table(self.table)
        features = Features.of_metadata(table.schema.metadata)
        roles = self._roles(table, features)
        named, paths = NamedFiles(self._files, self.title, self.root), roles["path"][0]
        images = self._images(table, paths, named, findings)
        splits = self._splits(table, roles, findings)
        columns = {role: self._values(table, role, roles[role], named, findings) for role in _KINDS if roles[role]}
        findings.picked = True
        findings.kinds |= {role: _KINDS[role].name for role in columns}
        findings.classes |= {role: features.all[roles[role][0]] for role in columns if roles[role][0] in features.all}
        findings.notes += named.beside([ref.name for refs in (images, columns.get("mask", ())) for ref in refs])
        used = {column for names in roles.values() for column in names}
        if left := [name for name in table.column_names if name not in used]:
            findings.notes.append(
                f"columns of {self.title} that are not packed: {some_of(left)}; --column ROLE=NAME packs them"
            )
        for number, image in enumerate(images):
            row = {"image": image, **{role: values[number] for role, values in columns.items()}}
            yield {**row, SPLIT: splits[number]} if splits else row

    def _roles(self, table: pa.Table, features: Features) -> dict[str, Names]:
        """The columns by their roles."""
        present = table.column_names
        check_columns(self.title, present, self.columns)
        roles = {
            role: self.columns[role] if role in self.columns else usual_column(present, role)
            for role in ("path", *_KINDS, SPLIT)
        }
        if roles["label"] and roles["label"][0] in roles["target"]:
            roles["label"] = ()
        if not roles["label"] and set(roles["labels"]) & set(
            features.single
        ):  # one class a row, whatever the name of the column
            roles["label"], roles["labels"] = roles["labels"], ()
        if not roles["path"]:
            raise self._lacking(table, USUAL["path"], "Name one with --path-column")
        if not any(roles[role] for role in _KINDS):
            raise self._lacking(table, USUAL["label"], _how_to_name(table, roles["path"]))
        return roles

    def _lacking(self, table: pa.Table, usual: Names, advice: str) -> SourceError:
        return SourceError(
            f"{self.title}: has none of the columns {', '.join(usual)}; its columns are {table.column_names}. {advice}"
        )

    def _images(self, table: pa.Table, column: str, named: NamedFiles, findings: Findings) -> list[Ref]:
        cells = table.column(column).to_pylist()  # dicts where Hugging Face wrote the table
        cells = [cell.get("path") if isinstance(cell, dict) else cell for cell in cells]
        names = ["" if cell is None else str(cell) for cell in cells]
        if not names:
            raise SourceError(f"{self.title}: has a header but no rows. Give it a row for each image")
        self._refuse([place_of(self.table, row) for row, name in enumerate(names) if not name], "an empty path")
        images = named.find_stems(column, names, findings.notes)
        twice = Counter(posixpath.normpath(image.name) for image in images)
        self._refuse([name for name, count in twice.items() if count > 1], "a path in more than one row", "rows for ")
        return images

    def _refuse(self, wrong: list[str], what: str, unit: str = "") -> None:
        if wrong:
            times = counted(len(wrong), "time")
            raise SourceError(f"{self.title}: {what}, {times} ({unit}{some_of(wrong)}). Remove those rows")

    def _values(self, table: pa.Table, role: str, names: Names, named: NamedFiles, findings: Findings) -> list[Any]:
        """The values of a field, from the columns with its role."""
        kind, columns = _KINDS[role], [table.column(name).to_pylist() for name in names]
        if kind.stays_in_shard:
            return list(named.find_stems(names[0], list(map(str, columns[0])), findings.notes))
        if role == "label":
            self._check_labels(names[0], columns[0])
        try:
            return [kind.parse_cells(cells) for cells in zip(*columns, strict=True)]
        except (ValueError, TypeError) as error:
            raise SourceError(f"{self.title}: {error}. Correct the column {role!r}") from None

    def _check_labels(self, column: str, values: list[Any]) -> None:
        """Raises SourceError if a label is missing, or if they are numbers that are not class numbers."""
        texts = ["" if value is None else str(value).strip() for value in values]
        if lacking := [row for row, text in enumerate(texts) if not text]:
            have, first = counted(len(lacking), "row has", "rows have"), place_of(self.table, lacking[0])
            raise SourceError(f"{self.title}: {have} no label (first in {first}). Fill or remove them")
        different = sorted(set(texts))
        if all(_DECIMAL_COMMA.fullmatch(text) for text in different):
            raise SourceError(
                f"{self.title}: column {column!r} holds numbers with a decimal comma, such as {different[0]!r}. Write "
                f"a point, and give --column target={column} for numbers to be predicted"
            )
        broken = [text for text in different if not is_whole(text)]
        if broken and all(is_number(text) for text in different):
            raise SourceError(
                f"{self.title}: labels must be whole numbers or names of classes, found {some_of(broken)}. Give "
                f"another --label-column, or --column target={column} for a number to be predicted"
            )

    def _splits(self, table: pa.Table, roles: Mapping[str, Names], findings: Findings) -> list[str]:
        """The split of each row, by the column that names them; [] if there is no such column."""
        fields = {name for role in _KINDS for name in roles[role]}
        findings.strict = False
        for column in set(roles[SPLIT]) - fields if self.own_splits else ():
            values = table.column(column).to_pylist()
            if (splits := splits_of_column(self.title, column, values, SPLIT in self.columns)) is not None:
                findings.origin = splits.origin
                return [splits.names[number] for number in splits.numbers.tolist()]
            if all(map(split_called, values)):
                findings.strict = None  # all are of one
            else:
                some = some_of(sorted({str(value) for value in values}))
                findings.notes.append(f"the column {column!r} holds no names of splits but {some}, so it is not used")
        return []


def _how_to_name(table: pa.Table, path: Names) -> str:
    """The advice if no column has a usual name for labels."""
    floats = [name for name in table.column_names if name not in path and _are_floats(table.column(name).to_pylist())]
    target = f"--column target={floats[0] if floats else 'NAME'}"
    return (
        f"Name one with --label-column, or with {target} for a number to be predicted; for images alone give "
        "--no-labels in place of --labels"
    )


def _are_floats(values: list[Any]) -> bool:
    return all(map(is_number, values)) and not all(map(is_whole, values))


def read_table(path: Path | URL) -> pa.Table:
    """All rows of a CSV, TSV, JSONL or Parquet table, by its name; cells of the first two are text.

    Raises:
        SourceError: it cannot be read, or its columns have no names, or two the same.
    """
    if isinstance(path, URL):
        return _read_remote(path)
    suffix = path.suffix.lower()
    try:
        if suffix in _JSON_LINES:
            from pyarrow import json

            return _checked(json.read_json(path))
        if suffix in _PARQUET:
            from pyarrow import parquet

            return _checked(parquet.read_table(path))
        return _checked(_read_csv(path))
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror or error}). --labels takes a CSV, TSV, JSONL or Parquet table"
        ) from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise SourceError(
            f"{path}: not a CSV or TSV table in UTF-8 with a header line, nor JSONL or Parquet by its name "
            f"({' '.join(str(error).splitlines()[:1])}). Save it again as CSV"
        ) from None


def _read_remote(url: URL) -> pa.Table:
    from gpuload.sources.remote import Copies  # asyncio

    with tempfile.TemporaryDirectory(prefix="gpuload-table-") as scratch:
        path = str(Path(scratch, "copies", url.name))
        try:
            return read_table(Copies(url, (url.suffix.lower(),)).fetch(Path(scratch)))
        except (SourceError, RemoteError) as error:
            raise SourceError(str(error).replace(path, str(url))) from None


def _checked(table: pa.Table) -> pa.Table:
    """The table, if its names and texts are UTF-8.

    Raises:
        ArrowInvalid, UnicodeDecodeError: they are not.
    """
    assert all(isinstance(name, str) for name in table.column_names)  # they are decoded here
    table.validate(full=True)
    return table


def place_of(path: Path | URL, row: int) -> str:
    """The name of a row in messages: its line, if no cell spans several lines."""
    if path.suffix.lower() in _PARQUET:
        return f"row {row}"
    return f"line {row + (1 if path.suffix.lower() in _JSON_LINES else 2)}"


def _read_csv(path: Path) -> pa.Table:
    from pyarrow import csv as arrow_csv  # this and pyarrow.compute cost 40 ms, for which workers need not wait

    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
    delimiter = max(",\t;", key=header.count)
    columns = next(csv.reader([header], delimiter=delimiter), [])
    _check_header(path, columns)
    return arrow_csv.read_csv(
        path,
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.large_string()), strings_can_be_null=False
        ),
    )


def _check_header(path: Path, columns: list[str]) -> None:
    data = [name for name in columns if _FILE.search(name)]
    if data:
        raise SourceError(
            f"{path}: its first line names no columns but a file, {data[0]!r}. Put a line with the names of the "
            "columns before it, such as path,label, and commas between columns"
        )
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise SourceError(f"{path}: has several columns called {some_of(twice)}. Rename all but one of them")
