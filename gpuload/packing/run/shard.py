"""Packs one shard in one process: reads and checks its samples; writes the tar, its DALI index and its index rows."""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.disk import ShardInfo
from gpuload.disk.dali_index import dali_index_path, dali_index_text
from gpuload.disk.tar import Member, TarWriter
from gpuload.errors import DecodeError, OutputError
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.kind import Member as StoredMember
from gpuload.fields.registry import index_schema, kind_of
from gpuload.packing.image.check import NotWantedError, StoredImage, prepare_image
from gpuload.packing.options import Encoding
from gpuload.packing.run.plan import MEASURED, ROW, read_plan
from gpuload.packing.run.shard_file import ShardFile
from gpuload.packing.run.shard_report import ShardReport
from gpuload.packing.run.worker_position import NOWHERE, WorkerPosition
from gpuload.sources.listing import NAME, WHERE, Source

_NO_SLUG = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class ShardJob:
    """A worker's task: to pack batch `number` of the plan into a shard.

    folder: of the shard. scratch: of its index rows, its report and the worker's position.
    fields: all except the image. known_bad: samples (by position in the shard) that killed a worker, and why.
    time_limit_s: for reading and checking one image; SIGALRM kills the process when it is exceeded.
    first_shard, first_row: added to the numbers of shards and samples when shards are appended to a set.
    """

    source: Source
    fields: tuple[Field, ...]
    plan: Path
    number: int
    folder: Path
    scratch: Path
    time_limit_s: float
    known_bad: Mapping[int, str]
    encoding: Encoding
    first_shard: int = 0
    first_row: int = 0

    @property
    def name(self) -> str:
        return f"shard-{self.first_shard + self.number:06d}.tar"

    @property
    def position_path(self) -> Path:
        return self.scratch / f"{self.folder.name}-{self.number:06d}.position"

    @property
    def rows_path(self) -> Path:
        return self.scratch / f"{self.folder.name}-{self.number:06d}.rows"

    @property
    def done_path(self) -> Path:
        return self.scratch / f"{self.folder.name}-{self.number:06d}.done"

    @property
    def uploaded_path(self) -> Path:
        """Where the set is packed to a URL: says that the shard is there, and no more in `folder`."""
        return self.scratch / f"{self.folder.name}-{self.number:06d}.uploaded"


def pack_shard(job: ShardJob) -> ShardReport:
    """Packs one shard. Its tar and `.idx` get their final names once they are complete and on disk.

    The last file written, `done_path`, marks the shard as finished, so that a resumed run keeps it.

    Raises:
        OutputError: the disk is full, or cannot be written.
    """
    path = job.folder / job.name
    if job.encoding.resizer == "torch":
        # Imports torch now, so that the time limit of an image does not include it.
        from gpuload.packing.image.shrink import use_one_thread

        use_one_thread()
    # The name contains the process number: a worker that outlives its killed packer must not write into the file of
    # the next run.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    info = None
    try:
        with ShardFile(temporary) as file, WorkerPosition(job.position_path) as position:
            packed = _Packing(job, file)
            packed.run(position)
            packed.tar.finish()
            file.finish()
        if packed.members:
            write_atomically(dali_index_path(path), dali_index_text(packed.members).encode("ascii"))
            write_atomically(job.rows_path, packed.index_rows())
            temporary.replace(path)
            info = ShardInfo(job.name, len(packed.members), packed.tar.size, file.sha256)
        else:
            temporary.unlink()
        report = packed.report(info)
        write_atomically(job.done_path, report.to_json().encode())
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror or error}). Free some space, or choose another output folder"
        ) from None
    return report


def modules_to_preload(encoding: Encoding) -> tuple[str, ...]:
    """The modules that `pack_shard` imports for this encoding, in addition to those of this module."""
    return ("gpuload.packing.image.shrink",) if encoding.shrinks_jpegs and encoding.resizer != "pillow" else ()


def read_finished_shard(job: ShardJob) -> ShardReport | None:
    """The report of an earlier run on this shard; None unless that run finished it and its files still exist, here or
    where they were uploaded."""
    try:
        packed = ShardReport.from_json(job.done_path.read_text())
        if packed.info is not None and not job.uploaded_path.exists():
            sizes = [(job.folder / packed.info.name).stat().st_size, job.rows_path.stat().st_size]
            if sizes[0] != packed.info.bytes or not dali_index_path(job.folder / packed.info.name).exists():
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return packed


def sample_key(number: int, name: str) -> str:
    """A key for any name: the number in the listing makes it unique, a part of the name's stem makes it readable.

    >>> sample_key(7, "cats/Élan vital.v2.JPG")
    '00000007-lan-vital-v2'
    """
    stem = name.rpartition("/")[2].rpartition(".")[0]
    slug = _NO_SLUG.sub("-", stem).strip("-")[:40].rstrip("-")
    return f"{number:08d}-{slug}" if slug else f"{number:08d}"


class _Packing:
    """A shard while it is being packed."""

    def __init__(self, job: ShardJob, file: ShardFile) -> None:
        self.job = job
        self.samples = read_plan(job.plan, job.number)
        self.schema = index_schema((IMAGE, *job.fields))
        self.columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        self.members: list[list[Member]] = []
        self.file = file
        self.tar = TarWriter(file)
        self.rejected: list[tuple[int, str, str, bool]] = []
        self.kinds: Counter[str] = Counter()
        self.extensions: set[str] = set()
        pixels = job.encoding.pixels
        self.histogram = np.zeros(256 * pixels.channels if pixels.dtype == "uint8" else 0, np.int64)
        self.measured = 0
        self.read_bytes = 0
        self.remarks: Counter[str] = Counter()

    def run(self, worker: WorkerPosition) -> None:
        """Packs all samples of the shard, in order."""
        parent = os.getppid()
        columns = self.samples.to_pydict()
        wheres = columns.get(WHERE) or [""] * len(columns[ROW])
        names = {
            name
            for field in self.job.fields
            for name in (field.name, *kind_of(field).columns(field))
            if name in columns
        }
        places = [kind_of(field).stays_in_shard and field.name for field in self.job.fields]
        reads = [
            [where or name, *(str(columns[place][position]) for place in places if place)]
            for position, (name, where) in enumerate(zip(columns[NAME], wheres, strict=True))
        ]
        self.job.source.expect([address for addresses in reads for address in addresses])
        for position, (row, name) in enumerate(zip(columns[ROW], columns[NAME], strict=True)):
            if os.getppid() != parent:
                os._exit(1)  # the packer has died, so this shard would never be finished
            worker.write(position, self.read_bytes)
            values = {column: columns[column][position] for column in names}
            for address in reads[position]:
                self.job.source.wait(address)
            try:
                if reason := self.job.known_bad.get(position):
                    raise DecodeError(reason)
                image, stored = self._read(row, name, wheres[position], columns[MEASURED][position], values)
            except (DecodeError, NotWantedError) as error:
                self.rejected.append((row, name, str(error), isinstance(error, NotWantedError)))
            else:
                self._add(sample_key(self.job.first_row + row, name), name, image, stored)
                for field in self.job.fields:
                    self.remarks += kind_of(field).remarks(field, values, image.placement)
        worker.write(NOWHERE, self.read_bytes)

    def _read(
        self, row: int, name: str, where: str, measured: bool, values: dict[str, Any]
    ) -> tuple[StoredImage, list[StoredMember]]:
        """Reads and checks one sample: returns its image, and the member of each other field."""
        # SIGALRM's default action ends the process even if C code never returns to Python.
        signal.setitimer(signal.ITIMER_REAL, self.job.time_limit_s)
        try:
            data = self.job.source.read(row, name, where)
            self.read_bytes += len(data) if isinstance(data, bytes) else data.nbytes
            image = prepare_image(data, measured, self.job.encoding)
            stored = []
            for field in self.job.fields:
                kind = kind_of(field)
                value: Any
                if kind.stays_in_shard:
                    value = self.job.source.read_field(field, row, values[field.name])
                else:
                    value = {column: values[column] for column in kind.columns(field)}
                stored.append(kind.store(field, value, image.placement))
        except OSError as error:
            raise DecodeError(f"cannot be read: {error.strerror or error}") from None
        except MemoryError:
            raise DecodeError("does not fit into memory") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return image, stored

    def _add(self, key: str, name: str, image: StoredImage, stored: list[StoredMember]) -> None:
        record: dict[str, Any] = {"key": key, "source": name, "width": image.width, "height": image.height}
        members = []
        stored = [StoredMember(image.data, image.header, {}), *stored]
        for field, part in zip((IMAGE, *self.job.fields), stored, strict=True):
            extension = image.member if field is IMAGE else field.member
            member = self.tar.append(f"{key}.{extension}", part.content)
            record[field.offset_column] = member.offset + part.header
            record[field.bytes_column] = member.size - part.header
            record.update(part.values)  # the field's other index columns
            members.append(member)
        self.file.flush()
        self.members.append(members)
        for column, value in record.items():
            self.columns[column].append(value)
        self.kinds[image.kind] += 1
        self.extensions.add(image.member)
        if image.histogram is not None:
            self.histogram += image.histogram
            self.measured += 1

    def index_rows(self) -> bytes:
        """The rows of the index, as an Arrow file of one batch."""
        batch = pa.record_batch([self.columns[name] for name in self.schema.names], schema=self.schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())

    def report(self, info: ShardInfo | None) -> ShardReport:
        def largest(column: str) -> int:
            return int(max(self.columns[column], default=0))

        return ShardReport(
            info=info,
            rejected=tuple(self.rejected),
            kinds=self.kinds,
            extensions=tuple(sorted(self.extensions)),
            width=largest("width"),
            height=largest("height"),
            image_bytes=largest(IMAGE.bytes_column),
            histogram=self.histogram,
            measured=self.measured,
            read_bytes=self.read_bytes,
            remarks=self.remarks,
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file that gets its name only once it is complete and on disk."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, content: object) -> None:
    """Writes content as JSON with `write_atomically`."""
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
