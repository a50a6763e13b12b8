"""Splits that files of a data set name: YOLO's `data.yaml`, darknet's `obj.data`, and lists such as `train.txt`."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

from gpuload.counted import counted
from gpuload.errors import SourceError, some_of
from gpuload.machine.installed import require
from gpuload.sources.annotations import read_text
from gpuload.sources.files import (
    Files,
    Findings,
    Ref,
    extension_of,
    is_image,
    readable,
)
from gpuload.sources.listing import split_called, splits_of_words, words_of_splits

YAML = (".yaml", ".yml")
_DARKNET = ".data"
_MOST_YAML_BYTES = 1 << 20
_MOST_ENTRIES = 10_000  # of one split in a document
_ADVICE = "Correct it, or give --no-splits"


class _Part(NamedTuple):
    """What a file says about one split.

    Attributes:
        origin: That file.
        entry: The list, folder or image as the file writes it.
        images: Those of the source that it means, None if it means nothing that is there.
        file: The list of images that it means; "" for a folder or an image.
    """

    split: str
    origin: str
    entry: str
    images: list[str] | None
    file: str = ""


class NamedSplits(NamedTuple):
    """What lists say of the splits of images.

    Attributes:
        split_of: The split of each image; {} where nothing divides them.
        lists: Names of the lists that were read.
    """

    split_of: dict[str, str]
    lists: frozenset[str] = frozenset()


def named_splits_of(
    files: Files, title: str, images: Sequence[str], findings: Findings
) -> NamedSplits:
    """The splits by `data.yaml`, else by `obj.data`, else by lists such as `train.txt`, else by words in the names of
    folders.

    Images that the lists do not name are left out, with that reason.

    Args:
        files: The container.
        title: Of the source, for messages.
        images: Names of all images in it.
        findings: Gets the images that are left out.

    Raises:
        SourceError: an image is in two splits, or images are in none and nothing says why.
    """
    places = _NamedPaths(files, title, images, findings)
    parts = places.parts_of_documents()
    lists = places.parts_of_lists()
    if not parts:
        parts = lists
    if not parts:
        by_words = splits_of_words(images)
        if by_words:
            findings.origin = "by words in the names of its folders"
        return NamedSplits(by_words)
    files_read = frozenset(part.file for part in [*parts, *lists] if part.file)
    if _all_same(parts):
        findings.notes.append(
            f"{parts[0].origin!r} gives the same images to every split: they are packed without splits"
        )
        return NamedSplits({}, files_read)
    others = [part for part in lists if part not in parts]
    split_of = _assigned(title, [*parts, *others], parts)
    split_of |= _assigned_by_folders(
        parts, [image for image in images if image not in split_of]
    )
    rest = [image for image in images if image not in split_of]
    _refuse_gaps(title, parts, rest)
    origins = some_of(sorted({part.origin for part in parts}))
    for image in rest:
        findings.reject(image, f"is in no split of {origins}", True)
    findings.origin = f"by {origins}"
    return NamedSplits(split_of, files_read)


def _assigned_by_folders(
    parts: Sequence[_Part], images: Sequence[str]
) -> dict[str, str]:
    """The split of those of the images that lie in a folder of a split for which `parts` have no images."""
    filled = {part.split for part in parts if part.images}
    splits = {image: _split_of_folders(image) for image in images}
    return {
        image: split for image, split in splits.items() if split and split not in filled
    }


def _all_same(parts: Sequence[_Part]) -> bool:
    """Whether several splits have the same images, as small sets for a trial have them."""
    of_split: dict[str, set[str]] = {}
    for part in parts:
        of_split.setdefault(part.split, set()).update(part.images or ())
    sets = [images for images in of_split.values() if images]
    return len(sets) > 1 and all(images == sets[0] for images in sets)


def _assigned(
    title: str, every: Sequence[_Part], parts: Sequence[_Part]
) -> dict[str, str]:
    """The split of each image in `parts`.

    Args:
        every: These, and lists that must agree with them.
    """
    origin_of: dict[str, _Part] = {}
    for part in every:
        for image in part.images or ():
            first = origin_of.setdefault(image, part)
            if first.split != part.split:
                both = f"{first.origin!r} puts {image!r} into {first.split!r} and {part.origin!r} into {part.split!r}"
                raise SourceError(f"{title}: {both}. {_ADVICE}")
    named = {image for part in parts for image in part.images or ()}
    return {image: part.split for image, part in origin_of.items() if image in named}


def _refuse_gaps(title: str, parts: Sequence[_Part], rest: Sequence[str]) -> None:
    """Raises SourceError if images are in no split because a path is wrong, or no list of training images is there."""
    if not rest:
        return
    gap = f"and {counted(len(rest), 'image is', 'images are')} in no split, such as {rest[0]!r}"
    for part in parts:
        if part.images is None:
            raise SourceError(
                f"{title}: {part.origin!r} names {part.entry!r} for the split {part.split!r}, which is not there, "
                f"{gap}. {_ADVICE}"
            )
    if not any(part.split == "train" for part in parts):
        origins = some_of(sorted({part.origin for part in parts}))
        raise SourceError(
            f"{title}: {origins} names no images for training, {gap}. {_ADVICE}"
        )


def _split_of_folders(image: str) -> str:
    splits = [
        split for folder in image.split("/")[:-1] if (split := split_called(folder))
    ]
    return splits[0] if splits else ""


class _NamedPaths:
    """Finds what a path in a file of the source means.

    Such paths may start at another folder, on another machine, or in a folder around: what counts is the longest end of
    a path that is there.
    """

    def __init__(
        self, files: Files, title: str, images: Sequence[str], findings: Findings
    ) -> None:
        self._files = files
        self._title = title
        self._findings = findings
        self._images = dict.fromkeys(images)

    @cached_property
    def _in_folder(self) -> dict[str, list[str]]:
        folders: dict[str, list[str]] = {}
        for image in self._images:
            place = image
            while "/" in place:
                place = place.rpartition("/")[0]
                folders.setdefault(place, []).append(image)
        return folders

    def parts_of_documents(self) -> list[_Part]:
        """What the first YAML at the first level that names splits says, or else the first file of darknet."""
        names = self._files.names()
        documents = [name for name in names if name.endswith(YAML)]
        documents += [name for name in names if name.endswith(_DARKNET)]
        for name in documents:
            parts = [
                self._part(split, name, entry)
                for key, entry in self._entries_in(self._files.find(name))
                if (split := split_called(key))
            ]
            if any(part.images for part in parts):
                self._findings.use(name)
                return parts
        return []

    def _entries_in(self, file: Ref) -> Iterator[tuple[str, str]]:
        """Keys and values of a document: of YAML, or of lines such as `train = data/train.txt`."""
        if file.name.endswith(_DARKNET):
            for line in self._lines(file):
                key, equals, entry = line.partition("=")
                if equals:
                    yield key, entry.strip()
            return
        document = read_yaml(self._files, file, self._title)
        for key, value in document.items() if isinstance(document, dict) else ():
            for entry in _entries(value):
                yield key, entry

    def parts_of_lists(self) -> list[_Part]:
        """The lists at the first level that are named after a split.

        Raises:
            SourceError: such a list names images, and none of them is there.
        """
        parts = list[_Part]()
        for name in self._files.names():
            splits = words_of_splits(name)
            if extension_of(name) != "txt" or len(splits) != 1:
                continue
            (split,) = splits
            part = self._part(split, name, name)
            if part.images:
                parts.append(part)
            elif any(map(is_image, self._lines(self._files.find(name))[:1])):
                raise SourceError(
                    f"{self._title}: none of the images that {name!r} names is there. {_ADVICE}"
                )
        return parts

    def _part(self, split: str, origin: str, entry: str) -> _Part:
        if extension_of(entry) == "txt":
            file = self._list_at(entry)
            images = self._listed(file) if file else None
            return _Part(
                split,
                entry.rpartition("/")[2],
                entry,
                images,
                file.name if file else "",
            )
        return _Part(split, origin, entry, self._in_place(entry))

    def _in_place(self, entry: str) -> list[str] | None:
        """The images in a folder, or the one that is meant."""
        for end in _ends(entry):
            if end in self._in_folder:
                return self._in_folder[end]
            if end in self._images:
                return [end]
        return None

    def _list_at(self, entry: str) -> Ref | None:
        for end in _ends(entry):
            with suppress(OSError):
                return self._files.find(end)
        return None

    def _listed(self, file: Ref) -> list[str] | None:
        """The images in a list; None if none of them is there."""
        lines = self._lines(file)
        images = list[str]()
        missing = list[str]()
        for line in lines:
            image = next((end for end in _ends(line) if end in self._images), None)
            if image is None:
                missing.append(line)
            else:
                images.append(image)
        if images and missing:
            names = counted(len(missing), "image that is", "images that are")
            note = f"{file.name!r} names {names} not there: {some_of(missing)}"
            self._findings.notes.append(note)
        return images or None

    def _lines(self, file: Ref) -> list[str]:
        text = read_text(self._files, file, self._title)
        return [line.strip() for line in text.split("\n") if line.strip()]


def read_yaml(files: Files, file: Ref, title: str, as_texts: bool = False) -> Any:
    """The content of a small YAML document.

    Args:
        files: The container of the file.
        file: That is read.
        title: Of the source, for messages.
        as_texts: Whether values stay as they are written: `no`, `007`, `1.10`.

    Raises:
        SourceError: it cannot be read. MissingPackageError: PyYAML cannot be used.
    """
    name = f"{title}/{file.name}"
    require(name, "yaml")
    yaml = import_module("yaml")
    with readable(name, "YAML with names of classes", yaml.YAMLError, ValueError):
        if file.size > _MOST_YAML_BYTES:
            raise ValueError(f"{file.size:,} bytes are more than names of classes take")
        loader = yaml.SafeLoader
        if as_texts:
            loader = type("TextLoader", (loader,), {"yaml_implicit_resolvers": {}})
        return yaml.load(read_text(files, file, title), loader)


def _entries(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [
        entry for entry in values[:_MOST_ENTRIES] if isinstance(entry, str) and entry
    ]


def _ends(path: str) -> Iterator[str]:
    """The ends of a path, from the longest, without parts that lead nowhere or up."""
    parts = [
        part
        for part in path.replace("\\", "/").split("/")
        if part not in ("", ".", "..")
    ]
    for start in range(len(parts)):
        yield "/".join(parts[start:])
