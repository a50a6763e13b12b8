"""Files beside images as other tools write them: texts, boxes in YOLO's lines, and files that a text names."""

import posixpath
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gpuload.counted import counted
from gpuload.errors import DecodeError, SourceError, some_of
from gpuload.fields.kind import is_number
from gpuload.sources.files import IMAGE_EXTENSIONS, Files, Ref, extension_of

_ANNOTATIONS = "annotations"
_TOLERANCE = 1e-3  # of a coordinate beyond the image, as rounding leaves it

Box = tuple[int, float, float, float, float]  # class, center x and y, width and height

_FIRST = ("jpg", "jpeg", "png")  # where there are several files for a name, the first of these


def annotation_files(files: Files, extension: str) -> list[str]:
    """Names of the files with this extension in the folder of annotations, if there is one."""
    folders = [name for name in files.folders() if name.lower() == _ANNOTATIONS]
    return [
        f"{folder}/{name}" for folder in folders for name in files.names(folder) if name.lower().endswith(extension)
    ]


def read_content(files: Files, file: Ref, title: str) -> bytes:
    """A file that describes images. title: of the source.

    Raises:
        SourceError: it cannot be read.
    """
    try:
        return files.read(file.address)
    except (OSError, DecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{title}/{file.name}: cannot be read ({reason}). Correct or remove it") from None


def read_text(files: Files, file: Ref, title: str) -> str:
    """As `read_content`, as text with "\\n" at the end of each line."""
    try:
        text = read_content(files, file, title).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{title}/{file.name}: cannot be read as UTF-8 text ({error}). Correct or remove it"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def with_boxes(corners: Sequence[Any], classes: Sequence[int]) -> dict[str, Any]:
    """The fields of an image with boxes, x0 y0 x1 y1 in pixels: these, and the classes in the image."""
    return {"boxes": corners, "boxes_class": classes, "labels": sorted(set(classes))}


def no_captions(title: str, text: str, advice: str) -> SourceError:
    """The error for boxes in place of captions."""
    return SourceError(f"{title}: its .txt hold YOLO's boxes, such as {text.strip()[:60]!r}, and no captions. {advice}")


def are_boxes(texts: Sequence[str]) -> bool:
    """Whether all texts that are not empty, and at least one, hold YOLO's boxes."""
    filled = [text for text in texts if text.strip()]
    try:
        return bool(filled) and all(list(parse_boxes(text)) for text in filled)
    except ValueError:
        return False


def parse_boxes(text: str) -> Iterator[Box]:
    """Class, and center x and y, width and height of each box.

    Raises:
        ValueError: a line is something else.
    """
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words:
            continue
        if len(words) > 5 and all(map(is_number, words)):
            raise ValueError(f"line {number} has {len(words)} numbers: polygons, keypoints and scores are not read")
        if len(words) != 5 or not words[0].isdecimal() or not all(map(is_number, words)):
            raise ValueError(f"line {number} is {line[:60]!r}")
        x, y, width, height = shares = [float(word) for word in words[1:]]
        if not all(-_TOLERANCE <= share <= 1 + _TOLERANCE for share in shares):
            raise ValueError(f"line {number}, {line[:60]!r}, has a number outside of 0..1")
        yield int(words[0]), x, y, width, height


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
