"""TFRecord and ArrayRecord: files of TensorFlow's `Example` messages.

In a TFRecord, each record is its length in 8 bytes, a checksum of these, the data, and their checksum: CRC-32C, turned
and shifted by a constant.
"""

import re
import struct
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from gpuload.errors import DecodeError
from gpuload.sources.columns import Table
from gpuload.sources.files import Files, Findings, read_at
from gpuload.sources.source import Row, Sight
from gpuload.sources.stores.example import Meaning, features_of
from gpuload.sources.stores.pieces import StoreFile, inflate_file, opened
from gpuload.sources.stores.store import StoreSource

_NAME = re.compile(
    r"\.(tfrecords?|tfrec)(\.gz)?(-\d+-of-\d+)?$|\.(tfrecords?|tfrec)\b", re.IGNORECASE
)
_NUMBERED = re.compile(r"-\d+-of-\d+$")
_ARRAY_NAME = re.compile(r"\.array_?records?(-\d+-of-\d+)?$", re.IGNORECASE)
_HEAD = struct.Struct("<QI")
_GZIP = b"\x1f\x8b"
_MOST_READ = 8  # files whose begin is looked at
_CONSTANT = 0xA282EAD8


class ExampleSource(StoreSource):
    """Files of `Example` messages. Encoded images stay as they are stored.

    Features of the names that TensorFlow Datasets, slim and the Object Detection API use are fields, and others are
    columns. Classes have the numbers of the file, unless it has names for them: these are then numbered from 0 in the
    order of their numbers, as slim's from 1 are.
    """

    _meaning: Meaning | None = None

    def table(self, path: Path, findings: Findings) -> Table:
        meaning = self._meaning or Meaning(path.parent, findings)
        self._meaning = meaning  # names of classes are those of all files
        rows: Iterator[Row] = (
            meaning.row(features_of(message)) for message in self._messages(path)
        )
        return Table((), rows)

    @abstractmethod
    def _messages(self, path: Path) -> Iterator[bytes]:
        """The messages in a file."""


class TfRecordSource(ExampleSource):
    """TFRecord, by TensorFlow or others, with or without gzip."""

    form = "TFRecord of tf.train.Example messages"
    suffixes = (".tfrecord", ".tfrecords", ".tfrec")

    @classmethod
    def is_file(cls, files: Files, name: str) -> bool:
        return bool(_NAME.search(name) or _NUMBERED.search(name))

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        """Also by the begin of one of its files: slim's names, such as train-00000-of-01024, say nothing of it.

        Args:
            files: The container at the path.
        """
        sight = super().recognise(files)
        path = getattr(files, "path", None)
        if sight is None or not isinstance(path, Path):
            return sight
        paths = [path / name if name else path for name in cls.stores_in(files)]
        is_named = any(_NAME.search(place.name) for place in paths)
        return sight if is_named or any(map(_begins, paths[:_MOST_READ])) else None

    def _messages(self, path: Path) -> Iterator[bytes]:
        scratch = self._scratch / "records"
        if read_at(path, 0, 2) == _GZIP:
            inflate_file(path, "gzip", None, scratch)
            path = scratch
        with opened(path) as file:
            yield from records_of(file)
        scratch.unlink(missing_ok=True)


class ArrayRecordSource(ExampleSource):
    """The same in files of ArrayRecord, by the package array_record."""

    form = "ArrayRecord of tf.train.Example messages"
    suffixes = (".array_record", ".arrayrecord")
    needs = ("array_record",)
    faults = (RuntimeError,)

    @classmethod
    def is_file(cls, files: Files, name: str) -> bool:
        return bool(_ARRAY_NAME.search(name))

    def _messages(self, path: Path) -> Iterator[bytes]:
        from array_record.python.array_record_module import ArrayRecordReader

        reader = ArrayRecordReader(str(path))
        if not reader.ok():
            raise ValueError("it is damaged")
        for number in range(reader.num_records()):
            (message,) = reader.read([number])
            yield message
        reader.close()


def records_of(file: StoreFile) -> Iterator[bytes]:
    """The data of each record.

    Raises:
        ValueError: the file is damaged. Data are compared with their checksums where the package google_crc32c is
            installed.
    """
    checksum = _checksum_of_data()
    place = 0
    while place < file.size:
        head = file.at(place, _HEAD.size, "a record")
        if not _is_head(head):
            raise ValueError(f"no record begins at byte {place:,}")
        length, _ = _HEAD.unpack(head)
        data = file.at(place + _HEAD.size, length + 4, "a record")
        stored = int.from_bytes(data[length:], "little")
        message = data[:length]
        if checksum is not None and masked(checksum(message)) != stored:
            raise DecodeError(f"the record at byte {place:,} differs from its checksum")
        yield message
        place += _HEAD.size + length + 4


def _begins(path: Path) -> bool:
    """Whether a file begins with a record."""
    with suppress(OSError):
        return _is_head(read_at(path, 0, _HEAD.size))
    return False


def _is_head(head: bytes) -> bool:
    """Whether bytes are a length and its checksum."""
    if len(head) < _HEAD.size:
        return False
    _, stored = _HEAD.unpack(head)
    return masked(crc32c(head[:8])) == stored


def _checksum_of_data() -> Any:
    with suppress(ImportError):
        return import_module("google_crc32c").value
    return None


def masked(checksum: int) -> int:
    """A checksum as TFRecord stores it."""
    turned = checksum >> 15 | checksum << 17
    return (turned + _CONSTANT) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), of a few bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF
