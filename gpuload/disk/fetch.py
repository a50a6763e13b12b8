"""Sets at URLs: opened through the cache; copied into a local folder, complete, verified, and resumable after any
interruption; or single files of them.

    CACHE/gpuload-1/sets/<hash of the URL>/...
        <version>/        manifest.json, and index.arrow or, of a large one, the parts of it that were needed; a version
                          is the hash of its manifest
        commit            of hf://, the commit that it was when it was opened last

A manifest is fetched at each opening. If the server cannot be reached, the version that was opened last is used.
"""

import asyncio
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gpuload.checks import PATH, checked, function
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.card import write_card
from gpuload.disk.commit import NEXT_NAME, commit, settle, sync
from gpuload.disk.index import Index
from gpuload.disk.manifest import (
    ROOT_FILES,
    Manifest,
    ShardInfo,
    check_length,
    dali_index_path,
    write_timm_info,
)
from gpuload.errors import (
    ArgumentError,
    FormatError,
    OutputError,
    RemoteError,
    ShardError,
)
from gpuload.store.cache import Cache
from gpuload.store.files import (
    Handle,
    NotOwnError,
    locked,
    open_own,
    read_own,
    temporaries,
    write_atomically,
)
from gpuload.store.hub import is_pinned, pinned, place_of
from gpuload.store.network import background, together
from gpuload.store.objects import NoRangesError, NoSuchObjectError, Objects
from gpuload.store.transfer import Parts, fetch_file, sha256_of
from gpuload.store.url import URL, as_location, refuse_urls, without_secrets

_LOG = logging.getLogger(__name__)

WHOLE_BYTES = 16 << 20  # an index at a URL of up to this size is downloaded as a whole
_UNFINISHED = ".manifest.json"  # of a copy: no shard can have this name
_TRIES = 3  # to open a set whose manifest is replaced meanwhile
_AT_A_TIME = 4  # shards: each in ranges, so that this is for small ones

_MANIFEST = manifest_file.FILE_NAME
_VERSION = re.compile("[0-9a-f]{24}")
_COMMIT = re.compile("[0-9a-f]{40}")
_OFFLINE_S = 5  # to reach the server, where there is a copy
_OPEN_S = 30  # else: the URL may be mistyped, and nothing is lost yet
_KEPT_S = 3600  # old versions are kept this long: another process may be opening one
_OTHERS_S = 900  # to wait for another process that is fetching a manifest

Watch = Callable[[int, int, int], None]


def open_url(url: URL, cache: Cache) -> tuple[URL, Manifest, Index]:
    """A set at a URL: the URL with its commit, its manifest and its index.

    A copy in the cache that is damaged, and what was fetched by it, is downloaded again.

    Raises:
        FormatError, RemoteError: as `Dataset`.
    """
    url = _pin(url, cache)
    folder = _folder_of(url, cache)
    objects = Objects(url)
    stuck = RemoteError(
        f"{url}: another process has been fetching its manifest and index for {_OTHERS_S} s; it may be suspended"
    )
    with cache.writing(), locked(folder / "lock", _OTHERS_S, stuck):
        tries = _TRIES
        while True:
            version, is_new = background().wait(_version(objects, folder))
            try:
                manifest = Manifest.read(version, url)
                return url, manifest, _remote_index(objects, version, manifest)
            except NotOwnError:
                raise
            except FormatError as error:
                current, _ = background().wait(_version(objects, folder))
                tries -= 1
                if current != version and tries:
                    continue  # shards were appended to the set meanwhile
                shutil.rmtree(version, ignore_errors=True)
                if (
                    is_new or version.exists()
                ):  # as it is at the URL, or a copy that cannot be deleted
                    text = str(error).replace(str(version), str(url))
                    raise type(error)(
                        text.replace("Copy the folder again", "Upload the folder again")
                    ) from None


def _pin(url: URL, cache: Cache) -> URL:
    """The URL with its revision resolved to a commit; if the Hub cannot be reached, to the commit last opened.

    Raises:
        ArgumentError, RemoteError: as `hub.pinned`, or the cache cannot be written.
    """
    if is_pinned(url):
        return url
    path = _folder_of(url, cache) / "commit"
    last = read_own(path).decode(errors="replace")
    last = last if _COMMIT.fullmatch(last) else ""
    try:
        pinned_url = pinned(url, _OFFLINE_S if last else Objects.patience.give_up_s)
    except RemoteError as error:
        if not last:
            raise
        _LOG.warning("%s. Using the commit that it was when it was opened last", error)
        return place_of(url)._replace(revision=last).url
    with cache.writing():
        write_atomically(path, str(place_of(pinned_url).revision).encode())
    return pinned_url


def _folder_of(url: URL, cache: Cache) -> Path:
    with cache.writing():
        folder = cache.sets / hashlib.sha256(url.text.encode()).hexdigest()[:24]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


async def _version(objects: Objects, folder: Path) -> tuple[Path, bool]:
    """The folder of the version that is current, and whether it was fetched now."""
    last = _opened_last(folder)
    try:
        data = await _read_manifest(objects, None if last is None else _OFFLINE_S)
    except RemoteError as error:
        if last is None:
            raise
        _LOG.warning("%s. Using the copy of its manifest and index in the cache", error)
        return last, False
    current = folder / _version_of(data)
    if current != last:
        current.mkdir(mode=0o700, exist_ok=True)
        write_atomically(current / _MANIFEST, data)
        for old in folder.iterdir():
            if (
                old.is_dir()
                and old != current
                and time.time() - old.stat().st_mtime > _KEPT_S
            ):
                shutil.rmtree(old, ignore_errors=True)
    os.utime(current / _MANIFEST)
    return current, current != last


def _version_of(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:24]


def _opened_last(folder: Path) -> Path | None:
    """The version that was opened last, of those whose manifest is whole."""
    versions = [
        path
        for path in folder.iterdir()
        if _VERSION.fullmatch(path.name)
        and _version_of(read_own(path / _MANIFEST)) == path.name
    ]
    return max(
        versions, key=lambda path: (path / _MANIFEST).stat().st_mtime_ns, default=None
    )


async def _read_manifest(objects: Objects, give_up_s: float | None = None) -> bytes:
    """The manifest's text.

    Args:
        give_up_s: As of `Objects.read`.

    Raises:
        FormatError: there is none, so it is no packed set, or it is too long. RemoteError: it cannot be read.
    """
    give_up_s = (
        min(_OPEN_S, objects.patience.give_up_s) if give_up_s is None else give_up_s
    )
    try:
        return bytes(
            (
                await objects.read_whole(
                    _MANIFEST, give_up_s=give_up_s, check=check_length
                )
            ).data
        )
    except ValueError as error:
        raise FormatError(
            f"{objects.url / _MANIFEST}: {error}. Check the URL, or upload the folder again"
        ) from None
    except NoSuchObjectError:
        with suppress(RemoteError):
            await objects.read(f"train/{_MANIFEST}", 0, 1, give_up_s=_OFFLINE_S)
            raise FormatError(
                f"{objects.url}: holds packed splits; open one of them, for instance {objects.url / 'train'}"
            ) from None
        raise FormatError(
            f"{objects.url}: no {_MANIFEST} there, so this is not a packed set. Check the URL, or upload the set, with "
            f"{_MANIFEST} last"
        ) from None


def _remote_index(objects: Objects, folder: Path, manifest: Manifest) -> Index:
    """The index of a set at a URL: a small one is downloaded as a whole, of a large one the rows that are needed.

    Args:
        folder: Of the cache.
    """
    path = folder / index_file.FILE_NAME
    spans = manifest.index_spans
    shards = len(manifest.shards)
    try:
        open_own(path)
    except FileNotFoundError:
        if spans and (spans[-1].end or 0) > WHOLE_BYTES:
            parts = Parts(objects, (path.name, NEXT_NAME), folder, spans)
            with suppress(NoRangesError):
                return Index(path, manifest.fields, spans, shards, parts)
        background().wait(_fetch_index(objects, path, manifest))
    index = Index(path, manifest.fields, spans, shards)
    index.fetch()  # compares it here, where a damaged copy is downloaded again: 13 ms for the largest
    return index


async def _fetch_index(objects: Objects, path: Path, manifest: Manifest) -> None:
    """Downloads the index that a manifest describes: the one under its name, or the one that is to get it, see
    `gpuload.disk.commit`.

    Raises:
        RemoteError, ShardError: as `fetch_file`; neither can be read, or is the right one.
    """
    expected: dict[str, Any] = {
        "sha256": manifest.index_sha256,
        "most": manifest.most_beside,
    }
    try:
        await fetch_file(objects, index_file.FILE_NAME, path, **expected)
    except (NoSuchObjectError, ShardError) as error:
        try:
            await fetch_file(objects, NEXT_NAME, path, **expected)
        except (RemoteError, ShardError):
            raise error from None


@checked(
    "fetch",
    url=PATH,
    folder=PATH,
    watch=function("a function of three numbers"),
)
def fetch(
    url: str | URL, folder: str | Path, watch: Watch = lambda done, of, size: None
) -> Manifest:
    """Copies the set at a URL into a folder, as `python -m gpuload fetch` does. Verifies and keeps what an interrupted
    copy has left there.

    Args:
        url: Of a packed folder, such as s3://bucket/set/train.
        folder: An empty or new one, or one with an interrupted copy.
        watch: Called with the number of shards copied, the number of all, and the bytes copied.

    Returns:
        The manifest of the set.

    Raises:
        ArgumentError: it is no URL, or the folder is one.
        FormatError: it is no packed set.
        OutputError: the folder holds something else, or cannot be written.
        RemoteError, ShardError: it cannot be read.
    """
    where = as_location(url)
    if not isinstance(where, URL):
        raise ArgumentError(
            f"fetch(url): {without_secrets(url)} is a path, expected a URL such as s3://bucket/set/train"
        )
    refuse_urls("fetch(folder)", folder, "Give a local folder")
    objects = Objects(pinned(where))
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
        if names and not names & {_UNFINISHED, _MANIFEST}:
            raise OutputError(
                f"{folder}: is not empty, it holds {min(names)!r}. Give a new folder"
            )
        lock = Handle(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))
        if not lock.lock():
            raise OutputError(
                f"{folder}: another process copies into it. Wait for its end"
            )
        try:
            return background().wait(_copy(objects, folder, watch))
        finally:
            lock.close()
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot be written ({error.strerror}). Give another folder"
        ) from None


def fetch_joined(url: URL, folder: Path, manifest: Manifest) -> None:
    """Downloads the files of joined columns into the folder of a version in the cache, unless they are there.

    Raises:
        RemoteError, ShardError: as `fetch_file`.
    """
    for file in manifest.joined:
        path = folder / file.name
        try:
            open_own(path).close()
        except FileNotFoundError:
            download = fetch_file(
                Objects(url),
                file.name,
                path,
                sha256=file.sha256,
                most=manifest.most_beside,
            )
            background().wait(download)


async def _copy(objects: Objects, folder: Path, watch: Watch) -> Manifest:
    data = await _read_manifest(objects)
    manifest = manifest_file.parse_manifest(
        data, objects.url / _MANIFEST, is_local=False
    )
    if (folder / _MANIFEST).exists():
        other = Manifest.read(folder).fingerprint
        if other != manifest.fingerprint:
            raise OutputError(
                f"{folder}: holds another set (fingerprint {other}) than {objects.url} ({manifest.fingerprint}). "
                "Give a new folder"
            )
        settle(folder)
    (folder / _UNFINISHED).write_bytes(data)  # by which another call knows the folder
    for unfinished in temporaries(folder, ROOT_FILES):  # of copies that were killed
        unfinished.unlink(missing_ok=True)
    limit = asyncio.Semaphore(_AT_A_TIME)
    done = list[int]()

    async def one(info: ShardInfo) -> None:
        async with limit:
            await _copy_shard(objects, folder, info)
        done.append(info.bytes)
        watch(len(done), len(manifest.shards), sum(done))

    await together(map(one, manifest.shards))
    for file in manifest.joined:
        await fetch_file(
            objects,
            file.name,
            folder / file.name,
            sha256=file.sha256,
            most=manifest.most_beside,
        )
    await _fetch_index(objects, folder / NEXT_NAME, manifest)
    await _fetch_files(objects, folder, "rejected.jsonl", most=manifest.most_beside)
    # Written here: a stranger's could name any file, which timm or `datasets` would open.
    write_timm_info(folder, {folder: manifest})
    write_card(folder, {folder: manifest})
    sync(folder / _UNFINISHED)
    commit(folder, partial(os.replace, folder / _UNFINISHED, folder / _MANIFEST))
    return manifest


async def _copy_shard(objects: Objects, folder: Path, info: ShardInfo) -> None:
    path = folder / info.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not await _is_whole(path, info):
        await fetch_file(objects, info.name, path, info.bytes, info.sha256)
    # Sets that are read where they were indexed have none beside the shard.
    await _fetch_files(
        objects, folder, str(dali_index_path(Path(info.name))), most=info.bytes
    )


async def _fetch_files(
    objects: Objects, folder: Path, *names: str, most: int | None
) -> None:
    """Downloads these files without verifying them; skips those that do not exist.

    Args:
        most: Bytes of each.
    """
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(NoSuchObjectError):
            await fetch_file(objects, name, folder / name, most=most)


async def _is_whole(path: Path, info: ShardInfo) -> bool:
    """Whether a file is this shard."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != info.bytes:
                return False
            return await sha256_of(file.fileno(), info.bytes) == info.sha256
    except FileNotFoundError:
        return False


def manifest_bytes(url: URL) -> bytes:
    """The text of the manifest of a set at a URL.

    Raises:
        FormatError: there is none. RemoteError: it cannot be read.
    """
    return background().wait(_read_manifest(Objects(url)))


def fetch_files(url: URL, folder: Path, *names: str, most: int | None = None) -> None:
    """Downloads these files into a folder without verifying them; skips those that do not exist.

    Args:
        url: The folder of the files.
        folder: Where they are written.
        most: Largest size of each in bytes.
        *names: Of the files.

    Raises:
        RemoteError: one cannot be read.
    """
    background().wait(_fetch_files(Objects(url), folder, *names, most=most))
