"""Finds files that a text names in the container of the images, and advises where one is missing."""

import posixpath
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from gpuload.counted import counted
from gpuload.errors import SourceError, some_of
from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Ref, extension_of

_FIRST = ("jpg", "jpeg", "png")  # where there are several files for a name, the first of these


class NamedFiles:
    """The files of a container, by names that a table or a document gives.

    title: of that text. root: the name of the container in messages.
    """

    def __init__(self, files: Files, title: str, root: object) -> None:
        self._files, self._title, self._root = files, title, root
        self._folders: dict[str, dict[str, list[str]]] = {}

    def find(self, name: Any) -> Ref | None:
        try:
            return self._files.find(name) if isinstance(name, str) else None
        except (OSError, ValueError):
            return None

    def find_all(self, names: Sequence[Any], what: str = "") -> list[Ref]:
        """what: where in the text the names stand, such as a column.

        Raises:
            SourceError: a file does not exist.
        """
        return self._all_of(names, [self.find(name) for name in names], what)

    def find_stems(self, column: str, names: Sequence[str], notes: list[str]) -> list[Ref]:
        """As `find_all`, for names that may lack the extension of an image."""
        files, added, several = list[Ref | None](), Counter[str](), list[str]()
        for name in names:
            file = self.find(name)
            if file is None and extension_of(name) not in IMAGE_EXTENSIONS and (images := self._images_called(name)):
                file = self.find(images[0])
                added[f".{extension_of(images[0])}"] += 1
                several += [name] if len(images) > 1 else []
            files.append(file)
        every = self._all_of(names, files, f" (column {column!r})")
        if added:
            counts = ", ".join(f"{count:,} × {extension}" for extension, count in sorted(added.items()))
            notes.append(f"paths in the column {column!r} have no extension; found: {counts}")
        if several:
            notes.append(
                f"{len(several):,} of these have files of several extensions, such as {several[0]!r}: taken is "
                f".{', .'.join(_FIRST)}, then the first by name"
            )
        return every

    def _all_of(self, names: Sequence[Any], files: Sequence[Ref | None], what: str) -> list[Ref]:
        missing = [str(name) for name, file in zip(names, files, strict=True) if file is None]
        if missing:
            raise SourceError(
                f"{self._title}: names {len(missing):,} of {len(names):,} files that are not in {self._root}{what}: "
                f"{some_of(missing)}. {self._advice(missing[0], bool(what))}"
            )
        return [file for file in files if file is not None]

    def _images_called(self, name: str) -> list[str]:
        """The images with this name and any extension, the preferred one first."""
        folder, stem = posixpath.split(name)
        if folder not in self._folders:
            stems = defaultdict[str, list[str]](list)
            for file in self._files.names(folder):
                if extension_of(file) in IMAGE_EXTENSIONS:
                    stems[file.rpartition(".")[0]].append(posixpath.join(folder, file))
            self._folders[folder] = stems
        return sorted(self._folders[folder].get(stem, []), key=lambda file: (_rank(file), file))

    def _advice(self, name: str, is_column: bool) -> str:
        """The advice about a missing file."""
        if "\\" in name:
            return "Write / between folders"
        if name.startswith("/") or ".." in name.split("/"):
            return "Paths that lead out of SOURCE are not followed: give a folder that holds all images as SOURCE"
        for folder in self._files.folders():
            if self.find(f"{folder}/{name}") or self._images_called(f"{folder}/{name}"):
                return f"They lie in its folder {folder!r}: give {self._root}/{folder} as SOURCE"
        first, slash, rest = name.partition("/")
        if slash and str(self._root).rpartition("/")[2] == first and self.find(rest):
            return f"Give the folder that {first!r} lies in as SOURCE"
        column = ", or name another column with --path-column" if is_column and "." not in name else ""
        return f"Paths are relative to SOURCE; correct them or remove the rows{column}"

    def beside(self, names: Iterable[str]) -> list[str]:
        """A note about images in the same folders that the text does not name; [] if there are none."""
        named = {posixpath.normpath(name) for name in names}
        beside = [
            file
            for folder in sorted({posixpath.dirname(name) for name in named})
            for file in self._files.names(folder)
            if extension_of(file) in IMAGE_EXTENSIONS and posixpath.join(folder, file) not in named
        ]
        unnamed = counted(len(beside), "image")
        return [f"left out {unnamed} that {self._title} does not name"] if beside else []


def _rank(file: str) -> int:
    extension = extension_of(file)
    return _FIRST.index(extension) if extension in _FIRST else len(_FIRST)
