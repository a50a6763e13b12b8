"""The packer's output folder: locked for one run, and never left half-filled; and the files that describe shards."""

import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.disk import Manifest, write_index
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.manifest import TIMM_NAME, write_timm_info
from gpuload.errors import OutputError
from gpuload.packing.options import PackOptions
from gpuload.sources.listing import Rejection
from gpuload.store.files import Handle, replaced, write_atomically
from gpuload.store.url import URL

REJECTED_NAME = "rejected.jsonl"

# The files of a split that are saved while shards are appended to it.
BASE_FILES = (manifest_file.FILE_NAME, index_file.FILE_NAME, REJECTED_NAME)

SCRATCH_NAME = ".packing"
STATE_NAME = "state.json"  # in the scratch folder, once the run is planned; before, nothing else is written
_DONE_NAME = ".packing-done"  # the scratch folder while it is being removed

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


class Output:
    """An output folder locked for one run of the packer, with a scratch folder inside.

    where: its name in messages. resumed: whether there is an interrupted run, which is continued. finished: whether the
        folder already holds a complete set. append: whether the folder holds a set, which is kept. path: the folder, or
        the one beside it that replaces it at the end.

    Leaving the `with` block without an error removes the scratch folder. After an error everything that the run wrote
    is removed too, so that the folder is as it was, unless `keep` was set, which lets a later run continue.

    Raises:
        OutputError: the folder is not empty, is in use by another packer, or cannot be created or written.
    """

    advice = "Choose another output folder"

    def __init__(self, folder: Path, options: PackOptions, where: Path | URL | None = None) -> None:
        self.final = self.path = folder
        self.where: Path | URL = where or folder
        self.append, self.keep, self.finished = options.append, False, False
        self._created = [one for one in (folder, *folder.parents) if not one.exists()]
        with ExitStack() as undone, cannot_write(self.advice, folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = Handle(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            undone.callback(self._lock.close)
            if not self._lock.lock():
                raise OutputError(f"{self.where}: is in use by another packer. Wait for it to end. {self.advice}")
            self._open(options)
            undone.pop_all()

    def _open(self, options: PackOptions) -> None:
        shutil.rmtree(self.path / _DONE_NAME, ignore_errors=True)
        names = sorted(entry.name for entry in self.path.iterdir() if entry.name != SCRATCH_NAME)
        is_set = bool(names) and names == [*self.packed_splits()]  # and nothing else
        if options.overwrite and is_set:
            self.path = self.final.absolute().with_name(f".{self.final.name}{SCRATCH_NAME}")
            if not (self.path / SCRATCH_NAME).exists():  # the old set, whose removal was interrupted
                shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(exist_ok=True)
        self.scratch = self.path / SCRATCH_NAME
        self.resumed = options.resume and self.scratch.exists()
        self.finished = options.resume and not (self.resumed or self.append or options.overwrite) and is_set
        if self.finished or (self.resumed and (self.scratch / STATE_NAME).exists()):
            return
        if self.scratch.exists() and not self.resumed:
            raise OutputError(
                f"{self.where}: holds an interrupted run. Continue it with --resume, or delete the folder and pack "
                "again"
            )
        check_holds(self.where, sorted({*os.listdir(self.path)} - {SCRATCH_NAME}), self.append, is_set)
        self.scratch.mkdir(exist_ok=True)

    def packed_splits(self) -> dict[str, Path]:
        """Name and folder of each complete split, sorted by name."""
        found = sorted(entry for entry in self.path.iterdir() if (entry / manifest_file.FILE_NAME).exists())
        return {folder.name: folder for folder in found}

    def clear_scratch(self) -> None:
        """Empties the scratch folder, which holds nothing that a run could continue."""
        shutil.rmtree(self.scratch)
        self.scratch.mkdir()
        self.resumed = False

    def base_folder(self, split: str) -> Path:
        """Where `save_base` saves the files of a split."""
        return self.scratch / f"{split}.base"

    def save_base(self, split: str) -> None:
        """Saves hard links to the files that describe a split, before shards are appended to it."""
        base = self.base_folder(split)
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir()
        for name in BASE_FILES:
            if (self.path / split / name).exists():
                os.link(self.path / split / name, base / name)

    def read_base(self, split: str) -> Manifest:
        """The saved manifest of a split to which shards are appended; an empty one of a new split."""
        folder = self.base_folder(split)
        return Manifest.read(folder) if (folder / manifest_file.FILE_NAME).exists() else Manifest((), ())

    def take(self, shard: Path, marker: Path) -> None:
        """Called when a shard is finished, in this run or an earlier one; may block while earlier shards are uploaded.

        marker: the file that says of an uploaded one what it was.
        """

    def publish(self, splits: Sequence[str]) -> None:
        """Called when these splits are complete in `path`."""

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            if kind is None:
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


@contextmanager
def cannot_write(advice: str, where: object = None) -> Iterator[None]:
    """Raises OutputError for each OSError in the block. where: what is written; None: the file of the error, or the
    folder for temporary files."""
    try:
        yield
    except OSError as error:
        named = where or error.filename or tempfile.gettempdir()
        raise OutputError(f"{named}: cannot be written ({error.strerror or error}). {advice}") from None


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


def describe(folder: Path, manifest: Manifest, rows: Iterable[pa.RecordBatch], points: bool = False) -> Manifest:
    """Writes the files that describe the shards of a folder: their index, and last, once all else is on disk, their
    manifest, completed by what the index says, which is returned.

    rows: of each shard. points: see `write_index`.
    """
    path = folder / index_file.FILE_NAME
    largest: dict[str, Any] = dict.fromkeys(("width", "height", "image_bytes"), 0)
    with replaced(path) as temporary, write_index(temporary, manifest.fields, points) as write:
        for batch in rows:
            write(batch)
            largest = {name: int(batch.column(name).to_numpy().max(initial=most)) for name, most in largest.items()}
    manifest = replace(manifest, **largest, **index_file.index_digests(path))
    write_timm_info(folder, manifest)
    _sync(folder)
    manifest.write(folder)
    _sync(folder)
    return manifest


def _sync(folder: Path) -> None:
    """Syncs the files that describe a split, and their folder, to disk."""
    names = (name for name in (*BASE_FILES, TIMM_NAME, ".") if (folder / name).exists())
    for name in names:
        descriptor = os.open(folder / name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def write_json(path: Path, content: object) -> None:
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def write_lines(path: Path, entries: Iterable[Mapping[str, Any]], before: Path | None = None) -> None:
    """Writes the lines that the file `before` has, if there is one, then each entry as a line of JSON.

    Never in place: `save_base` may have linked the existing file.
    """
    kept = before.read_bytes() if before is not None and before.exists() else b""
    write_atomically(path, kept + "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in entries).encode())


def as_line(rejection: Rejection) -> dict[str, Any]:
    """A sample that was left out, as an entry of `rejected.jsonl`."""
    asked = {"asked": True} if rejection.asked else {}
    return {"source": rejection.source, "reason": rejection.reason, **asked}
