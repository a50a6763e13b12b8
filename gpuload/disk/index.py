"""`index.arrow`: one row per sample in stored order, one Arrow record batch per shard.

The file is uncompressed Arrow IPC, so its memory map can be used without parsing: a shard's columns are slices of the
file. With one batch per shard, opening costs O(shards), and reading the order, labels or offsets of one window of
shards costs O(window), whatever the number of samples.
"""

import hashlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import pyarrow as pa

from gpuload.counted import counted
from gpuload.disk.record_batches import find_record_batches, is_compressed
from gpuload.errors import FormatError, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import Field
from gpuload.fields.images import POINTS
from gpuload.fields.registry import index_schema, kind_of
from gpuload.machine.limits import count_cores
from gpuload.machine.untrusted import open_regular
from gpuload.types import ClassNames

if TYPE_CHECKING:
    from gpuload.store.transfer import Parts  # asyncio

FILE_NAME = "index.arrow"
_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 8  # "ARROW1" and its padding, before the schema

POINTS_COLUMN = pa.field(POINTS, pa.large_binary())


class Span(NamedTuple):
    """A part of an index file.

    Attributes:
        begin: Its first byte.
        end: The byte after its last; None: it is all from `begin` on.
        sha256: Of these bytes.
    """

    begin: int
    end: int | None
    sha256: str


def index_digests(path: Path) -> dict[str, Any]:
    """What a manifest tells of an index: `index_sha256`, of the file; and of its parts, which are each shard's record
    batch and what follows the last one, `index_parts`, their SHA-256s, and `index_offsets`, where each record batch
    begins, where the last one ends, and the size of the file. Of its parts nothing where it is damaged."""
    size = path.stat().st_size
    with path.open("rb") as file, pa.OSFile(str(path)) as stream:
        digests: dict[str, Any] = {
            "index_sha256": _sha256_of(file, 0, size),
            "index_parts": None,
            "index_offsets": None,
        }
        with suppress(pa.ArrowException, OSError):
            stream.seek(_HEAD_BYTES)
            # The schema and the record batches.
            messages = pa.ipc.MessageReader.open_stream(stream)
            offsets = (*(stream.tell() for _ in messages), size)
            parts = tuple(
                _sha256_of(file, begin, end) for begin, end in pairwise(offsets)
            )
            digests |= {"index_parts": parts, "index_offsets": offsets}
    return digests


def _sha256_of(file: BinaryIO, begin: int, end: int) -> str:
    """The SHA-256 of some bytes of a file, which is read in pieces: of a mapped one, all would be in memory at once."""
    digest = hashlib.sha256()
    file.seek(begin)
    while begin < end and (piece := file.read(min(_PIECE_BYTES, end - begin))):
        digest.update(piece)
        begin += len(piece)
    return digest.hexdigest()


@contextmanager
def write_index(
    path: Path, fields: tuple[Field, ...], points: bool = False
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Gives a function that writes the rows of the next shard to a new index.

    Args:
        path: Of the new file.
        fields: Their columns follow those that every set has. Rows may have others, which are left out.
        points: Whether there is a column of seek points, which rows may lack.
    """
    schema = index_schema(fields)
    if points:
        schema = schema.append(POINTS_COLUMN)

    def write(rows: pa.RecordBatch) -> None:
        if points and POINTS not in rows.schema.names:
            rows = rows.append_column(
                POINTS_COLUMN, array_of([b""] * len(rows), POINTS_COLUMN.type)
            )
        writer.write_batch(rows.select(schema.names))

    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        yield write


class Index:
    """Reads `index.arrow` through a memory map, each shard's rows once compared with their SHA-256, where it is known.

    A shard's rows are compared when they are first asked for: 0.8 ms for 10,000 samples with a label (2 busy cores,
    2026-11), and no more than the window that is read from is touched.

    Args:
        path: Of the file.
        fields: Whose columns it must have.
        spans: The parts of the file, as `Manifest.index_spans` tells them.
        shards: How many of them the manifest lists.
        parts: The parts of the index of a set at a URL, which are downloaded as they are needed; None: the file is
            here.
        required: The columns that it must have, where these are not those of an index with the fields.

    Raises:
        FormatError: the file is missing or damaged, is not that of the manifest, or lacks a column of these fields.
    """

    def __init__(
        self,
        path: Path,
        fields: tuple[Field, ...],
        spans: Sequence[Span] = (),
        shards: int | None = None,
        parts: "Parts | None" = None,
        required: pa.Schema | None = None,
    ) -> None:
        self.path = path
        self.parts = parts
        self._spans = spans
        self._compared = set[int]()  # those of the spans that have the right SHA-256
        try:
            if parts is None:
                with open_regular(path) as file:
                    self._stamp = os.fstat(file.fileno())
                    self.bytes = pa.py_buffer(
                        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    )
                size = self.bytes.size
                if spans and spans[-1].end not in (None, size):
                    raise self._damaged(
                        f"is {size:,} bytes, manifest.json says {spans[-1].end:,}"
                    )
                self._compare([len(spans) - 1])
            else:
                self.bytes = pa.py_buffer(parts.read(len(spans) - 1))
            self._reader = pa.ipc.open_file(
                self.bytes
            )  # its schema and footer are at the end
            self._batches = find_record_batches(self.bytes) if parts is None else None
            self.schema: pa.Schema = self._reader.schema
            present = [(column.name, column.type) for column in self.schema]
        except (
            pa.ArrowException,
            OSError,
            ValueError,
        ) as error:  # ValueError: names that are not UTF-8
            raise FormatError(
                f"{path}: cannot be read as an Arrow file ({_first_line(error)}). Copy the folder again, or index its "
                "shards: python -m gpuload index"
            ) from None
        if required is None:
            required = index_schema(fields)
        for column in required:
            same_name = [pair for pair in present if pair[0] == column.name]
            if same_name != [(column.name, column.type)]:
                raise self._damaged(
                    f"has not one column {column.name!r} of type {column.type}, as manifest.json says"
                )
        if shards not in (None, len(self)):
            raise self._damaged(
                f"indexes {counted(len(self), 'shard')}, manifest.json lists {shards:,}: they are of different runs"
            )

    def _damaged(self, fault: str) -> FormatError:
        return FormatError(f"{self.path}: {fault}. Copy the folder again")

    def __len__(self) -> int:
        """Number of shards."""
        return int(self._reader.num_record_batches)

    def fetch(self, numbers: Iterable[int] | None = None) -> None:
        """Downloads the rows of these shards, or of all, together, and compares them with their SHA-256s.

        Raises:
            RemoteError: they cannot be read. FormatError: they are not those of the manifest.
        """
        numbers = range(len(self)) if numbers is None else numbers
        if self.parts is not None:
            self.parts.wait(numbers)
        else:
            self._compare(numbers)

    def shard(self, number: int) -> pa.RecordBatch:
        """The rows of one shard, none of whose values is missing; its columns are views of the file.

        Raises:
            RemoteError, FormatError: as `fetch`; a value is missing.
        """
        try:
            message = self._message(number)
            if is_compressed(message):
                raise FormatError(
                    f"{self.path}: the rows of shard {number} are compressed, expected an uncompressed index, which "
                    "takes no more memory than its file. Index its shards: python -m gpuload index"
                )
            rows = pa.ipc.read_record_batch(message, self.schema)
            rows.validate()  # else counting could read behind the end of a damaged column
        except (
            pa.ArrowException,
            OSError,
            ValueError,
        ) as error:  # ValueError: its footer is not there any more
            raise self._damaged(f"is damaged ({_first_line(error)})") from None
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if _count_nulls(column):
                raise self._damaged(
                    f"lacks values in column {name!r} of shard {number}"
                )
        return rows

    def _message(self, number: int) -> pa.Buffer:
        """The bytes of a shard's record batch, compared with their SHA-256 where it is known."""
        if self._batches is None:
            assert self.parts is not None
            return pa.py_buffer(self.parts.read(number))
        self._compare([number])
        offset, head, body = self._batches[number].item()
        if min(offset, head, body) < 0 or offset + head + body > self.bytes.size:
            raise ValueError("its end leads out of it")
        return self.bytes.slice(offset, head + body)

    def check_unchanged(self) -> None:
        """Compares what was read so far once more where the file was changed since it was opened: 2 µs.

        Raises:
            FormatError: it is another one now.
        """
        if self.parts is not None:
            return
        try:
            now = os.stat(self.path)
        except OSError:  # what is mapped stays
            return
        before = self._stamp
        is_same_file = now.st_ino == before.st_ino and now.st_dev == before.st_dev
        if is_same_file and now.st_mtime_ns != before.st_mtime_ns:
            numbers = sorted(self._compared)
            self._compared = set()
            self._stamp = now
            self._compare(numbers)

    def _compare(self, numbers: Iterable[int]) -> None:
        """Compares these spans with their SHA-256s, unless they were compared before."""

        def compare(number: int) -> None:
            begin, end, expected = self._spans[number]
            data = memoryview(self.bytes)[begin:end]
            digest = hashlib.sha256(data).hexdigest()
            if digest != expected:
                raise self._damaged(
                    f"is damaged: the SHA-256 of bytes {begin:,} to {begin + len(data) - 1:,} is {digest[:16]}…, "
                    f"manifest.json says {expected[:16]}…"
                )
            self._compared.add(number)

        new = [
            number
            for number in numbers
            if number in range(len(self._spans)) and number not in self._compared
        ]
        if len(new) == 1:
            compare(new[0])
        elif new:
            with ThreadPoolExecutor(
                min(len(new), count_cores())
            ) as pool:  # hashing takes no lock of Python's
                list(pool.map(compare, new))


def _count_nulls(column: pa.Array) -> int:
    """Nulls in a column and, where it is of lists, within these."""
    return int(column.null_count) + (
        _count_nulls(column.values) if hasattr(column, "values") else 0
    )


def _first_line(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).splitlines()[:1])


_NAME = 60  # characters of a class name that are shown


def class_numbers(
    fields: Iterable[Field], rows: Iterable[pa.RecordBatch]
) -> dict[str, set[int]]:
    """The distinct class numbers of the samples in these rows of an index, by field; of those that have classes."""
    import pyarrow.compute as pc  # 0.02 s of the first batch

    columns = dict[str, str]()
    for field in fields:
        column = kind_of(field).class_column(field)
        if column:
            columns[field.name] = column
    numbers: dict[str, set[int]] = {name: set() for name in columns}
    if not columns:
        return numbers
    for batch in rows:
        for name, column in columns.items():
            values = batch.column(column)
            flat = values.flatten() if pa.types.is_list(values.type) else values
            numbers[name].update(pc.unique(flat).to_pylist())
    return numbers


def notes_on_numbers(
    numbers: Mapping[str, Set[int]], fields: Iterable[Field], classes: ClassNames
) -> list[str]:
    """A sentence for each field that has class numbers without a sample, up to its largest or its last name."""
    notes = []
    for field in fields:
        present = {number for number in numbers.get(field.name, ()) if number >= 0}
        if not present:
            continue
        names = kind_of(field).class_names(field, classes)
        count = max(present) + 1 if names is None else len(names)
        absent = count - len(present)
        if absent:
            first = islice((n for n in range(count) if n not in present), 3)
            shown = some_of([n if names is None else names[n][:_NAME] for n in first])
            notes.append(
                f"{field.name}: {absent:,} of {counted(count, 'class', 'classes')} have no sample, as {shown}"
            )
    return notes
