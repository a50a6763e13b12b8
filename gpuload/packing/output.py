"""The packer's output folder: locked for one run, and never left half-filled; and the files that describe shards."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.disk import Manifest, write_index
from gpuload.disk import index as index_file
from gpuload.disk import manifest as manifest_file
from gpuload.disk.card import is_unedited, write_card
from gpuload.disk.commit import NEXT_NAME, commit, settle, sync
from gpuload.disk.manifest import CARD_NAME, ROOT_FILES, write_timm_info
from gpuload.errors import OutputError, some_of
from gpuload.fields.rows import numbers_of
from gpuload.packing.options import PackOptions
from gpuload.packing.own_files import (
    DESCRIPTIONS,
    EXCHANGE,
    REJECTED_NAME,
    STATE_NAME,
    find_foreign,
    is_scratch,
    make_scratch,
    move_others,
    remove_files,
    remove_scratch,
    remove_set,
    rename,
)
from gpuload.sources.listing import Rejection
from gpuload.store.files import Handle, replaced, temporaries, write_atomically
from gpuload.store.url import URL

# The files of a split that are saved while shards are appended to it.
BASE_FILES = (manifest_file.FILE_NAME, index_file.FILE_NAME, REJECTED_NAME)

SCRATCH_NAME = ".packing"
_DONE_NAME = ".packing-done"  # the scratch folder while it is being removed
_OLD_NAME = ".packing-old"  # a file in a set that is about to be replaced, or is replaced and being removed


class Output:
    """An output folder locked for one run of the packer, with a scratch folder inside.

    Leaving the `with` block without an error removes the scratch folder. After an error everything that the run wrote
    is removed too, so that the folder is as it was, unless `keep` was set, which lets a later run continue.

    Only files that a manifest or this run names are removed, and folders only when they are empty. Where a set is
    replaced, what others have put into its folders, also meanwhile, gets the same place in the new one.

    Args:
        folder: Where the set will be.
        options: Of the run: whether it resumes, appends or overwrites.
        where: What messages call the folder.
        settings: Those of the run, as `settings_of` gives them, by the mode of its set.

    Attributes:
        resumed: Whether there is an interrupted run, which is continued.
        finished: Whether the folder already holds a complete set.
        append: Whether the folder holds a set, which is kept.
        path: The folder, or the one beside it that replaces it at the end.
        notes: Sentences for the user, complete after the `with` block.

    Raises:
        OutputError: the folder is not empty, is in use by another packer, or cannot be created or written.
    """

    advice = "Choose another output folder"

    def __init__(
        self,
        folder: Path,
        options: PackOptions,
        where: Path | URL | None = None,
        settings: Callable[[str], Mapping[str, Any]] | None = None,
    ) -> None:
        self.where: Path | URL = where or folder
        self._settings = settings
        if options.overwrite or folder.is_symlink():
            folder = folder.resolve()  # a link stays, and what it leads to is packed to
        self.final = self.path = folder
        self.append = options.append
        self.keep = False
        self.finished = False
        self.notes: list[str] = []
        self._own_files: dict[Path, list[str]] = {}
        folders = (folder, *folder.parents)
        self._created = [path for path in folders if not path.exists()]
        with ExitStack() as undone, cannot_write(self.advice, folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._locks = [self._locked(folder)]
            undone.callback(self._unlock)
            self._open(options)
            undone.pop_all()

    def _locked(self, folder: Path) -> Handle:
        lock = Handle(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        if lock.lock():
            return lock
        lock.close()
        raise OutputError(
            f"{self.where}: is in use by another packer. Wait for it to end. {self.advice}"
        )

    def _unlock(self) -> None:
        for lock in self._locks:
            lock.close()

    def _open(self, options: PackOptions) -> None:
        was_complete = options.resume and self._is_completed()
        (self.path / _OLD_NAME).unlink(missing_ok=True)
        self._end_replacement()
        remove_scratch(self.path / _DONE_NAME)
        self._remove_unfinished()
        self.scratch = self.path / SCRATCH_NAME
        names = self._entries()
        is_set = bool(names) and not find_foreign(self.path, names)
        if was_complete and is_set:
            self.finished = True
            return
        in_place = options.resume and self.scratch.exists()
        if options.overwrite and is_set and not in_place:
            self._open_beside()
            self._remove_unfinished()
            self.scratch = self.path / SCRATCH_NAME
        self._check_scratch(options)
        self.resumed = options.resume and self.scratch.exists()
        self.keep = self.resumed  # even if the interrupted run cannot be continued
        if options.resume and is_set and not self.resumed:
            self.finished = not (self.append or options.overwrite)
        if not self.finished:
            self._begin_scratch(options)

    def _begin_scratch(self, options: PackOptions) -> None:
        """Makes the scratch folder, unless the run to continue has one with its plan."""
        if self.resumed and (self.scratch / STATE_NAME).exists():
            return
        self._check_empty(options)
        make_scratch(self.scratch)

    def _check_scratch(self, options: PackOptions) -> None:
        """Raises OutputError if something has the scratch folder's name that this run cannot continue."""
        if not self.scratch.exists():
            return
        if not is_scratch(self.scratch):
            raise OutputError(
                f"{self.scratch}: is no folder of the packer's, which needs this name. Move it elsewhere"
            )
        if not options.resume:
            raise OutputError(
                f"{self.where}: holds an interrupted run. Continue it with --resume, or delete the folder and pack "
                "again"
            )

    def _remove_unfinished(self) -> None:
        """Removes what a run that was killed had not finished of the files beside the splits."""
        for unfinished in temporaries(self.path, ROOT_FILES):
            unfinished.unlink(missing_ok=True)

    def _is_completed(self) -> bool:
        """Whether a run with the same settings was killed after its last step, while it removed its scratch folder."""
        try:
            state = json.loads(
                (self.path / _DONE_NAME / STATE_NAME).read_text(encoding="utf-8")
            )
            if self._settings is None:
                return False
            now = self._settings(state.get("mode", "RGB"))
            return bool(state["settings"] == json.loads(json.dumps(now)))
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def _check_empty(self, options: PackOptions) -> None:
        """Raises OutputError unless the folder holds what a new run needs."""
        names = self._entries()
        refuse_split(self.where, os.listdir(self.path))
        if self.append:  # the manifests are read, and refused if they are damaged, once the samples are listed
            check_holds(
                self.where,
                names,
                True,
                bool(names) and names == [*self.packed_splits()],
            )
            return
        foreign = find_foreign(self.path, names)
        if names and options.overwrite:
            raise OutputError(
                f"{self.where}: holds {foreign!r}, which is no folder that `gpuload pack` wrote, so that --overwrite "
                "replaces nothing. Choose another place, or move it elsewhere"
            )
        check_holds(self.where, [foreign] if foreign else names, False, not foreign)

    @property
    def _beside(self) -> Path:
        """The folder beside the output in which a set is packed that replaces it; then the replaced set, while its
        files are removed."""
        folder = self.final.absolute()
        return folder.with_name(f".{folder.name}{SCRATCH_NAME}")

    def _open_beside(self) -> None:
        """Makes the folder beside the output the one to pack to, and locks it: it gets the output's name in the end.

        Raises:
            OutputError: it holds something else than an interrupted run, or the output cannot be renamed.
        """
        beside = self._beside
        if os.path.ismount(self.final):
            raise OutputError(
                f"{self.where}: is a mount point, which cannot be replaced in one step. Pack to a folder in it"
            )
        beside.mkdir(exist_ok=True)
        self._locks.append(self._locked(beside))
        names = sorted(os.listdir(beside))
        if names and not is_scratch(beside / SCRATCH_NAME):
            raise OutputError(
                f"{beside}: holds {names[0]!r}, and --overwrite packs the new set there. Move it elsewhere"
            )
        self.path = beside

    def _entries(self) -> list[str]:
        """The names in the folder, without those that lie beside the splits of every set."""
        names = sorted({*os.listdir(self.path)} - {SCRATCH_NAME})
        return [name for name in names if name not in ROOT_FILES] or names

    def packed_splits(self) -> dict[str, Path]:
        """Name and folder of each complete split, sorted by name."""
        folders = sorted(
            entry
            for entry in self.path.iterdir()
            if (entry / manifest_file.FILE_NAME).exists()
        )
        return {folder.name: folder for folder in folders}

    def own(self, split: str, names: Iterable[str]) -> None:
        """Notes the files that this run writes into the folder of a split, which it removes if it fails."""
        self._own_files[self.path / split] = list(names)

    def clear_scratch(self) -> None:
        """Empties the scratch folder, which holds nothing that a run could continue."""
        remove_scratch(self.scratch)
        make_scratch(self.scratch)
        self.resumed = False

    def base_folder(self, split: str) -> Path:
        """Where `save_base` saves the files of a split."""
        return self.scratch / f"{split}.base"

    def save_base(self, split: str) -> None:
        """Saves hard links to the files that describe a split, before shards are appended to it."""
        settle(self.path / split)
        base = self.base_folder(split)
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir()
        joined = [file.name for file in Manifest.read(self.path / split).joined]
        for name in (*BASE_FILES, *joined):
            if (self.path / split / name).exists():
                os.link(self.path / split / name, base / name)

    def read_base(self, split: str) -> Manifest:
        """The saved manifest of a split to which shards are appended; an empty one of a new split."""
        folder = self.base_folder(split)
        return (
            Manifest.read(folder)
            if (folder / manifest_file.FILE_NAME).exists()
            else Manifest((), ())
        )

    def take(self, shard: Path, marker: Path) -> None:
        """Called when a shard is finished, in this run or an earlier one; may block while earlier shards are uploaded.

        Args:
            shard: The finished file.
            marker: The file that says of an uploaded shard what it was.
        """

    def publish(self, splits: Sequence[str]) -> None:
        """Called when these splits are complete in `path`; describes the whole set to other readers."""
        folders = self.packed_splits()
        names = sorted(folders, key=lambda name: (name != "train", name))
        manifests = {folders[name]: Manifest.read(folders[name]) for name in names}
        write_timm_info(self.path, manifests)
        edited = self.final / CARD_NAME
        if (
            self.path != self.final
            and edited.exists()
            and not is_unedited(edited.read_bytes())
        ):
            write_atomically(
                self.path / CARD_NAME, edited.read_bytes()
            )  # stays where the set is replaced
        if not write_card(self.path, manifests):
            note = f"{CARD_NAME} was edited and is left as it is. If `datasets` misses new columns, copy them from"
            self.notes.append(f"{note} {names[0]}/{CARD_NAME}")

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            if kind is None:
                with cannot_write(self.advice, self.where):
                    self._finish()
            elif not self.keep:
                self._undo()
        finally:
            self._unlock()

    def _finish(self) -> None:
        if self.path != self.final:
            self._replace()
        scratch = self.final / SCRATCH_NAME
        with suppress(FileNotFoundError):
            scratch.rename(self.final / _DONE_NAME)
        sync(self.final)
        self._end_replacement()
        remove_scratch(self.final / _DONE_NAME)
        sync(self.final)

    def _replace(self) -> None:
        """Gives the new set the output's name, and the old one that of the folder beside it."""
        (self.final / _OLD_NAME).touch()
        sync(self.final)
        sync(self.path)
        rename(self.path, self.final, EXCHANGE)
        sync(self.final.parent)

    def _end_replacement(self) -> None:
        """Removes the files of a replaced set. What others have put beside them gets the same place in the new one."""
        beside = self._beside
        if not (beside / _OLD_NAME).exists():
            return
        lock = None if self.path == beside else self._locked(beside)
        remove_set(beside, self.final)
        (beside / _OLD_NAME).unlink()
        others = move_others(beside, self.final)
        with suppress(OSError):
            beside.rmdir()
        if others.moved:
            names = [str(path.relative_to(self.final)) for path in others.moved]
            self.notes.append(f"kept what is not of the replaced set: {some_of(names)}")
        if others.staying:
            names = [str(path.relative_to(beside)) for path in others.staying]
            self.notes.append(
                f"{beside} keeps what is not of the replaced set, and whose place the new one takes: {some_of(names)}"
            )
        if lock is not None:
            lock.close()

    def _undo(self) -> None:
        remove_scratch(self.scratch)
        for folder, names in self._own_files.items():
            remove_files(folder, names)
        with suppress(OSError):
            if self.path != self.final:
                self.path.rmdir()
            for folder in self._created:
                folder.rmdir()


@contextmanager
def cannot_write(advice: str, where: object = None) -> Iterator[None]:
    """Raises OutputError for each OSError in the block.

    Args:
        advice: What to do about it.
        where: What is written; None: the file of the error, or the folder for temporary files.
    """
    try:
        yield
    except OSError as error:
        named = where or error.filename or tempfile.gettempdir()
        raise OutputError(
            f"{named}: cannot be written ({error.strerror or error}). {advice}"
        ) from None


def refuse_split(where: object, names: Collection[str]) -> None:
    """Raises OutputError where the names are those of a split's files."""
    if manifest_file.FILE_NAME in names:
        raise OutputError(
            f"{where}: is a packed folder, as splits of a set are. Give the folder above it, with --append to add to "
            "the set, or --overwrite to replace it"
        )


def check_holds(
    where: object, names: Sequence[str], append: bool, is_set: bool
) -> None:
    """Raises OutputError unless there is what a new run needs: a set to append to, else nothing.

    Args:
        where: The place, for messages.
        names: Of what is there.
        append: Whether the run appends.
        is_set: Whether a packed set is there.
    """
    if append and not is_set:
        raise OutputError(
            f"{where}: holds no packed set for --append. Pack one first, without --append"
        )
    if names and not append and is_set:
        replace = "" if isinstance(where, URL) else "--overwrite to replace it, "
        raise OutputError(
            f"{where}: holds a packed set. Give {replace}--append to add to it, or another place"
        )
    if names and not append:
        raise OutputError(
            f"{where}: is not empty, it holds {names[0]!r}. Choose another place, or empty this one"
        )


def describe(
    folder: Path,
    manifest: Manifest,
    rows: Iterable[pa.RecordBatch],
    points: bool = False,
) -> Manifest:
    """Writes the files that describe the shards of a folder: their index, and once all else is on disk, their manifest,
    completed by what the index says, which is returned.

    Those of a set that is there already are replaced so that it can be opened at any moment, see `gpuload.disk.commit`.

    Args:
        folder: Of the shards.
        manifest: Without what the index says.
        rows: Of each shard, in order.
        points: Whether they have seek points, see `write_index`.
    """
    path = folder / NEXT_NAME
    for unfinished in temporaries(folder, DESCRIPTIONS):  # of runs that were killed
        unfinished.unlink(missing_ok=True)
    columns = {
        "width": "width",
        "height": "height",
        "image_bytes": manifest.image.bytes_column,
    }
    largest: dict[str, Any] = dict.fromkeys(columns, 0)
    try:
        with replaced(path) as temporary:
            with write_index(temporary, manifest.fields, points) as write:
                for batch in rows:
                    write(batch)
                    for name, most in largest.items():
                        largest[name] = int(
                            numbers_of(batch.column(columns[name])).max(initial=most)
                        )
            sync(temporary)
        manifest = replace(manifest, **largest, **index_file.index_digests(path))
        commit(folder, lambda: manifest.write(folder))
    except BaseException:
        if (folder / manifest_file.FILE_NAME).exists():
            settle(folder)
        raise
    return manifest


def write_json(path: Path, content: object) -> None:
    write_atomically(
        path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
    )


def write_lines(
    path: Path, entries: Iterable[Mapping[str, Any]], before: Path | None = None
) -> None:
    """Writes entries as lines of JSON, after those of another file if there is one.

    Never in place: `save_base` may have linked the existing file.

    Args:
        path: Of the new file.
        entries: One for each line.
        before: The file whose lines come first, if it exists.
    """
    content = b""
    if before is not None and before.exists():
        content = before.read_bytes()
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
    write_atomically(path, content + "".join(lines).encode())


def as_line(rejection: Rejection) -> dict[str, Any]:
    """A sample that was left out, as an entry of `rejected.jsonl`."""
    asked = {"asked": True} if rejection.asked else {}
    return {"source": rejection.source, "reason": rejection.reason, **asked}
