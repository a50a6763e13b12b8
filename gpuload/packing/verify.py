"""Reads all of a packed folder again and lists every fault.

Images are decoded in processes that may die: a worker notes which sample it decodes, and the next one passes over a
sample that killed it.
"""

import hashlib
import io
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gpuload.counted import counted
from gpuload.disk import Index, Manifest, ShardInfo
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.dali_index import dali_index_path, dali_index_text
from gpuload.disk.quarantine import Quarantined, write_quarantine
from gpuload.disk.shards_root import shards_root
from gpuload.disk.tar import Member, group_members, read_members, split_name
from gpuload.errors import ArgumentError, DecodeError, FormatError, OutputError, RemoteError
from gpuload.fields.field import Field
from gpuload.fields.pixels import RGB, Pixels
from gpuload.fields.registry import kind_of
from gpuload.headers import encodings
from gpuload.headers.limits import MAX_PIXELS
from gpuload.limits import count_cores
from gpuload.packing.image.check import KEPT, prepare_image
from gpuload.packing.options import ENCODINGS, KEEP, Encoding
from gpuload.packing.run.lost_workers import exit_name
from gpuload.packing.run.worker_position import NOWHERE, WorkerPosition, read_position
from gpuload.packing.run.workers import Workers
from gpuload.store.url import URL, as_location
from gpuload.types import WidthHeight

if TYPE_CHECKING:
    from gpuload.disk.fetch import Pieces  # asyncio

_CHUNK_BYTES = 1 << 24


_MOST_SECONDS = 60.0  # for one sample; a decoder that takes longer is killed

# Decodes an image as a loader does: its bytes, its height and width as the index says. Returns what is wrong, or None.
# Importable by its name, for the workers.
DecodeCheck = Callable[[bytes, int, int], str | None]


@dataclass(frozen=True)
class VerifyJob:
    """Verifies shard `number` of a packed folder.

    position: path of the file in which the worker notes where it is. decode: besides the check of the packer.
    known_bad: samples (by their rows) that killed a worker, and why. killed_at: the row at which SIGKILL ended one; it
    is tried once more, since the kernel sends that where memory is short, too. died: how the worker that last tried
    ended, where no sample is to blame, or "".
    """

    folder: Path
    number: int
    shard: ShardInfo
    fields: tuple[Field, ...]
    position: Path
    decode: DecodeCheck | None = None
    known_bad: Mapping[int, str] = field(default_factory=dict)
    killed_at: int = NOWHERE
    died: str = ""


@dataclass
class ShardFaults:
    """What is wrong with a shard: one line each, and the samples that a loader should leave out."""

    lines: list[str] = field(default_factory=list)
    bad: list[Quarantined] = field(default_factory=list)


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
    shards verified and the number of all shards. decode: a decoder that every image must pass, too. quarantine: a file
    to write the samples to that have a fault of their own, for `DaliIterator(exclude=…)`; it may become empty.

    Raises:
        FormatError: it is not a packed folder.
        OutputError: the file cannot be written.
    """
    bad: list[Quarantined] = []
    if quarantine is not None:
        _write(quarantine, bad)  # before the work of hours
    settings: dict[str, Any] = {"workers": workers, "watch": watch, "decode": decode, "bad": bad}
    if isinstance(where := as_location(folder), URL):
        from gpuload.store.hub import pinned

        faults = [fault for split in _splits_at(pinned(where)) for fault in _verify_url(split, **settings)]
    else:
        faults = _verify_all(where, partial(_verify_split, **settings))
    if quarantine is not None:
        _write(quarantine, bad)
    return faults


def _write(path: str | Path, bad: Sequence[Quarantined]) -> None:
    try:
        write_quarantine(path, bad)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}). Give another file to --quarantine") from None


def _verify_all(folder: str | Path, verify_split: Callable[[Path], list[str]]) -> list[str]:
    root = Path(folder)
    splits = [root] if (root / manifest_file.FILE_NAME).exists() else []
    if not splits and root.is_dir():
        splits = sorted(path.parent for path in root.glob(f"*/{manifest_file.FILE_NAME}"))
        lone = sorted(
            path for path in root.iterdir() if path.is_dir() and path not in splits and any(path.glob("*.tar"))
        )
        if splits:
            faults = [f"{path}: holds shards but no {manifest_file.FILE_NAME}" for path in lone]
            return faults + [fault for split in splits for fault in verify_split(split)]
    if not splits:
        Manifest.read(root)  # raises the error that says what is wrong
    return verify_split(root)


def _verify_split(
    folder: Path,
    workers: int | None,
    watch: Callable[[int, int], None],
    decode: DecodeCheck | None,
    bad: list[Quarantined],
) -> list[str]:
    try:
        manifest = Manifest.read(folder)
        faults = _index_faults(folder / index_file.FILE_NAME, manifest)
    except FormatError as error:
        return [str(error)]
    if (root := shards_root(manifest, folder)) is not None:
        return faults + _verify_index(root, folder, manifest, workers, watch, decode, bad)
    listed = {shard.name for shard in manifest.shards}
    found = {path.name for path in folder.glob("*.tar")}
    faults += [f"{folder / name}: is not in {manifest_file.FILE_NAME}" for name in sorted(found - listed)]
    faults += [f"{path}: was left by an interrupted run" for path in sorted(folder.glob("*.tmp"))]
    results: dict[int, ShardFaults] = {}

    def done(job: VerifyJob, found: ShardFaults) -> None:
        results[job.number] = found
        watch(len(results), len(manifest.shards))

    with tempfile.TemporaryDirectory(prefix="gpuload-verify-") as scratch:
        jobs = _jobs(folder, manifest, Path(scratch), decode)
        with Workers[VerifyJob, ShardFaults](min(workers or count_cores(), len(jobs)), verify_shard, False) as pool:
            pool.run(jobs, done, _after_death, lambda _: None)
    for number in sorted(results):
        faults += results[number].lines
        bad += results[number].bad
    return faults


def _jobs(folder: Path, manifest: Manifest, scratch: Path, decode: DecodeCheck | None) -> list[VerifyJob]:
    return [
        VerifyJob(folder, n, shard, manifest.fields, scratch / f"{n}.position", decode)
        for n, shard in enumerate(manifest.shards)
    ]


def _verify_url(
    url: URL,
    workers: int | None,
    watch: Callable[[int, int], None],
    decode: DecodeCheck | None,
    bad: list[Quarantined],
) -> list[str]:
    """Downloads the shards into a temporary folder, some at a time, and verifies them there."""
    from gpuload.disk.fetch import Pieces, parse_manifest  # asyncio

    with tempfile.TemporaryDirectory(prefix="gpuload-verify-") as scratch:
        pieces = Pieces(url, Path(scratch))
        data = pieces.manifest_bytes()
        try:
            manifest = parse_manifest(data, pieces.folder, url)
            pieces.get(index_file.FILE_NAME)
            faults = _index_faults(pieces.folder / index_file.FILE_NAME, manifest)
        except FormatError as error:
            return [str(error).replace(scratch, str(url))]
        faults = [fault.replace(str(pieces.folder), str(url)) for fault in faults]
        return faults + _verify_pieces(pieces, manifest, workers, watch, decode, bad)


def _splits_at(url: URL) -> list[URL]:
    """The packed splits in a folder at a URL; the URL itself where it is one, or cannot be listed."""
    from gpuload.store.background import background
    from gpuload.store.listing import Listed

    try:
        found = background().wait(Listed(url).list())
    except (ArgumentError, RemoteError):
        return [url]
    ends = [name.removesuffix(f"/{manifest_file.FILE_NAME}") for name in found]
    splits = [one for one, name in zip(ends, found, strict=True) if one != name and "/" not in one]
    return [url] if manifest_file.FILE_NAME in found or not splits else [url / split for split in splits]


def _verify_index(
    root: URL,
    folder: Path,
    manifest: Manifest,
    workers: int | None,
    watch: Callable[[int, int], None],
    decode: DecodeCheck | None,
    bad: list[Quarantined],
) -> list[str]:
    """As `_verify_url`, for shards that are indexed here."""
    from gpuload.disk.fetch import Pieces

    def below(info: ShardInfo) -> ShardInfo:
        return replace(info, name=info.name.removeprefix(f"{root}/"))

    with tempfile.TemporaryDirectory(prefix="gpuload-verify-") as scratch:
        manifest = replace(manifest, shards=tuple(map(below, manifest.shards)))
        for name in (index_file.FILE_NAME, *(str(dali_index_path(Path(info.name))) for info in manifest.shards)):
            with suppress(FileNotFoundError):
                (Path(scratch) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(scratch) / name).symlink_to((folder / name).resolve(strict=True))
        return _verify_pieces(Pieces(root, Path(scratch)), manifest, workers, watch, decode, bad, has_dali_index=True)


def _verify_pieces(
    pieces: "Pieces",
    manifest: Manifest,
    workers: int | None,
    watch: Callable[[int, int], None],
    decode: DecodeCheck | None,
    bad: list[Quarantined],
    has_dali_index: bool = False,
) -> list[str]:
    """Downloads shards beside the index, some at a time, and verifies them. has_dali_index: theirs are there."""
    url, scratch, faults = pieces.objects.url, str(pieces.folder), list[str]()

    def done(job: VerifyJob, found: ShardFaults) -> None:
        faults.extend(line.replace(scratch, str(url)) for line in found.lines)
        bad.extend(found.bad)

    jobs = _jobs(pieces.folder, manifest, pieces.folder, decode)
    count = min(workers or count_cores(), len(jobs))
    with Workers[VerifyJob, ShardFaults](count, verify_shard, False) as pool:
        for first in range(0, len(jobs), count):
            some = jobs[first : first + count]
            files = [job.shard.name for job in some]
            if not has_dali_index:
                files += [str(dali_index_path(Path(name))) for name in files]
            pieces.get(*files)  # what is missing, `verify_shard` tells
            pool.run(some, done, _after_death, lambda _: None)
            pieces.remove(*files)
            watch(min(first + count, len(jobs)), len(jobs))
    return faults


def _index_faults(path: Path, manifest: Manifest) -> list[str]:
    """What of an index differs from what its manifest tells, one line each.

    Raises:
        FormatError: it cannot be read, or is one of other shards.
    """
    index = Index(path, manifest.fields)
    if len(index) != len(manifest.shards):
        raise FormatError(
            f"{path}: indexes {counted(len(index), 'shard')}, {manifest_file.FILE_NAME} lists {len(manifest.shards)}"
        )
    if manifest.index_sha256 is None:
        return []
    found, parts, said = index_file.index_digests(path), manifest.index_parts, manifest_file.FILE_NAME
    if found.index_sha256 != manifest.index_sha256:
        fault = f"its SHA-256 is {found.index_sha256}, {said} says {manifest.index_sha256}"
    elif parts is not None and found.index_parts != parts:
        fault = f"the SHA-256s of its parts are not those that {said} tells"
    else:
        return []
    return [f"{path}: {fault}"]


def _after_death(job: VerifyJob, code: int) -> VerifyJob:
    """The job to run after a worker died: the sample that it was decoding is to blame."""
    row, _ = read_position(job.position)
    job.position.unlink(missing_ok=True)
    ended = exit_name(code)
    if row == NOWHERE:
        return replace(job, died=ended)
    if code == -signal.SIGKILL and job.killed_at != row:
        return replace(job, killed_at=row)
    reason = (
        f"takes longer than {_MOST_SECONDS:g} s to decode"
        if code == -signal.SIGALRM
        else f"kills its decoder ({ended})"
    )
    return replace(job, known_bad={**job.known_bad, row: reason})


def verify_shard(job: VerifyJob) -> ShardFaults:
    """The faults of one shard: in its size, its checksum, its members as indexed, and every image and field."""
    path = job.folder / job.shard.name
    if job.died:
        return ShardFaults([f"{path}: its worker ended ({job.died}), and no sample is to blame"])
    try:
        size = path.stat().st_size
    except OSError as error:
        return ShardFaults([f"{path}: {error.strerror}"])
    if size != job.shard.bytes:
        return ShardFaults([f"{path}: is {counted(size, 'byte')}, {manifest_file.FILE_NAME} says {job.shard.bytes:,}"])
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
        return ShardFaults([*faults, str(error)])
    dali = dali_index_path(path)
    if not dali.exists() or dali.read_text(encoding="utf-8", errors="replace") != dali_index_text(
        members for _, members in samples
    ):
        faults.append(f"{dali}: does not describe {path.name}" if dali.exists() else f"{dali}: is missing")
    rows = Index(job.folder / index_file.FILE_NAME, job.fields).shard(job.number)
    if rows.num_rows != job.shard.samples or [key for key, _ in samples] != rows.column("key").to_pylist():
        return ShardFaults([*faults, f"{path}: its samples are not those of {index_file.FILE_NAME}"])
    found = _verify_samples(job, path, rows, [members for _, members in samples])
    return ShardFaults(faults + found.lines, found.bad)


def _verify_samples(
    job: VerifyJob, path: Path, rows: pa.RecordBatch, samples: Sequence[Sequence[Member]]
) -> ShardFaults:
    found = ShardFaults()
    with path.open("rb") as file, WorkerPosition(job.position) as position:
        for number, (row, members) in enumerate(zip(rows.to_pylist(), samples, strict=True)):
            if number in job.known_bad:
                lines = [job.known_bad[number]]
            else:
                position.write(number, 0)
                signal.setitimer(signal.ITIMER_REAL, _MOST_SECONDS)  # its action is to end the process, see `_work`
                lines = _faults(job, row, {split_name(m.name)[1]: m for m in members}, file)
                signal.setitimer(signal.ITIMER_REAL, 0)
            found.lines += [f"{path}: sample {row['key']!r}: {line}" for line in lines]
            if lines:
                at = row["image_offset"], row["image_bytes"]
                found.bad.append(Quarantined(row["key"], path.name, *at, "; ".join(lines)))
        position.write(NOWHERE, 0)
    return found


def _faults(job: VerifyJob, row: dict[str, Any], found: dict[str, Member], file: io.BufferedReader) -> list[str]:
    faults = []
    for one in job.fields:
        offset, size = row[one.offset_column], row[one.bytes_column]
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
