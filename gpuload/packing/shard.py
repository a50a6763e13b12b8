"""One shard, packed by one process: reads its samples, checks them, writes the tar, its index and its rows."""

import hashlib
import os
import re
import signal
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.disk import Field, ShardInfo
from gpuload.disk.dali_index import dali_index_path, dali_index_text
from gpuload.disk.fields import IMAGE, index_schema
from gpuload.disk.tar import Member, TarWriter
from gpuload.errors import DecodeError, OutputError
from gpuload.packing.image import check_image
from gpuload.packing.plan import MEASURED, ROW, read_plan
from gpuload.sources import Source
from gpuload.sources.listing import NAME

_BUFFER_BYTES = 1 << 20
_NOTE = struct.Struct("<qq")  # position in the shard of the sample being worked on, bytes read so far
NOWHERE = -1  # no sample is being worked on: the shard is being closed


@dataclass(frozen=True)
class ShardJob:
    """What a worker is told: shard `number` of the plan goes into `folder`, its rows and notes into `scratch`.

    fields: those besides the image. known_bad: samples (by position in the shard) that brought a worker down, and why.
    time_limit_s: for reading and checking one image; the process dies by SIGALRM when it is over.
    """

    source: Source
    fields: tuple[Field, ...]
    plan: Path
    number: int
    folder: Path
    scratch: Path
    time_limit_s: float
    known_bad: Mapping[int, str]

    @property
    def name(self) -> str:
        return f"shard-{self.number:06d}.tar"

    @property
    def note_path(self) -> Path:
        return self.scratch / f"{self.folder.name}-{self.number:06d}.note"

    @property
    def rows_path(self) -> Path:
        return self.scratch / f"{self.folder.name}-{self.number:06d}.rows"


@dataclass(frozen=True)
class PackedShard:
    """What became of a shard; numbers only, so that the parent can hold one for each.

    info: None if every sample was rejected; there is no file then.
    rejected: row in the listing, name and reason of each. kinds: count of each `StoredImage.kind`.
    histogram: int64 (768,), exact counts over the `measured` images.
    """

    info: ShardInfo | None
    rejected: tuple[tuple[int, str, str], ...]
    kinds: Counter[str]
    width: int
    height: int
    image_bytes: int
    histogram: npt.NDArray[np.int64]
    measured: int
    read_bytes: int


def pack_shard(job: ShardJob) -> PackedShard:
    """Packs one shard. Its tar and `.idx` get their final names when they are whole and on the disk.

    Raises:
        OutputError: the disk is full, or cannot be written.
    """
    path = job.folder / job.name
    temporary = path.with_suffix(".tar.tmp")
    try:
        with temporary.open("wb", buffering=_BUFFER_BYTES) as file, _Note(job.note_path) as note:
            packed = _Packing(job, file)
            packed.run(note)
            packed.tar.finish()
            file.flush()
            os.fsync(file.fileno())
        if not packed.members:
            temporary.unlink()
            return packed.result(None)
        _write_whole(dali_index_path(path), dali_index_text(packed.members).encode("ascii"))
        with pa.OSFile(str(job.rows_path), "wb") as rows, pa.ipc.new_file(rows, packed.schema) as writer:
            writer.write_batch(packed.index_rows())
        temporary.replace(path)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror or error}). Free some space, or choose another output folder"
        ) from None
    return packed.result(ShardInfo(job.name, len(packed.members), packed.tar.size, packed.hash.hexdigest()))


def read_note(path: Path) -> tuple[int, int]:
    """Position in the shard of the sample that its worker is at, or NOWHERE, and bytes read so far."""
    try:
        position, read_bytes = _NOTE.unpack(path.read_bytes())
    except (OSError, struct.error):
        return NOWHERE, 0
    return position, read_bytes


def sample_key(number: int, name: str) -> str:
    """A key for any name: its number in the listing makes it unique, a piece of its stem makes it readable.

    >>> sample_key(7, "cats/Élan vital.v2.JPG")
    '00000007-lan-vital-v2'
    """
    stem = name.rpartition("/")[2].rpartition(".")[0]
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", stem).strip("-")[:40].rstrip("-")
    return f"{number:08d}-{slug}" if slug else f"{number:08d}"


class _Packing:
    """A shard in the making."""

    def __init__(self, job: ShardJob, file: BinaryIO) -> None:
        self.job = job
        self.samples = read_plan(job.plan, job.number)
        self.schema = index_schema((IMAGE, *job.fields))
        self.columns: dict[str, list[int | str]] = {name: [] for name in self.schema.names}
        self.members: list[list[Member]] = []
        self.hash = hashlib.sha256()
        self.tar = TarWriter(_Hashing(file, self.hash))
        self.rejected: list[tuple[int, str, str]] = []
        self.kinds: Counter[str] = Counter()
        self.histogram = np.zeros(768, np.int64)
        self.measured = 0
        self.read_bytes = 0

    def run(self, note: "_Note") -> None:
        """Every sample of the shard in turn."""
        parent = os.getppid()
        rows = self.samples.column(ROW).to_pylist()
        names = self.samples.column(NAME).to_pylist()
        measured = self.samples.column(MEASURED).to_pylist()
        values = {field.name: self.samples.column(field.name).to_pylist() for field in self.job.fields}
        for position, (row, name) in enumerate(zip(rows, names, strict=True)):
            if os.getppid() != parent:
                os._exit(1)  # the packer is gone; nobody would finish what is begun here
            note.write(position, self.read_bytes)
            try:
                self._add(
                    position, row, name, measured[position], {key: column[position] for key, column in values.items()}
                )
            except DecodeError as error:
                self.rejected.append((row, name, str(error)))
        note.write(NOWHERE, self.read_bytes)

    def _add(self, position: int, row: int, name: str, measured: bool, values: dict[str, int | str]) -> None:
        if reason := self.job.known_bad.get(position):
            raise DecodeError(reason)
        # The default action of SIGALRM ends the process, also where C code would never come back to Python.
        signal.setitimer(signal.ITIMER_REAL, self.job.time_limit_s)
        try:
            data = self.job.source.read(row, name)
            self.read_bytes += len(data)
            image = check_image(data, measured)
        except OSError as error:
            raise DecodeError(f"cannot be read: {error.strerror or error}") from None
        except MemoryError:
            raise DecodeError("does not fit into memory") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        key = sample_key(row, name)
        record: dict[str, int | str] = {"key": key, "source": name, "width": image.width, "height": image.height}
        contents = [(IMAGE, image.data)]
        for field in self.job.fields:
            record[field.name] = values[field.name]
            contents.append((field, str(values[field.name]).encode()))
        members = []
        for field, content in contents:
            member = self.tar.append(f"{key}.{field.member}", content)
            record[field.offset_column], record[field.bytes_column] = member.offset, member.size
            members.append(member)
        self.members.append(members)
        for column, value in record.items():
            self.columns[column].append(value)
        self.kinds[image.kind] += 1
        if image.histogram is not None:
            self.histogram += image.histogram
            self.measured += 1

    def index_rows(self) -> pa.RecordBatch:
        return pa.record_batch([self.columns[name] for name in self.schema.names], schema=self.schema)

    def result(self, info: ShardInfo | None) -> PackedShard:
        def largest(column: str) -> int:
            return int(max(self.columns[column], default=0))

        return PackedShard(
            info=info,
            rejected=tuple(self.rejected),
            kinds=self.kinds,
            width=largest("width"),
            height=largest("height"),
            image_bytes=largest(IMAGE.bytes_column),
            histogram=self.histogram,
            measured=self.measured,
            read_bytes=self.read_bytes,
        )


class _Hashing:
    """A file that is hashed as it is written."""

    def __init__(self, file: BinaryIO, digest: "hashlib._Hash") -> None:
        self._file = file
        self._digest = digest

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        return self._file.write(data)


class _Note:
    """Where a worker is, in a file that outlives it: the pages of a file survive a process that is killed."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, position: int, read_bytes: int) -> None:
        os.pwrite(self._descriptor, _NOTE.pack(position, read_bytes), 0)

    def __enter__(self) -> "_Note":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _write_whole(path: Path, data: bytes) -> None:
    """Writes a file that has its final name only when it is whole and on the disk."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
