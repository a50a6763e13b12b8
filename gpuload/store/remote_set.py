"""A remote set's manifest, fetched once per node and kept in the cache with what is fetched by it.

    sets/<hash of the URL>/current.json      the manifest's ETag, and the version that it belongs to
    sets/<hash of the URL>/<version>/        manifest.json, and index.arrow or, of a large one, the parts of it that
                                             were needed; a version is the hash of its manifest
    sets/<hash of the URL>/commit            of hf://, the commit that it was when it was opened last

If the server cannot be reached, the cached version is used.
"""

import hashlib
import json
import logging
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gpuload.errors import FormatError, RemoteError
from gpuload.store.background import background
from gpuload.store.cache import Cache
from gpuload.store.files import NotOwnError, locked, read_own, write_atomically
from gpuload.store.hub import is_pinned, pinned, place_of
from gpuload.store.objects import NoSuchObjectError, Objects, Range, Unchanged
from gpuload.store.url import URL

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_VERSION, _COMMIT = re.compile("[0-9a-f]{24}"), re.compile("[0-9a-f]{40}")
_OFFLINE_S = 5  # to reach the server, where there is a copy
_OPEN_S = 30  # else: the URL may be mistyped, and nothing is lost yet
_KEPT_S = 3600  # old versions are kept this long: another process may be opening one
_OTHERS_S = 900  # to wait for another process that is fetching them


def pin(url: URL, cache: Cache) -> URL:
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
        found = pinned(url, _OFFLINE_S if last else Objects.patience.give_up_s)
    except RemoteError as error:
        if not last:
            raise
        _LOG.warning("%s. Using the commit that it was when it was opened last", error)
        return place_of(url)._replace(revision=last).url
    with cache.writing():
        write_atomically(path, str(place_of(found).revision).encode())
    return found


def fetch_set(url: URL, cache: Cache, check: Callable[[bytearray], None], opens: Callable[[Objects, Path], T]) -> T:
    """What `opens` makes of the folder in the cache that holds the set's manifest.

    check: raises ValueError for what is too long for a manifest. opens: where it finds a fault in a copy that was here
    before, the manifest and what was fetched by it are downloaded again.

    Raises:
        FormatError: there is no manifest, so it is no packed set, or `opens` finds a fault.
        RemoteError: it cannot be read, or the cache cannot be written.
    """
    folder, objects = _folder_of(url, cache), Objects(url)
    stuck = RemoteError(
        f"{url}: another process has been fetching its manifest and index for {_OTHERS_S} s; it may be suspended"
    )
    with cache.writing(), locked(folder / "lock", _OTHERS_S, stuck):
        while True:
            version, is_new = background().wait(_fetch(objects, folder, check))
            try:
                return opens(objects, version)
            except NotOwnError:
                raise
            except FormatError as error:
                shutil.rmtree(version, ignore_errors=True)
                if is_new or version.exists():  # as it is at the URL, or a copy that cannot be deleted
                    text = str(error).replace(str(version), str(url))
                    raise type(error)(text.replace("Copy the folder again", "Upload the folder again")) from None


def _folder_of(url: URL, cache: Cache) -> Path:
    with cache.writing():
        folder = cache.sets / hashlib.sha256(url.text.encode()).hexdigest()[:24]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


async def _fetch(objects: Objects, folder: Path, check: Callable[[bytearray], None]) -> tuple[Path, bool]:
    """The folder of the version that is current, and whether it was fetched now."""
    known, tag = _current(folder)
    if known is not None and _version_of(read_own(known / MANIFEST)) != known.name:
        known, tag = None, None
    try:
        give_up_s = _open_s(objects) if known is None else _OFFLINE_S
        found = await read_manifest(objects, check, unless=tag, give_up_s=give_up_s)
    except Unchanged:
        assert known is not None
        return known, False
    except RemoteError as error:
        if known is None:
            raise
        _LOG.warning("%s. Using the copy of its manifest and index in the cache", error)
        return known, False
    current = folder / _version_of(found.data)
    if current != known:
        current.mkdir(mode=0o700, exist_ok=True)
        write_atomically(current / MANIFEST, found.data)
        for old in folder.iterdir():
            if old.is_dir() and old != current and time.time() - old.stat().st_mtime > _KEPT_S:
                shutil.rmtree(old, ignore_errors=True)
    text = json.dumps({"url": objects.url.text, "tag": found.tag, "version": current.name}, indent=1)
    write_atomically(folder / "current.json", text.encode())
    return current, current != known


def _version_of(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:24]


def _current(folder: Path) -> tuple[Path | None, str | None]:
    """The folder of the version that was fetched last, and its manifest's ETag; None where they are not known."""
    with suppress(ValueError):
        state = json.loads(read_own(folder / "current.json"))
        version, tag = (state.get("version"), state.get("tag")) if isinstance(state, dict) else (None, None)
        if isinstance(version, str) and _VERSION.fullmatch(version):
            return folder / version, tag if isinstance(tag, str) else None
    return None, None


def _open_s(objects: Objects) -> float:
    return min(_OPEN_S, objects.patience.give_up_s)


async def read_manifest(
    objects: Objects, check: Callable[[bytearray], None], unless: str | None = None, give_up_s: float | None = None
) -> Range:
    """The manifest's text; arguments as for `fetch_set` and `Objects.read`.

    Raises:
        FormatError: there is none, so it is no packed set, or it is too long. RemoteError: it cannot be read.
        Unchanged.
    """
    give_up_s = _open_s(objects) if give_up_s is None else give_up_s
    try:
        return await objects.read_whole(MANIFEST, unless=unless, give_up_s=give_up_s, check=check)
    except NoSuchObjectError:
        raise FormatError(await _about_missing(objects)) from None
    except ValueError as error:
        raise FormatError(f"{objects.url / MANIFEST}: {error}. Check the URL, or upload the folder again") from None


async def _about_missing(objects: Objects) -> str:
    """Why a URL is not a packed set."""
    with suppress(RemoteError, Unchanged):
        await objects.read(f"train/{MANIFEST}", 0, 1, give_up_s=_OFFLINE_S)
        return f"{objects.url}: holds packed splits; open one of them, for instance {objects.url / 'train'}"
    return (
        f"{objects.url}: no {MANIFEST} there, so this is not a packed set. Check the URL, or upload the set, with "
        f"{MANIFEST} last"
    )
