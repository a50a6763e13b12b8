"""Downloads parts of an object into a `PartialFile` when they are needed.

Each part is checked before it is written, by its SHA-256, so that no wrong byte is ever where readers look. Where none
is known, all parts come from an object with the same ETag.

All runs in the event loop of `background`; `wait` may be called in any other thread. The processes of a node download
in turns: those that need some parts one after the other, and those that need all of them.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gpuload.errors import FormatError, RemoteError
from gpuload.store.background import background
from gpuload.store.objects import NoRanges, Objects, Replaced
from gpuload.store.partial_file import PartialFile
from gpuload.store.transfer import RANGE_BYTES, hash_at, in_thread, together
from gpuload.types import I64

_CHUNK_BYTES = 4 * RANGE_BYTES  # synced to the disk and marked at a time
_CHUNKS = 2  # under way
_TRIES = 3  # of parts whose bytes are wrong
_POLL_S = 0.02  # while another process downloads
_BLOCK_BYTES = 64 << 20  # hashed at a time


class Checks(NamedTuple):
    """SHA-256 of each part, and of the whole object; None where it is not known."""

    parts: Sequence[str] | None
    whole: str | None


class Parts:
    """An object's parts.

    name: of the object. file: into which they are downloaded. bounds: int64 (parts + 1,), where each begins in the
    object, and where the last one ends.
    """

    def __init__(self, objects: Objects, name: str, file: PartialFile, bounds: I64, checks: Checks) -> None:
        self.file, self.bounds = file, bounds
        self._objects, self._name, self._checks = objects, name, checks
        self._tag = file.tag
        self._running: dict[int, asyncio.Task[None]] = {}  # what downloads a part
        self._all: asyncio.Task[None] | None = None  # what downloads all of them, and how many wait for that
        self._waiting = 0
        self._turn = asyncio.Lock()

    @property
    def where(self) -> str:
        return f"{self._objects.url / self._name}"

    def has(self, number: int) -> bool:
        """Whether a part is here."""
        return self.file.has(number)

    def wait(self, numbers: Iterable[int] | None = None) -> None:
        """Downloads those of these parts that are not here, or of all, and waits for them.

        Raises:
            RemoteError: they cannot be read, or written to the cache. FormatError: they are not those of the manifest.
        """
        if numbers is not None:
            numbers = self.file.missing(np.fromiter(numbers, np.int64)).tolist()
            if not numbers:
                return
        elif self.file.is_checked:
            return
        background().wait(self.get_all() if numbers is None else self.get(numbers))

    async def get(self, numbers: Iterable[int]) -> None:
        """As `wait`. Where it is cancelled, what it has begun goes on."""
        missing = self.file.missing(np.unique(np.fromiter(numbers, np.int64))).tolist()
        if begun := [number for number in missing if number not in self._running]:
            task = _start(self._get_some(np.array(begun)))
            self._running.update(dict.fromkeys(begun, task))
            task.add_done_callback(lambda _: [self._running.pop(number) for number in begun])
        tasks = {self._running[number] for number in missing}
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def get_all(self) -> None:
        """As `wait`, and compares all of it with its SHA-256. Where nobody waits for it any more, it ends."""
        if self._all is None or self._all.done():
            self._all = _start(self._get_every())
        task = self._all
        self._waiting += 1
        try:
            await asyncio.wait([task])
        finally:
            self._waiting -= 1
            if not self._waiting:
                task.cancel()
        task.result()

    async def _get_some(self, numbers: I64) -> None:
        async with self._turn:  # this process's; no polling
            await self._in_turn("some", lambda: not len(self.file.missing(numbers)), partial(self._download, numbers))

    async def _get_every(self) -> None:
        await self._in_turn("all", lambda: self.file.is_checked, self._download_and_compare)

    async def _in_turn(
        self, purpose: str, is_done: Callable[[], bool], download: Callable[[], Awaitable[None]]
    ) -> None:
        """Downloads, unless another process does."""
        since, before = time.monotonic(), -1
        while not is_done():
            try:
                if (lock := self.file.lock(purpose)) is not None:
                    try:
                        await download()
                    finally:
                        lock.release()
                    return
            except OSError as error:
                folder = self.file.path.parent
                raise RemoteError(f"{folder}: cannot be written ({error.strerror}). Free some of its disk") from None
            if (found := self.file.count()) != before:
                since, before = time.monotonic(), found
            if time.monotonic() - since > self._objects.patience.give_up_s:
                raise RemoteError(
                    f"{self.where}: another process downloads it, and does not get on. Is it stopped? Its parts are in "
                    f"{self.file.path}"
                )
            await asyncio.sleep(_POLL_S)

    async def _download_and_compare(self) -> None:
        if self.file.is_checked:
            return
        await self._download(np.arange(self.file.parts))
        if self._checks.whole is not None:
            digest = hashlib.sha256()
            for at in range(0, self.file.size, _BLOCK_BYTES):
                await in_thread(hash_at, digest, self.file.handle, at, min(at + _BLOCK_BYTES, self.file.size))
            if (found := digest.hexdigest()) != self._checks.whole:
                self.file.forget()
                raise FormatError(
                    f"{self.where}: its SHA-256 is {found[:16]}…, manifest.json says {self._checks.whole[:16]}…. "
                    "Open the set anew, or upload its folder again, with manifest.json last"
                )
        self.file.mark_checked()

    async def _download(self, numbers: I64) -> None:
        """Those of these parts that are not here. numbers: ascending."""
        chunks = self._chunks(numbers)

        async def worker() -> None:
            for ranges in chunks:
                await together([self._range(first, stop) for first, stop in ranges])
                await in_thread(self.file.mark, [number for span in ranges for number in range(*span)])

        await together([worker() for _ in range(_CHUNKS)])

    def _chunks(self, numbers: I64) -> Iterator[list[tuple[int, int]]]:
        """What is downloaded at a time: ranges first..stop-1 of parts that follow one another."""
        ranges: list[tuple[int, int]] = []
        size = 0
        for number in numbers.tolist():
            if self.has(number):
                continue
            first, stop = ranges[-1] if ranges else (number, number)
            if stop == number and ranges and self._bytes(first, number + 1) <= RANGE_BYTES:
                ranges[-1] = first, number + 1
            else:
                if size >= _CHUNK_BYTES:
                    yield ranges
                    ranges, size = [], 0
                ranges.append((number, number + 1))
            size += self._bytes(number, number + 1)
        if ranges:
            yield ranges

    def _bytes(self, first: int, stop: int) -> int:
        return int(self.bounds[stop] - self.bounds[first])

    async def _range(self, first: int, stop: int) -> None:
        """Downloads parts that follow one another, and writes them, but for those that are here meanwhile."""
        bounds = self.bounds[first : stop + 1].tolist()
        for _ in range(_TRIES):
            data = await self._read(bounds[0], bounds[-1])
            pieces = [data[at - bounds[0] : end - bounds[0]] for at, end in pairwise(bounds)]
            if self._checks.parts is None:
                break
            expected = self._checks.parts[first:stop]
            found = await asyncio.to_thread(_sha256s, pieces)
            wrong = [number for number in range(len(pieces)) if found[number] != expected[number]]
            if not wrong:
                break
        else:
            row = wrong[0]
            raise FormatError(
                f"{self.where}: the SHA-256 of bytes {bounds[row]:,} to {bounds[row + 1] - 1:,} is {found[row][:16]}…, "
                f"manifest.json says {expected[row][:16]}…, at {_TRIES} attempts. It was damaged or replaced: open the "
                "set anew if it was packed anew, or upload its folder again, with manifest.json last"
            )
        for number, at, piece in zip(range(first, stop), bounds, pieces, strict=False):
            if not self.has(number):
                await in_thread(self.file.write, at, piece)

    async def _read(self, start: int, stop: int) -> memoryview:
        """Bytes start..stop-1. Where SHA-256s tell whether they are the right ones, of an object with any ETag: one
        that was uploaded again may have another."""
        starts = range(start, stop, RANGE_BYTES)
        try:
            found = await together(
                [self._objects.read(self._name, at, min(at + RANGE_BYTES, stop), self._tag) for at in starts]
            )
            if any(one.size != self.file.size for one in found):
                raise Replaced
        except Replaced:
            if self._tag is not None and self._checks.parts is not None:
                self._tag = None
                return await self._read(start, stop)
            raise FormatError(f"{self.where}: was replaced since the set was opened. Open it anew") from None
        except NoRanges:
            raise RemoteError(
                f"{self.where}: the server gives no ranges of it any more. Use one that does, or delete "
                f"{self.file.path}, so that the whole is downloaded"
            ) from None
        return memoryview(b"".join(one.data for one in found) if len(found) > 1 else found[0].data)


def _start(coroutine: Any) -> "asyncio.Task[None]":
    """A task that nobody may wait for."""
    task: asyncio.Task[None] = asyncio.create_task(coroutine)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is told to whoever waits
    return task


def _sha256s(pieces: Sequence[memoryview]) -> list[str]:
    return [hashlib.sha256(piece).hexdigest() for piece in pieces]
