"""Packing to a URL: a run packs into a local folder of its own, and uploads its shards from there one by one.

    CACHE/packing-1/<hash of the URL>/            locked by the run
    CACHE/packing-1/<hash of the URL>/run.json    its name, which its claim and all its objects carry
    CACHE/packing-1/<hash of the URL>/set/        what `Output` has on disk, without the shards that are uploaded
    URL/.packing.json                             the claim: written first, deleted last

Everything that a later run needs to continue is local; the claim is the only object at the URL that is not part of the
set.
"""

import hashlib
import json
import shutil
import socket
import time
import uuid
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuload.disk import manifest as manifest_file
from gpuload.disk.commit import NEXT_NAME
from gpuload.disk.fetch import fetch_files
from gpuload.disk.index import FILE_NAME as INDEX_NAME
from gpuload.disk.manifest import (
    CARD_NAME,
    ROOT_FILES,
    Manifest,
    dali_index_path,
)
from gpuload.errors import ArgumentError, GpuloadError, OutputError
from gpuload.packing.options import PackOptions
from gpuload.packing.output import (
    BASE_FILES,
    SCRATCH_NAME,
    Output,
    cannot_write,
    check_holds,
    refuse_split,
    write_json,
)
from gpuload.packing.own_files import REJECTED_NAME
from gpuload.store.cache import default_folder
from gpuload.store.network import background
from gpuload.store.objects import Bucket, NoSuchObjectError, StoredObject
from gpuload.store.schemes import writable_schemes, writes
from gpuload.store.url import URL

CLAIM_NAME = ".packing.json"

_MANIFEST = manifest_file.FILE_NAME
_UPLOADS = 2  # shards at a time, each in parts; others wait, so that few take space on the disk


class RemoteOutput(Output):
    """An output at a URL, see `Output`.

    Raises:
        ArgumentError: the URL cannot be packed to, or not with these options.
        RemoteError: it cannot be read or written.
        OutputError: it holds something, is packed to by another run, or the folder here cannot be written.
    """

    advice = "What is packed to a URL lies here until it is uploaded. Set GPULOAD_CACHE to another folder"

    def __init__(self, url: URL, options: PackOptions) -> None:
        _check_options(url, options)
        self.bucket = Bucket(url)
        self._uploads: list[Future[None]] = []
        name = hashlib.sha256(url.text.encode()).hexdigest()[:24]
        super().__init__(default_folder() / "packing-1" / name, options, url)

    def _open(self, options: PackOptions) -> None:
        objects = background().wait(self.bucket.list(self.bucket.first_s))
        earlier_run = _read_run(self.final)
        has_claim = CLAIM_NAME in objects
        if has_claim:
            self.bucket.run = self._claimed_run(earlier_run, options)
        else:
            self.bucket.run = uuid.uuid4().hex
        self.path = self.final / "set"
        if not has_claim or not (self.path / SCRATCH_NAME).exists():
            # What is here is of a run that ended, or whose claim was deleted.
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir()
            splits = _splits_in(objects)
            if splits and options.resume and self._may_be_complete(earlier_run):
                self._fetch(splits, (_MANIFEST, REJECTED_NAME))
                self.append = False
            else:
                self._begin(objects, splits, has_claim)
        super()._open(options)
        self._forget_lost(objects)

    def _claimed_run(self, earlier_run: dict[str, Any], options: PackOptions) -> str:
        """The name of the run whose claim lies at the URL.

        Raises:
            OutputError: it is not the run that was interrupted here, or the options do not continue it.
        """
        url = self.bucket.url
        claim = background().wait(self.bucket.read_json(CLAIM_NAME))
        if not earlier_run or claim.get("run") != earlier_run["run"]:
            raise OutputError(_about_claim(url, claim, self.final))
        if not options.resume:
            raise OutputError(
                f"{url}: holds an interrupted run. Continue it with --resume, or delete what is there and pack again"
            )
        return str(claim["run"])

    def _may_be_complete(self, earlier_run: dict[str, Any]) -> bool:
        """Whether the set at the URL may be the one to resume: when appending, if the run here has published it."""
        return not self.append or self._has_published(earlier_run)

    def _begin(
        self, objects: Collection[str], splits: Collection[str], has_claim: bool
    ) -> None:
        """Claims the URL for a new run, unless it has a claim, and fetches what describes a set to append to.

        Raises:
            OutputError: the URL holds what a new run cannot begin with.
        """
        url = self.bucket.url
        refuse_split(url, objects)
        names = sorted(name for name in objects if name != CLAIM_NAME)
        check_holds(url, names, self.append, bool(splits))
        if not has_claim:
            self._claim(url)
        if self.append:
            self._fetch(splits, (*BASE_FILES, NEXT_NAME, *ROOT_FILES))
            for split in splits:
                joined = _joined_names(self.path / split)
                fetch_files(url / split, self.path / split, *joined)
            fetch_files(url, self.path, CARD_NAME)

    def _claim(self, url: URL) -> None:
        """Makes the URL this run's. From now on, only a run that knows its name writes there."""
        write_json(self.final / "run.json", {"run": self.bucket.run})
        begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        claim = {"run": self.bucket.run, "host": socket.gethostname(), "begun": begun}
        there = background().wait(self.bucket.create(CLAIM_NAME, claim))
        if there.get("run") != self.bucket.run:
            raise OutputError(_about_claim(url, there, self.final))

    def _has_published(self, earlier_run: dict[str, Any]) -> bool:
        """Whether the set at the URL is that of a run that was killed after its last step."""
        published = earlier_run.get("published", {})
        return bool(published) and all(
            hashlib.sha256(self._manifest(split) or b"").hexdigest() == sha256
            for split, sha256 in published.items()
        )

    def _manifest(self, split: str) -> bytes | None:
        """The manifest at the URL."""
        try:
            return bytes(
                background().wait(self.bucket.read_whole(f"{split}/{_MANIFEST}")).data
            )
        except NoSuchObjectError:
            return None

    def _fetch(self, splits: Collection[str], names: Sequence[str]) -> None:
        """Downloads the files that describe the set at the URL."""
        for split in splits:
            (self.path / split).mkdir()
            fetch_files(self.bucket.url / split, self.path / split, *names)

    def _forget_lost(self, objects: dict[str, StoredObject]) -> None:
        """Forgets uploaded shards that have changed since, so that they are packed again."""
        for marker in self.scratch.glob("*.uploaded"):
            uploaded = json.loads(marker.read_text())
            is_there = all(
                background().wait(
                    self.bucket.is_same(name, StoredObject(*stored), objects)
                )
                for name, stored in uploaded.items()
            )
            if not is_there:
                marker.unlink()

    def take(self, shard: Path, marker: Path) -> None:
        if marker.exists() or not shard.exists():
            return  # it is there, or all its samples were rejected
        self._wait(_UPLOADS - 1)
        self._uploads.append(background().start(self._upload(shard, marker)))

    async def _upload(self, shard: Path, marker: Path) -> None:
        uploaded = {}
        for path in (dali_index_path(shard), shard):
            name = f"{shard.parent.name}/{path.name}"
            uploaded[name] = await self.bucket.upload(name, path)
        write_json(marker, uploaded)
        shard.unlink()

    def _wait(self, most: int) -> None:
        """Waits until at most this number of shards is being uploaded."""
        while len(self._uploads) > most:
            with cannot_write("Free some space", self.final):
                self._uploads[0].result()
            self._uploads.pop(0)

    def publish(self, splits: Sequence[str]) -> None:
        """Uploads what describes the splits, in an order in which a reader finds the index that its manifest describes,
        whenever the run is stopped: see `gpuload.disk.commit`."""
        self._wait(0)
        self.keep = True
        super().publish(splits)
        replaced = [split for split in splits if self._is_replaced(split)]
        before = {split: _joined_names(self.base_folder(split)) for split in replaced}
        for split in splits:
            for name in _joined_names(self.path / split):
                self._put(f"{split}/{name}")
            index_name = NEXT_NAME if split in replaced else INDEX_NAME
            self._put(f"{split}/{index_name}", f"{split}/{INDEX_NAME}")
            for name in (REJECTED_NAME, *ROOT_FILES):
                if (self.path / split / name).exists():
                    self._put(f"{split}/{name}")
        for name in ROOT_FILES:
            self._put(name)
        for split in splits:
            self._put(f"{split}/{_MANIFEST}")
        for split in replaced:
            self._put(f"{split}/{INDEX_NAME}")
        next_names = [f"{split}/{NEXT_NAME}" for split in replaced]
        unused = [
            f"{split}/{name}"
            for split in replaced
            for name in before[split]
            if name not in _joined_names(self.path / split)
        ]
        background().wait(self.bucket.delete([*next_names, *unused]))
        published = {split: self._sha256(split) for split in splits}
        run = {"run": self.bucket.run, "published": published}
        write_json(self.final / "run.json", run)

    def _is_replaced(self, split: str) -> bool:
        """Whether a split at the URL is replaced: shards are appended to it.

        Raises:
            OutputError: its manifest is neither the one that this run has found nor the one that it writes.
        """
        name = f"{split}/{_MANIFEST}"
        base = self.base_folder(split) / _MANIFEST
        new = (self.path / name).read_bytes()
        old = base.read_bytes() if base.exists() else None
        if self._manifest(split) not in (new, old):
            raise OutputError(
                f"{self.where}/{name}: was changed since this run began, and is left as it is. Pack to another URL"
            )
        return old is not None

    def _sha256(self, split: str) -> str:
        """Of the manifest that this run has written."""
        content = (self.path / split / _MANIFEST).read_bytes()
        return hashlib.sha256(content).hexdigest()

    def _put(self, name: str, source: str = "") -> None:
        """Uploads a file.

        Args:
            source: Its name here, if that is another one.
        """
        path = self.path / (source or name)
        background().wait(self.bucket.upload(name, path, replaces=self.append))

    def __exit__(self, kind: object, *error: object) -> None:
        for upload in self._uploads:
            upload.cancel()
        super().__exit__(kind, *error)

    def _finish(self) -> None:
        if not self.finished:
            background().wait(self.bucket.delete([CLAIM_NAME]))
        self._forget()

    def _undo(self) -> None:
        with suppress(
            GpuloadError
        ):  # else the claim stays, and with it what a run with --resume needs
            objects = background().wait(self.bucket.list(self.bucket.first_s))
            names = [name for name in objects if name != CLAIM_NAME]
            background().wait(self.bucket.delete_own(names))
            background().wait(self.bucket.delete([CLAIM_NAME]))
            self._forget()

    def _forget(self) -> None:
        """Removes what is here."""
        shutil.rmtree(self.path, ignore_errors=True)
        (self.final / "run.json").unlink(missing_ok=True)


def _check_options(url: URL, options: PackOptions) -> None:
    if not writes(url.scheme):
        writable = " or ".join(f"{name}://" for name in writable_schemes())
        raise ArgumentError(
            f"{url}: {url.scheme}:// can only be read. Pack to a URL of {writable}, or into a folder"
        )
    if options.overwrite:
        raise ArgumentError(
            f"--overwrite: the set at {url} cannot be replaced in one step. Pack to another URL"
        )
    if options.engine == "ray":
        raise ArgumentError(
            f"--engine ray: packs into a folder that all machines share, and not to {url}. Copy it there"
        )


def _joined_names(folder: Path) -> list[str]:
    """The files of joined columns that the manifest in a folder names."""
    return [file.name for file in Manifest.read(folder).joined]


def _read_run(root: Path) -> dict[str, Any]:
    """The run that was interrupted here: its name, and the SHA-256 of the manifests that it has published; else {}."""
    try:
        run = json.loads((root / "run.json").read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(run, dict) or not isinstance(run.get("run"), str):
        return {}
    return run


def _splits_in(objects: Collection[str]) -> list[str]:
    """The splits of a packed set, if each folder there has a manifest; else none."""
    beside_splits = (CLAIM_NAME, *ROOT_FILES)
    splits = {name.partition("/")[0] for name in objects if name not in beside_splits}
    if not all(f"{split}/{_MANIFEST}" in objects for split in splits):
        return []
    return sorted(splits)


def _about_claim(url: URL, claim: dict[str, Any], root: Path) -> str:
    begun = f"begun on {claim.get('host', 'an unknown host')!r} at {claim.get('begun', 'an unknown time')}"
    return (
        f"{url}: another run packs to it, {begun}, whose state is not in {root}. Wait for it to end; if it was "
        "interrupted, continue it there with --resume, or delete what is at the URL and pack again"
    )
