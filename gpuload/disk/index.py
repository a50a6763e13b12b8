"""`index.arrow`: one row per sample in stored order, one Arrow record batch per shard.

The file is uncompressed Arrow IPC, so its memory map can be used without parsing: a shard's columns are slices of the
file. With one batch per shard, opening costs O(shards), and reading the order, labels or offsets of one window of
shards costs O(window), whatever the number of samples.
"""

import hashlib
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from gpuload.errors import FormatError
from gpuload.fields.field import Field
from gpuload.fields.registry import index_schema

FILE_NAME = "index.arrow"
_BLOCK_BYTES = 1 << 20


def index_sha256(path: Path) -> str:
    """The SHA-256 of an index, for the manifest: what is fetched from a URL is compared with it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


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

    Raises:
        FormatError: the file is missing or damaged, or lacks a column of these fields.
    """

    def __init__(self, path: Path, fields: tuple[Field, ...]) -> None:
        self.path = path
        try:
            self.bytes = pa.memory_map(str(path), "r").read_buffer()  # no copy: the memory map
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

    def shard(self, number: int) -> pa.RecordBatch:
        """The rows of one shard; its columns are views of the file."""
        try:
            return self._reader.get_batch(number)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None

    def table(self) -> pa.Table:
        """All rows; the columns have one chunk per shard and are views of the file."""
        try:
            return self._reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> FormatError:
        return FormatError(f"{self.path}: is damaged ({_first_line(error)}). Copy the folder again")


def _first_line(error: Exception) -> str:
    return " ".join(str(error).splitlines()[:1])
