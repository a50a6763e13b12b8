"""Reads all of a packed folder again, or of a set at a URL, and lists every fault.

Images are decoded in processes that may die: each notes which sample it decodes, and the next one passes over a sample
that killed it.
"""

import hashlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from gpuload.checks import COUNT, PATH, checked, function, optional
from gpuload.counted import counted
from gpuload.disk import Index, Manifest, ShardInfo
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.commit import NEXT_NAME, index_path
from gpuload.disk.fetch import fetch_files, manifest_bytes
from gpuload.disk.manifest import dali_index_path, dali_index_text
from gpuload.disk.opening import shards_root
from gpuload.disk.places import packed_folders
from gpuload.disk.sample import Quarantined, write_quarantine
from gpuload.disk.tar import Damage, Member, group_members, read_members, split_name
from gpuload.errors import ArgumentError, DecodeError, FormatError, RemoteError
from gpuload.fields.field import Field
from gpuload.fields.images import POINTS, Pixels, is_missing, picture_columns
from gpuload.fields.picture_lists import PICTURES_KIND, PicturesKind
from gpuload.fields.registry import kind_of
from gpuload.machine.fork_server import exit_name
from gpuload.machine.limits import count_cores
from gpuload.machine.untrusted import open_regular
from gpuload.packing.image import KEPT, prepare_image
from gpuload.packing.options import ENCODINGS, Encoding
from gpuload.packing.output import cannot_write
from gpuload.packing.points import points_hold
from gpuload.packing.workers import NOWHERE, Blamable, Blame, Workers, noted_position
from gpuload.pictures import MAX_PIXELS
from gpuload.sources.tars import list_ends
from gpuload.store.hub import pinned
from gpuload.store.network import background
from gpuload.store.objects import Objects
from gpuload.store.url import LOCATION, URL, as_location
from gpuload.types import WidthHeight

_CHUNK_BYTES = 1 << 24
MOST_SECONDS = 60.0  # for one sample; a decoder that takes longer is killed
_FALSE_POINTS = "its seek points are not those of its {}: write them anew (python -m gpuload index --points FOLDER)"


@checked(
    "verify",
    folder=LOCATION,
    workers=optional(COUNT),
    watch=function("a function of two numbers"),
    quarantine=optional(PATH),
)
def verify(
    folder: str | Path,
    workers: int | None = None,
    watch: Callable[[int, int], None] = lambda n, of: None,
    *,
    quarantine: str | Path | None = None,
) -> list[str]:
    """The faults of a packed folder, or of all splits in a folder of splits, one line each. Writes nothing into it.

    It rereads everything, as `python -m gpuload verify` does, and starts processes: call it under
    `if __name__ == "__main__"`.

    Args:
        folder: A packed folder, or a folder of several; or the URL of one.
        workers: Number of processes; None: one for each core that this process may use.
        watch: Called with the number of shards verified and the number of all shards.
        quarantine: A file for the samples that have a fault of their own, for `Dataset(exclude=…)`; it may stay empty.

    Raises:
        FormatError: it is not a packed folder.
        OutputError: the file cannot be written, or the folder for temporary files.
    """
    advice = "Free some space for the notes of verify, set TMPDIR, or give another file to --quarantine"
    with cannot_write(advice):
        if quarantine is not None:
            write_quarantine(quarantine, [])  # before the work of hours
        where = as_location(folder)
        lines = list[str]()
        if isinstance(where, URL):
            sets: Sequence[Path | URL] = _sets_at(where)
        else:
            sets = packed_folders(Path(where))
            lines.extend(_folders_without_manifest(Path(where), sets))
        processes = workers or count_cores()
        faults = [_verify_set(place, processes, watch) for place in sets]
        lines.extend(line for of_set in faults for line in of_set.lines)
        if quarantine is not None:
            bad = [sample for of_set in faults for sample in of_set.bad]
            write_quarantine(quarantine, bad)
    return lines


def _verify_set(
    where: Path | URL, workers: int, watch: Callable[[int, int], None]
) -> "Faults":
    """The faults of one set. What lies at URLs is downloaded into a temporary folder, and verified there."""
    with tempfile.TemporaryDirectory(prefix="gpuload-verify-") as notes:
        scratch = Path(notes, "set")
        scratch.mkdir()
        if isinstance(where, URL):
            # A URL without a manifest is an error, and no fault.
            (scratch / manifest_file.FILE_NAME).write_bytes(manifest_bytes(where))
        try:
            opened = _open_set(where, scratch)
        except FormatError as error:
            message = str(error).replace(str(scratch), str(where))
            return Faults([message], [])
        lines = [*_description_faults(opened)]
        shards_url = opened.url
        if shards_url is None:
            shards_url = shards_root(opened.manifest, opened.folder)
        if shards_url is None:
            lines.extend(_stray_files(opened))
        jobs = _shard_jobs(opened, shards_url)
        of_shards = _verify_shards(jobs, workers, watch)
    lines.extend(line for faults in of_shards for line in faults.lines)
    if shards_url is not None:
        lines = [line.replace(str(scratch), str(shards_url)) for line in lines]
    bad = [sample for faults in of_shards for sample in faults.bad]
    return Faults(lines, bad)


@dataclass(frozen=True)
class _OpenedSet:
    """A set whose manifest and index can be read.

    Attributes:
        url: Where it lies, if not on this machine.
        folder: Holds its manifest and index.
        scratch: For what is downloaded.
        index: The file that is its index now.
    """

    url: URL | None
    folder: Path
    scratch: Path
    manifest: Manifest
    index: Path


def _open_set(where: Path | URL, scratch: Path) -> _OpenedSet:
    """The set at a place, whose manifest is in `scratch` where that is a URL.

    Raises:
        FormatError: it is not a packed folder.
    """
    url = where if isinstance(where, URL) else None
    folder = where if isinstance(where, Path) else scratch
    manifest = Manifest.read(folder, url)
    if url is not None:
        joined = [file.name for file in manifest.joined]
        names = [index_file.FILE_NAME, NEXT_NAME, *joined]
        fetch_files(url, scratch, *names, most=manifest.most_beside)
    path = index_path(folder, manifest)
    Index(path, manifest.fields, shards=len(manifest.shards))  # checks its structure
    return _OpenedSet(url, folder, scratch, manifest, path)


def _description_faults(opened: _OpenedSet) -> Iterator[str]:
    """The faults of the index and the joined columns."""
    manifest = opened.manifest
    for name, digest in index_file.index_digests(opened.index).items():
        if getattr(manifest, name) not in (None, digest):
            yield f"{opened.index}: its SHA-256, or those of its parts, are not those in {manifest_file.FILE_NAME}"
            break
    yield from _joined_faults(manifest, opened.folder)


def _stray_files(opened: _OpenedSet) -> Iterator[str]:
    """A line for each file in the folder that should not be there."""
    shard_names = {shard.name for shard in opened.manifest.shards}
    for path in sorted(opened.folder.glob("*.tar")):
        if path.name not in shard_names:
            yield f"{path}: is not in {manifest_file.FILE_NAME}"
    for pattern in ("*.tmp", NEXT_NAME):
        for path in sorted(opened.folder.glob(pattern)):
            yield f"{path}: was left by an interrupted run"


def _shard_jobs(opened: _OpenedSet, url: URL | None) -> "list[VerifyJob]":
    """The jobs that verify the shards of a set, one each.

    Args:
        url: Below which they lie, if they are to be downloaded.
    """
    manifest = opened.manifest
    holds_others = not manifest.upright and bool(manifest.packing.get("rejected"))
    jobs = []
    for number, shard in enumerate(manifest.shards):
        name = shard.name.removeprefix(f"{url}/")
        root = opened.folder if url is None else opened.scratch
        job = VerifyJob(
            path=root / name,
            folder=opened.folder,
            number=number,
            shard=replace(shard, name=name),
            fields=manifest.fields,
            partial=holds_others,
            in_place=not manifest.upright,
            url=url,
            scratch=opened.scratch,
            most=manifest.most_beside,
            index=opened.index,
            position=opened.scratch.with_name(f"{number}.position"),
            time_limit_s=MOST_SECONDS,
        )
        jobs.append(job)
    return jobs


def _verify_shards(
    jobs: "Sequence[VerifyJob]", workers: int, watch: Callable[[int, int], None]
) -> "list[Faults]":
    """The faults of each shard, in the order of the jobs."""
    faults = dict[int, Faults]()
    blame = Blame()

    def died(job: VerifyJob, code: int) -> VerifyJob:
        # A shard that kills each worker is hashed by one of them.
        hashed_alone = replace(job, known_bad={NOWHERE: exit_name(code)})
        return blame.find(job, code) or hashed_alone

    processes = max(1, min(workers, len(jobs)))
    with Workers[VerifyJob, Faults](processes, verify_shard, False) as pool:
        for job, of_shard in pool.run(jobs, died):
            faults[job.number] = of_shard
            watch(len(faults), len(jobs))
    return [faults[number] for number in sorted(faults)]


def _folders_without_manifest(root: Path, splits: Sequence[Path]) -> Iterator[str]:
    """A line for each folder of shards in `root` that is none of its splits.

    Raises:
        FormatError: the root is not a folder of splits, and no packed folder either.
    """
    if splits == [root]:
        if not (root / manifest_file.FILE_NAME).exists():
            Manifest.read(root)  # raises the error that says what is wrong
        return
    for path in sorted(root.iterdir()):
        if path.is_dir() and path not in splits and any(path.glob("*.tar")):
            yield f"{path}: holds shards but no {manifest_file.FILE_NAME}"


def _sets_at(url: URL) -> list[URL]:
    """The set at a URL, or all splits there; the URL itself where it cannot be listed."""
    url = pinned(url)
    try:
        names = background().wait(Objects(url).list())
    except (ArgumentError, RemoteError):
        return [url]
    if manifest_file.FILE_NAME in names:
        return [url]
    splits = []
    for name in names:
        folder, _, file_name = name.partition("/")
        if file_name == manifest_file.FILE_NAME:
            splits.append(url / folder)
    return splits or [url]


@dataclass(frozen=True, kw_only=True)
class VerifyJob(Blamable):
    """What a worker needs to verify one shard.

    Attributes:
        path: Of the packed folder.
        folder: Where its index and the shard's DALI index are, here.
        number: Of the shard.
        shard: What the manifest says of it.
        fields: Of the set.
        partial: Whether the shard may hold samples that are not indexed, as `index` leaves some out.
        in_place: Whether others packed the shard, whose files need not be as gpuload writes them.
        url: Below which the shard lies, if it is to be downloaded.
        scratch: Where a downloaded shard and the worker's position are written.
        most: Bytes that may be downloaded.
        index: The file that is the index now.
    """

    path: Path
    folder: Path
    number: int
    shard: ShardInfo
    fields: tuple[Field, ...]
    partial: bool
    in_place: bool
    url: URL | None
    scratch: Path
    most: int
    index: Path

    @property
    def image(self) -> Field:
        """The field of the first picture of each sample."""
        return next(field for field in self.fields if field.kind in ("image", "raw"))

    @property
    def dali(self) -> Path:
        """The shard's DALI index."""
        return dali_index_path(self.folder / self.shard.name)


@dataclass
class Faults:
    """The faults of a shard or a set, one line each, and the samples that a loader should leave out."""

    lines: list[str]
    bad: list[Quarantined]


def verify_shard(job: VerifyJob) -> Faults:
    """The faults of one shard: in its size, its checksum, its members as indexed, and every image and field."""
    faults = Faults([], [])
    copies = list[Path]()
    try:
        if job.url is not None:
            copies = _fetch_shard(job, job.url)
        faults.lines.extend(_verify(job, faults.bad))  # those before an error, too
    except FormatError as error:
        faults.lines.append(str(error))
    except OSError as error:
        faults.lines.append(f"{error.filename or job.path}: {error.strerror}")
    for copy in copies:
        copy.unlink(missing_ok=True)
    return faults


def _fetch_shard(job: VerifyJob, url: URL) -> list[Path]:
    """Downloads a shard, with its DALI index if that lies beside it, and returns the files. What is missing there is
    missing here; what the worker before this one has downloaded is kept."""
    copies = [job.path, job.dali] if job.folder == job.scratch else [job.path]
    names = [str(copy.relative_to(job.scratch)) for copy in copies if not copy.exists()]
    fetch_files(url, job.scratch, *names, most=job.most)
    return copies


def _verify(job: VerifyJob, bad: list[Quarantined]) -> Iterator[str]:
    path = job.path
    manifest_says = f"{manifest_file.FILE_NAME} says"
    if code := job.known_bad.get(NOWHERE):
        yield f"{path}: its worker ended ({code}), and no sample is to blame"
        return
    size = path.stat().st_size
    if size != job.shard.bytes:
        yield f"{path}: is {counted(size, 'byte')}, {manifest_says} {job.shard.bytes:,}"
        return
    digest = _digest(path)
    if digest != job.shard.sha256:
        yield f"{path}: its SHA-256 is {digest}, {manifest_says} {job.shard.sha256}"
    yield from _verify_content(job, bad)


def _verify_content(job: VerifyJob, bad: list[Quarantined]) -> Iterator[str]:
    path = job.path
    rows = Index(job.index, job.fields).shard(job.number)
    keys = rows.column("key").to_pylist()
    damage = list[Damage]()
    samples = list(group_members(read_members(path, damage=damage)))
    for part in damage:
        yield f"{path}: bytes {part.start:,} to {part.end:,} are damaged: {part.fault}"
    if job.partial:
        indexed = set(keys)
        samples = [(key, members) for key, members in samples if key in indexed]
    members = [members for _, members in samples]
    yield from _dali_index_faults(job, members)
    if rows.num_rows != job.shard.samples or [key for key, _ in samples] != keys:
        yield f"{path}: its samples are not those of {index_file.FILE_NAME}"
        return
    yield from _verify_samples(job, bad, rows, members)


def _digest(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(_CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _dali_index_faults(
    job: VerifyJob, samples: Sequence[Sequence[Member]]
) -> Iterator[str]:
    """A line if the shard's DALI index does not describe these samples."""
    expected = dali_index_text(samples).encode()
    try:
        with open_regular(job.dali) as file:
            text = file.read(len(expected) + 1)
    except OSError as error:
        yield f"{job.dali}: cannot be read ({error.strerror})"
        return
    if text != expected:
        yield f"{job.dali}: does not describe {job.path.name}"


def _verify_samples(
    job: VerifyJob,
    bad: list[Quarantined],
    rows: pa.RecordBatch,
    samples: Sequence[Sequence[Member]],
) -> Iterator[str]:
    image = job.image
    with open_regular(job.path) as file, noted_position(job.position) as note:
        for number, (row, members) in enumerate(
            zip(rows.to_pylist(), samples, strict=True)
        ):
            if number in job.known_bad:
                lines = [job.known_bad[number]]
            else:
                note(number, 0)
                signal.setitimer(
                    signal.ITIMER_REAL, job.time_limit_s
                )  # its action is to end the process
                lines = _faults(job, row, members, file)
                signal.setitimer(signal.ITIMER_REAL, 0)
            yield from (f"{job.path}: sample {row['key']!r}: {line}" for line in lines)
            if lines:
                sample = Quarantined(
                    row["key"],
                    job.path.name,
                    row[image.offset_column],
                    row[image.bytes_column],
                    "; ".join(lines),
                )
                bad.append(sample)
        note(NOWHERE, 0)


def _joined_faults(manifest: Manifest, folder: Path) -> Iterator[str]:
    """A line for each file of joined columns that is not that of the manifest."""
    for file in manifest.joined:
        path = folder / file.name
        try:
            is_right = index_file.index_digests(path)["index_sha256"] == file.sha256
        except OSError as error:
            yield f"{path}: cannot be read ({error.strerror})"
            continue
        if not is_right:
            yield f"{path}: its SHA-256 is not that in {manifest_file.FILE_NAME}"


def _faults(
    job: VerifyJob, row: dict[str, Any], members: Sequence[Member], file: BinaryIO
) -> list[str]:
    faults = list[str]()
    for field in job.fields:
        if is_missing(field, row):
            continue
        if field.kind == PicturesKind.name:
            faults += _faults_of_list(job, field, row, members, file)
            continue
        offset = row[field.offset_column]
        size = row[field.bytes_column]
        is_caption = row.get(field.name) == ""
        if not size and is_caption and offset == row[job.image.offset_column]:
            continue  # a caption that the sample lacks, as `index` wrote until 2026-11
        ends = field.member.split(";")
        meant = [member for member in members if split_name(member.name)[1] in ends]
        member = _member_of(meant, offset, size)
        fault = _fault(job, field, field.name, row, member, file)
        if fault:
            faults.append(fault)
    return faults


def _fault(
    job: VerifyJob,
    field: Field,
    name: str,
    row: dict[str, Any],
    member: Member | None,
    file: BinaryIO,
) -> str:
    """What is wrong with a member; "" where nothing is.

    Args:
        job: Of the shard.
        field: Of the member.
        name: What messages call it.
        row: Its columns of the index.
        member: None where none lies at the offset in the row.
        file: The shard.
    """
    offset = row[field.offset_column]
    if member is None:
        return f"there is no {name} at the offset in the index (byte {offset:,})"
    content = os.pread(file.fileno(), member.size, member.offset)
    fault = _content_fault(job, field, row, content, offset - member.offset)
    if fault:
        return f"its {name} {fault}"
    has_points = field.kind in ("image", "picture", PicturesKind.name)
    if has_points and _are_false(field, row, content):
        return _FALSE_POINTS.format(name)
    return ""


def _member_of(members: Sequence[Member], offset: int, size: int) -> Member | None:
    """The member whose content ends with these bytes of the shard."""
    for member in members:
        end = member.offset + member.size
        if member.offset <= offset and offset + size == end:
            return member
    return None


def _faults_of_list(
    job: VerifyJob,
    field: Field,
    row: dict[str, Any],
    members: Sequence[Member],
    file: BinaryIO,
) -> Iterator[str]:
    """The faults of a list of pictures, the first of which may be the image."""
    by_extension = {split_name(member.name)[1]: member for member in members}
    listed = [by_extension[end] for end in list_ends(by_extension, field)]
    spans = list[tuple[int, int]]()
    for number, (offset, own_row) in enumerate(PICTURES_KIND.each_row(field, row)):
        size = own_row[field.bytes_column]
        spans.append((offset, offset + size))
        member = _member_of(listed[number : number + 1], offset, size)
        fault = _fault(job, field, f"{field.name} {number}", own_row, member, file)
        if fault:
            yield fault
    start = row[field.offset_column]
    if _extent(spans, start) != (start, start + row[field.bytes_column]):
        yield f"its {field.name} do not lie where the index says"
    if len(listed) != len(spans):
        yield f"the index does not have all of its {field.name}"


def _extent(spans: Sequence[tuple[int, int]], start: int) -> tuple[int, int]:
    """From the first byte of all spans to the end of the last one; of none, nothing at `start`."""
    first = min((first for first, _ in spans), default=start)
    return first, max((end for _, end in spans), default=first)


def _are_false(field: Field, row: dict[str, Any], content: bytes) -> bool:
    """Whether a row has seek points that are not those of its picture."""
    names = ("width", "height", POINTS)
    if field.kind in ("picture", PicturesKind.name):
        names = picture_columns(field.name)
    width = row[names[0]]
    height = row[names[1]]
    points: bytes = row.get(names[2], b"")
    return bool(points) and not points_hold(content, points, width, height)


def _content_fault(
    job: VerifyJob, field: Field, row: dict[str, Any], content: bytes, header: int
) -> str:
    try:
        most = max(row["width"] * row["height"], MAX_PIXELS)

        def image_size(image: bytes) -> WidthHeight:
            return _image_size(image, field, most, job.in_place)

        return kind_of(field).find_fault(field, row, content, header, image_size)
    except DecodeError as error:
        return f"cannot be decoded: {str(error).removeprefix('cannot be decoded: ')}"
    except (
        Exception
    ) as error:  # parsers and decoders may raise anything on damaged bytes
        return f"cannot be read: {error}"


def _image_size(
    content: bytes, field: Field, max_pixels: int, in_place: bool
) -> WidthHeight:
    pixels = Pixels.of_field(field)
    is_picture = field.kind in ("image", "picture", PicturesKind.name)
    mode = pixels.mode if is_picture else "RGB"
    stored = prepare_image(
        content,
        encoding=Encoding(max_pixels=max_pixels, mode=mode, keep=tuple(ENCODINGS)),
    )
    if mode != "RGB" and stored.kind != KEPT and not in_place:
        raise DecodeError(f"it is not of mode {pixels.mode}, or not as it was packed")
    return stored.width, stored.height
