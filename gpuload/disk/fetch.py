"""Sets at URLs: opened through the cache; copied into a local folder, complete, verified, and resumable after any
interruption; or single files of them."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.index import Index
from gpuload.disk.manifest import Manifest, ShardInfo, check_length, dali_index_path, write_timm_info
from gpuload.errors import ArgumentError, OutputError
from gpuload.store.cache import Cache
from gpuload.store.files import Handle, open_own
from gpuload.store.hub import pinned
from gpuload.store.network import background
from gpuload.store.objects import NoRanges, NoSuchObjectError, Objects
from gpuload.store.transfer import Parts, fetch_file, fetch_set, pin, read_manifest, sha256_of, together
from gpuload.store.url import URL, as_location, refuse_urls, without_secrets

WHOLE_BYTES = 16 << 20  # an index at a URL of up to this size is downloaded as a whole
_SCRATCH = ".fetching"
_AT_A_TIME = 4  # shards: each in ranges, so that this is for small ones

Watch = Callable[[int, int, int], None]


def open_url(url: URL, cache: Cache) -> tuple[URL, Manifest, Index]:
    """A set at a URL: the URL with its commit, its manifest and its index.

    Raises:
        FormatError, RemoteError: as `Dataset`.
    """
    url = pin(url, cache)

    def opens(objects: Objects, folder: Path) -> tuple[URL, Manifest, Index]:
        manifest = Manifest.read(folder, url)
        return url, manifest, _remote_index(objects, folder, manifest)

    return fetch_set(url, cache, check_length, opens)


def _remote_index(objects: Objects, folder: Path, manifest: Manifest) -> Index:
    """The index of a set at a URL: a small one is downloaded as a whole, of a large one the rows that are needed.

    folder: of the cache.
    """
    digests, path, shards = manifest.index_digests, folder / index_file.FILE_NAME, len(manifest.shards)
    try:
        open_own(path)
    except FileNotFoundError:
        if digests.index_offsets and digests.index_parts and digests.index_offsets[-1] > WHOLE_BYTES:
            parts = Parts(objects, path.name, folder, digests.index_offsets, digests.index_parts)
            with suppress(NoRanges):
                return Index(path, manifest.fields, digests, shards, parts)
        background().wait(fetch_file(objects, path.name, path, sha256=digests.index_sha256, most=manifest.most_beside))
    index = Index(path, manifest.fields, digests, shards)
    index.fetch()  # compares it here, where a damaged copy is downloaded again: 13 ms for the largest
    return index


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
    objects, folder = Objects(pinned(where)), Path(folder)
    scratch = folder / _SCRATCH
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = {path.name for path in folder.iterdir()}
        if found and not found & {_SCRATCH, manifest_file.FILE_NAME}:
            raise OutputError(f"{folder}: is not empty, it holds {min(found)!r}. Give a new folder")
        scratch.mkdir(exist_ok=True)
        lock = Handle(os.open(scratch, os.O_RDONLY | os.O_CLOEXEC))
        if not lock.lock():
            raise OutputError(f"{folder}: another process copies into it. Wait for its end")
        try:
            return background().wait(_copy(objects, folder, scratch, watch))
        except BaseException:
            with suppress(OSError):  # it stays once the manifest is there, so that another call goes on
                scratch.rmdir()
            raise
        finally:
            lock.close()
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({error.strerror}). Give another folder") from None


async def _copy(objects: Objects, folder: Path, scratch: Path, watch: Watch) -> Manifest:
    data = (await read_manifest(objects, check_length)).data
    manifest = manifest_file.parse_manifest(data, objects.url / manifest_file.FILE_NAME, is_local=False)
    if (folder / manifest_file.FILE_NAME).exists():
        other = Manifest.read(folder).fingerprint
        if other != manifest.fingerprint:
            raise OutputError(
                f"{folder}: holds another set (fingerprint {other}) than {objects.url} ({manifest.fingerprint}). "
                "Give a new folder"
            )
    (scratch / manifest_file.FILE_NAME).write_bytes(data)
    limit, done = asyncio.Semaphore(_AT_A_TIME), list[int]()

    async def one(info: ShardInfo) -> None:
        async with limit:
            await _copy_shard(objects, folder, info)
        done.append(info.bytes)
        watch(len(done), len(manifest.shards), sum(done))

    await together(map(one, manifest.shards))
    path = folder / index_file.FILE_NAME
    await fetch_file(objects, path.name, path, sha256=manifest.index_sha256, most=manifest.most_beside)
    for name in ("rejected.jsonl", "duplicates.jsonl"):
        with suppress(NoSuchObjectError):
            await fetch_file(objects, name, folder / name, most=manifest.most_beside)
    write_timm_info(folder, manifest)  # a stranger's could name any file, which timm would open
    os.replace(scratch / manifest_file.FILE_NAME, folder / manifest_file.FILE_NAME)
    scratch.rmdir()
    return manifest


async def _copy_shard(objects: Objects, folder: Path, info: ShardInfo) -> None:
    path = folder / info.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not await _is_whole(path, info):
        await fetch_file(objects, info.name, path, info.bytes, info.sha256)
    with suppress(NoSuchObjectError):  # sets that are read where they were indexed have none beside the shard
        name = str(dali_index_path(Path(info.name)))
        await fetch_file(objects, name, dali_index_path(path), most=info.bytes)


async def _is_whole(path: Path, info: ShardInfo) -> bool:
    """Whether a file is this shard."""
    try:
        with path.open("rb") as file:
            whole = os.fstat(file.fileno()).st_size == info.bytes
            return whole and await sha256_of(file.fileno(), info.bytes) == info.sha256
    except FileNotFoundError:
        return False


class Pieces:
    """Downloads single files of a set at a URL into a local folder."""

    def __init__(self, url: URL, folder: Path) -> None:
        self.objects, self.folder = Objects(url), folder

    def manifest_bytes(self) -> bytes:
        """The manifest's text.

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
