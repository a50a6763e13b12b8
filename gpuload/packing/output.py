"""The packer's output folder: locked for one run, and never left half-filled."""

import ctypes
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from gpuload.disk import manifest as manifest_file
from gpuload.errors import OutputError
from gpuload.packing.shard import ShardJob
from gpuload.store.files import Handle
from gpuload.store.url import URL

SCRATCH_NAME = ".packing"
_DONE_NAME = ".packing-done"  # the scratch folder while it is being removed

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


class Output:
    """An output folder locked for one run of the packer, with a scratch folder inside.

    where: its name in messages. resume: continue an interrupted run if there is one; `resumed` tells whether there was,
        `finished` whether the folder already holds a complete set. append: the folder holds a set, which is kept.
    overwrite: the folder may hold a set; `path` is then a folder beside it, which replaces it at the end.

    Leaving the `with` block without an error removes the scratch folder. After an error everything that the run wrote
    is removed too, so that the folder is as it was, unless `keep` was set, which lets a later run continue.

    Raises:
        OutputError: the folder is not empty, is in use by another packer, or cannot be created or written.
    """

    def __init__(self, path: str | Path, *, resume: bool = False, append: bool = False, overwrite: bool = False):
        self.final = self.path = Path(path)
        self.where: Path | URL = self.final
        self.append, self.keep, self.finished = append, False, False
        self._created = [folder for folder in (self.final, *self.final.parents) if not folder.exists()]
        advice = "Choose another output folder"
        with ExitStack() as undone:
            self._lock = lock_folder(self.final, f"{self.final}: is in use by another packer", advice)
            undone.callback(self._lock.close)
            try:
                self._open(resume, overwrite)
            except OSError as error:
                raise OutputError(f"{self.final}: cannot be written ({error.strerror}). {advice}") from None
            undone.pop_all()

    def _open(self, resume: bool, overwrite: bool) -> None:
        shutil.rmtree(self.final / _DONE_NAME, ignore_errors=True)
        if overwrite and self._holds_set():
            self.path = self.final.absolute().with_name(f".{self.final.name}{SCRATCH_NAME}")
            self.path.mkdir(exist_ok=True)
        self.scratch = self.path / SCRATCH_NAME
        self.resumed = resume and self.scratch.exists()
        self.finished = resume and not self.resumed and not self.append and not overwrite and self._holds_set()
        if self.resumed or self.finished:
            return
        if self.scratch.exists():
            raise OutputError(
                f"{self.final}: holds an interrupted run. Continue it with --resume, or delete the folder and pack "
                "again"
            )
        check_holds(self.final, sorted(entry.name for entry in self.path.iterdir()), self.append, self._holds_set())
        self.scratch.mkdir()

    def split_folder(self, name: str) -> Path:
        """The folder of a split, created if it does not exist."""
        folder = self.path / name
        folder.mkdir(exist_ok=self.resumed or self.append)
        return folder

    def packed_splits(self) -> dict[str, Path]:
        """Name and folder of each complete split, sorted by name."""
        found = sorted(entry for entry in self.path.iterdir() if (entry / manifest_file.FILE_NAME).exists())
        return {folder.name: folder for folder in found}

    def clear_scratch(self) -> None:
        """Empties the scratch folder, which holds nothing that a run could continue."""
        shutil.rmtree(self.scratch)
        self.scratch.mkdir()
        self.resumed = False

    def take(self, job: ShardJob) -> None:
        """Called when a shard is finished, in this run or an earlier one; may block while earlier shards are
        uploaded."""

    def publish(self, splits: Sequence[str]) -> None:
        """Called when these splits are complete in `path`."""

    def _holds_set(self) -> bool:
        """Whether the folder holds splits, each with a manifest, and nothing else."""
        entries = [entry for entry in self.final.iterdir() if entry.name != SCRATCH_NAME]
        return bool(entries) and all((entry / manifest_file.FILE_NAME).exists() for entry in entries)

    def __enter__(self) -> "Output":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
            elif not self.keep:
                self._undo()
        finally:
            self._lock.close()

    def _finish(self) -> None:
        with suppress(FileNotFoundError):
            self.scratch.rename(self.path / _DONE_NAME)
        shutil.rmtree(self.path / _DONE_NAME, ignore_errors=True)
        os.fsync(self._lock.number)
        if self.path != self.final:
            _exchange(self.path, self.final)
            shutil.rmtree(self.path)

    def _undo(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        if not self.append:
            for entry in self.path.iterdir():
                shutil.rmtree(entry, ignore_errors=True)
        with suppress(OSError):
            if self.path != self.final:
                self.path.rmdir()
            for folder in self._created:
                folder.rmdir()


def lock_folder(folder: Path, busy: str, advice: str) -> Handle:
    """Creates a folder if it does not exist, and takes its lock.

    Raises:
        OutputError: it cannot be created, or another process holds the lock, which `busy` says.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = Handle(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise OutputError(f"{folder}: cannot be created ({error.strerror}). {advice}") from None
    if not lock.lock():
        lock.close()
        raise OutputError(f"{busy}. Wait for it to end. {advice}")
    return lock


def check_holds(where: object, names: Sequence[str], append: bool, is_set: bool) -> None:
    """Raises OutputError unless there is what a new run needs: a set for append, else nothing.

    names: of what is there. is_set: whether that is a packed set.
    """
    if append and not is_set:
        raise OutputError(f"{where}: holds no packed set for --append. Pack one first, without --append")
    if names and not append:
        what = "a packed set, to which --append adds" if is_set else repr(names[0])
        raise OutputError(f"{where}: is not empty, it holds {what}. Choose another place, or empty this one")


def _exchange(one: Path, other: Path) -> None:
    """Swaps two folders atomically, so that both names exist at any time.

    Raises:
        OSError: the file system does not support it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
