"""A folder on a disk as a container of files."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from gpuload.errors import SourceError
from gpuload.machine.untrusted import open_regular
from gpuload.sources.files import HEAD_BYTES, Files, Ref, is_hidden

_MANIFEST, _INDEX = "manifest.json", "index.arrow"  # in every folder that gpuload packed


class Folder(Files):
    """A folder with all that lies below it.

    Links are followed, except those to a folder above them. Entries are in the order of their names. Addresses are
    names. Folders that gpuload packed are skipped.
    """

    def __init__(self, path: str | Path, around: str = "") -> None:
        self.path = Path(path)
        self.around = around
        self._without: tuple[str, os.stat_result] | None = None
        self._passed_over: dict[str, str] = {}  # of the folders at the first level, which are listed several times

    def inside(self, folder: str) -> "Folder":
        """A folder at the first level as a container, with names relative to it."""
        inner = Folder(self.path / folder, f"{self.around}{folder}/")
        if self._without is not None:
            inner._without = os.path.relpath(self._without[0], folder), self._without[1]
        return inner

    def leave_out(self, folder: str | Path) -> None:
        """Skips the output folder from now on, by whatever name it appears."""
        self._without, self._passed_over = None, {}
        with suppress(OSError):
            self._without = os.path.relpath(os.path.realpath(folder), os.path.realpath(self.path)), os.stat(folder)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_passed_over": {}}

    def __str__(self) -> str:
        return str(self.path)

    def fault(self) -> str:
        try:
            return "" if stat.S_ISDIR(os.stat(self.path).st_mode) else "is a file, not a folder"
        except FileNotFoundError:
            return "no such folder"
        except OSError as error:  # such as links in a circle
            return f"cannot be opened ({error.strerror})"

    def scan(self, folder: str) -> tuple[dict[str, str], list[str]]:
        path = os.path.join(self.path, folder) if folder else str(self.path)
        try:
            with os.scandir(path) as scan:
                entries = [entry for entry in scan if not is_hidden(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return {}, []
        except OSError as error:
            raise SourceError(
                f"{path}: cannot be listed ({error.strerror}). Correct its permissions, or move it elsewhere"
            ) from None
        start = f"{folder}/" if folder else ""
        folders, files = dict[str, str](), list[str]()
        for entry in entries:
            if _is_dir(entry):
                folders[entry.name] = self._why_passed_over(entry, f"{start}{entry.name}")
            else:
                files.append(entry.name)
        return folders, files

    def _why_passed_over(self, entry: os.DirEntry[str], name: str) -> str:
        if "/" in name:
            return self._is_left_out(entry, name) or ("which gpuload packed" if holds_packed_set(entry.path) else "")
        if name not in self._passed_over:
            is_packed = holds_packed_set(entry.path) or holds_packed_splits(entry.path)
            self._passed_over[name] = self._is_left_out(entry, name) or ("which gpuload packed" if is_packed else "")
        return self._passed_over[name]

    def _is_left_out(self, entry: os.DirEntry[str], name: str) -> str:
        if entry.is_symlink() and _leads_back(entry, name):
            return "a link to a folder that it lies in"
        if self._without is not None:
            path, status = self._without
            # The number of a folder's inode costs nothing here, but that of a mounted one is another.
            maybe = entry.is_symlink() or entry.inode() == status.st_ino or name == path
            if maybe and os.path.samestat(os.stat(entry.path), status):
                return "the output folder"
        return ""

    def find(self, name: str) -> Ref:
        """A file by a name from a text, which may not lead out of the folder."""
        if ".." in name or name.startswith("/"):
            whole = os.path.abspath(self.path)
            name = os.path.relpath(os.path.normpath(os.path.join(whole, name)), whole)
            if name.split("/")[0] == "..":
                raise PermissionError(errno.EPERM, "leads out of the folder", name)
        status = os.stat(os.path.join(self.path, name))
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "is not a regular file", name)
        return Ref(name, status.st_size, name)

    def read(self, address: str) -> bytes:
        return read_file(os.path.join(self.path, address))

    def head(self, name: str) -> bytes:
        try:
            with open_regular(os.path.join(self.path, name), buffering=0) as file:
                return file.read(HEAD_BYTES)
        except OSError:
            return b""


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as links in a circle
        return False


def _leads_back(entry: os.DirEntry[str], name: str) -> bool:
    """Whether a link leads to a folder above it."""
    above, target = os.path.dirname(entry.path), os.stat(entry.path)
    for _ in range(name.count("/") + 1):
        if os.path.samestat(os.stat(above), target):
            return True
        above = os.path.dirname(above)
    return False


def read_file(path: str | os.PathLike[str]) -> bytes:
    """A whole file, in less time than `open` and `read` take where it is cached.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    with open_regular(path, buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1)
        return data if len(data) == size else data + file.read()  # it grew


def holds_packed_set(path: str) -> bool:
    """Whether gpuload packed this folder, or indexed it."""
    return all(os.path.exists(os.path.join(path, name)) for name in (_MANIFEST, _INDEX))


def holds_packed_splits(path: str) -> bool:
    """Whether this folder holds nothing but packed folders, as the output folder of a run does."""
    found = False
    try:
        with os.scandir(path) as scan:
            for entry in scan:
                if entry.name.startswith("."):
                    continue
                if not entry.is_dir() or not holds_packed_set(entry.path):
                    return False
                found = True
    except OSError:
        return False
    return found
