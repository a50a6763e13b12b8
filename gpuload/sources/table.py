"""A table of paths and fields, beside a folder of images: `--labels table.csv`."""

import csv
import posixpath
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.errors import ArgumentError, RemoteError, SourceError, some_of
from gpuload.fields.captions import JsonKind
from gpuload.fields.cells import is_whole, separator_of, texts_of
from gpuload.fields.kind import Kind
from gpuload.fields.numbers import LabelsKind
from gpuload.fields.registry import all_kinds
from gpuload.formats import image_extensions
from gpuload.machine.untrusted import parse_json
from gpuload.sources.annotations import NamedFiles
from gpuload.sources.columns import Features, roles_of
from gpuload.sources.files import Files, Findings, Ref, is_image, readable
from gpuload.sources.listing import SPLIT, splits_of_column
from gpuload.sources.source import ColumnOptions, FilesSource, Names, Row, located
from gpuload.store.url import URL

_ERRORS = (pa.ArrowException, UnicodeDecodeError)
_JSON_LINES = (".jsonl", ".ndjson")
_PARQUET = (".parquet", ".pq")
_LOOKED_AT = 100  # cells, to tell whether a column names images
_FLAGS = ({"0", "1", "0.0", "1.0", 0, 1}, {"-1", "1", "-1.0", "1.0", -1, 1})
_BOXES = re.compile(r"([^\s,;|]*[^\d\s,;|]\S*( \d+){4} ?)+")  # class x y width height
_NUMBERS = re.compile(r"\d+( \d+)+")  # several classes, such as "16 0"
_FRACTION = re.compile(r"-?\d*\.\d+(e-?\d+)?")


class _CaptionLists(JsonKind):
    """Several texts for each image, a field of kind "json" as those of COCO are.

    They are the texts of several columns, or of one whose cells are lists, JSON lists or lines.
    """

    def parse_cells(self, cells: Sequence[Any]) -> list[str]:
        captions = [text for cell in cells for text in _texts(cell)]
        if not captions:
            raise ValueError("a row has no caption")
        return captions


def _texts(cell: Any) -> list[str]:
    is_json = isinstance(cell, str) and cell.lstrip().startswith("[")
    try:
        texts = (
            parse_json(cell)
            if is_json
            else cell
            if isinstance(cell, list)
            else (cell or "").splitlines()
        )
        return [text.strip() for text in texts if text.strip()]
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{str(cell)[:60]!r} is not a list of captions") from None


# The kind of field in a column, by the role of the column.
_KINDS: dict[str, Kind] = {
    kind.role or kind.name: kind for kind in all_kinds().values() if kind.in_tables
}
_KINDS["captions"] = _CaptionLists()
_ROLES = ("path", *_KINDS, SPLIT)


@dataclass(frozen=True)
class TableOptions(ColumnOptions):
    """The options of a table.

    Args:
        labels: The table, a path or a URL.
    """

    labels: str | Path | None = None


class TableSource(FilesSource):
    """Images named by a CSV, TSV, JSONL or Parquet table.

    Labels that are all whole numbers are class numbers. Any other text is a class name, and classes are numbered in
    sorted order. Samples are in the order of the table. A column gives their splits, or else the folders of the images,
    if each is named after a split.

    Args:
        root: The folder that paths in the table are relative to. They may lack the extension.
        options: `columns` names columns by what they hold: "path", "label" (a class), "target" (one or more columns of
            floats), "integers" (whole numbers), "labels" (several classes), "caption", "boxes" (x0 y0 x1 y1 and perhaps
            a class, as a list of lists), "keypoints" (a list of instances), "mask" (the path of one), "split". A role
            without a name takes the first of its usual names that the table has.
    """

    Options = TableOptions
    options: TableOptions

    def __init__(self, root: str | Path | URL | Files, **options: Any) -> None:
        columns = dict(options.get("columns") or {})
        if "path" not in columns and "image" in columns:
            columns["path"] = columns.pop("image")  # in a table an image is its path
        super().__init__(root, **{**options, "columns": columns})
        if self.options.labels is None:
            raise ArgumentError(
                "a table is given with --labels: SOURCE is the folder of its images. Give --labels"
            )
        self.table = located(self.options.labels)
        if unknown := sorted(set(columns) - set(_ROLES)):
            expected = ", ".join(_ROLES)
            raise ArgumentError(
                f"--column {unknown[0]}=: a table holds no such field. Give one of {expected}"
            )

    @property
    def title(self) -> str:
        return str(self.table)

    def rows(self, findings: Findings) -> Iterator[Row]:
        table = read_table(self.table)
        features = Features.of_metadata(table.schema.metadata)
        roles = roles_of(
            self.title, table.column_names, self.options.columns, _ROLES, features
        )
        self._add_roles(table, roles, findings)
        flags = _flags_in(table, roles)
        if flags:
            yield from self._flagged(table, roles["path"][0], flags, findings)
            return
        if "path" not in roles:
            raise SourceError(
                f"{self.title}: its columns are {table.column_names}; which holds the paths, and which the labels? "
                "Name them with --column path=NAME and --column label=NAME; for images alone give --no-labels"
            )
        if _KINDS.keys().isdisjoint(roles):
            (path,) = roles["path"]
            others = [name for name in table.column_names if name != path]
            raise SourceError(
                f"{self.title}: its column {path!r} names the images; what do {some_of(others, len(others))} hold? "
                "Give --column label=NAME for classes, labels=NAME for several of an image, or target=NAME,NAME for "
                "numbers; for images alone give --no-labels"
            )
        columns = self._values(table, roles, findings)
        findings.strict = False
        if SPLIT in roles and self.options.own_splits:
            splits = self._splits(table, roles[SPLIT][0], findings)
            if splits:
                columns[SPLIT] = splits
        findings.picked = True
        for role in columns:
            if role in _KINDS:
                findings.kinds[role] = _KINDS[role].name
        for role, names in roles.items():
            if names[0] in features.all:
                findings.classes[role] = features.all[names[0]]
        self._note_unused(table, roles, columns, findings)
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))

    def _add_roles(
        self, table: pa.Table, roles: dict[str, Names], findings: Findings
    ) -> None:
        """Adds the column of paths by its values where no name tells it, and the label of a table of both alone."""
        if "path" not in roles:
            stems = {
                posixpath.splitext(posixpath.basename(ref.name))[0]
                for ref in self.files.walk(image_extensions(), Findings())
            }
            naming = [
                name for name in table.column_names if _name_images(table, name, stems)
            ]
            if len(naming) == 1:
                roles["path"] = (naming[0],)
                self._refuse_without_header(table, naming[0], stems)
        others = [name for name in table.column_names if (name,) != roles.get("path")]
        if len(others) == 1 and roles.keys() == {"path"}:
            role = _role_of(table.column(others[0]).to_pylist())
            roles[role] = (others[0],)
            findings.notes.append(
                f"{self.title}: its column {others[0]!r} is taken as {role!r}; --column says otherwise"
            )

    def _refuse_without_header(
        self, table: pa.Table, column: str, stems: Set[str]
    ) -> None:
        """Raises SourceError if the name of the column of paths is the name of an image."""
        name = posixpath.splitext(posixpath.basename(column))[0]
        if name in stems and is_image(column):
            raise SourceError(
                f"{self.title}: its first line is {some_of(table.column_names)}, which names an image, and is taken as "
                "the names of its columns. Add a line before it, such as path,label"
            )

    def _splits(self, table: pa.Table, column: str, findings: Findings) -> Any:
        """The splits that a column gives to the rows; none where it has others than splits."""
        findings.origin = f"by its column {column!r}"
        is_named = SPLIT in self.options.columns
        cells = table.column(column).to_pylist()
        return splits_of_column(self.title, column, cells, is_named)

    def _note_unused(
        self,
        table: pa.Table,
        roles: Mapping[str, Names],
        fields: Iterable[str],
        findings: Findings,
    ) -> None:
        """Notes the columns of which no field is made."""
        used = set[str]()
        for field in fields:
            used.update(roles["path" if field == "image" else field])
        unused = [name for name in table.column_names if name not in used]
        if unused:
            findings.notes.append(
                f"columns of {self.title} that are not packed: {some_of(unused)}; --column ROLE=NAME packs them"
            )

    def _flagged(
        self, table: pa.Table, path: str, flags: Sequence[str], findings: Findings
    ) -> Iterator[Row]:
        """Images by columns of 0 and 1, one for each class: "label" where every row has a single 1, else "labels"."""
        named = NamedFiles(self.files, self.title, self.path)
        images = named.find_all(table.column(path).to_pylist(), complete=False)
        rows = zip(*(table.column(name).to_pylist() for name in flags), strict=True)
        numbers = [
            [number for number, flag in enumerate(row) if float(flag) == 1]
            for row in rows
        ]
        is_single = all(len(of_row) == 1 for of_row in numbers)
        role = "label" if is_single else "labels"
        findings.classes[role] = tuple(name.strip() for name in flags)
        findings.strict = False
        findings.notes += named.notes
        findings.notes += named.beside([image.name for image in images])
        for image, of_row in zip(images, numbers, strict=True):
            yield {"image": image, role: of_row[0] if is_single else of_row}

    def _values(
        self,
        table: pa.Table,
        roles: Mapping[str, Names],
        findings: Findings,
    ) -> dict[str, Sequence[Any]]:
        """The images, and the values of each field, row by row."""
        files = NamedFiles(self.files, self.title, self.path)
        images = files.find_all(
            _paths_in(table.column(roles["path"][0])), complete=False
        )
        values: dict[str, Sequence[Any]] = {"image": images}
        self._refuse_repeated(images)
        for role, kind in _KINDS.items():
            columns = [table.column(name).to_pylist() for name in roles.get(role, ())]
            if columns and kind.stays_in_shard:
                values[role] = files.find_all(
                    list(map(str, columns[0])), complete=False
                )
            elif columns:
                values[role] = self._parsed(role, columns, findings)
        findings.notes += files.notes
        pictures = [*images, *values.get("mask", ())]
        findings.notes += files.beside([picture.name for picture in pictures])
        return values

    def _refuse_repeated(self, images: Iterable[Ref]) -> None:
        """Raises SourceError if two rows name one image."""
        counts = Counter(posixpath.normpath(image.name) for image in images)
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise SourceError(
                f"{self.title}: names images in more than one row: {some_of(repeated)}. Remove those rows"
            )

    def _parsed(
        self, role: str, columns: list[list[Any]], findings: Findings
    ) -> list[Any]:
        if role == LabelsKind.name and (cell := _split_at_blanks(columns[0])):
            if _BOXES.fullmatch(cell):
                raise SourceError(
                    f"{self.title}: its labels are boxes with their classes, such as {cell[:60]!r}. Write a table "
                    "with a row for each box, and the columns class, x, y, width and height"
                )
            advice = "write JSON lists if names have blanks"
            findings.notes.append(
                f"{self.title}: labels are split at blanks, such as {cell[:60]!r}; {advice}"
            )
        try:
            return _KINDS[role].parse_column(list(zip(*columns, strict=True)))
        except (ValueError, TypeError) as error:
            raise SourceError(
                f"{self.title}: {error}. Correct the column {role!r}"
            ) from None


def _name_images(table: pa.Table, column: str, stems: Set[str]) -> bool:
    """Whether the first cells of a column are names of images, given without folders and extensions."""
    cells = table.column(column).slice(0, _LOOKED_AT).to_pylist()
    names = [posixpath.basename(str(cell).replace("\\", "/")) for cell in cells]
    return bool(names) and all(
        name in stems or posixpath.splitext(name)[0] in stems for name in names
    )


def _role_of(cells: Sequence[Any]) -> str:
    """What a column besides that of paths holds: several classes, a number, or a class."""
    texts = [str(cell) for cell in cells]
    if any(_NUMBERS.fullmatch(text) for text in texts):
        return LabelsKind.name
    return "target" if any(_FRACTION.fullmatch(text) for text in texts) else "label"


def _paths_in(column: pa.ChunkedArray) -> list[str]:
    """The paths in a column; Hugging Face writes images as structs with one."""
    paths = []
    for cell in column.to_pylist():
        path = cell.get("path") if isinstance(cell, dict) else cell
        paths.append(str(path or ""))
    return paths


def _flags_in(table: pa.Table, roles: Mapping[str, Names]) -> list[str]:
    """The columns besides that of paths, where no field is made of them and all their cells are 0 or 1, or as CelebA's
    -1 or 1; else []."""
    if "path" not in roles or not _KINDS.keys().isdisjoint(roles):
        return []
    names = [name for name in table.column_names if name != roles["path"][0]]
    if len(names) < 2:
        return []
    cells = set[Any]().union(*(table.column(name).to_pylist() for name in names))
    return names if any(cells <= flags for flags in _FLAGS) else []


def _split_at_blanks(cells: Sequence[Any]) -> str:
    """A cell that holds several labels only since blanks separate them; "" if there is none."""
    if separator_of(cells) is not None:
        return ""
    return next(
        (
            text
            for text in texts_of(cells)
            if len(text.split()) > 1 and not all(map(is_whole, text.split()))
        ),
        "",
    )


def read_table(path: Path | URL) -> pa.Table:
    """All rows of a CSV, TSV, JSONL or Parquet table, by its name; cells of the first two are text.

    Raises:
        SourceError: it cannot be read, or two columns have the same name.
    """
    if isinstance(path, URL):
        return _read_remote(path)
    with readable(
        path,
        "a table: CSV or TSV in UTF-8 with a header line, or JSONL or Parquet by its name",
        *_ERRORS,
    ):
        table = _read(path)
        table.validate(full=True)  # whether texts are UTF-8
        names = table.column_names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SourceError(
            f"{path}: has several columns called {some_of(twice)}. Rename all but one of them"
        )
    return table


def _read(path: Path) -> pa.Table:
    suffix = path.suffix.lower()
    if suffix in _JSON_LINES:
        from pyarrow import json

        return json.read_json(path)
    if suffix in _PARQUET:
        from pyarrow import parquet

        return parquet.read_table(path)
    from pyarrow import (
        csv as arrow_csv,
    )  # this and pyarrow.compute cost 40 ms, for which workers need not wait

    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
    delimiter = max(",\t;", key=header.count)
    columns = next(csv.reader([header], delimiter=delimiter), [])
    return arrow_csv.read_csv(
        path,
        parse_options=arrow_csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.large_string()),
            strings_can_be_null=False,
        ),
    )


def _read_remote(url: URL) -> pa.Table:
    from gpuload.sources.remote import Copies  # asyncio

    with tempfile.TemporaryDirectory(prefix="gpuload-table-") as scratch:
        path = str(Path(scratch, "copies", url.name))
        try:
            return read_table(Copies(url, (url.suffix.lower(),)).fetch(Path(scratch)))
        except (SourceError, RemoteError) as error:
            raise SourceError(str(error).replace(path, str(url))) from None
