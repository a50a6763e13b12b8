"""`index.arrow`: one row per sample in stored order, one Arrow record batch per shard.

The file is uncompressed Arrow IPC, so its memory map can be used without parsing: a shard's columns are slices of the
file. With one batch per shard, opening costs O(shards), and reading the order, labels or offsets of one window of
shards costs O(window), whatever the number of samples.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import pyarrow as pa

from gpuload.disk.arrow_footer import batch_bounds, footer_bytes
from gpuload.errors import FormatError
from gpuload.fields.field import Field
from gpuload.fields.registry import index_schema

if TYPE_CHECKING:
    from gpuload.store.parts import Parts  # asyncio

FILE_NAME = "index.arrow"
_BLOCK_BYTES = 1 << 20
_END_BYTES = 10


class IndexDigests(NamedTuple):
    """What a manifest tells of an index, so that what is fetched from a URL can be compared with it.

    index_sha256: of the file. index_parts: of each shard's record batch, and of what follows the last one.
    """

    index_sha256: str
    index_parts: tuple[str, ...] | None


def index_digests(path: Path) -> IndexDigests:
    """Those of an index; `index_parts` is None where it has no record batch."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        bounds = batch_bounds(_footer(file, size), size)
        ends = [size] if bounds is None else [*bounds.tolist(), size]
        whole, parts = hashlib.sha256(), []
        file.seek(0)
        for end in ends:
            part = hashlib.sha256()
            while block := file.read(min(_BLOCK_BYTES, end - file.tell())):
                part.update(block)
                whole.update(block)
            parts.append(part.hexdigest())
    return IndexDigests(whole.hexdigest(), None if bounds is None else tuple(parts[1:]))  # the first is of the schema


def _footer(file: BinaryIO, size: int) -> bytes:
    """The last bytes of an Arrow file, with its whole footer."""
    file.seek(max(0, size - _END_BYTES))
    file.seek(max(0, size - (footer_bytes(file.read()) or 0)))
    return file.read()


class IndexWriter:
    """Writes `index.arrow`, one record batch per shard, in shard order."""

    def __init__(self, path: Path, fields: tuple[Field, ...]) -> None:
        self.schema = index_schema(fields)
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, self.schema)

    def append(self, rows: pa.RecordBatch) -> None:
        """Writes the rows of the next shard."""
        self._writer.write_batch(rows)

    def close(self) -> None:
        self._writer.close()
        self._file.close()

    def __enter__(self) -> "IndexWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Index:
    """Reads `index.arrow` through a memory map.

    parts: of the index of a set at a URL, the record batches, which are downloaded as they are needed, into the file at
        `path`; None: the file is whole.

    Raises:
        FormatError: the file is missing or damaged, or lacks a column of these fields.
    """

    def __init__(self, path: Path, fields: tuple[Field, ...], parts: "Parts | None" = None) -> None:
        self.path, self.parts = path, parts
        try:
            if parts is None:
                self.bytes = pa.memory_map(str(path), "r").read_buffer()  # no copy: the memory map
            else:
                self.bytes = pa.py_buffer(parts.file.memory)[: parts.file.size]
            self._reader = pa.ipc.open_file(self.bytes)
            self.schema: pa.Schema = self._reader.schema
            names = self.schema.names
        except FileNotFoundError:
            raise FormatError(
                f"{path}: missing. Copy the folder again, or index its shards: python -m gpuload index"
            ) from None
        except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names that are not UTF-8
            raise FormatError(
                f"{path}: not an Arrow file, or truncated ({_first_line(error)}). Copy the folder again"
            ) from None
        for column in index_schema(fields):
            if names.count(column.name) != 1:
                raise FormatError(
                    f"{path}: has no column {column.name!r}, which manifest.json requires, or several. "
                    "Copy the folder again"
                )
            if (found := self.schema.field(column.name).type) != column.type:
                raise FormatError(
                    f"{path}: column {column.name!r} is of type {found}, expected {column.type}. Copy the folder again"
                )

    def __len__(self) -> int:
        """Number of shards."""
        return int(self._reader.num_record_batches)

    def fetch(self, numbers: Iterable[int] | None = None) -> None:
        """Downloads the rows of these shards, or of all, together, where they are not here.

        Raises:
            RemoteError: they cannot be read. FormatError: they are not those of the manifest.
        """
        if self.parts is not None:
            self.parts.wait(numbers)

    def shard(self, number: int) -> pa.RecordBatch:
        """The rows of one shard; its columns are views of the file.

        Raises:
            RemoteError, FormatError: as `fetch`.
        """
        if self.parts is not None and not self.parts.has(number):
            self.parts.wait([number])
        try:
            return self._reader.get_batch(number)
        except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: its footer is not there any more
            raise self._damaged(error) from None

    def table(self) -> pa.Table:
        """All rows; the columns have one chunk per shard and are views of the file.

        Raises:
            RemoteError, FormatError: as `fetch`.
        """
        self.fetch()
        try:
            return self._reader.read_all()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> FormatError:
        return FormatError(f"{self.path}: is damaged ({_first_line(error)}). Copy the folder again")


def _first_line(error: Exception) -> str:
    return " ".join(str(error).splitlines()[:1])
