"""Reads one shard again and lists every fault.

Images are decoded in a process that may die: it notes which sample it decodes, and the next one passes over a sample
that killed it.
"""

import hashlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from gpuload.counted import counted
from gpuload.disk import Index, ShardInfo
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.manifest import dali_index_path, dali_index_text
from gpuload.disk.quarantine import Quarantined
from gpuload.disk.tar import Damage, Member, group_members, read_members, split_name
from gpuload.errors import DecodeError, FormatError
from gpuload.fields.field import Field
from gpuload.fields.pixels import RGB, Pixels
from gpuload.fields.registry import kind_of
from gpuload.headers import encodings
from gpuload.headers.encodings import MAX_PIXELS
from gpuload.machine.untrusted import open_regular
from gpuload.packing.image.check import KEPT, prepare_image
from gpuload.packing.options import ENCODINGS, KEEP, Encoding
from gpuload.packing.run.workers import NOWHERE, Blamable, noted_position
from gpuload.types import WidthHeight

_CHUNK_BYTES = 1 << 24
MOST_SECONDS = 60.0  # for one sample; a decoder that takes longer is killed

# Decodes an image as a loader does: its bytes, its height and width as the index says. Returns what is wrong, or None.
# Importable by its name, for the workers.
DecodeCheck = Callable[[bytes, int, int], str | None]


@dataclass(frozen=True, kw_only=True)
class VerifyJob(Blamable):
    """Verifies shard `number` of a packed folder.

    decode: besides the check of the packer.
    partial: whether samples may lie in the shard that are not indexed, as in one that `index` has left some out of.
    died: how the worker that last tried ended, where no sample is to blame, or "".
    """

    folder: Path
    number: int
    shard: ShardInfo
    fields: tuple[Field, ...]
    decode: DecodeCheck | None
    partial: bool
    died: str = ""


@dataclass
class ShardFaults:
    """What is wrong with a shard: one line each, and the samples that a loader should leave out."""

    lines: list[str] = field(default_factory=list)
    bad: list[Quarantined] = field(default_factory=list)


def verify_shard(job: VerifyJob) -> ShardFaults:
    """The faults of one shard: in its size, its checksum, its members as indexed, and every image and field."""
    path = job.folder / job.shard.name
    if job.died:
        return ShardFaults([f"{path}: its worker ended ({job.died}), and no sample is to blame"])
    try:
        return _verify(job, path)
    except OSError as error:
        return ShardFaults([f"{error.filename or path}: {error.strerror}"])


def _verify(job: VerifyJob, path: Path) -> ShardFaults:
    size = path.stat().st_size
    if size != job.shard.bytes:
        return ShardFaults([f"{path}: is {counted(size, 'byte')}, {manifest_file.FILE_NAME} says {job.shard.bytes:,}"])
    faults = []
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(_CHUNK_BYTES):
            digest.update(block)
    if digest.hexdigest() != job.shard.sha256:
        faults.append(f"{path}: its SHA-256 is {digest.hexdigest()}, {manifest_file.FILE_NAME} says {job.shard.sha256}")
    rows = Index(job.folder / index_file.FILE_NAME, job.fields).shard(job.number)
    keys, damage = rows.column("key").to_pylist(), list[Damage]()
    try:
        samples = list(group_members(read_members(path, damage=damage)))
    except FormatError as error:
        return ShardFaults([*faults, str(error)])
    faults += [f"{path}: bytes {part.start:,} to {part.end:,} are damaged: {part.fault}" for part in damage]
    if job.partial:
        indexed = set(keys)
        samples = [(key, members) for key, members in samples if key in indexed]
    faults += _dali_faults(dali_index_path(path), path, dali_index_text(members for _, members in samples).encode())
    if rows.num_rows != job.shard.samples or [key for key, _ in samples] != keys:
        return ShardFaults([*faults, f"{path}: its samples are not those of {index_file.FILE_NAME}"])
    found = _verify_samples(job, path, rows, [members for _, members in samples])
    return ShardFaults(faults + found.lines, found.bad)


def _dali_faults(dali: Path, path: Path, expected: bytes) -> list[str]:
    try:
        with open_regular(dali) as file:
            found = file.read(len(expected) + 1)
    except FileNotFoundError:
        return [f"{dali}: is missing"]
    except OSError as error:
        return [f"{dali}: cannot be read ({error.strerror})"]
    return [] if found == expected else [f"{dali}: does not describe {path.name}"]


def _verify_samples(
    job: VerifyJob, path: Path, rows: pa.RecordBatch, samples: Sequence[Sequence[Member]]
) -> ShardFaults:
    found = ShardFaults()
    with open_regular(path) as file, noted_position(job.position) as note:
        for number, (row, members) in enumerate(zip(rows.to_pylist(), samples, strict=True)):
            if number in job.known_bad:
                lines = [job.known_bad[number]]
            else:
                note(number, 0)
                signal.setitimer(signal.ITIMER_REAL, job.time_limit_s)  # its action is to end the process, see `_work`
                lines = _faults(job, row, {split_name(m.name)[1]: m for m in members}, file)
                signal.setitimer(signal.ITIMER_REAL, 0)
            found.lines += [f"{path}: sample {row['key']!r}: {line}" for line in lines]
            if lines:
                at = row["image_offset"], row["image_bytes"]
                found.bad.append(Quarantined(row["key"], path.name, *at, "; ".join(lines)))
        note(NOWHERE, 0)
    return found


def _faults(job: VerifyJob, row: dict[str, Any], found: dict[str, Member], file: BinaryIO) -> list[str]:
    faults = []
    for one in job.fields:
        offset, size = row[one.offset_column], row[one.bytes_column]
        if not size and row.get(one.name) == "" and offset == row["image_offset"]:
            continue  # a caption that the sample lacks, see `index_shards`
        member = next((m for m in found.values() if m.offset <= offset and offset + size == m.offset + m.size), None)
        if member is None or split_name(member.name)[1] not in one.member.split(";"):
            faults.append(f"there is no {one.name} at the offset in the index (byte {offset:,})")
            continue
        content = os.pread(file.fileno(), member.size, member.offset)
        fault = _content_fault(one, row, content, offset - member.offset)
        if not fault and job.decode is not None and one.kind == "image":
            fault = job.decode(content, row["height"], row["width"]) or ""
        if fault:
            faults.append(f"its {one.name} {fault}")
    return faults


def _content_fault(field: Field, row: dict[str, Any], content: bytes, header: int) -> str:
    try:
        most = max(row["width"] * row["height"], MAX_PIXELS)
        return kind_of(field).find_fault(field, row, content, header, lambda image: _image_size(image, field, most))
    except DecodeError as error:
        return f"cannot be decoded: {str(error).removeprefix('cannot be decoded: ')}"
    except Exception as error:  # parsers and decoders may raise anything on damaged bytes
        return f"cannot be read: {error}"


def _image_size(content: bytes, field: Field, max_pixels: int) -> WidthHeight:
    pixels = Pixels.of_field(field)
    # Loaders refuse it, even where Pillow decodes it.
    if (other := encodings.read_header(memoryview(content))) is not None and other[1].fault:
        raise DecodeError(other[1].fault)
    mode = "RGB" if field.kind != "image" or pixels == RGB else f"{KEEP}={pixels.mode}"
    stored = prepare_image(content, encoding=Encoding(max_pixels=max_pixels, mode=mode, keep=tuple(ENCODINGS)))
    if mode != "RGB" and stored.kind != KEPT:
        raise DecodeError(f"it is not of mode {pixels.mode}, or not as it was packed")
    return stored.width, stored.height
