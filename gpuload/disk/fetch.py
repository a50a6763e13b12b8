"""Copies a set from a URL into a local folder: complete, verified, and resumable after any interruption."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.manifest import Manifest, ShardInfo, check_length, dali_index_path, write_timm_info
from gpuload.errors import ArgumentError, FormatError, OutputError
from gpuload.store.background import background
from gpuload.store.files import Handle
from gpuload.store.hub import pinned
from gpuload.store.objects import NoSuchObjectError, Objects
from gpuload.store.remote_set import read_manifest
from gpuload.store.transfer import fetch_file, sha256_of, together
from gpuload.store.url import URL, as_location, refuse_urls, without_secrets

_SCRATCH = ".fetching"
_AT_A_TIME = 4  # shards: each in ranges, so that this is for small ones

Watch = Callable[[int, int, int], None]


def fetch(url: str | URL, folder: str | Path, watch: Watch = lambda done, of, size: None) -> Manifest:
    """Copies the set at a URL into a folder. Verifies and keeps what an interrupted copy has left there.

    watch: called with the number of shards copied, the number of all, and the bytes copied.

    Raises:
        ArgumentError: it is no URL, or the folder is one. FormatError: it is no packed set.
        OutputError: the folder holds something else, or cannot be written. RemoteError, ShardError: it cannot be read.
    """
    where = as_location(url)
    if not isinstance(where, URL):
        raise ArgumentError(
            f"fetch(url): {without_secrets(url)} is a path, expected a URL such as s3://bucket/set/train"
        )
    refuse_urls("fetch(folder)", folder, "Give a local folder")
    return _Copy(pinned(where), Path(folder), watch).run()


class _Copy:
    def __init__(self, url: URL, folder: Path, watch: Watch) -> None:
        self.objects, self.folder, self.watch = Objects(url), folder, watch
        self.scratch = folder / _SCRATCH

    def run(self) -> Manifest:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            found = {path.name for path in self.folder.iterdir()}
            if found and not found & {_SCRATCH, manifest_file.FILE_NAME}:
                raise OutputError(f"{self.folder}: is not empty, it holds {min(found)!r}. Give a new folder")
            self.scratch.mkdir(exist_ok=True)
            lock = Handle(os.open(self.scratch, os.O_RDONLY | os.O_CLOEXEC))
            if not lock.lock():
                raise OutputError(f"{self.folder}: another process copies into it. Wait for its end")
            try:
                return self._copy()
            finally:
                lock.close()
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot be written ({error.strerror}). Give another folder") from None

    def _copy(self) -> Manifest:
        try:
            return background().wait(self._run())
        except BaseException:
            with suppress(OSError):  # it stays once the manifest is there, so that another call goes on
                self.scratch.rmdir()
            raise

    async def _run(self) -> Manifest:
        data = (await read_manifest(self.objects, check_length)).data
        manifest = parse_manifest(data, self.scratch, self.objects.url)
        self._check_folder(manifest)
        limit, here = asyncio.Semaphore(_AT_A_TIME), [0, 0]

        async def one(info: ShardInfo) -> None:
            async with limit:
                await self._shard(info)
            here[0], here[1] = here[0] + 1, here[1] + info.bytes
            self.watch(here[0], len(manifest.shards), here[1])

        await together(map(one, manifest.shards))
        path = self.folder / index_file.FILE_NAME
        await fetch_file(self.objects, path.name, path, sha256=manifest.index_sha256, most=manifest.most_beside)
        for name in ("rejected.jsonl", "duplicates.jsonl"):
            with suppress(NoSuchObjectError):
                await fetch_file(self.objects, name, self.folder / name, most=manifest.most_beside)
        write_timm_info(self.folder, manifest)  # a stranger's could name any file, which timm would open
        os.replace(self.scratch / manifest_file.FILE_NAME, self.folder / manifest_file.FILE_NAME)
        self.scratch.rmdir()
        return manifest

    def _check_folder(self, manifest: Manifest) -> None:
        if (self.folder / manifest_file.FILE_NAME).exists():
            other = Manifest.read(self.folder).fingerprint
            if other != manifest.fingerprint:
                raise OutputError(
                    f"{self.folder}: holds another set (fingerprint {other}) than {self.objects.url} "
                    f"({manifest.fingerprint}). Give a new folder"
                )

    async def _shard(self, info: ShardInfo) -> None:
        path = self.folder / info.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not await _is_whole(path, info):
            await fetch_file(self.objects, info.name, path, info.bytes, info.sha256)
        with suppress(NoSuchObjectError):  # sets that are read where they were indexed have none beside the shard
            name = str(dali_index_path(Path(info.name)))
            await fetch_file(self.objects, name, dali_index_path(path), most=info.bytes)


class Pieces:
    """Downloads single files of a set at a URL into a local folder."""

    def __init__(self, url: URL, folder: Path) -> None:
        self.objects, self.folder = Objects(url), folder

    def manifest_bytes(self) -> bytes:
        """The manifest, for `parse_manifest`.

        Raises:
            FormatError: there is none. RemoteError: it cannot be read.
        """
        return bytes(background().wait(read_manifest(self.objects, check_length)).data)

    def get(self, *names: str, most: int | None = None) -> None:
        """Downloads these files without verifying them; skips those that do not exist. most: bytes of each.

        Raises:
            RemoteError: one cannot be read.
        """

        async def each() -> None:
            for name in names:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                with suppress(NoSuchObjectError):
                    await fetch_file(self.objects, name, self.folder / name, most=most)

        background().wait(each())

    def remove(self, *names: str) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)


def parse_manifest(data: bytes, folder: Path, url: URL) -> Manifest:
    """A manifest from a URL, as a file in a local folder.

    Raises:
        FormatError: it is damaged, or names a shard outside of its folder.
    """
    path = folder / manifest_file.FILE_NAME
    path.write_bytes(data)
    try:
        return Manifest.read(folder, url)
    except FormatError as error:
        path.unlink()
        raise FormatError(str(error).replace(str(folder), str(url))) from None


async def _is_whole(path: Path, info: ShardInfo) -> bool:
    """Whether a file is this shard."""
    try:
        with path.open("rb") as file:
            whole = os.fstat(file.fileno()).st_size == info.bytes
            return whole and await sha256_of(file.fileno(), info.bytes) == info.sha256
    except FileNotFoundError:
        return False
