"""Reads all of a packed folder again and lists every fault."""

import hashlib
import io
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuload.counted import counted
from gpuload.disk import Index, Manifest, ShardInfo
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.dali_index import dali_index_path, dali_index_text
from gpuload.disk.tar import Member, group_members, read_members, split_name
from gpuload.errors import DecodeError, FormatError
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.packing.image.check import prepare_image
from gpuload.packing.options import Encoding
from gpuload.packing.run.workers import Workers
from gpuload.store.url import URL, as_location
from gpuload.types import WidthHeight

_CHUNK_BYTES = 1 << 24
_ANY_SIZE = Encoding(max_pixels=1 << 62)


@dataclass(frozen=True)
class VerifyJob:
    """Verifies shard `number` of a packed folder. died: how the worker that last tried ended, or ""."""

    folder: Path
    number: int
    shard: ShardInfo
    fields: tuple[Field, ...]
    died: str = ""


def verify(
    folder: str | Path, workers: int | None = None, watch: Callable[[int, int], None] = lambda n, of: None
) -> list[str]:
    """The faults of a packed folder, or of all splits in a folder of splits, one line each. Writes nothing.

    workers: number of processes; None: one for each core that this process may use. watch: called with the number of
    shards verified and the number of all shards.

    Raises:
        FormatError: it is not a packed folder.
    """
    if isinstance(where := as_location(folder), URL):
        return _verify_url(where, workers, watch)
    root = Path(where)
    splits = [root] if (root / manifest_file.FILE_NAME).exists() else []
    if not splits and root.is_dir():
        splits = sorted(path.parent for path in root.glob(f"*/{manifest_file.FILE_NAME}"))
        lone = sorted(
            path for path in root.iterdir() if path.is_dir() and path not in splits and any(path.glob("*.tar"))
        )
        if splits:
            faults = [f"{path}: holds shards but no {manifest_file.FILE_NAME}" for path in lone]
            return faults + [fault for split in splits for fault in _verify_split(split, workers, watch)]
    if not splits:
        Manifest.read(root)  # raises the error that says what is wrong
    return _verify_split(root, workers, watch)


def _verify_split(folder: Path, workers: int | None, watch: Callable[[int, int], None]) -> list[str]:
    try:
        manifest = Manifest.read(folder)
        _check_count(Index(folder / index_file.FILE_NAME, manifest.fields), manifest)
    except FormatError as error:
        return [str(error)]
    listed = {shard.name for shard in manifest.shards}
    found = {path.name for path in folder.glob("*.tar")}
    faults = [f"{folder / name}: is not in {manifest_file.FILE_NAME}" for name in sorted(found - listed)]
    faults += [f"{path}: was left by an interrupted run" for path in sorted(folder.glob("*.tmp"))]
    jobs = [VerifyJob(folder, n, shard, manifest.fields) for n, shard in enumerate(manifest.shards)]
    results: dict[int, list[str]] = {}

    def done(job: VerifyJob, found: list[str]) -> None:
        results[job.number] = found
        watch(len(results), len(jobs))

    with _workers(workers, len(jobs)) as pool:
        pool.run(jobs, done, _died, lambda _: None)
    return faults + [fault for number in sorted(results) for fault in results[number]]


def _verify_url(url: URL, workers: int | None, watch: Callable[[int, int], None]) -> list[str]:
    """Downloads the shards into a temporary folder, some at a time, and verifies them there."""
    from gpuload.disk.fetch import Pieces, parse_manifest  # asyncio

    with tempfile.TemporaryDirectory() as scratch:
        pieces = Pieces(url, Path(scratch))
        data = pieces.manifest_bytes()
        try:
            manifest = parse_manifest(data, pieces.folder, url)
            pieces.get(index_file.FILE_NAME)
            _check_count(Index(pieces.folder / index_file.FILE_NAME, manifest.fields), manifest)
        except FormatError as error:
            return [str(error).replace(scratch, str(url))]
        faults: list[str] = []
        count = min(workers or len(os.sched_getaffinity(0)), len(manifest.shards))
        jobs = [VerifyJob(pieces.folder, n, shard, manifest.fields) for n, shard in enumerate(manifest.shards)]
        with _workers(count, len(jobs)) as pool:
            for first in range(0, len(jobs), count):
                some = jobs[first : first + count]
                files = [name for job in some for name in (job.shard.name, str(dali_index_path(Path(job.shard.name))))]
                pieces.get(*files)  # what is missing, `verify_shard` tells
                pool.run(some, lambda _, found: faults.extend(found), _died, lambda _: None)
                pieces.remove(*files)
                watch(min(first + count, len(jobs)), len(jobs))
        return [fault.replace(scratch, str(url)) for fault in faults]


def _check_count(index: Index, manifest: Manifest) -> None:
    if len(index) != len(manifest.shards):
        raise FormatError(
            f"{index.path}: indexes {counted(len(index), 'shard')}, {manifest_file.FILE_NAME} lists "
            f"{len(manifest.shards)}"
        )


def _workers(count: int | None, jobs: int) -> Workers[VerifyJob, list[str]]:
    return Workers(min(count or len(os.sched_getaffinity(0)), jobs), verify_shard, False)


def _died(job: VerifyJob, code: int) -> VerifyJob:
    return replace(job, died=f"exit code {code}")


def verify_shard(job: VerifyJob) -> list[str]:
    """The faults of one shard: in its size, its checksum, its members as indexed, and every image and field."""
    path = job.folder / job.shard.name
    if job.died:
        return [f"{path}: decoding one of its images killed the worker ({job.died})"]
    try:
        size = path.stat().st_size
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    if size != job.shard.bytes:
        return [f"{path}: is {counted(size, 'byte')}, {manifest_file.FILE_NAME} says {job.shard.bytes:,}"]
    faults = []
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK_BYTES):
            digest.update(block)
    if digest.hexdigest() != job.shard.sha256:
        faults.append(f"{path}: its SHA-256 is {digest.hexdigest()}, {manifest_file.FILE_NAME} says {job.shard.sha256}")
    try:
        samples = list(group_members(read_members(path)))
    except FormatError as error:
        return [*faults, str(error)]
    dali = dali_index_path(path)
    if not dali.exists() or dali.read_text(encoding="utf-8", errors="replace") != dali_index_text(
        members for _, members in samples
    ):
        faults.append(f"{dali}: does not describe {path.name}" if dali.exists() else f"{dali}: is missing")
    rows = Index(job.folder / index_file.FILE_NAME, job.fields).shard(job.number)
    if rows.num_rows != job.shard.samples or [key for key, _ in samples] != rows.column("key").to_pylist():
        return [*faults, f"{path}: its samples are not those of {index_file.FILE_NAME}"]
    with path.open("rb") as file:
        for row, (_, members) in zip(rows.to_pylist(), samples, strict=True):
            found = {split_name(member.name)[1]: member for member in members}
            faults += [f"{path}: sample {row['key']!r}: {fault}" for fault in _faults(job.fields, row, found, file)]
    return faults


def _faults(
    fields: tuple[Field, ...], row: dict[str, Any], found: dict[str, Member], file: io.BufferedReader
) -> list[str]:
    faults = []
    for field in fields:
        offset, size = row[field.offset_column], row[field.bytes_column]
        member = next((m for m in found.values() if m.offset <= offset and offset + size == m.offset + m.size), None)
        if member is None or split_name(member.name)[1] not in field.member.split(";"):
            faults.append(f"there is no {field.name} at the offset in the index (byte {offset:,})")
            continue
        content = os.pread(file.fileno(), member.size, member.offset)
        fault = _content_fault(field, row, content, offset - member.offset)
        if fault:
            faults.append(f"its {field.name} {fault}")
    return faults


def _content_fault(field: Field, row: dict[str, Any], content: bytes, header: int) -> str:
    try:
        return kind_of(field).find_fault(field, row, content, header, _image_size)
    except DecodeError as error:
        return f"cannot be decoded: {str(error).removeprefix('cannot be decoded: ')}"
    except Exception as error:  # parsers and decoders may raise anything on damaged bytes
        return f"cannot be read: {error}"


def _image_size(content: bytes) -> WidthHeight:
    stored = prepare_image(content, encoding=_ANY_SIZE)
    return stored.width, stored.height
