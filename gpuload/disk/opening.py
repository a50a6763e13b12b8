"""A packed folder, or a set at a URL, opened and checked: its manifest, its index, and where its shards lie."""

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuload.counted import counted
from gpuload.disk import Index, Manifest
from gpuload.disk import index as index_file
from gpuload.disk.manifest import FILE_NAME, check_length
from gpuload.errors import FormatError, ShardError
from gpuload.store.cache import Cache
from gpuload.store.files import open_own
from gpuload.store.url import URL, as_location, joined, root_of
from gpuload.types import I64

if TYPE_CHECKING:
    from gpuload.store.objects import Objects  # asyncio


_USUAL = {name: place for place, name in enumerate(("train", "val", "valid", "validation", "test"))}
WHOLE_BYTES = 16 << 20  # an index at a URL of up to this size is downloaded as a whole


@dataclass(frozen=True)
class Opened:
    """folder: the opened folder, or URL with its commit. root: the URL below which the shards lie; None if they are
    files in the folder. cache: of downloaded shards; None without a root. shard_times: modification time of each shard,
    in ns; 0 if unknown.
    """

    folder: Path | URL
    root: URL | None
    cache: Cache | None
    manifest: Manifest
    index: Index
    shard_times: I64


def packed_folders(folder: Path) -> list[Path]:
    """The packed folders in a folder, in the usual order of splits; the folder itself where it is one, or has none."""
    if (folder / FILE_NAME).exists():
        return [folder]
    found = (path.parent for path in folder.glob(f"*/{FILE_NAME}"))
    return sorted(found, key=lambda path: (_USUAL.get(path.name, len(_USUAL)), path.name)) or [folder]


def open_folder(folder: Path, cache: str | Path | None, cache_size: int | None) -> Opened:
    """Opens a local folder.

    Raises:
        FormatError, ShardError, ArgumentError: as `Dataset`.
    """
    if os.path.isfile(folder):
        raise FormatError(f"{folder}: is a file. Give the packed folder, which holds manifest.json and the shards")
    if not os.path.isdir(folder):  # unlike Path.is_dir, False also for a path that cannot be one
        raise FormatError(f"{folder}: no such folder. Pack images into one with `python -m gpuload pack`")
    if not (folder / "manifest.json").exists() and (folder / "train" / "manifest.json").exists():
        raise FormatError(f"{folder}: holds packed splits; open one of them, for instance {folder / 'train'}")
    manifest = Manifest.read(folder)
    root = shards_root(manifest, folder)
    found = None if root is None else Cache(cache, cache_size)
    times = _check_shards(folder, manifest) if root is None else _unknown_times(manifest)
    index = Index(folder / index_file.FILE_NAME, manifest.fields, manifest.index_digests, len(manifest.shards))
    return Opened(folder, root, found, manifest, index, times)


def open_url(url: URL, cache: Cache) -> Opened:
    """Opens a set at a URL.

    Raises:
        FormatError, RemoteError: as `Dataset`.
    """
    from gpuload.store.remote_set import fetch_set, pin  # asyncio and obstore

    url = pin(url, cache)

    def opens(objects: "Objects", folder: Path) -> Opened:
        manifest = Manifest.read(folder, url)
        return Opened(url, url, cache, manifest, _remote_index(objects, folder, manifest), _unknown_times(manifest))

    return fetch_set(url, cache, check_length, opens)


def _remote_index(objects: "Objects", folder: Path, manifest: Manifest) -> Index:
    """The index of a set at a URL: a small one is downloaded as a whole, of a large one the rows that are needed.

    folder: of the cache.
    """
    from gpuload.store.background import background
    from gpuload.store.objects import NoRanges
    from gpuload.store.transfer import Parts, fetch_file

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


def _unknown_times(manifest: Manifest) -> I64:
    return np.zeros(len(manifest.shards), np.int64)


def _check_shards(folder: Path, manifest: Manifest) -> I64:
    """int64 (shards,): modification times, in ns."""
    times = _unknown_times(manifest)
    for number, info in enumerate(manifest.shards):
        path = folder / info.name
        try:
            stamp = os.stat(path)
        except OSError as error:
            if error.errno != errno.ENOENT:  # such as a loop of links
                raise ShardError(f"{path}: cannot be read ({error.strerror}). Copy the folder again") from None
            raise ShardError(
                f"{path}: missing; manifest.json lists {counted(len(manifest.shards), 'shard')}. Copy the folder again"
            ) from None
        if not stat.S_ISREG(stamp.st_mode):  # opening a pipe would wait for its other end
            raise ShardError(f"{path}: is not a regular file. Copy the folder again")
        if (found := stamp.st_size) != info.bytes:
            raise ShardError(
                f"{path}: is {counted(found, 'byte')}, manifest.json says {info.bytes:,}. "
                "It was truncated or replaced: copy it again, or index the folder again"
            )
        times[number] = stamp.st_mtime_ns
    return times


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
