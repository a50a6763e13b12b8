"""A packed folder, or a set at a URL, opened and checked: its manifest, its index, and where its shards lie."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuload.counted import counted
from gpuload.disk import Index, Manifest
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.shards_root import shards_root
from gpuload.errors import FormatError, ShardError
from gpuload.store.cache import Cache
from gpuload.store.open import open_cache
from gpuload.store.url import URL
from gpuload.types import I64

if TYPE_CHECKING:
    from gpuload.store.objects import Objects  # asyncio


@dataclass(frozen=True)
class Opened:
    """folder: that was opened; a URL with the commit that it means. root: the URL below which the shards lie; None
    where they are files of the folder. cache: into which shards are downloaded; None without a root. shard_times: when
    each shard was changed last, in ns; 0 where it is not known.
    """

    folder: Path | URL
    root: URL | None
    cache: Cache | None
    manifest: Manifest
    index: Index
    shard_times: I64


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
    found = None if root is None else open_cache(cache, cache_size)
    times = _check_shards(folder, manifest) if root is None else _unknown_times(manifest)
    index = Index(folder / index_file.FILE_NAME, manifest.fields)
    _check_count(index, manifest)
    return Opened(folder, root, found, manifest, index, times)


def open_url(url: URL, cache: Cache) -> Opened:
    """Opens a set at a URL.

    Raises:
        FormatError, RemoteError: as `Dataset`.
    """
    import asyncio

    from gpuload.disk.remote_index import FILE_NAMES, fetch_index, open_index  # obstore
    from gpuload.store.objects import Objects
    from gpuload.store.remote_set import fetch_set, pin

    url, read = pin(url, cache), dict[Path, Manifest]()  # what was read already: 16 µs for each shard

    async def fetch(objects: "Objects", folder: Path) -> None:
        with _faults_at(url, folder):
            read[folder] = await asyncio.to_thread(Manifest.read, folder)
            await fetch_index(objects, folder, read[folder])

    folder = fetch_set(url, cache, manifest_file.FILE_NAME, FILE_NAMES, fetch)
    with _faults_at(url, folder):
        manifest = read[folder] if folder in read else Manifest.read(folder)
        index = open_index(Objects(url), folder, manifest)
        _check_count(index, manifest)
    return Opened(url, url, cache, manifest, index, _unknown_times(manifest))


@contextmanager
def _faults_at(url: URL, folder: Path) -> Iterator[None]:
    """Says of the files of a set at a URL that they are there, and removes the copies, so that whoever opens the set
    next downloads them again."""
    try:
        yield
    except FormatError as error:
        shutil.rmtree(folder, ignore_errors=True)
        text = str(error).replace(str(folder), str(url)).replace("Copy the folder again", "Upload the folder again")
        raise type(error)(text) from None


def _unknown_times(manifest: Manifest) -> I64:
    return np.zeros(len(manifest.shards), np.int64)


def _check_count(index: Index, manifest: Manifest) -> None:
    if len(index) != len(manifest.shards):
        raise FormatError(
            f"{index.path}: indexes {counted(len(index), 'shard')}, manifest.json lists {len(manifest.shards)}. "
            "They come from different runs: copy the folder again"
        )


def _check_shards(folder: Path, manifest: Manifest) -> I64:
    """int64 (shards,): when each was changed last."""
    times = _unknown_times(manifest)
    for number, info in enumerate(manifest.shards):
        path = folder / info.name
        try:
            stamp = os.stat(path)
        except (OSError, ValueError):
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
