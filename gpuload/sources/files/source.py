"""What sources have in common whose images are files of a container."""

import os
import posixpath
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.counted import counted
from gpuload.errors import SourceError
from gpuload.fields.field import Field
from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Folder, Found, open_files
from gpuload.sources.files.base import ReadAhead
from gpuload.sources.listing import Source, listing_schema
from gpuload.store.url import URL, as_location

_CHUNK_ROWS = 65_536  # rows kept as Python objects before they become Arrow columns


class FilesSource(Source):
    """Images, and perhaps masks, that are files of a container.

    root: a folder, a zip archive, a URL, or any other `Files`. files: the container there.
    """

    def __init__(self, root: str | Path | URL | Files) -> None:
        self.files = open_files(root)
        self.root = as_location(root) if isinstance(root, (str, os.PathLike)) else root
        if isinstance(self.root, str):
            self.root = Path(self.root)

    @property
    def identity(self) -> str:
        return self.describe({name: value for name, value in vars(self).items() if name != "files"})

    def leave_out(self, folder: Path) -> None:
        if isinstance(self.files, Folder):
            self.files.leave_out(folder)

    def check_root(self, advice: str) -> None:
        """Raises SourceError, with the advice, where nothing can be listed."""
        if fault := self.files.fault():
            raise SourceError(f"{self.root}: {fault}. {advice}")

    def find_all(self, names: Sequence[Any]) -> tuple[list[Found], list[str]]:
        """The files of these names, and the names without a file."""
        found, missing = [], []
        for name in names:
            try:
                if not isinstance(name, str):
                    raise FileNotFoundError
                found.append(self.files.find(name))
            except (OSError, ValueError):
                missing.append(str(name))
        return found, missing

    def has(self, name: Any) -> bool:
        return not self.find_all([name])[1]

    def beside(self, names: Iterable[str], where: str) -> list[str]:
        """A note about images that lie in the folders of the named ones without being named; none if there are none."""
        named = {posixpath.normpath(name) for name in names}
        beside = [
            file
            for folder in sorted({posixpath.dirname(name) for name in named})
            for file in self.files.names(folder)
            if file.rpartition(".")[2].lower() in IMAGE_EXTENSIONS and posixpath.join(folder, file) not in named
        ]
        if not beside:
            return []
        return [
            f"left out {counted(len(beside), 'image that lies', 'images that lie')} beside the others and that "
            f"{where} does not name"
        ]

    def expect(self, addresses: Sequence[str]) -> None:
        if isinstance(self.files, ReadAhead):
            self.files.expect(addresses)

    def wait(self, address: str) -> None:
        if isinstance(self.files, ReadAhead):
            self.files.wait(address)

    def read(self, row: int, name: str, where: str = "") -> bytes:
        return self.files.read(where or name)

    def read_field(self, field: Field, row: int, where: str) -> bytes:
        return self.files.read(where)


def files_table(files: Sequence[Found], fields: Iterable[Field], columns: Sequence[Any]) -> pa.Table:
    """The table of a listing: a row for each of these images, with the columns of its fields."""
    head: list[Any] = [[file.name for file in files], [file.size for file in files]]
    addressed = any(file.address != file.name for file in files)
    if addressed:
        head.append([file.address for file in files])
    return pa.table([*head, *columns], schema=listing_schema(tuple(fields), where=addressed))


def stream_table(samples: Iterable[tuple[Any, ...]], fields: tuple[Field, ...]) -> pa.Table:
    """The same, out of tuples of a `Found` and a value for each column, without having all of them in memory."""
    samples = iter(samples)
    chunks = []
    while rows := list(islice(samples, _CHUNK_ROWS)):
        files, *columns = zip(*rows, strict=True)
        chunks.append(files_table(files, fields, columns))
    return pa.concat_tables(chunks) if chunks else listing_schema(fields).empty_table()
