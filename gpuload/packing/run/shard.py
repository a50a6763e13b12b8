"""Packs one shard in one process: reads and checks its samples; writes the tar, its DALI index and its index rows."""

import dataclasses
import hashlib
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.disk import ShardInfo
from gpuload.disk.index import POINTS_COLUMN
from gpuload.disk.manifest import dali_index_path, dali_index_text
from gpuload.disk.tar import Member, TarWriter
from gpuload.errors import DecodeError, OutputError
from gpuload.fields.field import IMAGE, Field
from gpuload.fields.kind import Member as StoredMember
from gpuload.fields.registry import index_schema, kind_of
from gpuload.packing.image.check import NotWantedError, StoredImage, prepare_image
from gpuload.packing.options import Encoding
from gpuload.packing.run.plan import MEASURED, ROW, read_plan
from gpuload.packing.run.workers import NOWHERE, Blamable, Blame, noted_position
from gpuload.sources.listing import NAME, addresses
from gpuload.sources.rows import Source
from gpuload.store.files import start_writeback, write_atomically

_NO_SLUG = re.compile(r"[^A-Za-z0-9_]+")
_MOST_PARTS = 1024  # Linux's IOV_MAX, the most buffers of one writev
_WRITE_BACK_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True)
class ShardJob(Blamable):
    """A worker's task: to pack batch `number` of the plan into a shard.

    folder: of the shard. scratch: of its index rows, its report and the worker's position.
    fields: all except the image.
    first_shard, first_row: added to the numbers of shards and samples when shards are appended to a set.
    """

    source: Source
    fields: tuple[Field, ...]
    encoding: Encoding
    number: int
    folder: Path
    scratch: Path
    first_shard: int = 0
    first_row: int = 0

    @property
    def path(self) -> Path:
        return self.folder / f"shard-{self.first_shard + self.number:06d}.tar"

    def note(self, kind: str) -> Path:
        """A file about this shard: "rows" of the index; "done", its report; "uploaded", once the shard is at the URL
        and no longer in `folder`."""
        return self.scratch / f"{self.folder.name}-{self.number:06d}.{kind}"

    def read_report(self) -> "ShardReport | None":
        """The report of an earlier run; None unless that run finished the shard and its files still exist."""
        try:
            report = ShardReport(**json.loads(self.note("done").read_text()))
            if report.info is not None and not self.note("uploaded").exists():
                is_whole = self.path.stat().st_size == report.info["bytes"] and self.note("rows").stat().st_size
                if not is_whole or not dali_index_path(self.path).exists():
                    return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return report


@dataclass
class ShardReport:
    """The content of a shard, filled while it is packed. As JSON it outlives the process that packed the shard.

    info: `ShardInfo` as a dict; None if every sample was rejected, in which case there is no file.
    rejected: of each sample its row in the listing, its name, the reason, and whether it was skipped on request.
    kinds: number of images by `StoredImage.kind`. extensions: of the stored images.
    width, height, image_bytes: the largest of the stored images, in pixels and bytes.
    histogram: 256 C exact counts of the values of each of C channels over the `measured` images; [] where these are not
        uint8.
    read_bytes: bytes of the images read from the source.
    remarks: counts by a sentence for the user, see `Kind.remarks`.
    """

    info: dict[str, Any] | None = None
    rejected: list[list[Any]] = dataclasses.field(default_factory=list)
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)
    extensions: list[str] = dataclasses.field(default_factory=list)
    width: int = 0
    height: int = 0
    image_bytes: int = 0
    histogram: list[int] = dataclasses.field(default_factory=list)
    measured: int = 0
    read_bytes: int = 0
    remarks: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, image: StoredImage) -> None:
        self.kinds[image.kind] += 1
        self.remarks.update(image.remarks)
        if image.member not in self.extensions:
            self.extensions.append(image.member)
        self.width, self.height = max(self.width, image.width), max(self.height, image.height)
        self.image_bytes = max(self.image_bytes, len(image.data) - image.header)


def pack_shard(job: ShardJob) -> ShardReport:
    """Packs one shard. Its tar and `.idx` get their final names once they are complete and on disk.

    The last file written, "done", marks the shard as finished, so that a resumed run keeps it.

    Raises:
        OutputError: the disk is full, or cannot be written.
    """
    if job.encoding.resizer == "torch":
        # Imports torch now, so that the time limit of an image does not include it.
        from gpuload.packing.image.shrink import use_one_thread

        use_one_thread()
    # The name contains the process number: a worker that outlives its killed packer must not write into the file of
    # the next run.
    temporary = job.path.with_name(f"{job.path.name}.{os.getpid()}.tmp")
    try:
        with closing(ShardFile(temporary)) as file, noted_position(job.position) as note:
            packed = _Packing(job, file)
            packed.run(note)
            packed.tar.finish()
            file.finish()
        if packed.members:
            write_atomically(dali_index_path(job.path), dali_index_text(packed.members).encode("ascii"))
            write_atomically(job.note("rows"), packed.index_rows())
            temporary.replace(job.path)
            packed.report.info = asdict(ShardInfo(job.path.name, len(packed.members), packed.tar.size, file.sha256))
        else:
            temporary.unlink()
        packed.report.histogram = packed.histogram.tolist()
        write_atomically(job.note("done"), json.dumps(vars(packed.report)).encode())
    except OSError as error:
        raise OutputError(
            f"{job.path}: cannot be written ({error.strerror or error}). Free some space, or choose another output "
            "folder"
        ) from None
    return packed.report


class LostWorkers(Blame):
    """Returns the job to run after a worker died, and removes what the worker had written."""

    def __call__(self, job: ShardJob, code: int) -> ShardJob:
        for temporary in job.folder.glob(f"{job.path.name}.*.tmp"):
            temporary.unlink(missing_ok=True)
        return self.find_or_retry(job, code)


def modules_to_preload(encoding: Encoding) -> tuple[str, ...]:
    """The modules that `pack_shard` imports for this encoding, in addition to those of this module."""
    return ("gpuload.packing.image.shrink",) if encoding.shrinks_jpegs and encoding.resizer != "pillow" else ()


def sample_key(number: int, name: str) -> str:
    """A key for any name: the number in the listing makes it unique, a part of the name's stem makes it readable.

    >>> sample_key(7, "cats/Élan vital.v2.JPG")
    '00000007-lan-vital-v2'
    """
    stem = name.rpartition("/")[2].rpartition(".")[0]
    slug = _NO_SLUG.sub("-", stem).strip("-")[:40].rstrip("-")
    return f"{number:08d}-{slug}" if slug else f"{number:08d}"


class ShardFile:
    """A new file. The buffers given to `write` are kept until `flush` hands them to the kernel without copying."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._hash = hashlib.sha256()
        self._parts: list[bytes] = []
        self._size = 0
        self._written_back = 0  # of the bytes before this one the write-back was started

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._parts.append(data)

    def flush(self) -> None:
        """Hands all kept buffers to the kernel.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        parts, self._parts = self._parts, []
        while parts:
            written = os.writev(self._descriptor, parts[:_MOST_PARTS])
            self._size += written
            while parts and written >= len(parts[0]):
                written -= len(parts.pop(0))
            if written:
                parts[0] = parts[0][written:]
        if self._size - self._written_back >= _WRITE_BACK_BYTES:
            start_writeback(self._descriptor, self._written_back, self._size - self._written_back)
            self._written_back = self._size

    def finish(self) -> None:
        """Waits until everything is on disk.

        Raises:
            OSError: it cannot be written.
        """
        self.flush()
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class _Packing:
    """A shard while it is being packed."""

    def __init__(self, job: ShardJob, file: ShardFile) -> None:
        self.job = job
        self.samples = read_plan(job.scratch, job.folder.name, job.number)
        self.schema = index_schema((IMAGE, *job.fields))
        self.columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        self.points: list[bytes] = []
        self.members: list[list[Member]] = []
        self.file = file
        self.tar = TarWriter(file)
        self.report = ShardReport()
        pixels = job.encoding.pixels
        self.histogram = np.zeros(256 * pixels.channels if pixels.dtype == "uint8" else 0, np.int64)

    def run(self, note: Callable[[int, int], None]) -> None:
        """Packs all samples of the shard, in order."""
        parent = os.getppid()
        columns = self.samples.to_pydict()
        names = {
            name
            for field in self.job.fields
            for name in (field.name, *kind_of(field).columns(field))
            if name in columns
        }
        stay = [columns[field.name] for field in self.job.fields if kind_of(field).stays_in_shard]
        reads = list(zip(addresses(self.samples).to_pylist(), *stay, strict=True))
        self.job.source.expect([address for several in reads for address in several])
        for position, (row, name) in enumerate(zip(columns[ROW], columns[NAME], strict=True)):
            if os.getppid() != parent:
                os._exit(1)  # the packer has died, so this shard would never be finished
            note(position, self.report.read_bytes)
            values = {column: columns[column][position] for column in names}
            for address in reads[position]:
                self.job.source.wait(address)
            try:
                if reason := self.job.known_bad.get(position):
                    raise DecodeError(reason)
                image, stored = self._read(reads[position][0], columns[MEASURED][position], values)
            except (DecodeError, NotWantedError) as error:
                self.report.rejected.append([row, name, str(error), isinstance(error, NotWantedError)])
            else:
                self._add(sample_key(self.job.first_row + row, name), name, image, stored)
                for field in self.job.fields:
                    self.report.remarks.update(kind_of(field).remarks(field, values, image.placement))
        note(NOWHERE, self.report.read_bytes)

    def _read(self, address: str, measured: bool, values: dict[str, Any]) -> tuple[StoredImage, list[StoredMember]]:
        """Reads and checks one sample: returns its image, and the member of each other field."""
        # SIGALRM's default action ends the process even if C code never returns to Python.
        signal.setitimer(signal.ITIMER_REAL, self.job.time_limit_s)
        try:
            data = self.job.source.read(address)
            self.report.read_bytes += len(data) if isinstance(data, bytes) else data.nbytes
            image = prepare_image(data, measured, self.job.encoding)
            stored = []
            for field in self.job.fields:
                kind = kind_of(field)
                value: Any
                if kind.stays_in_shard:
                    value = self.job.source.read(values[field.name])
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
        self.points.append(image.points)
        self.report.add(image)
        if image.histogram is not None:
            self.histogram += image.histogram
            self.report.measured += 1

    def index_rows(self) -> bytes:
        """The rows of the index, as an Arrow file of one batch."""
        batch = pa.record_batch([self.columns[name] for name in self.schema.names], schema=self.schema)
        if any(self.points):
            batch = batch.append_column(POINTS_COLUMN, pa.array(self.points, POINTS_COLUMN.type))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())
