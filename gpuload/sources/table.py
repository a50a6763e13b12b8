"""A table of paths and labels beside a folder of images: `--labels table.csv`."""

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa

from gpuload.disk.fields import LABEL
from gpuload.errors import SourceError
from gpuload.sources.listing import Listing, listing_schema, some_of

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image")
LABEL_COLUMNS = ("label", "class", "target")


class TableSource:
    """Images named by a CSV or TSV table with a header line.

    root: the folder that paths in the table are relative to.
    path_column, label_column: names of columns; None takes the first of the usual names that the table has.

    Labels that are all whole numbers are class numbers. Any other text is a class name, and classes are numbered in
    sorted order. Samples are in the order of the table.
    """

    def __init__(
        self, root: str | Path, table: str | Path, path_column: str | None = None, label_column: str | None = None
    ) -> None:
        self.root = Path(root)
        self.table = Path(table)
        self.path_column = path_column
        self.label_column = label_column

    def list_samples(self) -> Listing:
        """Every row of the table.

        Raises:
            SourceError: the table cannot be read or lacks a column; a file is missing or named twice; a label is
                missing, negative or fractional.
        """
        rows = self._read_table()
        paths = rows.column(self._column(rows, "--path-column", self.path_column, PATH_COLUMNS))
        labels = rows.column(self._column(rows, "--label-column", self.label_column, LABEL_COLUMNS))
        names = paths.to_pylist()
        if not names:
            raise SourceError(f"{self.table}: has a header but no rows. Give it a row for each image")
        self._refuse([str(line) for line, name in enumerate(names, 2) if not name], "an empty path", "lines")
        sizes = self._sizes(names)
        twice = [name for name, count in Counter(names).items() if count > 1]
        self._refuse(twice, "a path in more than one row", "rows for")
        numbers, classes = self._classes(labels)
        schema = listing_schema((LABEL,))
        return Listing(pa.table([names, sizes, numbers], schema=schema), (LABEL,), classes)

    def read(self, row: int, name: str) -> bytes:
        with open(os.path.join(self.root, name), "rb", buffering=0) as file:
            return file.read()

    def _read_table(self) -> pa.Table:
        from pyarrow import csv  # this and pyarrow.compute cost 40 ms, for which workers need not wait

        if not self.root.is_dir():
            raise SourceError(f"{self.root}: no such folder. Give the folder that the paths in {self.table} start from")
        try:
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
                f"{self.table}: cannot be read ({error.strerror}). --labels takes a CSV or TSV table"
            ) from None
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise SourceError(
                f"{self.table}: not a CSV or TSV table in UTF-8 with a header line ({str(error).splitlines()[0]}). "
                "Save it again as CSV"
            ) from None

    def _column(self, rows: pa.Table, option: str, asked: str | None, usual: tuple[str, ...]) -> str:
        found: list[str] = rows.column_names
        if asked is not None and asked in found:
            return asked
        if asked is not None:
            raise SourceError(
                f"{self.table}: has no column {asked!r}; its columns are {found}. Give {option} one of them"
            )
        for name in usual:
            for column in found:
                if column.strip().lower() == name:
                    return column
        raise SourceError(
            f"{self.table}: has none of the columns {', '.join(usual)}; its columns are {found}. Name one with {option}"
        )

    def _sizes(self, names: list[str]) -> list[int]:
        sizes, missing = [], []
        for name in names:
            path = os.path.join(self.root, name)
            try:
                if not os.path.isfile(path):
                    raise FileNotFoundError
                sizes.append(os.stat(path).st_size)
            except (OSError, ValueError):
                missing.append(name)
        if missing:
            raise SourceError(
                f"{self.table}: names {len(missing):,} of {len(names):,} files that are not in {self.root}: "
                f"{some_of(missing)}. Paths are relative to SOURCE; correct them or remove the rows"
            )
        return sizes

    def _classes(self, labels: pa.ChunkedArray) -> tuple[pa.ChunkedArray, tuple[str, ...] | None]:
        import pyarrow.compute as pc

        labels = pc.utf8_trim_whitespace(labels.cast(pa.large_string()))
        texts: list[str] = sorted(pc.unique(labels).to_pylist())
        empty = pc.sum(pc.equal(labels, "")).as_py()
        if empty:
            first = pc.index(labels, pa.scalar("", pa.large_string())).as_py() + 2
            raise SourceError(
                f"{self.table}: {empty:,} rows have no label (first in line {first}). Fill or remove them"
            )
        if all(_is_number(text) for text in texts):
            try:
                numbers = labels.cast(pa.int64())
            except pa.ArrowInvalid:
                wrong = [text for text in texts if not text.lstrip("+-").isdecimal()]
                raise SourceError(
                    f"{self.table}: labels must be whole numbers or names of classes, found {some_of(wrong or texts)}. "
                    "Give another --label-column"
                ) from None
            if pc.min(numbers).as_py() < 0:
                raise SourceError(
                    f"{self.table}: class numbers start at 0, found {pc.min(numbers).as_py()}. "
                    "Renumber or remove the rows"
                )
            return numbers, None
        return pc.index_in(labels, pa.array(texts, pa.large_string())).cast(pa.int64()), tuple(texts)

    def _refuse(self, wrong: list[str], what: str, unit: str) -> None:
        if wrong:
            raise SourceError(
                f"{self.table}: {what}, {len(wrong):,} times ({unit} {some_of(wrong)}). Remove those rows"
            )


def _delimiter(header: str) -> str:
    return max(",\t;", key=header.count)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
