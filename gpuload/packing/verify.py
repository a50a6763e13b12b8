"""Reads all of a packed folder again, or of a set at a URL, and lists every fault."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuload.disk import Index, Manifest
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.manifest import dali_index_path
from gpuload.disk.opening import shards_root
from gpuload.disk.quarantine import Quarantined, write_quarantine
from gpuload.errors import ArgumentError, FormatError, OutputError, RemoteError
from gpuload.machine.limits import count_cores
from gpuload.packing.run.workers import Blame, Workers, exit_name
from gpuload.packing.verify_shard import MOST_SECONDS, DecodeCheck, ShardFaults, VerifyJob, verify_shard
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
    to write the samples to that have a fault of their own, for `Dataset(exclude=…)`; it may become empty.

    Raises:
        FormatError: it is not a packed folder.
        OutputError: the file cannot be written, or the folder for temporary files.
    """
    run = _Verification(workers, watch, decode)
    if quarantine is not None:
        _write(quarantine, run.bad)  # before the work of hours
    try:
        if isinstance(where := as_location(folder), URL):
            from gpuload.store.hub import pinned

            faults = [fault for split in _splits_at(pinned(where)) for fault in run.at_url(split)]
        else:
            faults = run.folders(Path(where))
    except OSError as error:
        raise OutputError(
            f"{error.filename or tempfile.gettempdir()}: cannot be written or read ({error.strerror}), and verify "
            "keeps its notes there. Free some space, or set TMPDIR"
        ) from None
    if quarantine is not None:
        _write(quarantine, run.bad)
    return faults


def _write(path: str | Path, bad: Sequence[Quarantined]) -> None:
    try:
        write_quarantine(path, bad)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}). Give another file to --quarantine") from None


class _Verification:
    """Verifies folders and sets at URLs; `bad` gets the samples that have a fault of their own."""

    def __init__(self, workers: int | None, watch: Callable[[int, int], None], decode: DecodeCheck | None) -> None:
        self._workers, self._watch, self._decode = workers or count_cores(), watch, decode
        self.bad: list[Quarantined] = []

    def folders(self, root: Path) -> list[str]:
        """The faults of a split, or of all splits in a folder."""
        splits = sorted(path.parent for path in root.glob(f"*/{manifest_file.FILE_NAME}"))
        if (root / manifest_file.FILE_NAME).exists() or not splits:
            if not (root / manifest_file.FILE_NAME).exists():
                Manifest.read(root)  # raises the error that says what is wrong
            return self._split(root)
        others = (path for path in root.iterdir() if path.is_dir() and path not in splits)
        lone = sorted(path for path in others if any(path.glob("*.tar")))
        faults = [f"{path}: holds shards but no {manifest_file.FILE_NAME}" for path in lone]
        return faults + [fault for split in splits for fault in self._split(split)]

    def _split(self, folder: Path) -> list[str]:
        try:
            manifest = Manifest.read(folder)
            faults = _index_faults(folder / index_file.FILE_NAME, manifest)
        except FormatError as error:
            return [str(error)]
        if (root := shards_root(manifest, folder)) is not None:
            return faults + self._indexed(root, folder, manifest)
        found = {path.name for path in folder.glob("*.tar")} - {shard.name for shard in manifest.shards}
        faults += [f"{folder / name}: is not in {manifest_file.FILE_NAME}" for name in sorted(found)]
        faults += [f"{path}: was left by an interrupted run" for path in sorted(folder.glob("*.tmp"))]
        return faults + self._shards(folder, manifest)

    def at_url(self, url: URL) -> list[str]:
        """Downloads the shards into a temporary folder, some at a time, and verifies them there."""
        from gpuload.disk.fetch import Pieces, parse_manifest  # asyncio

        with tempfile.TemporaryDirectory(prefix="gpuload-verify-") as scratch:
            pieces = Pieces(url, Path(scratch))
            data = pieces.manifest_bytes()
            try:
                manifest = parse_manifest(data, pieces.folder, url)
                pieces.get(index_file.FILE_NAME, most=manifest.most_beside)
                faults = _index_faults(pieces.folder / index_file.FILE_NAME, manifest)
            except FormatError as error:
                return [str(error).replace(scratch, str(url))]
            faults += self._shards(pieces.folder, manifest, pieces)
            return [fault.replace(str(pieces.folder), str(url)) for fault in faults]

    def _indexed(self, root: URL, folder: Path, manifest: Manifest) -> list[str]:
        """As `at_url`, for shards that are indexed here."""
        from gpuload.disk.fetch import Pieces

        shards = tuple(replace(info, name=info.name.removeprefix(f"{root}/")) for info in manifest.shards)
        with tempfile.TemporaryDirectory(prefix="gpuload-verify-") as scratch:
            for name in (index_file.FILE_NAME, *(str(dali_index_path(Path(info.name))) for info in shards)):
                with suppress(FileNotFoundError):
                    (Path(scratch) / name).parent.mkdir(parents=True, exist_ok=True)
                    (Path(scratch) / name).symlink_to((folder / name).resolve(strict=True))
            pieces = Pieces(root, Path(scratch))
            faults = self._shards(pieces.folder, replace(manifest, shards=shards), pieces, has_dali_index=True)
            return [fault.replace(str(pieces.folder), str(root)) for fault in faults]

    def _shards(
        self, folder: Path, manifest: Manifest, pieces: "Pieces | None" = None, has_dali_index: bool = False
    ) -> list[str]:
        """The faults of the shards in a folder.

        pieces: downloads the shards there, some at a time. has_dali_index: their DALI indexes are there already.
        """
        found: dict[int, ShardFaults] = {}
        blame = Blame()

        def died(job: VerifyJob, code: int) -> VerifyJob:
            return blame.find(job, code) or replace(job, died=exit_name(code))

        with tempfile.TemporaryDirectory(prefix="gpuload-verify-") as scratch:
            partial = not manifest.upright and bool(manifest.packing.get("rejected"))
            jobs = [
                VerifyJob(
                    folder=folder,
                    number=number,
                    shard=shard,
                    fields=manifest.fields,
                    decode=self._decode,
                    partial=partial,
                    position=Path(scratch, f"{number}.position"),
                    time_limit_s=MOST_SECONDS,
                )
                for number, shard in enumerate(manifest.shards)
            ]
            count = max(1, min(self._workers, len(jobs)))
            at_once = len(jobs) if pieces is None else count
            with Workers[VerifyJob, ShardFaults](count, verify_shard, False) as workers:
                for first in range(0, len(jobs), at_once):
                    some = jobs[first : first + at_once]
                    names = [job.shard.name for job in some]
                    names += [] if has_dali_index else [str(dali_index_path(Path(name))) for name in names]
                    if pieces is not None:
                        pieces.get(*names, most=manifest.most_beside)  # what is missing, `verify_shard` tells
                    for job, result in workers.run(some, died):
                        found[job.number] = result
                        self._watch(len(found), len(jobs))
                    if pieces is not None:
                        pieces.remove(*names)
        results = [found[number] for number in sorted(found)]
        self.bad += [one for result in results for one in result.bad]
        return [line for result in results for line in result.lines]


def _splits_at(url: URL) -> list[URL]:
    """The packed splits in a folder at a URL; the URL itself where it is one, or cannot be listed."""
    from gpuload.store.background import background
    from gpuload.store.bucket import Listed

    try:
        found = background().wait(Listed(url).list())
    except (ArgumentError, RemoteError):
        return [url]
    ends = [name.removesuffix(f"/{manifest_file.FILE_NAME}") for name in found]
    splits = [one for one, name in zip(ends, found, strict=True) if one != name and "/" not in one]
    return [url] if manifest_file.FILE_NAME in found or not splits else [url / split for split in splits]


def _index_faults(path: Path, manifest: Manifest) -> list[str]:
    """What of an index differs from what its manifest tells, one line each.

    Raises:
        FormatError: it cannot be read, or is one of other shards.
    """
    Index(path, manifest.fields, shards=len(manifest.shards))
    if manifest.index_sha256 is None:
        return []
    found, said = index_file.index_digests(path), manifest_file.FILE_NAME
    if found.index_sha256 != manifest.index_sha256:
        fault = f"its SHA-256 is {found.index_sha256}, {said} says {manifest.index_sha256}"
    elif manifest.index_digests not in (found, index_file.IndexDigests(found.index_sha256)):
        fault = f"its parts, or their SHA-256s, are not those that {said} tells"
    else:
        return []
    return [f"{path}: {fault}"]
