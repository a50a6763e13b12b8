"""Sources at URLs: a folder whose files are read one by one, or files that are copied into a run's scratch folder."""

import errno
import os
import posixpath
import re
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path

from gpuload.disk.manifest import ROOT_FILES
from gpuload.errors import OutputError, RemoteError, SourceError
from gpuload.sources.files import COPIES, PACKED, Files, Names, Ref, Scan, lies_hidden
from gpuload.store.hub import pinned
from gpuload.store.network import background
from gpuload.store.objects import NoSuchObjectError, Objects, expand_url
from gpuload.store.transfer import fetch_file
from gpuload.store.url import URL

_ALSO = "manifest.json"  # beside tars that gpuload packed: their fields and classes
_FILE_OF_ZARR = re.compile(r"(^|/)\.z(group|array|attrs|metadata)$")
_AHEAD = 16  # files that a worker reads at a time, as many as a process has connections


class RemoteFolder(Files):
    """A folder at a URL with all that lies below it.

    It is listed once; on the Hub, at the commit that the URL means then. Addresses are names. Folders that gpuload
    packed are skipped. Files that a worker expects to read are read ahead, in parallel. A server that cannot be
    reached ends the run with RemoteError, since a set must not lack images because of the network.
    """

    def __init__(self, url: URL) -> None:
        self.url = pinned(url)
        self._objects = Objects(self.url)
        self._coming: dict[str, Future[bytes]] = {}
        self._expected = deque[str]()

    def __getstate__(self) -> dict[str, object]:
        return {
            "url": self.url,
            "_objects": self._objects,
            "_coming": {},
            "_expected": deque(),
        }

    def __str__(self) -> str:
        return str(self.url)

    def fault(self) -> str:
        return "" if self._sizes else "holds no file, or does not exist"

    @cached_property
    def _every(self) -> dict[str, int]:
        """The size of each file, by its name."""
        try:
            objects = background().wait(Objects(self.url).list())
        except RemoteError as error:
            raise SourceError(str(error)) from None
        return {name: objects[name].size for name in sorted(objects)}

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """The size of each file that is not hidden, by its name."""
        return {
            name: size for name, size in self._every.items() if not lies_hidden(name)
        }

    @cached_property
    def _names(self) -> Names:
        return Names(self._sizes)

    def scan(self, folder: str) -> Scan:
        folders, files = self._names.scan(folder)
        packed = {
            name for name in folders if self._is_packed(posixpath.join(folder, name))
        }
        return {
            name: "which gpuload packed" if name in packed else "" for name in folders
        }, files

    def _is_packed(self, folder: str) -> bool:
        """Whether gpuload packed this folder; one at the first level also if it holds nothing but such folders."""
        folders, files = self._names.scan(folder)
        if not set(files) <= set(ROOT_FILES) or "/" in folder:
            return set(files) >= PACKED
        return bool(folders) and all(
            self._is_packed(f"{folder}/{name}") for name in folders
        )

    def all_names(self) -> list[str]:
        """Of the files that are not hidden, and those by which Zarr 2 describes its arrays, in all folders, sorted."""
        return [
            name
            for name in self._every
            if name in self._sizes or _FILE_OF_ZARR.search(name)
        ]

    def find(self, name: str) -> Ref:
        if name not in self._every:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return Ref(name, self._every[name], name)

    def read(self, address: str) -> bytes:
        future = self._arriving(address)
        del self._coming[address]
        self._fill()
        try:
            return future.result()
        except NoSuchObjectError:
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), address
            ) from None

    def expect(self, addresses: Sequence[str]) -> None:
        """Reads these files ahead, in this order, some at a time."""
        for future in self._coming.values():
            future.cancel()
        self._coming = {}
        self._expected = deque(addresses)
        self._fill()

    def wait(self, address: str) -> None:
        """Waits until a file has arrived or is known not to exist.

        Raises:
            RemoteError: it cannot be read.
        """
        error = self._arriving(address).exception()
        if isinstance(error, RemoteError) and not isinstance(error, NoSuchObjectError):
            raise error

    def _fill(self) -> None:
        while self._expected and len(self._coming) < _AHEAD:
            self._arriving(self._expected.popleft())

    def _arriving(self, address: str) -> "Future[bytes]":
        if address not in self._coming:
            self._coming[address] = background().start(_read(self._objects, address))
        return self._coming[address]


async def _read(objects: Objects, name: str) -> bytes:
    return bytes((await objects.read_whole(name)).data)


class Copies:
    """The files that a URL means: one, those that fit its wildcards, or those of a folder (`Files.split_files`). A
    resumed run finds the copies of the run before.

    Args:
        url: Of a file, or of a folder, perhaps with wildcards.
        suffixes: With which names of files end.
        takes_all: Whether those of a folder are all that it holds, whatever their names.

    Raises:
        SourceError: there are none. ArgumentError, RemoteError: the URL cannot be listed.
    """

    def __init__(
        self, url: URL, suffixes: Sequence[str], takes_all: bool = False
    ) -> None:
        self.given = url
        self.url = pinned(url)
        self.root = URL(self.url.text.rpartition("/")[0])
        self._beside = list[str]()
        self._is_folder = False
        if "*" in url.text or "[" in url.text:
            self.root = URL(
                self.url.text.partition("*")[0].partition("[")[0].rpartition("/")[0]
            )
            self.names = [
                file.text.removeprefix(f"{self.root}/") for file in expand_url(self.url)
            ]
        elif url.suffix.lower() in suffixes:
            self.names = [url.name]
        else:
            self.root = self.url
            self._is_folder = True
            there = RemoteFolder(self.url)
            self.names = (
                there.all_names() if takes_all else there.split_files(suffixes[0])
            )
            folders = sorted({name.rpartition("/")[0] for name in self.names})
            self._beside = [
                f"{folder}/{_ALSO}".lstrip("/")
                for folder in folders
                if _ALSO in there.names(folder)
            ]
        if wrong := [
            name for name in self.names if {"", ".", ".."} & set(name.split("/"))
        ]:
            raise SourceError(
                f"{url}: lists {wrong[0]!r}, which is no path below it. Copy the files to a disk yourself"
            )
        if not self.names:
            fault = f"holds no {suffixes[0]}" if suffixes else "holds no file"
            raise SourceError(
                f"{url}: {fault}. Give a file, or the folder that holds some"
            )

    def __str__(self) -> str:
        return f"{self.url}: {', '.join(self.names)}"

    def fetch(self, scratch: Path) -> Path:
        """The copies: their folder, or of one file, its path.

        Raises:
            RemoteError: one cannot be read. OutputError: one cannot be written.
        """
        folder = scratch / COPIES
        objects = Objects(self.root)

        try:
            for name in (*self.names, *self._beside):
                if not (folder / name).exists():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    background().wait(
                        fetch_file(objects, name, folder / name)
                    )  # in ranges, several at a time
        except OSError as error:
            fault = f"cannot be written ({error.strerror}), and what is read from {self.given} is copied there"
            raise OutputError(
                f"{folder}: {fault}. Free some space, or copy it to a disk yourself"
            ) from None
        return (
            folder if self._is_folder or len(self.names) > 1 else folder / self.names[0]
        )
