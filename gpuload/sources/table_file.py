"""A table of any of the usual formats, read into memory."""

import csv
import re
import tempfile
from pathlib import Path

import pyarrow as pa

from gpuload.errors import RemoteError, SourceError, some_of
from gpuload.sources.files import IMAGE_EXTENSIONS
from gpuload.store.url import URL

_FILE = re.compile(rf"\.({'|'.join(sorted(IMAGE_EXTENSIONS))})(\s|$)", re.IGNORECASE)  # in what should be a header
_JSON_LINES, _PARQUET = (".jsonl", ".ndjson"), (".parquet", ".pq")


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
    from gpuload.disk.fetch import fetch_file  # asyncio
    from gpuload.store.background import background
    from gpuload.store.hub import pinned
    from gpuload.store.objects import Objects

    url = pinned(url)
    with tempfile.TemporaryDirectory(prefix="gpuload-table-") as scratch:
        path = Path(scratch) / url.name
        try:
            background().wait(fetch_file(Objects(URL(url.text.rpartition("/")[0])), url.name, path))
            return read_table(path)
        except (SourceError, RemoteError) as error:
            raise SourceError(str(error).replace(str(path), str(url))) from None


def _checked(table: pa.Table) -> pa.Table:
    """A table whose names and texts are UTF-8.

    Raises:
        ArrowInvalid, UnicodeDecodeError: they are not.
    """
    assert all(isinstance(name, str) for name in table.column_names)  # they are decoded here
    table.validate(full=True)
    return table


def place_of(path: Path | URL, row: int) -> str:
    """What a person calls a row of the table, where no cell goes over several lines."""
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
