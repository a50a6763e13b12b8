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

from gpuload.checks import COUNT, PATH, checked, function, optional
from gpuload.counted import counted
from gpuload.disk import Index, Manifest, ShardInfo
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.commit import NEXT_NAME, index_path
from gpuload.disk.dataset import shards_root
from gpuload.disk.fetch import fetch_files, manifest_bytes
from gpuload.disk.manifest import dali_index_path, dali_index_text
from gpuload.disk.places import packed_folders
from gpuload.disk.sample import Quarantined, write_quarantine
from gpuload.disk.tar import Damage, Member, group_members, read_members, split_name
from gpuload.errors import ArgumentError, DecodeError, FormatError, RemoteError
from gpuload.fields.field import Field
from gpuload.fields.images import POINTS, Pixels, picture_columns
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
        folder: a packed folder, or a folder of several; or the URL of one.
        workers: number of processes; None: one for each core that this process may use.
        watch: called with the number of shards verified and the number of all shards.
        quarantine: a file for the samples that have a fault of their own, for `Dataset(exclude=…)`; it may stay empty.

    Raises:
        FormatError: it is not a packed folder.
        OutputError: the file cannot be written, or the folder for temporary files.
    """
    advice = "Free some space for the notes of verify, set TMPDIR, or give another file to --quarantine"
    with cannot_write(advice):
        if quarantine is not None:
            write_quarantine(quarantine, [])  # before the work of hours
        where = as_location(folder)
        sets, faults = (
            _sets_at(where) if isinstance(where, URL) else _sets_in(Path(where))
        )
        found = [_verify_set(one, workers or count_cores(), watch) for one in sets]
        if quarantine is not None:
            write_quarantine(quarantine, [bad for one in found for bad in one.bad])
    return [*faults, *(line for one in found for line in one.lines)]


def _verify_set(
    where: Path | URL, workers: int, watch: Callable[[int, int], None]
) -> "Faults":
    """The faults of one set. What lies at URLs is downloaded into a temporary folder, and verified there."""
    with tempfile.TemporaryDirectory(prefix="gpuload-verify-") as notes:
        scratch, url = Path(notes, "set"), where if isinstance(where, URL) else None
        scratch.mkdir()
        folder = where if isinstance(where, Path) else scratch
        if (
            url is not None
        ):  # where there is no manifest, that is an error, and no fault
            (scratch / manifest_file.FILE_NAME).write_bytes(manifest_bytes(url))
        try:
            manifest = Manifest.read(folder, url)
            if url is not None:
                joined = [file.name for file in manifest.joined]
                wanted = index_file.FILE_NAME, NEXT_NAME, *joined
                fetch_files(url, scratch, *wanted, most=manifest.most_beside)
            path = index_path(folder, manifest)
            Index(path, manifest.fields, shards=len(manifest.shards))
        except FormatError as error:
            return Faults([str(error).replace(str(scratch), str(where))])
        lines, digests = list[str](), index_file.index_digests(path)
        if any(
            getattr(manifest, name) not in (None, found)
            for name, found in digests.items()
        ):
            lines.append(
                f"{path}: its SHA-256, or those of its parts, are not those in {manifest_file.FILE_NAME}"
            )
        lines += _joined_faults(manifest, folder)
        if url is None and (url := shards_root(manifest, folder)) is None:
            known = {shard.name for shard in manifest.shards}
            others = sorted(
                one for one in folder.glob("*.tar") if one.name not in known
            )
            lines += [f"{one}: is not in {manifest_file.FILE_NAME}" for one in others]
            unfinished = [*sorted(folder.glob("*.tmp")), *folder.glob(NEXT_NAME)]
            lines += [f"{one}: was left by an interrupted run" for one in unfinished]
        names = [shard.name.removeprefix(f"{url}/") for shard in manifest.shards]
        jobs = [
            VerifyJob(
                path=(scratch if url else folder) / name,
                folder=folder,
                number=number,
                shard=replace(shard, name=name),
                fields=manifest.fields,
                partial=not manifest.upright and bool(manifest.packing.get("rejected")),
                url=url,
                scratch=scratch,
                most=manifest.most_beside,
                index=path,
                position=scratch.with_name(f"{number}.position"),
                time_limit_s=MOST_SECONDS,
            )
            for number, (name, shard) in enumerate(
                zip(names, manifest.shards, strict=True)
            )
        ]
        found, blame = dict[int, Faults](), Blame()

        def died(
            job: VerifyJob, code: int
        ) -> VerifyJob:  # a shard that kills each worker is hashed by one of them
            return blame.find(job, code) or replace(
                job, known_bad={NOWHERE: exit_name(code)}
            )

        with Workers[VerifyJob, Faults](
            max(1, min(workers, len(jobs))), verify_shard, False
        ) as processes:
            for job, result in processes.run(jobs, died):
                found[job.number] = result
                watch(len(found), len(jobs))
        results = [found[number] for number in sorted(found)]
        lines += [line for result in results for line in result.lines]
        return Faults(
            [line.replace(str(scratch), str(url)) for line in lines],
            [b for r in results for b in r.bad],
        )


def _sets_in(root: Path) -> tuple[list[Path | URL], list[str]]:
    """The split that a folder is, or all splits in it; and a fault for each folder of shards without a manifest."""
    splits = packed_folders(root)
    if splits == [root]:
        if not (root / manifest_file.FILE_NAME).exists():
            Manifest.read(root)  # raises the error that says what is wrong
        return [root], []
    others = (path for path in root.iterdir() if path.is_dir() and path not in splits)
    lone = sorted(path for path in others if any(path.glob("*.tar")))
    return [*splits], [
        f"{path}: holds shards but no {manifest_file.FILE_NAME}" for path in lone
    ]


def _sets_at(url: URL) -> tuple[list[Path | URL], list[str]]:
    """As `_sets_in`, at a URL; the URL itself where it cannot be listed."""
    url = pinned(url)
    try:
        found = background().wait(Objects(url).list())
    except (ArgumentError, RemoteError):
        return [url], []
    ends = [name.removesuffix(f"/{manifest_file.FILE_NAME}") for name in found]
    splits = [
        one
        for one, name in zip(ends, found, strict=True)
        if one != name and "/" not in one
    ]
    return [url] if manifest_file.FILE_NAME in found or not splits else [
        url / split for split in splits
    ], []


@dataclass(frozen=True, kw_only=True)
class VerifyJob(Blamable):
    """Verifies shard `number` of a packed folder, which is at `path`.

    folder: of the index, and of the shard's DALI index. url: below which the shard lies, if it is to be downloaded.
    most: bytes that may be downloaded. index: where it lies. partial: whether the shard may hold samples that are not
    indexed, as `index` leaves some out.
    """

    path: Path
    folder: Path
    number: int
    shard: ShardInfo
    fields: tuple[Field, ...]
    partial: bool
    url: URL | None
    scratch: Path
    most: int
    index: Path

    @property
    def image(self) -> Field:
        """The field of the first picture of each sample."""
        return next(one for one in self.fields if one.kind in ("image", "raw"))

    @property
    def dali(self) -> Path:
        """The shard's DALI index."""
        return dali_index_path(self.folder / self.shard.name)


@dataclass
class Faults:
    """The faults of a shard or a set, one line each, and the samples that a loader should leave out."""

    lines: list[str] = field(default_factory=list)
    bad: list[Quarantined] = field(default_factory=list)


def verify_shard(job: VerifyJob) -> Faults:
    """The faults of one shard: in its size, its checksum, its members as indexed, and every image and field."""
    found, copies = Faults(), list[Path]()
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
    fetch_files(url, job.scratch, *names, most=job.most)
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
    rows = Index(job.index, job.fields).shard(job.number)
    keys, damage = rows.column("key").to_pylist(), list[Damage]()
    samples = list(group_members(read_members(path, damage=damage)))
    yield from (
        f"{path}: bytes {part.start:,} to {part.end:,} are damaged: {part.fault}"
        for part in damage
    )
    if job.partial:
        indexed = set(keys)
        samples = [(key, members) for key, members in samples if key in indexed]
    expected = dali_index_text(members for _, members in samples).encode()
    try:
        with open_regular(job.dali) as file:
            if file.read(len(expected) + 1) != expected:
                yield f"{job.dali}: does not describe {path.name}"
    except OSError as error:
        yield f"{job.dali}: cannot be read ({error.strerror})"
    if rows.num_rows != job.shard.samples or [key for key, _ in samples] != keys:
        yield f"{path}: its samples are not those of {index_file.FILE_NAME}"
        return
    yield from _verify_samples(job, bad, rows, [members for _, members in samples])


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
                at = row[image.offset_column], row[image.bytes_column]
                bad.append(
                    Quarantined(row["key"], job.path.name, *at, "; ".join(lines))
                )
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
    faults = []
    for one in job.fields:
        offset, size = row[one.offset_column], row[one.bytes_column]
        is_caption = row.get(one.name) == ""
        if not size and is_caption and offset == row[job.image.offset_column]:
            continue  # a caption that the sample lacks, as `index` wrote until 2026-11
        member = next(
            (
                m
                for m in members
                if m.offset <= offset and offset + size == m.offset + m.size
            ),
            None,
        )
        if member is None or split_name(member.name)[1] not in one.member.split(";"):
            faults.append(
                f"there is no {one.name} at the offset in the index (byte {offset:,})"
            )
            continue
        content = os.pread(file.fileno(), member.size, member.offset)
        if fault := _content_fault(one, row, content, offset - member.offset):
            faults.append(f"its {one.name} {fault}")
        elif one.kind in ("image", "picture") and _are_false(one, row, content):
            faults.append(_FALSE_POINTS.format(one.name))
    return faults


def _are_false(field: Field, row: dict[str, Any], content: bytes) -> bool:
    """Whether a row has seek points that are not those of its picture."""
    names = ("width", "height", POINTS)
    if field.kind == "picture":
        names = picture_columns(field.name)
    width, height = row[names[0]], row[names[1]]
    points: bytes = row.get(names[2], b"")
    return bool(points) and not points_hold(content, points, width, height)


def _content_fault(
    field: Field, row: dict[str, Any], content: bytes, header: int
) -> str:
    try:
        most = max(row["width"] * row["height"], MAX_PIXELS)
        return kind_of(field).find_fault(
            field, row, content, header, lambda image: _image_size(image, field, most)
        )
    except DecodeError as error:
        return f"cannot be decoded: {str(error).removeprefix('cannot be decoded: ')}"
    except (
        Exception
    ) as error:  # parsers and decoders may raise anything on damaged bytes
        return f"cannot be read: {error}"


def _image_size(content: bytes, field: Field, max_pixels: int) -> WidthHeight:
    pixels = Pixels.of_field(field)
    mode = pixels.mode if field.kind in ("image", "picture") else "RGB"
    stored = prepare_image(
        content,
        encoding=Encoding(max_pixels=max_pixels, mode=mode, keep=tuple(ENCODINGS)),
    )
    if mode != "RGB" and stored.kind != KEPT:
        raise DecodeError(f"it is not of mode {pixels.mode}, or not as it was packed")
    return stored.width, stored.height
