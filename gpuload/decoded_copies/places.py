"""The folder of decoded copies, which all processes of a node share: what is there, what is in use, what fits.

    FOLDER/gpuload-decoded-1/lock           held while a copy is begun or removed
    FOLDER/gpuload-decoded-1/NAME/          a copy: a packed folder, once it has its manifest
    FOLDER/gpuload-decoded-1/NAME/copy.json what it is a copy of, and how many bytes it takes: written first
    FOLDER/gpuload-decoded-1/NAME/in-use    locked (shared) by each process that has opened it

Locks are those of `flock`, which end with the process that holds them, however it ends.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.filesize import decimal

from gpuload.checks import PATH
from gpuload.disk.manifest import FILE_NAME
from gpuload.errors import ArgumentError, OutputError
from gpuload.machine.limits import free_memory, is_in_memory
from gpuload.store.cache import default_folder
from gpuload.store.files import Handle, locked, open_own, why_not_own, write_atomically
from gpuload.store.url import refuse_urls

_ROOM = "gpuload-decoded-1"
_FACTS_NAME = "copy.json"
_IN_USE = "in-use"
_REMOVED = ".removed"
_LOCK_S = 600  # to wait for the lock: a process that holds it may be removing a copy
_POLL_S = 0.01
_FREE_SHARE = 0.9  # of what is free, where no limit is given
_FREE_MEMORY = 0.5  # the same of memory, which training needs, too

# The copies that this process has opened, locked until it ends: the loaders of a copy open its shards by their names.
_held: dict[Path, Handle] = {}


@dataclass(frozen=True)
class CopyFacts:
    """What a copy is, as its folder says.

    Attributes:
        of: The folder or URL of the set.
        samples: How many were copied.
        resized: As of `CopiedFrom`.
        bytes: That all of it takes.
    """

    of: str
    samples: int
    resized: str
    bytes: int


@dataclass(frozen=True)
class DecodedCopy:
    """A copy in the folder.

    Attributes:
        folder: Of the copy, whose name is the copy's.
        facts: What it is.
        is_whole: Whether it has been finished.
        used_s: When it was last opened, in seconds since 1970.
    """

    folder: Path
    facts: CopyFacts
    is_whole: bool
    used_s: float

    def in_use(self) -> bool:
        """Whether a process has opened it, or makes it."""
        return not open_own(self.folder / _IN_USE, os.O_RDWR | os.O_CREAT).lock()

    def written(self) -> int:
        """Bytes that it takes now."""
        total = 0
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size
        return total


class CopiesFolder:
    """The folder of decoded copies.

    Args:
        folder: None is the default folder of the cache.
        limit: Largest size of all copies in bytes; None: what is there, and nine tenths of what is free on the disk,
            or half of the free memory where the folder lies in memory.

    Raises:
        ArgumentError: it cannot be created or written, or belongs to others.
    """

    def __init__(
        self, folder: str | Path | None = None, limit: int | None = None
    ) -> None:
        if folder is not None:
            refuse_urls("folder", PATH.read(folder), "Give a folder on a local disk")
        self.folder = Path(default_folder() if folder is None else folder).absolute()
        self.root = self.folder / _ROOM
        self.limit = limit
        try:
            self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            self.root.mkdir(mode=0o700, exist_ok=True)
            fault = why_not_own(self.root)
        except OSError as error:
            raise ArgumentError(
                f"{self.folder}: cannot be written ({error.strerror}). Give another folder="
            ) from None
        if fault:
            raise ArgumentError(
                f"{self.root}: {fault}, so others could replace what is loaded. Delete it, or give your own folder"
            )

    def __iter__(self) -> Iterator[DecodedCopy]:
        """The copies, the one that was used last at the end."""
        copies = list[DecodedCopy]()
        for path in self.root.glob(f"*/{_FACTS_NAME}"):
            if path.parent.suffix == _REMOVED:
                continue
            with suppress(OSError, ValueError, TypeError):
                facts = CopyFacts(**json.loads(path.read_text()))
                is_whole = (path.parent / FILE_NAME).exists()
                used_s = path.stat().st_mtime
                copies.append(DecodedCopy(path.parent, facts, is_whole, used_s))
        return iter(sorted(copies, key=lambda copy: copy.used_s))

    def free(self) -> int:
        """Bytes that are free for copies: those of incomplete ones, up to their sizes, are taken."""
        free = shutil.disk_usage(self.root).free
        share = _FREE_SHARE
        if is_in_memory(self.root):
            memory = free_memory()
            free = free if memory is None else min(free, memory)
            share = _FREE_MEMORY
        if self.limit is None:
            free = int(share * free)
        copies = list(self)
        expected = [
            max(0, copy.facts.bytes - copy.written())
            for copy in copies
            if not copy.is_whole
        ]
        free -= sum(expected)
        if self.limit is not None:
            free = min(free, self.limit - sum(copy.facts.bytes for copy in copies))
        return max(0, free)

    def hold(self, name: str, describe: Callable[[], CopyFacts]) -> Path:
        """The folder of a copy, which is made if there is room, and is not removed before this process ends.

        Copies that no process uses are removed where that makes room, those first that were used longest ago.

        Args:
            name: Of the copy.
            describe: Says what it is, if it is not there.

        Raises:
            ArgumentError: there is no room. OutputError: it cannot be written.
        """
        path = self.root / name
        with self._locked():
            if not (path / _FACTS_NAME).exists():
                facts = describe()
                self._make_room(facts)
                path.mkdir(mode=0o700, exist_ok=True)
                write_atomically(path / _FACTS_NAME, json.dumps(asdict(facts)).encode())
            os.utime(path / _FACTS_NAME)
            # Somebody may have deleted the folder of one that is held.
            if path not in _held or os.fstat(_held[path].number).st_nlink == 0:
                in_use = open_own(path / _IN_USE, os.O_RDWR | os.O_CREAT)
                while not in_use.lock(exclusive=False):
                    time.sleep(_POLL_S)  # another process looks whether it is in use
                _held[path] = in_use
        return path

    def remove(self, names: list[str]) -> list[DecodedCopy]:
        """Removes copies, and returns them.

        Args:
            names: Of the copies; [] for all that are not in use.

        Raises:
            ArgumentError: there is no such copy, or it is in use. OutputError: one cannot be removed.
        """
        with self._locked():
            copies = {copy.folder.name: copy for copy in self}
            for name in names:
                if name not in copies:
                    raise ArgumentError(
                        f"{self.root}: has no copy {name!r}; `python -m gpuload decoded` lists them"
                    )
                if copies[name].in_use():
                    raise ArgumentError(
                        f"{self.root}: {name} is in use. Wait for the end of the processes that have opened it"
                    )
            chosen = [copies[name] for name in names]
            if not names:
                chosen = [copy for copy in copies.values() if not copy.in_use()]
            for copy in chosen:
                _delete(copy.folder)
        return chosen

    def _make_room(self, facts: CopyFacts) -> None:
        """Removes copies that are not in use until a new one fits.

        Raises:
            ArgumentError: it does not fit.
        """
        removable = [copy for copy in self if not copy.in_use()]
        free = self.free()
        while facts.bytes > free and removable:
            rest = free + sum(copy.written() for copy in removable)
            if facts.bytes > rest:
                break  # nothing is gained by removing them
            _delete(removable.pop(0).folder)
            free = self.free()
        if facts.bytes > free:
            room = f"{self.folder} has room for {decimal(free)}"
            remedy = "free some of it"
            if self.limit is not None:
                room = f"{room} by its limit"
                remedy = "a larger limit="
            raise ArgumentError(
                f"decoded: a copy of {facts.samples:,} samples of {facts.of} takes {decimal(facts.bytes)} "
                f"({facts.bytes:,} bytes), and {room}. Give a smaller size=, a selection of the samples, another "
                f"folder=, or {remedy}; `python -m gpuload decoded` lists copies and removes them"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        stuck = OutputError(
            f"{self.root}: another process has held its lock for {_LOCK_S} s; it may be suspended"
        )
        try:
            with locked(self.root / "lock", _LOCK_S, stuck):
                for left in self.root.glob(f"*{_REMOVED}"):  # by a killed process
                    shutil.rmtree(left)
                yield
        except OSError as error:
            raise OutputError(
                f"{self.root}: cannot be written ({error.strerror}). Check the folder and its disk"
            ) from None


def _delete(folder: Path) -> None:
    """Removes a copy. It loses its name first, so that nobody takes what a killed process has left for a copy."""
    removed = folder.with_suffix(_REMOVED)
    folder.rename(removed)
    shutil.rmtree(removed)
