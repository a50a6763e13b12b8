"""The index of a set at a URL: a small one is downloaded as a whole, of a large one the rows that are needed.

Which rows are here is noted in the cache (`store/partial_file.py`). They are fetched in parts where they are checked as
well as the whole would be: by the SHA-256 that the manifest tells of each part; or, of sets that were packed before
manifests told any of the index, by nothing but the ETag, which must stay the same.
"""

import asyncio
import hashlib
from pathlib import Path

from gpuload.disk.arrow_footer import batch_bounds, footer_bytes
from gpuload.disk.index import FILE_NAME, Index
from gpuload.disk.manifest import Manifest
from gpuload.errors import FormatError
from gpuload.store.objects import NoRanges, Objects, Range, Replaced
from gpuload.store.partial_file import PartialFile
from gpuload.store.parts import Checks, Parts
from gpuload.store.remote_set import fetch_whole
from gpuload.store.transfer import RANGE_BYTES

PARTIAL_NAME = "index.partial"
FILE_NAMES = (FILE_NAME, PARTIAL_NAME)

WHOLE_BYTES = 16 << 20  # up to this size, the whole is downloaded
_HEAD_BYTES = 64 << 10
_LEAST_ROW_BYTES = 40
_TAIL_BYTES, _BLOCK_BYTES = 64 << 10, 24  # of the footer: its schema, and each shard
_END_BYTES = 64  # more than lies between the last record batch and the footer


async def fetch_index(objects: Objects, folder: Path, manifest: Manifest) -> None:
    """Puts the file of the index into a folder of the cache.

    Raises:
        FormatError: it is damaged. RemoteError: it cannot be read, or written.
    """
    first = None
    if manifest.index_parts is not None or manifest.index_sha256 is None:
        is_large = _LEAST_ROW_BYTES * manifest.samples > WHOLE_BYTES
        try:
            first = await objects.read(FILE_NAME, 0, _HEAD_BYTES if is_large else RANGE_BYTES)
            if await _begin_parts(objects, folder, manifest, first):
                return
        except (NoRanges, Replaced):
            first = None
    await fetch_whole(objects, folder / FILE_NAME, manifest.index_sha256, first)


async def _begin_parts(objects: Objects, folder: Path, manifest: Manifest, first: Range) -> bool:
    """Makes the file for parts; False where the index is small, or cannot be fetched in parts.

    Raises:
        Replaced: it is another one now. RemoteError: it cannot be read, or written.
    """
    size, tag, shards = first.size, first.tag, len(manifest.shards)
    if size <= WHOLE_BYTES or (tag is None and manifest.index_parts is None):
        return False
    tail = await _tail(objects, first, _TAIL_BYTES + _BLOCK_BYTES * shards)
    bounds = batch_bounds(tail, size)
    if bounds is None or len(bounds) != shards + 1 or bounds[0] > len(first.data) or bounds[-1] < size - len(tail):
        return False
    end = tail[int(bounds[-1]) - size :]
    if manifest.index_parts is not None and hashlib.sha256(end).hexdigest() != manifest.index_parts[-1]:
        return False  # the whole is compared, again and again
    written = [(0, bytes(first.data)[: bounds[0]]), (int(bounds[-1]), end)]
    try:
        return await asyncio.to_thread(PartialFile.create, folder / PARTIAL_NAME, size, shards, tag, written)
    except OSError:
        return False  # a disk that cannot take a sparse file; it tells what is wrong when the whole is written


async def _tail(objects: Objects, first: Range, guess: int) -> bytes:
    """The end of the object, with the footer. guess: its size."""
    begin = max(0, first.size - guess)
    tail = await objects.read(FILE_NAME, begin, first.size, first.tag)
    needed = (footer_bytes(bytes(tail.data)) or 0) + _END_BYTES
    if guess < needed <= first.size:
        tail = await objects.read(FILE_NAME, first.size - needed, first.size, first.tag)
    if tail.size != first.size:
        raise Replaced
    return bytes(tail.data)


def open_index(objects: Objects, folder: Path, manifest: Manifest) -> Index:
    """The index whose file `fetch_index` has put into a folder.

    Raises:
        FormatError: it is damaged, or not that of the manifest.
    """
    if (folder / FILE_NAME).exists():
        return Index(folder / FILE_NAME, manifest.fields)
    path = folder / PARTIAL_NAME
    try:
        file = PartialFile(path)
        size = file.size
        tail = bytes(memoryview(file.memory)[max(0, size - _TAIL_BYTES) : size])
        if (needed := footer_bytes(tail) or 0) > len(tail):
            tail = bytes(memoryview(file.memory)[max(0, size - needed) : size])
        bounds = batch_bounds(tail, size)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: is damaged ({error}). Copy the folder again") from None
    if bounds is None or len(bounds) != file.parts + 1 or file.parts != len(manifest.shards):
        raise FormatError(f"{path}: is damaged: its footer cannot be read. Copy the folder again")
    checks = Checks(manifest.index_parts, manifest.index_sha256)
    return Index(path, manifest.fields, Parts(objects, FILE_NAME, file, bounds, checks))
