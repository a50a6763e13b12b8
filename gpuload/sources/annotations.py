"""Files beside images as other tools write them: texts, boxes in YOLO's lines, and files that a text names."""

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from gpuload.counted import counted
from gpuload.errors import DecodeError, SourceError, some_of
from gpuload.fields.cells import is_number
from gpuload.formats import image_extensions
from gpuload.sources.files import (
    Files,
    Findings,
    Ref,
    decode_text,
    extension_of,
    fault_of,
    is_image,
    readable,
)
from gpuload.sources.shapes import Shape, centered_box, flat_polygon, keypoints_of

_ANNOTATIONS = "annotations"
_TOLERANCE = 0.01  # of a coordinate beyond the image, as rounding leaves it; Ultralytics takes as much
_BOX_WORDS = 5
_POLYGON = 6  # numbers of the smallest

T = TypeVar("T")


def annotation_files(files: Files, extension: str) -> list[str]:
    """Names of the files with this extension in the folder of annotations, if there is one."""
    folders = [name for name in files.folders() if name.lower() == _ANNOTATIONS]
    return [
        f"{folder}/{name}"
        for folder in folders
        for name in files.names(folder)
        if name.lower().endswith(extension)
    ]


def partners(files: Files, place: str, extension: str) -> list[str]:
    """The files with this extension in a folder that are called as an image in it, sorted."""
    stems = {name.rpartition(".")[0] for name in files.images(place)}
    return [
        posixpath.join(place, name)
        for name in files.names(place)
        if extension_of(name) == extension and name.rpartition(".")[0] in stems
    ]


def by_stem(
    files: Files,
    extensions: Sequence[str],
    findings: Findings,
    tops: Sequence[str] = (),
) -> dict[str, dict[str, Ref]]:
    """The files of each path without extension: an image as "image", others by their extension, one of these.

    Args:
        files: The container that is looked through.
        extensions: Of annotations, lower case, without a dot.
        findings: Gets what is left out.
        tops: The folders at the first level that are looked at; none: all.
    """
    stems: dict[str, dict[str, Ref]] = {}
    for file in files.walk({*image_extensions(), *extensions}, findings):
        if tops and file.name.partition("/")[0] not in tops:
            continue
        extension = extension_of(file.name)
        kind = extension if extension in extensions else "image"
        first = stems.setdefault(file.name.rpartition(".")[0], {}).setdefault(
            kind, file
        )
        if first is not file:
            findings.reject(file.name, f"shares its stem with {first.name!r}")
    return stems


def text_in(files: Files, file: Ref) -> str:
    """A text that describes images, with "\\n" at the end of each line.

    Raises:
        OSError, DecodeError: it cannot be read. UnicodeDecodeError: it is no text.
    """
    return (
        decode_text(files.read(file.address)).replace("\r\n", "\n").replace("\r", "\n")
    )


def readable_texts(files: Files, names: Iterable[str]) -> Iterator[str]:
    """The texts of those files that can be read."""
    for name in names:
        with suppress(OSError, DecodeError):
            yield files.content(name).decode("utf-8", "replace")


def parse_xml(text: bytes) -> Any:
    """The root element of an XML of annotations.

    Raises:
        ValueError: it is no XML, or no plain one.
    """
    from xml.etree import ElementTree

    # Entities are what XML attacks are made of, and no annotation has any; UTF-16, with its zeros, hides them.
    if b"<!" in text.replace(b"<!--", b"") or b"\0" in text:
        raise ValueError("it declares entities or is not UTF-8")
    try:
        return ElementTree.fromstring(text)
    except (
        ElementTree.ParseError,
        LookupError,
    ) as error:  # an encoding that Python lacks
        raise ValueError(str(error)) from None


def read_text(files: Files, file: Ref, title: str) -> str:
    """The text of a file.

    Args:
        files: The container of the file.
        file: That is read.
        title: Of the source, for messages.

    Raises:
        SourceError: it cannot be read.
    """
    with readable(f"{title}/{file.name}", "UTF-8 text", UnicodeDecodeError):
        return text_in(files, file)


def with_boxes(corners: Sequence[Any], classes: Sequence[Any]) -> dict[str, Any]:
    """The fields of an image with boxes, x0 y0 x1 y1 in pixels: these, and the classes in the image."""
    return {"boxes": corners, "boxes_class": classes, "labels": sorted(set(classes))}


def no_captions(title: str, text: str, advice: str) -> SourceError:
    """The error for boxes in place of captions."""
    return SourceError(
        f"{title}: its .txt hold YOLO's boxes, such as {text.strip()[:60]!r}, and no captions. {advice}"
    )


def are_boxes(texts: Sequence[str]) -> bool:
    """Whether all texts that are not empty, and at least one, hold YOLO's boxes."""
    filled = [text for text in texts if text.strip()]
    try:
        return bool(filled) and all(list(parse_lines(text)) for text in filled)
    except ValueError:
        return False


def resemble_boxes(texts: Sequence[str]) -> bool:
    """Whether most lines of the texts are numbers as in YOLO's boxes, polygons or keypoints: a class, then shares."""
    lines = [
        line.split() for text in texts for line in text.split("\n") if line.strip()
    ]
    numeric = [
        words
        for words in lines
        if len(words) >= _BOX_WORDS
        and _is_class(words[0])
        and all(map(is_number, words))
    ]
    return 2 * len(numeric) > len(lines)


def parse_lines(
    text: str, classes: Sequence[str] = (), points: tuple[int, int] = (0, 0)
) -> Iterator[Shape]:
    """The objects in YOLO's lines, in shares of the image, with the numbers of their classes.

    Args:
        text: The lines: a class, then a box x y width height from its center, or the corners of a polygon.
        classes: Names of all classes, where they are known.
        points: Keypoints that follow each box, and numbers of each, 2 or 3; 0, 0 without.

    Raises:
        ValueError: a line is something else, or its class has no name. The message names the line.
    """
    keypoints = points[0] * points[1]
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words:
            continue
        values = _values_of(words, keypoints)
        if values is None:
            raise ValueError(f"line {number} is {line[:60]!r}")
        label = int(words[0].partition(".")[0])
        if classes and label >= len(classes):
            raise ValueError(
                f"line {number} has class {label}, the last one with a name is {len(classes) - 1}"
            )
        if len(values) != 4 + keypoints:
            yield flat_polygon(label, values)
            continue
        box = centered_box(label, *values[:4])
        yield box._replace(points=keypoints_of(values[4:], points[1]))


def _values_of(words: Sequence[str], keypoints: int) -> list[float] | None:
    """The numbers of a line behind the class: a box with its keypoints, or a polygon; None if they are neither.

    Args:
        words: Of the line.
        keypoints: The numbers that follow a box.
    """
    if not _is_class(words[0]) or not all(map(is_number, words)):
        return None
    values = [float(word) for word in words[1:]]
    sides = values[:4]
    if len(values) != 4 + keypoints:
        is_polygon = len(values) >= _POLYGON and len(values) % 2 == 0
        if keypoints or not is_polygon:
            return None
        sides = values
    if not all(-_TOLERANCE <= side <= 1 + _TOLERANCE for side in sides):
        return None
    return values


def _is_class(word: str) -> bool:
    """Whether a word is the number of a class; some tools write "1.0000"."""
    number, _, fraction = word.partition(".")
    return number.isdecimal() and not fraction.strip("0")


def read_or_reject(
    read: Callable[[], T],
    image: Ref,
    text: Ref,
    form: str,
    findings: Findings,
    *errors: type[Exception],
) -> T | None:
    """What a function reads of the annotations of one image; None where they are damaged: the image is then left out.

    Args:
        read: Reads and converts them.
        image: That they describe.
        text: The file of the annotations.
        form: What that file should be, for the reason.
        findings: Gets the image if it is left out.
        *errors: What `read` may raise besides errors of reading a file.
    """
    try:
        return read()
    except Exception as error:  # `fault_of` raises what is not expected
        fault = fault_of(error, *errors)
        findings.reject(image.name, f"its {text.name!r}, {fault}, is not {form}")
    return None


class NamedFiles:
    """The files of a container, by names that a table or a document gives.

    Args:
        files: The container.
        title: Of the table or document, for messages.
        root: What messages call the container.

    notes: on names that were found elsewhere.
    """

    def __init__(self, files: Files, title: str, root: object) -> None:
        self._files = files
        self._title = title
        self._root = root
        self.notes = list[str]()
        self._stems: dict[
            str, dict[str, list[str]]
        ] = {}  # the images of each folder by their names without extension

    def find(self, name: Any) -> Ref | None:
        try:
            return self._files.find(name) if isinstance(name, str) else None
        except (OSError, ValueError):
            return None

    def find_all(self, names: Sequence[Any], complete: bool = True) -> list[Ref]:
        """The file of each name.

        Args:
            names: As the table or document gives them.
            complete: Whether names have the extension, which those of images else may lack.

        Raises:
            SourceError: a file does not exist, or several images have a name without extension.
        """
        files = list[Ref]()
        missing = list[str]()
        for name in names:
            file = self.find(name)
            if file is None and not complete:
                file = self._find_image(str(name))
            if file is None:
                missing.append(str(name))
            else:
                files.append(file)
        if missing and not files and not complete:
            files = self._relocated(missing)
            missing = [] if files else missing
        if missing:
            fault = f"names {len(missing):,} of {len(names):,} files that are not in {self._root}: {some_of(missing)}"
            raise SourceError(
                f"{self._title}: {fault}. Paths start at SOURCE and do not lead out of it: correct them"
            )
        return files

    def _find_image(self, name: str) -> Ref | None:
        """The image that has this name and an extension.

        Raises:
            SourceError: several have.
        """
        images = [] if is_image(name) else self._images_called(name)
        if len(images) > 1:
            fault = f"names {name!r} without an extension, which {some_of(images)} fit"
            raise SourceError(f"{self._title}: {fault}. Write the extension")
        return self.find(images[0]) if images else None

    def _relocated(self, names: Sequence[str]) -> list[Ref]:
        """The images that are called by other folders than those here; [] if they are not all there."""
        from gpuload.sources.relocated import RelocatedImages

        images = RelocatedImages(self._files, self._title, self._root).find_all(names)
        if images:
            self.notes.append(
                f"images are found by the ends of their paths, such as {images[0].name!r} for {names[0]!r}"
            )
        return images

    def _images_called(self, name: str) -> list[str]:
        """The images with this name and any extension, sorted."""
        folder, stem = posixpath.split(name)
        if folder not in self._stems:
            stems = self._stems[folder] = {}
            for file in self._files.images(folder):
                stems.setdefault(file.rpartition(".")[0], []).append(
                    posixpath.join(folder, file)
                )
        return self._stems[folder].get(stem, [])

    def beside(self, names: Iterable[str]) -> list[str]:
        """A note about images in the same folders that the text does not name; [] if there are none."""
        named = {posixpath.normpath(name) for name in names}
        beside = [
            file
            for folder in sorted({posixpath.dirname(name) for name in named})
            for file in self._files.images(folder)
            if posixpath.join(folder, file) not in named
        ]
        return (
            [
                f"left out {counted(len(beside), 'image')} that {self._title} does not name"
            ]
            if beside
            else []
        )

    def elsewhere(self, names: Iterable[str]) -> list[str]:
        """A note about images in folders of which the text names none; [] if there are none."""
        folders = {posixpath.dirname(posixpath.normpath(name)) for name in names}
        counts = Counter[str]()
        for image in self._files.walk(image_extensions(), Findings()):
            folder = posixpath.dirname(image.name)
            if folder not in folders:
                counts[folder] += 1
        if not counts:
            return []
        images = counted(counts.total(), "image")
        return [
            f"passed over {images} in folders of which {self._title} names none: {some_of(sorted(counts))}"
        ]
