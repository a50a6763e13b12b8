"""Files in a folder of a bucket, or of a data set of the Hugging Face Hub."""

import errno
import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future

from gpuload.errors import RemoteError, SourceError
from gpuload.sources.files.base import Found, PassedOver
from gpuload.store.background import background
from gpuload.store.hub import pinned
from gpuload.store.listing import Listed
from gpuload.store.objects import NoSuchObjectError, Objects
from gpuload.store.remote_set import read_whole
from gpuload.store.url import URL

_AHEAD = 16  # files that a worker reads at a time, as many as a process has connections
_PACKED = {"manifest.json", "index.arrow"}  # in every folder that gpuload packed


class RemoteFolder:
    """A folder at a URL with all that lies below it; `Files` says what the methods do.

    It is listed once. Addresses are names. Folders that gpuload packed are passed over. What a worker is going to read
    (`expect`) is read ahead, in parallel. A server that cannot be reached ends the run, by RemoteError: a set must not
    lack images because of the network.
    """

    def __init__(self, url: URL) -> None:
        self.url = url
        self._objects = Objects(url)
        self._files: dict[str, int] | None = None
        self._coming: dict[str, Future[bytes]] = {}
        self._expected: deque[str] = deque()

    def __getstate__(self) -> dict[str, object]:
        return {"url": self.url, "_objects": self._objects}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]

    def __str__(self) -> str:
        return str(self.url)

    def fault(self) -> str:
        return "" if self.all_names() else "holds no file, or there is no such folder"

    def folders(self, below: str = "") -> list[str]:
        return sorted({name.partition("/")[0] for name in self._inside(below) if "/" in name})

    def names(self, below: str = "") -> list[str]:
        return sorted(name for name in self._inside(below) if "/" not in name)

    def _inside(self, below: str) -> list[str]:
        start = f"{below}/" if below else ""
        return [name.removeprefix(start) for name in self._listed() if name.startswith(start)]

    def walk(self, extensions: Collection[str], passed: PassedOver) -> Iterator[Found]:
        passed.notes.extend(f"passed over {folder!r}, which gpuload packed" for folder in self._packed)
        for name, size in self._listed().items():
            if passed.wants(name, extensions):
                yield Found(name, size, name)

    def all_names(self) -> list[str]:
        self._listed()
        return self._all

    def find(self, name: str) -> Found:
        if name not in self._listed():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return Found(name, self._listed()[name], name)

    def read(self, address: str) -> bytes:
        future = self._coming.pop(address, None) or self._start(address)
        self._fill()
        try:
            return future.result()
        except NoSuchObjectError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address) from None

    def expect(self, addresses: Sequence[str]) -> None:
        """Reads these files ahead, in this order, some at a time."""
        for future in self._coming.values():
            future.cancel()
        self._coming, self._expected = {}, deque(addresses)
        self._fill()

    def wait(self, address: str) -> None:
        """Waits until a file that is read ahead is here, or does not exist.

        Raises:
            RemoteError: it cannot be read.
        """
        if (future := self._coming.get(address)) is not None:
            error = future.exception()
            if isinstance(error, RemoteError) and not isinstance(error, NoSuchObjectError):
                raise error

    def _fill(self) -> None:
        while self._expected and len(self._coming) < _AHEAD:
            address = self._expected.popleft()
            if address not in self._coming:
                self._coming[address] = self._start(address)

    def _start(self, address: str) -> "Future[bytes]":
        return background().start(_read(self._objects, address))

    def _listed(self) -> dict[str, int]:
        """The size of each file that is not hidden, by its name, folder by folder."""
        if self._files is None:
            try:
                found = background().wait(Listed(self.url).list())
            except RemoteError as error:
                raise SourceError(str(error)) from None
            names = sorted((name for name in found if not _is_hidden(name)), key=lambda name: name.split("/"))
            self._all = names
            self._packed = _packed_folders(names)
            below = tuple(f"{folder}/" for folder in self._packed)
            self._files = {name: found[name].size for name in names if not name.startswith(below)}
        return self._files


async def _read(objects: Objects, name: str) -> bytes:
    return bytes((await read_whole(objects, name)).data)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _packed_folders(names: Sequence[str]) -> list[str]:
    """Folders that gpuload packed, below the given one."""
    known = set(names)
    ends = [name.rpartition("/")[0] for name in names if name.endswith("/index.arrow")]
    return [folder for folder in ends if all(f"{folder}/{name}" in known for name in _PACKED)]


def open_remote(url: URL) -> RemoteFolder:
    """The container at a URL; of the Hub, at the commit that it means now."""
    return RemoteFolder(pinned(url))
