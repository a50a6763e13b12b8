"""A remote set's manifest and index, fetched once per node and kept in the cache.

    sets/<hash of the URL>/current.json      the manifest's ETag, and the version that it belongs to
    sets/<hash of the URL>/<version>/        manifest.json, and index.arrow or, of a large one, the parts of it that
                                             were needed; a version is the hash of its manifest
    sets/<hash of the URL>/pinned            of hf://, the URL with the commit that it was when it was opened last

Where the server cannot be reached, the version that is here is taken.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpuload.errors import FormatError, RemoteError
from gpuload.store.background import background
from gpuload.store.cache import Cache
from gpuload.store.hub import is_pinned, pinned
from gpuload.store.locks import fcntl
from gpuload.store.objects import NoRanges, NoSuchObjectError, Objects, Range, Unchanged
from gpuload.store.transfer import RANGE_BYTES, WrongBytesError, download
from gpuload.store.url import URL

_LOG = logging.getLogger(__name__)

_OFFLINE_S = 5  # to reach the server, where there is a copy
_OPEN_S = 30  # else: the URL may be mistyped, and nothing is lost yet
_KEPT_S = 3600  # versions that are no more the current one: another process may just open it
_OTHERS_S = 900  # to wait for another process that fetches them


def pin(url: URL, cache: Cache) -> URL:
    """The URL with the commit that it means now, or where the Hub cannot be reached, the one that it meant last.

    Raises:
        ArgumentError, RemoteError: as `hub.pinned`.
    """
    if is_pinned(url):
        return url
    folder = cache.sets / hashlib.sha256(url.text.encode()).hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        last = URL((folder / "pinned").read_text())
    except OSError:
        last = None
    try:
        found = pinned(url, Objects.patience.give_up_s if last is None else _OFFLINE_S)
    except RemoteError as error:
        if last is None:
            raise
        _LOG.warning("%s The commit that it was when it was opened last is taken", error)
        return last
    _write(folder / "pinned", found.text.encode())
    return found


def fetch_set(
    url: URL,
    cache: Cache,
    manifest_name: str,
    index_names: Collection[str],
    fetch_index: Callable[[Objects, Path], Awaitable[None]],
) -> Path:
    """The folder in the cache that holds the set's manifest and index.

    index_names: of which file there is one. fetch_index: puts it into the folder, where the manifest is.

    Raises:
        FormatError: there is no manifest, so it is no packed set, or the index is not the one that it tells.
        RemoteError: it cannot be read.
    """
    folder = cache.sets / hashlib.sha256(url.text.encode()).hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock", url):
        return background().wait(_fetch(Objects(url), folder, manifest_name, index_names, fetch_index))


async def _fetch(
    objects: Objects,
    folder: Path,
    manifest_name: str,
    index_names: Collection[str],
    fetch_index: Callable[[Objects, Path], Awaitable[None]],
) -> Path:
    current = _read(folder / "current.json")
    known: Path | None = folder / str(current["version"]) if current else None
    if known is None or not _is_complete(known, manifest_name, index_names):
        current, known = {}, None
    try:
        found = await read_whole(
            objects,
            manifest_name,
            unless=current.get("tag"),
            give_up_s=_open_s(objects) if known is None else _OFFLINE_S,
        )
    except Unchanged:
        assert known is not None
        return known
    except NoSuchObjectError:
        raise FormatError(await _about_missing(objects, manifest_name)) from None
    except RemoteError as error:
        if known is None:
            raise
        _LOG.warning("%s The copy of its manifest and index in the cache is taken", error)
        return known
    version = hashlib.sha256(found.data).hexdigest()[:24]
    if known is None or known.name != version:
        known = folder / version
        known.mkdir(exist_ok=True)
        _write(known / manifest_name, found.data)
        if not _is_complete(known, manifest_name, index_names):
            await fetch_index(objects, known)
        for old in folder.iterdir():
            if old.is_dir() and old != known and time.time() - old.stat().st_mtime > _KEPT_S:
                shutil.rmtree(old, ignore_errors=True)
    text = json.dumps({"url": objects.url.text, "tag": found.tag, "version": version}, indent=1)
    _write(folder / "current.json", text.encode())
    return known


async def read_manifest(objects: Objects, manifest_name: str) -> bytes:
    """The manifest's text.

    Raises:
        FormatError: there is none, so it is no packed set. RemoteError: it cannot be read.
    """
    try:
        return bytes((await read_whole(objects, manifest_name, give_up_s=_open_s(objects))).data)
    except NoSuchObjectError:
        raise FormatError(await _about_missing(objects, manifest_name)) from None


def _open_s(objects: Objects) -> float:
    return min(_OPEN_S, objects.patience.give_up_s)


async def read_whole(objects: Objects, name: str, unless: str | None = None, give_up_s: float | None = None) -> Range:
    """An object that fits into memory.

    Raises:
        RemoteError: it cannot be read. NoSuchObjectError. Unchanged.
    """
    try:
        first = await objects.read(name, 0, RANGE_BYTES, unless=unless, give_up_s=give_up_s)
        if first.size <= len(first.data):
            return first._replace(data=bytes(first.data))
    except NoRanges:
        first = None
    with tempfile.TemporaryFile() as file:
        await download(objects, name, file.fileno(), first=first)
        data = file.read()
    return Range(data, len(data), first.tag if first else None)


def _is_complete(folder: Path, manifest_name: str, index_names: Collection[str]) -> bool:
    return (folder / manifest_name).exists() and any((folder / name).exists() for name in index_names)


async def fetch_whole(objects: Objects, path: Path, sha256: str | None, first: Range | None) -> None:
    """Downloads an object to a path of its name. first: its beginning, where that has been read.

    Raises:
        FormatError: its SHA-256 is another one. RemoteError: it cannot be read, or written.
    """
    part = path.with_name(f"{path.name}.part")
    handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        await download(
            objects, path.name, handle, sha256=sha256, begin=lambda size: os.ftruncate(handle, size), first=first
        )
        os.fdatasync(handle)
        part.rename(path)
    except WrongBytesError as error:
        fault = str(error).partition(". ")[0]
        raise FormatError(f"{fault}. Upload the folder again, with manifest.json last") from None
    except OSError as error:
        raise RemoteError(f"{path}: cannot be written ({error.strerror}). Free some of its disk") from None
    finally:
        os.close(handle)
        part.unlink(missing_ok=True)


async def _about_missing(objects: Objects, manifest_name: str) -> str:
    """Why a URL is no packed set."""
    with suppress(RemoteError, Unchanged):
        await objects.read(f"train/{manifest_name}", 0, 1, give_up_s=_OFFLINE_S)
        return f"{objects.url}: holds packed splits; open one of them, for instance {objects.url / 'train'}"
    return (
        f"{objects.url}: no {manifest_name} there, so this is not a packed set. Check the URL, or upload the set, with "
        f"{manifest_name} last"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) and isinstance(found.get("version"), str) else {}
    except (OSError, ValueError):
        return {}


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


@contextmanager
def _locked(path: Path, url: URL) -> Iterator[None]:
    """One process at a time."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        give_up = time.monotonic() + _OTHERS_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise RemoteError(
                        f"{url}: another process has fetched its manifest and index for {_OTHERS_S} s. Is it stopped?"
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)
