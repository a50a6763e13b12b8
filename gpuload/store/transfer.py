"""Downloads: one object into a file, in parallel ranges, checked; and the parts of one that were needed."""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpuload.errors import FormatError, RemoteError, ShardError
from gpuload.store.files import (
    open_new,
    open_own,
    read_own,
    start_writeback,
    write_at,
    write_atomically,
)
from gpuload.store.network import background, together
from gpuload.store.objects import (
    RANGE_BYTES,
    NoSuchObjectError,
    Objects,
    ReplacedError,
)

_BLOCK_BYTES = 1 << 20  # hashed at a time
_PIECE_BYTES = 64 << 20  # hashed between two checks for cancellation
_AHEAD = 16  # ranges of one object under way: all that a process has connections for
_TRIES = 3  # of an object whose bytes are wrong, or that is replaced meanwhile
_TURN_BYTES = (
    4 * RANGE_BYTES
)  # of an index, downloaded before another process has its turn
_POLL_S = 0.02  # while another process downloads


async def download(
    objects: Objects,
    name: str,
    handle: int,
    *,
    size: int | None = None,
    most: int | None = None,
    sha256: str | None = None,
    arrived: Callable[[], None] = lambda: None,
) -> None:
    """Writes an object into an open file.

    Args:
        objects: The service.
        name: Of the object below its URL.
        handle: Descriptor of the file.
        size: That it must have, in bytes; None: any.
        most: That it may have, in bytes; None: any.
        sha256: That it must have; None: any.
        arrived: Called when all of it is here; it is checked then.

    Raises:
        RemoteError: it cannot be read, or is too long. ShardError: it has another size or SHA-256, also when it is
        read again. OSError: the file cannot be written.
    """
    fault = ""
    part = _Written(handle, sha256 is not None, arrived)

    def begin(object_bytes: int) -> None:
        if most is not None and object_bytes > most:
            raise RemoteError(
                f"{objects.url / name}: is {object_bytes:,} bytes, expected {most:,} at most. Check the URL"
            )
        if size not in (None, object_bytes):
            raise ReplacedError(
                f"is {object_bytes:,} bytes, manifest.json says {size:,}"
            )
        part.begin(object_bytes)

    for _ in range(_TRIES):
        try:
            await objects.copy(name, begin, part.take, at_a_time=_AHEAD)
        except ReplacedError as error:
            fault = str(error) or "it is replaced again and again"
            continue
        digest = part.digest.hexdigest()
        if sha256 in (None, digest):
            return
        fault = (
            f"its SHA-256 is {digest[:16]}…, manifest.json says {(sha256 or '')[:16]}…"
        )
    raise ShardError(
        f"{objects.url / name}: {fault}, at {_TRIES} attempts. It was damaged or replaced: upload it again, with "
        "manifest.json last, or open the set anew if it was packed anew"
    )


class _Written:
    """A file that is written in pieces. Whoever has written one hashes all that is there in order, unless somebody does
    so already: no other download waits for that."""

    def __init__(self, handle: int, hashes: bool, arrived: Callable[[], None]) -> None:
        self._handle = handle
        self._hashes = hashes
        self._arrived = arrived

    def begin(self, size: int) -> None:
        os.ftruncate(self._handle, size)  # a longer one may have been there
        self.digest = hashlib.sha256()
        self._hashed = 0
        self._missing = size
        self._is_hashing = False
        self._ends: dict[int, int] = {}  # of what was written, by where it begins

    async def take(self, at: int, data: Any) -> None:
        await in_thread(_write_out, self._handle, at, memoryview(data))
        self._ends[at] = at + len(data)
        self._missing -= len(data)
        if not self._missing:
            self._arrived()
        if self._is_hashing or not self._hashes:
            return
        self._is_hashing = True
        while (end := self._ends.get(self._hashed)) is not None:
            await in_thread(hash_at, self.digest, self._handle, self._hashed, end)
            self._hashed = end
        self._is_hashing = False


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
        RemoteError, ShardError: as `download`. OSError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    file = open_new(part)
    try:
        await download(objects, name, file.number, size=size, most=most, sha256=sha256)
        await asyncio.to_thread(os.fdatasync, file.number)
        part.rename(path)
    finally:
        file.close()
        part.unlink(missing_ok=True)


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
    for start in range(0, size, _PIECE_BYTES):
        await in_thread(hash_at, digest, handle, start, min(start + _PIECE_BYTES, size))
    return digest.hexdigest()


def hash_at(digest: Any, handle: int, position: int, end: int) -> None:
    """Adds bytes position..end-1 of a file to a digest.

    Reads back what was written, which lies in memory: what is checked is what will be read, and no buffer waits for it.
    That copies 9 GB/s, where SHA-256 takes 1.2 (one core with SHA instructions, 2026-11).
    """
    block = memoryview(bytearray(min(_BLOCK_BYTES, end - position)))
    while position < end:
        read = os.preadv(handle, [block[: end - position]], position)
        if not read:
            raise OSError("the file was truncated")
        digest.update(block[:read])
        position += read


class Parts:
    """The parts of an object, which adjoin.

    Args:
        objects: Those at a URL.
        names: That the object may have, the usual one first. Of several objects, the one with the right bytes counts.
        folder: Of the cache.
        spans: Where each part begins and ends, and its SHA-256.

    Attributes:
        where: The subject of messages.
    """

    def __init__(
        self,
        objects: Objects,
        names: Sequence[str],
        folder: Path,
        spans: Sequence[tuple[int, Any, str]],
    ) -> None:
        self.where = f"{objects.url / names[0]}"
        self._objects = objects
        self._names = tuple(names)
        self._folder = folder
        self._spans = spans
        self._turn = asyncio.Lock()

    def has(self, number: int) -> bool:
        """Whether a part is in the cache: 1 µs."""
        return os.path.lexists(self._path(number))

    def read(self, number: int) -> bytes:
        """A part's bytes, downloaded where they are missing or damaged.

        Raises:
            RemoteError, FormatError: as `get`, or what has its name in the cache is no file of this user.
        """
        for _ in range(_TRIES):
            if (data := read_own(self._path(number))) and self._is_right(number, data):
                return data
            self._path(number).unlink(missing_ok=True)
            self.wait([number])
        raise RemoteError(
            f"{self._path(number)}: is damaged as soon as it is written. Check the disk"
        )

    def wait(self, numbers: Iterable[int]) -> None:
        """As `get`, in any thread."""
        if missing := [number for number in numbers if not self.has(number)]:
            background().wait(self.get(missing))

    async def get(self, numbers: Iterable[int]) -> None:
        """Downloads those of these parts that are missing.

        Raises:
            RemoteError: they cannot be read, or written to the cache. FormatError: they are not those of the manifest.
        """
        for turn in self._grouped(numbers, _TURN_BYTES):
            try:
                async with self._turn, self._locked():
                    await together(
                        [
                            self._download(run)
                            for run in self._grouped(turn, RANGE_BYTES, adjoining=True)
                        ]
                    )
            except OSError as error:
                raise RemoteError(
                    f"{self._folder}: cannot be written ({error.strerror}). Free some of its disk"
                ) from None

    def _path(self, number: int) -> Path:
        return self._folder / f"rows-{number:06}"

    def _is_right(self, number: int, data: bytes | memoryview) -> bool:
        return hashlib.sha256(data).hexdigest() == self._spans[number][2]

    def _grouped(
        self, numbers: Iterable[int], most: int, adjoining: bool = False
    ) -> list[list[int]]:
        """The missing ones of these parts, in ascending groups of at most so many bytes, or of one part."""
        groups: list[list[int]] = []
        size = 0
        for number in sorted(set(numbers)):
            if self.has(number):
                continue
            begin, end, _ = self._spans[number]
            size += (length := end - begin)
            if (
                not groups
                or size > most
                or (adjoining and groups[-1][-1] != number - 1)
            ):
                groups.append([])
                size = length
            groups[-1].append(number)
        return groups

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Around what one process of the node does at a time."""
        self._folder.mkdir(
            mode=0o700, parents=True, exist_ok=True
        )  # an older version's folder may have been removed
        lock = open_own(self._folder / "rows.lock", os.O_RDWR | os.O_CREAT)
        since = 0.0
        before = -1
        try:
            while not lock.lock():
                if (progress := os.stat(self._folder).st_mtime_ns) != before:
                    since = time.monotonic()
                    before = progress
                if time.monotonic() - since > self._objects.patience.give_up_s:
                    raise RemoteError(
                        f"{self.where}: another process downloads it, and has made no progress; it may be suspended"
                    )
                await asyncio.sleep(_POLL_S)
            yield
        finally:
            lock.close()

    async def _download(self, run: Sequence[int]) -> None:
        """Downloads parts that follow one another, in one range, or several where a single part is larger."""
        wrong = list(run)
        for name in self._names * _TRIES:
            data = await self._read(name, run)
            wrong = await asyncio.to_thread(self._keep, run, memoryview(data))
            if not wrong:
                return
        begin, end, _ = self._spans[wrong[0]]
        raise FormatError(
            f"{self.where}: the SHA-256 of bytes {begin:,} to {end - 1:,} is not that of manifest.json, at {_TRIES} "
            "attempts. It was damaged or replaced: open the set anew if it was packed anew, or upload its folder "
            "again, with manifest.json last"
        )

    async def _read(self, name: str, run: Sequence[int]) -> bytearray:
        """The bytes of parts that follow one another, or fewer where the object of this name is another one; none
        where there is no object of a name that is not the usual one."""
        begin = self._spans[run[0]][0]
        end = self._spans[run[-1]][1]
        data = bytearray()
        try:
            for start in range(begin, end, RANGE_BYTES):
                stop = min(start + RANGE_BYTES, end)
                piece = await self._objects.read(name, start, stop)
                data += piece.data
                if piece.size != self._spans[-1][1]:  # it was replaced
                    break
        except NoSuchObjectError:
            if name == self._names[0]:
                raise
        return data

    def _keep(self, run: Sequence[int], data: memoryview) -> list[int]:
        """Writes the parts that are right; returns the others."""
        wrong = []
        first = self._spans[run[0]][0]
        for number in run:
            begin, end, _ = self._spans[number]
            part = data[begin - first : end - first]
            if self._is_right(number, part):
                write_atomically(self._path(number), part, sync=False)
            else:
                wrong.append(number)
        return wrong
