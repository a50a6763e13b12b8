"""Tables in files of DuckDB, by the package duckdb."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gpuload.errors import SourceError, some_of
from gpuload.sources.columns import Table
from gpuload.sources.files import Findings, readable
from gpuload.sources.source import ColumnOptions, Row
from gpuload.sources.stores.store import StoreSource

_BATCH_ROWS = 64


@dataclass(frozen=True)
class DuckDbOptions(ColumnOptions):
    """The options of DuckDB.

    Args:
        table: The table that is packed; without, the only one that has a column of BLOBs.
    """

    table: str = ""


class DuckDbSource(StoreSource):
    """A table in a file of DuckDB, in stored order. Views are not run, and nothing outside of the file is read."""

    form = "a file of DuckDB"
    suffixes = (".duckdb", ".ddb")
    Options: ClassVar[type[ColumnOptions]] = DuckDbOptions
    options: DuckDbOptions
    needs = ("duckdb",)
    faults = (RuntimeError,)

    def table(self, path: Path, findings: Findings) -> Table:
        return Table((), self._rows(path))

    def _rows(self, path: Path) -> Iterator[Row]:
        import duckdb

        settings = {
            "enable_external_access": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
        }
        with (
            readable(path, self.form, duckdb.Error),
            duckdb.connect(str(path), read_only=True, config=settings) as connection,
        ):
            name = self._name(connection)
            cursor = connection.execute(f"SELECT * FROM {name}")
            names = [column[0] for column in cursor.description]
            while rows := cursor.fetchmany(_BATCH_ROWS):
                for row in rows:
                    yield dict(zip(names, row, strict=True))

    def _name(self, connection: Any) -> str:
        """The table, quoted."""
        query = """
            SELECT table_schema, table_name, bool_or(data_type LIKE '%BLOB%')
            FROM information_schema.columns NATURAL JOIN information_schema.tables
            WHERE table_type = 'BASE TABLE' GROUP BY ALL ORDER BY ALL
        """
        tables = connection.execute(query).fetchall()
        wanted = [
            (schema, name)
            for schema, name, has_blobs in tables
            if (name == self.options.table if self.options.table else has_blobs)
        ]
        if len(wanted) != 1:
            has = some_of([name for _, name, _ in tables]) or "none"
            raise SourceError(
                f"{self.title}: which table holds the images? It has {has}. Give --option table=NAME"
            )
        return ".".join('"' + part.replace('"', '""') + '"' for part in wanted[0])
