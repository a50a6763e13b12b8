"""The files that a column of a table names, with or without their extension."""

import posixpath
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Found
from gpuload.sources.files.source import FilesSource

_FIRST = ("jpg", "jpeg", "png")  # where there are several files for a name, the first of these


@dataclass(frozen=True)
class NamedFiles:
    """What was found for the names in a column.

    found: the file of each. missing: names without one. added: how many have it with an extension that was not written.
    several: names for which there were several.
    """

    column: str
    found: list[Found]
    missing: list[str]
    added: Counter[str]
    several: list[str]

    @classmethod
    def find(cls, source: FilesSource, column: str, names: Sequence[str]) -> "NamedFiles":
        """The files of these names; a name that is of none, and has no image's extension, gets each of these."""
        found, added, missing, several = list[Found](), Counter[str](), list[str](), list[str]()
        stems = _Stems(source.files)
        for name in names:
            here, lacking = source.find_all([name])
            if lacking and _extension(name) not in IMAGE_EXTENSIONS:
                candidates = stems.files(name)
                here, lacking = source.find_all(candidates[:1]) if candidates else ([], [name])
                added.update(f".{_extension(file.name)}" for file in here)
                several += [name] if len(candidates) > 1 else []
            found += here
            missing += [name] if lacking else []
        return cls(column, found, missing, added, several)

    def notes(self) -> list[str]:
        notes = []
        if self.added:
            counts = ", ".join(f"{count:,} × {extension}" for extension, count in sorted(self.added.items()))
            notes.append(f"paths in the column {self.column!r} have no extension; found: {counts}")
        if self.several:
            notes.append(
                f"{len(self.several):,} of these have files of several extensions, such as {self.several[0]!r}: taken "
                f"is .{', .'.join(_FIRST)}, then the first by name"
            )
        return notes

    def advice(self, source: FilesSource) -> str:
        """What to do about the missing ones."""
        name = self.missing[0]
        if "\\" in name:
            return "Write / between folders"
        stems = _Stems(source.files)
        for folder in source.files.folders():
            if source.has(f"{folder}/{name}") or (stems.files(f"{folder}/{name}") and not source.has(name)):
                return f"They lie in its folder {folder!r}: give {source.root}/{folder} as SOURCE"
        first, slash, rest = name.partition("/")
        if slash and str(source.root).rpartition("/")[2] == first and source.has(rest):
            return f"Give the folder that {first!r} lies in as SOURCE"
        column = "" if "." in posixpath.basename(name) else ", or name another column with --path-column"
        return f"Paths are relative to SOURCE; correct them or remove the rows{column}"


class _Stems:
    """Images by their names without extension, folder by folder."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._folders: dict[str, dict[str, list[str]]] = {}

    def files(self, name: str) -> list[str]:
        """Names of the images that have this name but for the extension, the one that is meant first."""
        folder, stem = posixpath.split(name)
        if folder not in self._folders:
            stems = defaultdict[str, list[str]](list)
            for file in self._files.names(folder):
                if _extension(file) in IMAGE_EXTENSIONS:
                    stems[file.rpartition(".")[0]].append(file)
            self._folders[folder] = stems
        found = self._folders[folder].get(stem, [])
        return [posixpath.join(folder, file) for file in sorted(found, key=lambda file: (_rank(file), file))]


def _extension(name: str) -> str:
    return posixpath.basename(name).rpartition(".")[2].lower() if "." in posixpath.basename(name) else ""


def _rank(file: str) -> int:
    extension = _extension(file)
    return _FIRST.index(extension) if extension in _FIRST else len(_FIRST)
