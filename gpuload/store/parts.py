"""Ranges of an object, each downloaded when it is first needed into a file of its own in the cache.

A file gets its name once its SHA-256 was right, and whoever reads it compares it again: nothing has to be synced or
marked, and a process may be killed at any moment. The processes of a node take turns, for a few MB at a time.

Everything runs in the event loop of `background`; `wait` and `read` may be called in any other thread.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gpuload.errors import FormatError, RemoteError
from gpuload.store.background import background
from gpuload.store.files import open_own, read_own, write_atomically
from gpuload.store.objects import RANGE_BYTES, Objects
from gpuload.store.transfer import together

_TURN_BYTES = 4 * RANGE_BYTES  # downloaded before another process has its turn
_TRIES = 3  # of parts whose bytes are wrong
_POLL_S = 0.02  # while another process downloads


class Parts:
    """The parts of an object, of which number n holds bytes bounds[n]..bounds[n + 1]-1; the last one ends the object.

    name: of the object. folder: of the cache. digests: the SHA-256 of each part. where: subject of messages.
    """

    def __init__(
        self, objects: Objects, name: str, folder: Path, bounds: Sequence[int], digests: Sequence[str]
    ) -> None:
        self.where = f"{objects.url / name}"
        self._objects, self._name, self._folder = objects, name, folder
        self._bounds, self._digests = bounds, digests
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
        raise RemoteError(f"{self._path(number)}: is damaged as soon as it is written. Check the disk")

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
                    await together([self._download(run) for run in self._grouped(turn, RANGE_BYTES, adjoining=True)])
            except OSError as error:
                raise RemoteError(
                    f"{self._folder}: cannot be written ({error.strerror}). Free some of its disk"
                ) from None

    def _path(self, number: int) -> Path:
        return self._folder / f"rows-{number:06}"

    def _is_right(self, number: int, data: bytes | memoryview) -> bool:
        return hashlib.sha256(data).hexdigest() == self._digests[number]

    def _grouped(self, numbers: Iterable[int], most: int, adjoining: bool = False) -> list[list[int]]:
        """The missing ones of these parts, in ascending groups of at most so many bytes, or of one part."""
        groups: list[list[int]] = []
        size = 0
        for number in sorted(set(numbers)):
            if self.has(number):
                continue
            size += (length := self._bounds[number + 1] - self._bounds[number])
            if not groups or size > most or (adjoining and groups[-1][-1] != number - 1):
                groups.append([])
                size = length
            groups[-1].append(number)
        return groups

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Around what one process of the node does at a time."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # an older version's folder may have been removed
        lock, since, before = open_own(self._folder / "rows.lock", os.O_RDWR | os.O_CREAT), 0.0, -1
        while not lock.lock():
            if (progress := os.stat(self._folder).st_mtime_ns) != before:
                since, before = time.monotonic(), progress
            if time.monotonic() - since > self._objects.patience.give_up_s:
                raise RemoteError(
                    f"{self.where}: another process downloads it, and has made no progress; it may be suspended"
                )
            await asyncio.sleep(_POLL_S)
        try:
            yield
        finally:
            lock.release()

    async def _download(self, run: Sequence[int]) -> None:
        """Downloads parts that follow one another."""
        for _ in range(_TRIES):
            data = await self._read(self._bounds[run[0]], self._bounds[run[-1] + 1])
            wrong = await asyncio.to_thread(self._keep, run, data)
            if wrong < 0:
                return
        begin, end = self._bounds[wrong : wrong + 2]
        raise FormatError(
            f"{self.where}: the SHA-256 of bytes {begin:,} to {end - 1:,} is not {self._digests[wrong][:16]}…, which "
            f"manifest.json says, at {_TRIES} attempts. It was damaged or replaced: open the set anew if it was packed "
            "anew, or upload its folder again, with manifest.json last"
        )

    def _keep(self, run: Sequence[int], data: memoryview) -> int:
        """Writes the parts that are right; returns the last one that is not, or -1."""
        wrong, first = -1, self._bounds[run[0]]
        for number in run:
            part = data[self._bounds[number] - first : self._bounds[number + 1] - first]
            if self._is_right(number, part):
                write_atomically(self._path(number), part, sync=False)
            else:
                wrong = number
        return wrong

    async def _read(self, start: int, stop: int) -> memoryview:
        starts = range(start, stop, RANGE_BYTES)
        found = await together([self._objects.read(self._name, at, min(at + RANGE_BYTES, stop)) for at in starts])
        if any(one.size != self._bounds[-1] for one in found):
            raise FormatError(f"{self.where}: was replaced since the set was opened. Open it anew")
        return memoryview(b"".join(one.data for one in found) if len(found) > 1 else found[0].data)
