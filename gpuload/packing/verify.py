"""Reads all of a packed folder again, or of a set at a URL, and lists every fault."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuload.counted import counted
from gpuload.disk import Index, Manifest, ShardInfo
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.dali_index import dali_index_path
from gpuload.disk.quarantine import Quarantined, write_quarantine
from gpuload.disk.shards_root import shards_root
from gpuload.errors import ArgumentError, FormatError, OutputError, RemoteError
from gpuload.limits import count_cores
from gpuload.packing.run.workers import Workers
from gpuload.packing.verify_shard import DecodeCheck, ShardFaults, VerifyJob, after_death, verify_shard
from gpuload.store.url import URL, as_location

if TYPE_CHECKING:
    from gpuload.disk.fetch import Pieces  # asyncio


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
            pool.run(jobs, done, after_death, lambda _: None)
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
            pool.run(some, done, after_death, lambda _: None)
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
