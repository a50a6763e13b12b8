"""Downloads one object into a file: ranges in parallel, checked."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpuload.errors import RemoteError, ShardError
from gpuload.store.files import open_new, start_writeback, write_at
from gpuload.store.objects import RANGE_BYTES, NoRanges, Objects, Replaced

T = TypeVar("T")

_BLOCK_BYTES = 1 << 20  # hashed at a time
_PIECE_BYTES = 64 << 20  # hashed between two checks for cancellation
_AHEAD = 16  # ranges of one object under way: all that a process has connections for
_TRIES = 3  # of an object whose bytes are wrong, or that is replaced meanwhile


class WrongBytesError(ShardError):
    """The downloaded bytes are not those of the manifest."""


async def download(
    objects: Objects,
    name: str,
    handle: int,
    *,
    size: int | None = None,
    most: int | None = None,
    sha256: str | None = None,
    begin: Callable[[int], None] = lambda size: None,
    arrived: Callable[[], None] = lambda: None,
) -> None:
    """Writes an object into the file at `handle`.

    size, sha256: those that it must have. most: bytes that it may have. begin: called with the size before anything is
    written, perhaps several times. arrived: called when all of it is here; it is checked then.

    Raises:
        RemoteError: it cannot be read, or is too long. WrongBytesError: it has another size or SHA-256, also when it is
        read again. OSError: the file cannot be written.
    """
    fault = ""

    def begun(found: int) -> None:
        if most is not None and found > most:
            raise RemoteError(f"{objects.url / name}: is {found:,} bytes, expected {most:,} at most. Check the URL")
        begin(found)

    for _ in range(_TRIES):
        file = _File(handle, begun, size, sha256 is not None)
        try:
            try:
                await _ranges(objects, name, file)
            except NoRanges:
                await objects.stream(name, file.start, file.write)
            arrived()
            found = await file.finish() if sha256 is not None else None
        except Replaced as error:
            fault = str(error) or "it is replaced again and again"
            continue
        finally:
            await file.stop()
        if found == sha256:
            return
        fault = f"its SHA-256 is {(found or '')[:16]}…, manifest.json says {(sha256 or '')[:16]}…"
    raise WrongBytesError(
        f"{objects.url / name}: {fault}, at {_TRIES} attempts. It was damaged or replaced: upload it again, with "
        "manifest.json last, or open the set anew if it was packed anew"
    )


async def fetch_file(
    objects: Objects,
    name: str,
    path: Path,
    size: int | None = None,
    sha256: str | None = None,
    most: int | None = None,
) -> None:
    """Downloads an object to a path, where it appears once it is complete and on disk; arguments as for `download`.

    Raises:
        RemoteError, WrongBytesError: as `download`. OSError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    file = open_new(part)
    try:
        begin = partial(os.ftruncate, file.number)
        await download(objects, name, file.number, size=size, most=most, sha256=sha256, begin=begin)
        await asyncio.to_thread(os.fdatasync, file.number)
        part.rename(path)
    finally:
        file.close()
        part.unlink(missing_ok=True)


async def _ranges(objects: Objects, name: str, file: "_File") -> None:
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

    await together([worker() for _ in range(min(_AHEAD, -(-size // RANGE_BYTES)))])


class _File:
    """The file being written. Its contiguous beginning is hashed meanwhile, in a task of its own, so that no download
    waits for the hash."""

    def __init__(self, handle: int, begin: Callable[[int], None], size: int | None, hashes: bool) -> None:
        self._handle, self._begin, self._expected, self._hashes = handle, begin, size, hashes
        self._hashing: asyncio.Task[None] | None = None
        self._forget()

    def start(self, size: int) -> None:
        """Starts an attempt, perhaps after a failed one."""
        if self._expected not in (None, size):
            raise Replaced(f"is {size:,} bytes, manifest.json says {self._expected:,}")
        self._forget()
        self._begin(size)

    async def write(self, at: int, data: Any) -> None:
        await in_thread(_write_out, self._handle, at, memoryview(data))
        self._written[at] = len(data)
        if self._hashes and at == self._whole and (self._hashing is None or self._hashing.done()):
            self._hashing = asyncio.create_task(self._hash(self._digest))

    async def finish(self) -> str:
        """The SHA-256 of all."""
        if self._hashing is not None:
            await self._hashing
        await self._hash(self._digest)  # what came while another attempt was hashed
        return self._digest.hexdigest()

    async def stop(self) -> None:
        """Cancels hashing, and waits until nothing reads the file."""
        if self._hashing is not None:
            self._hashing.cancel()
            await asyncio.gather(self._hashing, return_exceptions=True)

    def _forget(self) -> None:
        self._whole, self._digest = 0, hashlib.sha256()
        self._written: dict[int, int] = {}  # sizes of what is not hashed yet, by where it begins

    async def _hash(self, digest: Any) -> None:
        while digest is self._digest and (length := self._written.pop(self._whole, None)) is not None:
            at = self._whole
            self._whole += length
            while (more := self._written.pop(self._whole, None)) is not None:
                self._whole += more
            await in_thread(hash_at, digest, self._handle, at, self._whole)


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results. If one fails, or this is cancelled, the others are cancelled and awaited."""
    tasks = [asyncio.create_task(one) for one in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def in_thread(function: Callable[..., None], *args: Any) -> None:
    """As `asyncio.to_thread`, but waits for the thread even when cancelled: the file may be closed afterwards, and its
    descriptor reused."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _write_out(handle: int, at: int, data: memoryview) -> None:
    write_at(handle, at, data)
    start_writeback(handle, at, len(data))


async def sha256_of(handle: int, size: int) -> str:
    """The SHA-256 of a file, computed in a thread that stops soon after cancellation."""
    digest = hashlib.sha256()
    for at in range(0, size, _PIECE_BYTES):
        await in_thread(hash_at, digest, handle, at, min(at + _PIECE_BYTES, size))
    return digest.hexdigest()


def hash_at(digest: Any, handle: int, at: int, end: int) -> None:
    """Adds bytes at..end-1 of a file to a digest.

    Reads back what was written, which lies in memory: what is checked is what will be read, and no buffer waits for it.
    That copies 9 GB/s, where SHA-256 takes 1.2 (one core with SHA instructions, 2026-11).
    """
    block = memoryview(bytearray(min(_BLOCK_BYTES, end - at)))
    while at < end:
        read = os.preadv(handle, [block[: end - at]], at)
        if not read:
            raise OSError("the file was truncated")
        digest.update(block[:read])
        at += read
