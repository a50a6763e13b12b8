"""Downloads one object into a file: ranges in parallel, checked."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import Any

from gpuload.errors import ShardError
from gpuload.store.objects import NoRanges, Objects, Range, Replaced

RANGE_BYTES = 8 << 20
_AHEAD = 8  # ranges of one object under way
_TRIES = 3  # of an object whose bytes are wrong, or that is replaced meanwhile


class WrongBytesError(ShardError):
    """What was downloaded is not what the manifest says."""


async def download(
    objects: Objects,
    name: str,
    handle: int,
    *,
    size: int | None = None,
    sha256: str | None = None,
    begin: Callable[[int], None] = lambda size: None,
    first: Range | None = None,
) -> None:
    """Writes an object into the file at `handle`.

    size, sha256: those that it must have. begin: called with the size before anything is written, perhaps several
    times. first: the beginning of the object, where that has been read.

    Raises:
        RemoteError: it cannot be read. WrongBytesError: it has another size or SHA-256, also when it is read again.
        OSError: the file cannot be written.
    """
    fault = ""
    for _ in range(_TRIES):
        file = _File(handle, begin, size)
        try:
            await _ranges(objects, name, file, first)
        except NoRanges:
            await objects.stream(name, file.start, file.write)
        except Replaced:
            fault, first = "it is replaced again and again", None
            continue
        except _WrongSizeError as error:
            fault, first = f"is {error.found:,} bytes, manifest.json says {size:,}", None
            continue
        found = (await asyncio.to_thread(file.finish)) if sha256 is not None else None
        if found == sha256:
            return
        fault, first = (
            f"its SHA-256 is {found[:16] if found else None}…, manifest.json says {(sha256 or '')[:16]}…",
            None,
        )
    raise WrongBytesError(
        f"{objects.url / name}: {fault}, at {_TRIES} attempts. It was damaged or replaced: upload it again, with "
        "manifest.json last, or open the set anew if it was packed anew"
    )


async def _ranges(objects: Objects, name: str, file: "_File", first: Range | None) -> None:
    if first is None:
        first = await objects.read(name, 0, RANGE_BYTES)
    file.start(first.size)
    await file.write(0, first.data)
    starts = iter(range(len(first.data), first.size, RANGE_BYTES))
    tag, size = first.tag, first.size

    async def worker() -> None:
        for start in starts:
            found = await objects.read(name, start, min(start + RANGE_BYTES, size), tag)
            if found.size != size:
                raise Replaced
            await file.write(start, found.data)

    workers = [asyncio.create_task(worker()) for _ in range(min(_AHEAD, -(-size // RANGE_BYTES)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for one in workers:
            one.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


class _WrongSizeError(Exception):
    def __init__(self, found: int) -> None:
        super().__init__()
        self.found = found


class _File:
    """The file that is written. What lies in it from the start on without a gap is hashed meanwhile."""

    def __init__(self, handle: int, begin: Callable[[int], None], size: int | None) -> None:
        self._handle, self._begin, self._expected = handle, begin, size
        self._hashing = asyncio.Lock()
        self.start(0, check=False)

    def start(self, size: int, check: bool = True) -> None:
        if check and self._expected not in (None, size):
            raise _WrongSizeError(size)
        self._size, self._hashed, self._digest = size, 0, hashlib.sha256()
        self._written: dict[int, int] = {}  # sizes of what is not hashed yet, by where it begins
        if check:
            self._begin(size)

    async def write(self, at: int, data: Any) -> None:
        await asyncio.to_thread(self._write, at, memoryview(data))
        self._written[at] = len(data)
        if at == self._hashed and not self._hashing.locked():
            async with self._hashing:
                while (length := self._written.pop(self._hashed, None)) is not None:
                    await asyncio.to_thread(self._hash, self._hashed, length)
                    self._hashed += length

    def finish(self) -> str:
        """The SHA-256 of all."""
        self._hash(self._hashed, self._size - self._hashed)
        return self._digest.hexdigest()

    def _write(self, at: int, data: memoryview) -> None:
        while len(data):
            done = os.pwrite(self._handle, data, at)
            at, data = at + done, data[done:]

    def _hash(self, at: int, length: int) -> None:
        """Reads back what was written, which lies in memory: what is checked is what will be read."""
        end = at + length
        while at < end:
            block = os.pread(self._handle, min(1 << 20, end - at), at)
            if not block:
                raise OSError("the file was truncated")
            self._digest.update(block)
            at += len(block)
