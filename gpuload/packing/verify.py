"""Reads all of a packed folder again, or of a set at a URL, and lists every fault.

Images are decoded in processes that may die: each notes which sample it decodes, and the next one passes over a sample
that killed it.
"""

import hashlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from gpuload.counted import counted
from gpuload.disk import Index, Manifest, ShardInfo
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.dataset import shards_root
from gpuload.disk.manifest import dali_index_path, dali_index_text
from gpuload.disk.sample import Quarantined, write_quarantine
from gpuload.disk.tar import Damage, Member, group_members, read_members, split_name
from gpuload.errors import ArgumentError, DecodeError, FormatError, RemoteError
from gpuload.fields.field import Field
from gpuload.fields.images import Pixels
from gpuload.fields.registry import kind_of
from gpuload.headers import encodings
from gpuload.headers.encodings import MAX_PIXELS
from gpuload.machine.fork_server import exit_name
from gpuload.machine.limits import count_cores
from gpuload.machine.untrusted import open_regular
from gpuload.packing.image import KEPT, prepare_image
from gpuload.packing.options import ENCODINGS, Encoding
from gpuload.packing.output import cannot_write
from gpuload.packing.workers import NOWHERE, Blamable, Blame, Workers, noted_position
from gpuload.store.url import URL, as_location
from gpuload.types import WidthHeight

_CHUNK_BYTES = 1 << 24
MOST_SECONDS = 60.0  # for one sample; a decoder that takes longer is killed

# Gets an image's bytes, and its height and width as the index has them; returns what is wrong, or None. Workers import
# it by its name.
DecodeCheck = Callable[[bytes, int, int], str | None]


def verify(
    folder: str | Path,
    workers: int | None = None,
    watch: Callable[[int, int], None] = lambda n, of: None,
    *,
    decode: DecodeCheck | None = None,
    quarantine: str | Path | None = None,
) -> list[str]:
    """The faults of a packed folder, or of all splits in a folder of splits, one line each. Writes nothing into it.

    workers: number of processes; None: one for each core that this process may use. watch: called with the number of
    shards verified and the number of all shards. decode: a decoder of yours that every
    image must pass, too, see `DecodeCheck`. quarantine: a file
    for the samples that have a fault of their own, for `Dataset(exclude=…)`; it may stay empty.

    Raises:
        FormatError: it is not a packed folder.
        OutputError: the file cannot be written, or the folder for temporary files.
    """
    run = _Verification(workers or count_cores(), watch, decode)
    advice = "Free some space for the notes of verify, set TMPDIR, or give another file to --quarantine"
    with cannot_write(advice):
        if quarantine is not None:
            write_quarantine(quarantine, [])  # before the work of hours
        where = as_location(folder)
        splits, faults = _splits_at(where) if isinstance(where, URL) else _splits_in(Path(where))
        faults += [fault for split in splits for fault in run.split(split)]
        if quarantine is not None:
            write_quarantine(quarantine, run.bad)
    return faults


class _Verification:
    """Verifies packed sets; `bad` collects the samples that have a fault of their own."""

    def __init__(self, workers: int, watch: Callable[[int, int], None], decode: DecodeCheck | None) -> None:
        self._workers, self._watch, self._decode = workers, watch, decode
        self.bad: list[Quarantined] = []

    def split(self, where: Path | URL) -> list[str]:
        """The faults of one set. What lies at URLs is downloaded into a temporary folder, and verified there."""
        with tempfile.TemporaryDirectory(prefix="gpuload-verify-") as notes:
            scratch, url = Path(notes, "set"), where if isinstance(where, URL) else None
            scratch.mkdir()
            folder = where if isinstance(where, Path) else scratch
            if url is not None:  # where there is no manifest, that is an error, and no fault
                (scratch / manifest_file.FILE_NAME).write_bytes(_fetching().manifest_bytes(url))
            try:
                manifest = Manifest.read(folder, url)
                if url is not None:
                    _fetching().fetch_files(url, scratch, index_file.FILE_NAME, most=manifest.most_beside)
                faults = _index_faults(folder / index_file.FILE_NAME, manifest)
            except FormatError as error:
                return [str(error).replace(str(scratch), str(where))]
            if url is None and (url := shards_root(manifest, folder)) is None:
                found = {path.name for path in folder.glob("*.tar")} - {shard.name for shard in manifest.shards}
                faults += [f"{folder / one}: is not in {manifest_file.FILE_NAME}" for one in sorted(found)]
                faults += [f"{path}: was left by an interrupted run" for path in sorted(folder.glob("*.tmp"))]
            faults += self._shards(folder, manifest, scratch, url)
            return [fault.replace(str(scratch), str(url)) for fault in faults]

    def _shards(self, folder: Path, manifest: Manifest, scratch: Path, url: URL | None) -> list[str]:
        """The faults of the shards. folder: of their index. url: below which they lie; None: in the folder."""
        found: dict[int, ShardFaults] = {}
        blame = Blame()

        def died(job: VerifyJob, code: int) -> VerifyJob:
            return blame.find(job, code) or replace(job, known_bad={NOWHERE: exit_name(code)})

        names = [shard.name.removeprefix(f"{url}/") for shard in manifest.shards]
        jobs = [
            VerifyJob(
                path=(scratch if url else folder) / name,
                folder=folder,
                number=number,
                shard=replace(shard, name=name),
                fields=manifest.fields,
                decode=self._decode,
                partial=not manifest.upright and bool(manifest.packing.get("rejected")),
                url=url,
                scratch=scratch,
                most=manifest.most_beside,
                position=scratch.with_name(f"{number}.position"),
                time_limit_s=MOST_SECONDS,
            )
            for number, (name, shard) in enumerate(zip(names, manifest.shards, strict=True))
        ]
        with Workers[VerifyJob, ShardFaults](max(1, min(self._workers, len(jobs))), verify_shard, False) as workers:
            for job, result in workers.run(jobs, died):
                found[job.number] = result
                self._watch(len(found), len(jobs))
        results = [found[number] for number in sorted(found)]
        self.bad += [one for result in results for one in result.bad]
        return [line for result in results for line in result.lines]


def _splits_in(root: Path) -> tuple[list[Path | URL], list[str]]:
    """The split that a folder is, or all splits in it; and a fault for each folder of shards without a manifest."""
    splits = sorted(path.parent for path in root.glob(f"*/{manifest_file.FILE_NAME}"))
    if not splits and not (root / manifest_file.FILE_NAME).exists():
        Manifest.read(root)  # raises the error that says what is wrong
    if not splits or (root / manifest_file.FILE_NAME).exists():
        return [root], []
    others = (path for path in root.iterdir() if path.is_dir() and path not in splits)
    lone = sorted(path for path in others if any(path.glob("*.tar")))
    return [*splits], [f"{path}: holds shards but no {manifest_file.FILE_NAME}" for path in lone]


def _splits_at(url: URL) -> tuple[list[Path | URL], list[str]]:
    """As `_splits_in`, at a URL; the URL itself where it cannot be listed."""
    from gpuload.store.hub import pinned
    from gpuload.store.network import background
    from gpuload.store.objects import Objects

    url = pinned(url)
    try:
        found = background().wait(Objects(url).list())
    except (ArgumentError, RemoteError):
        return [url], []
    ends = [name.removesuffix(f"/{manifest_file.FILE_NAME}") for name in found]
    splits = [one for one, name in zip(ends, found, strict=True) if one != name and "/" not in one]
    return [url] if manifest_file.FILE_NAME in found or not splits else [url / split for split in splits], []


def _fetching() -> Any:
    from gpuload.disk import fetch  # asyncio

    return fetch


def _index_faults(path: Path, manifest: Manifest) -> list[str]:
    """The differences between an index and its manifest, one line each.

    Raises:
        FormatError: it cannot be read, or belongs to other shards.
    """
    Index(path, manifest.fields, shards=len(manifest.shards))
    if all(getattr(manifest, name) in (None, found) for name, found in index_file.index_digests(path).items()):
        return []
    return [f"{path}: its SHA-256, or those of its parts, are not those in {manifest_file.FILE_NAME}"]


@dataclass(frozen=True, kw_only=True)
class VerifyJob(Blamable):
    """Verifies shard `number` of a packed folder, which is at `path`.

    folder: of the index, and of the shard's DALI index. url: below which the shard lies, if it is to be downloaded.
    decode: besides the check of the packer. most: bytes that may be downloaded.
    partial: whether the shard may hold samples that are not indexed, as `index` leaves some out.
    """

    path: Path
    folder: Path
    number: int
    shard: ShardInfo
    fields: tuple[Field, ...]
    decode: DecodeCheck | None
    partial: bool
    url: URL | None
    scratch: Path
    most: int

    @property
    def dali(self) -> Path:
        """The shard's DALI index."""
        return dali_index_path(self.folder / self.shard.name)


@dataclass
class ShardFaults:
    """The faults of a shard, one line each, and the samples that a loader should leave out."""

    lines: list[str] = field(default_factory=list)
    bad: list[Quarantined] = field(default_factory=list)


def verify_shard(job: VerifyJob) -> ShardFaults:
    """The faults of one shard: in its size, its checksum, its members as indexed, and every image and field."""
    found, copies = ShardFaults(), list[Path]()
    try:
        if job.url is not None:
            copies = _fetch_shard(job, job.url)
        found.lines.extend(_verify(job, found.bad))  # those before an error, too
    except FormatError as error:
        found.lines.append(str(error))
    except OSError as error:
        found.lines.append(f"{error.filename or job.path}: {error.strerror}")
    for copy in copies:
        copy.unlink(missing_ok=True)
    return found


def _fetch_shard(job: VerifyJob, url: URL) -> list[Path]:
    """Downloads a shard, with its DALI index if that lies beside it, and returns the files. What is missing there is
    missing here; what the worker before this one has downloaded is kept."""
    copies = [job.path, job.dali] if job.folder == job.scratch else [job.path]
    names = [str(copy.relative_to(job.scratch)) for copy in copies if not copy.exists()]
    _fetching().fetch_files(url, job.scratch, *names, most=job.most)
    return copies


def _verify(job: VerifyJob, bad: list[Quarantined]) -> Iterator[str]:
    path, said = job.path, f"{manifest_file.FILE_NAME} says"
    if code := job.known_bad.get(NOWHERE):
        yield f"{path}: its worker ended ({code}), and no sample is to blame"
        return
    if (size := path.stat().st_size) != job.shard.bytes:
        yield f"{path}: is {counted(size, 'byte')}, {said} {job.shard.bytes:,}"
        return
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(_CHUNK_BYTES):
            digest.update(block)
    if digest.hexdigest() != job.shard.sha256:
        yield f"{path}: its SHA-256 is {digest.hexdigest()}, {said} {job.shard.sha256}"
    rows = Index(job.folder / index_file.FILE_NAME, job.fields).shard(job.number)
    keys, damage = rows.column("key").to_pylist(), list[Damage]()
    samples = list(group_members(read_members(path, damage=damage)))
    yield from (f"{path}: bytes {part.start:,} to {part.end:,} are damaged: {part.fault}" for part in damage)
    if job.partial:
        indexed = set(keys)
        samples = [(key, members) for key, members in samples if key in indexed]
    yield from _dali_faults(job, dali_index_text(members for _, members in samples).encode())
    if rows.num_rows != job.shard.samples or [key for key, _ in samples] != keys:
        yield f"{path}: its samples are not those of {index_file.FILE_NAME}"
        return
    yield from _verify_samples(job, bad, rows, [members for _, members in samples])


def _dali_faults(job: VerifyJob, expected: bytes) -> list[str]:
    try:
        with open_regular(job.dali) as file:
            found = file.read(len(expected) + 1)
    except OSError as error:
        return [f"{job.dali}: cannot be read ({error.strerror})"]
    return [] if found == expected else [f"{job.dali}: does not describe {job.path.name}"]


def _verify_samples(
    job: VerifyJob, bad: list[Quarantined], rows: pa.RecordBatch, samples: Sequence[Sequence[Member]]
) -> Iterator[str]:
    with open_regular(job.path) as file, noted_position(job.position) as note:
        for number, (row, members) in enumerate(zip(rows.to_pylist(), samples, strict=True)):
            if number in job.known_bad:
                lines = [job.known_bad[number]]
            else:
                note(number, 0)
                signal.setitimer(signal.ITIMER_REAL, job.time_limit_s)  # its action is to end the process
                lines = _faults(job, row, members, file)
                signal.setitimer(signal.ITIMER_REAL, 0)
            yield from (f"{job.path}: sample {row['key']!r}: {line}" for line in lines)
            if lines:
                at = row["image_offset"], row["image_bytes"]
                bad.append(Quarantined(row["key"], job.path.name, *at, "; ".join(lines)))
        note(NOWHERE, 0)


def _faults(job: VerifyJob, row: dict[str, Any], members: Sequence[Member], file: BinaryIO) -> list[str]:
    faults = []
    for one in job.fields:
        offset, size = row[one.offset_column], row[one.bytes_column]
        if not size and row.get(one.name) == "" and offset == row["image_offset"]:
            continue  # a caption that the sample lacks, see `index_shards`
        member = next((m for m in members if m.offset <= offset and offset + size == m.offset + m.size), None)
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
    mode = "RGB" if field.kind != "image" else pixels.mode
    stored = prepare_image(content, encoding=Encoding(max_pixels=max_pixels, mode=mode, keep=tuple(ENCODINGS)))
    if mode != "RGB" and stored.kind != KEPT:
        raise DecodeError(f"it is not of mode {pixels.mode}, or not as it was packed")
    return stored.width, stored.height
