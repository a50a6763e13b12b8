"""Opens the files of a packed set: in a folder, in a folder of an index whose shards lie at URLs, or at a URL."""

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuload.counted import counted
from gpuload.disk import Index, Manifest
from gpuload.disk.commit import open_index
from gpuload.disk.joined import open_joined
from gpuload.disk.places import packed_folder
from gpuload.errors import FormatError, ShardError
from gpuload.machine.untrusted import NotRegularError
from gpuload.store.cache import Cache
from gpuload.store.url import URL, as_location, joined, root_of

if TYPE_CHECKING:
    pass  # takes 0.15 s of the first batch


@dataclass(frozen=True)
class OpenedSet:
    """The files of a packed set.

    Attributes:
        folder: Of the set, or its URL.
        manifest: What the set holds.
        index: Memory-mapped; of a large set at a URL, what fetches its parts.
        joined: The files of columns that were added by key.
        root: The URL below which the shards lie; None where they are files in the folder.
        cache: Of downloaded shards; None where they are files in the folder.
        times: When each shard was modified, in ns; 0 where that is unknown.
    """

    folder: Path | URL
    manifest: Manifest
    index: Index
    joined: list[Index]
    root: URL | None
    cache: Cache | None
    times: list[int]


def open_set(
    place: Path | URL, cache_folder: str | Path | None, cache_size: int | None
) -> OpenedSet:
    """Opens a packed folder, or a set at a URL.

    Args:
        place: The folder or URL; also a folder that holds one packed folder alone.
        cache_folder: For shards at URLs, see `Dataset`.
        cache_size: How large that may become, in bytes.

    Raises:
        FormatError, ShardError, RemoteError, MissingPackageError: as `Dataset`.
    """
    if isinstance(place, URL):
        from gpuload.disk.fetch import open_url  # asyncio and obstore

        cache = Cache(cache_folder, cache_size)
        url, manifest, index = open_url(place, cache)
        columns = open_joined(manifest, index.path.parent, url)
        times = [0] * len(manifest.shards)
        return OpenedSet(url, manifest, index, columns, url, cache, times)
    folder = packed_folder(place)
    opened = _open_folder(folder)
    if opened.root is not None:
        return replace(opened, cache=Cache(cache_folder, cache_size))
    times = [
        _checked_time(folder / shard.name, shard.bytes)
        for shard in opened.manifest.shards
    ]
    return replace(opened, times=times)


def _open_folder(folder: Path) -> OpenedSet:
    """The files of a folder, but for what its shards need. They are read once more if they were replaced in between."""
    manifest = Manifest.read(folder)
    try:
        return _open_files(folder, manifest)
    except FormatError:
        later = Manifest.read(folder)
        if later == manifest:
            raise
    return _open_files(folder, later)


def _open_files(folder: Path, manifest: Manifest) -> OpenedSet:
    root = shards_root(manifest, folder)
    index = open_index(folder, manifest)
    columns = open_joined(manifest, folder)
    times = [0] * len(manifest.shards)
    return OpenedSet(folder, manifest, index, columns, root, None, times)


def shards_root(manifest: Manifest, folder: Path) -> URL | None:
    """The URL below which all shards lie; None where they are files.

    Raises:
        FormatError: only some lie at URLs, or they lie in several places.
        ArgumentError, MissingPackageError: a URL cannot be read from here.
    """
    places = [joined(folder, shard.name) for shard in manifest.shards]
    urls = [place for place in places if isinstance(place, URL)]
    if not urls:
        return None
    root = root_of(urls)
    if len(urls) < len(places) or root is None:
        raise FormatError(
            f"{folder}: its shards lie in several places, as {places[0]} and {places[-1]}. Index the shards of each "
            "bucket by themselves, and mix the sets"
        )
    as_location(root.text)
    return root


def _checked_time(path: Path, size: int) -> int:
    """The modification time of a shard, in ns.

    Raises:
        ShardError: it is not a file of this size.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(
            status.st_mode
        ):  # opening a pipe would wait for its other end
            raise NotRegularError(None, "is not a regular file")
    except OSError as error:
        raise ShardError(
            f"{path}: cannot be read ({error.strerror}). Copy the folder again"
        ) from None
    if status.st_size != size:
        raise wrong_size(path, status.st_size, size)
    return status.st_mtime_ns


def wrong_size(path: Path | URL, found: int, expected: int) -> ShardError:
    """The error for a shard of another size than the manifest's."""
    return ShardError(
        f"{path}: is {counted(found, 'byte')}, manifest.json says {expected:,}. It was truncated or replaced: copy it "
        "again, or index the folder again"
    )
