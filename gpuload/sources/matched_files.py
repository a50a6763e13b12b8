"""Pictures by patterns with a table: each sample is called by what the wildcards of its files stand for."""

import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuload.errors import ArgumentError
from gpuload.sources.beside import PicturesBeside
from gpuload.sources.files import Files, Findings, Ref, Scan
from gpuload.sources.matched import Key, MatchedSource
from gpuload.sources.source import Names, Source, open_files
from gpuload.sources.table import TableSource
from gpuload.store.url import URL

_LABEL = "{label}"
_COCO = ".json"


def open_matched(
    root: str | Path | URL,
    pictures: Mapping[str, str],
    other_options: Mapping[str, Any],
    out: Path | None = None,
    zip_encoding: str | None = None,
    labels: str | Path | URL | None = None,
    columns: Mapping[str, Names] | None = None,
    **options: Any,
) -> Source:
    """The source of pictures that are given by patterns.

    Args:
        root: A folder, a zip archive or a URL.
        pictures: As `MatchedOptions.pictures`.
        other_options: Of other sources, by their names in messages.
        out: The output folder, whose files are not samples.
        zip_encoding: As of `open_files`.
        labels: A table whose paths are what the wildcards stand for.
        columns: Names of its columns by what they hold.
        options: Others of `MatchedOptions`.

    Raises:
        ArgumentError: An option of another source is given, or a pattern is wrong.
    """
    for name, value in other_options.items():
        if value:
            raise ArgumentError(
                f"{name}: patterns of pictures say which files are packed. Leave it out"
            )
    files = open_files(root, zip_encoding)
    if out is not None:
        files.leave_out(out)
    matched = MatchedSource(files, pictures=pictures, **options)
    if labels is not None:
        return _with_table(matched, labels, columns or {})
    if columns:
        raise ArgumentError(
            "--column names those of a table. Give it with --labels, or leave --column out"
        )
    return matched


class MatchedFiles(Files):
    """The files of one picture, called as their samples: "x_red.png" is "x.png" by the pattern "*_red.png".

    Args:
        matches: Of all patterns.
        name: Of the picture.
    """

    def __init__(self, matches: "MatchedSamples", name: str) -> None:
        self._matches = matches
        self._name = name

    def __str__(self) -> str:
        return f"{self._matches.root} by {self._matches.patterns[self._name]!r}"

    def fault(self) -> str:
        return self._matches.root.fault()

    def scan(self, folder: str) -> Scan:
        names = self._matches.files(self._name)
        start = f"{folder}/" if folder else ""
        inside = [name.removeprefix(start) for name in names if name.startswith(start)]
        folders = {name.partition("/")[0]: "" for name in inside if "/" in name}
        return folders, [name for name in inside if "/" not in name]

    def find(self, name: str) -> Ref:
        names = self._matches.files(self._name)
        normal = posixpath.normpath(name)
        if normal not in names:
            raise FileNotFoundError(2, "No such file or directory", name)
        return names[normal]

    def read(self, address: str) -> bytes:
        return self._matches.root.read(address)

    def leave_out(self, folder: str | Path) -> None:
        self._matches.root.leave_out(folder)

    def move_to(self, folder: Path) -> None:
        self._matches.root.move_to(folder)

    def expect(self, addresses: Sequence[str]) -> None:
        self._matches.root.expect(addresses)

    def wait(self, address: str) -> None:
        self._matches.root.wait(address)


class MatchedSamples:
    """The files of all patterns, which are listed once, when the first is asked for.

    Args:
        source: Of the patterns.
    """

    def __init__(self, source: MatchedSource) -> None:
        self._source = source
        self._by_picture: dict[str, dict[str, Ref]] = {}
        self.root = source.files
        self.patterns = source.options.pictures

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_by_picture": {}}  # workers read by addresses

    def files(self, picture: str) -> Mapping[str, Ref]:
        """The files of a picture by the names of their samples.

        Raises:
            SourceError: As of `MatchedSource`.
        """
        if not self._by_picture:
            images, others = self._source.match(Findings())
            first = next(iter(self.patterns))
            self._by_picture = {
                name: dict(_called(key, file) for key, file in files.items())
                for name, files in {first: images, **others}.items()
            }
        return self._by_picture[picture]


def _called(key: Key, file: Ref) -> tuple[str, Ref]:
    """A file by the name of its sample, which has its extension."""
    words = [word.rstrip("/") for word in key]
    name = "/".join(word for word in words if word)
    called = f"{name}{posixpath.splitext(file.name)[1]}"
    return called, file._replace(name=called)


def _with_table(
    matched: MatchedSource, labels: str | Path | URL, columns: Mapping[str, Names]
) -> PicturesBeside:
    """The samples of a table whose paths are what the wildcards of patterns stand for.

    Args:
        matched: The source of the patterns.
        labels: The table.
        columns: As `TableOptions.columns`.

    Raises:
        ArgumentError: A pattern has the label, too, or the labels are no table.
    """
    pictures = matched.options.pictures
    for name, text in pictures.items():
        if _LABEL in text:
            raise ArgumentError(
                f"picture {name!r}: {text!r} has the label, and so has the table {labels}. Write * in its "
                "place"
            )
    if str(labels).lower().endswith(_COCO):
        raise ArgumentError(
            f"--labels {labels}: with patterns of pictures it is a table (CSV, TSV, JSONL or Parquet), whose paths are "
            "what the wildcards stand for"
        )
    matches = MatchedSamples(matched)
    image, *others = pictures
    options = matched.options
    table = TableSource(
        MatchedFiles(matches, image),
        labels=labels,
        columns=columns,
        own_splits=options.own_splits,
        classes=options.classes,
    )
    return PicturesBeside(
        table, {name: MatchedFiles(matches, name) for name in others}, image
    )
