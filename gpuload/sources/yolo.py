"""YOLO's texts: boxes, polygons, turned boxes and keypoints, in shares of the image."""

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from gpuload.counted import counted
from gpuload.errors import DecodeError, SourceError, some_of
from gpuload.formats import image_extensions
from gpuload.sources.annotations import (
    parse_lines,
    partners,
    read_or_reject,
    read_text,
    readable_texts,
    resemble_boxes,
    text_in,
)
from gpuload.sources.drawn import Drawing, Samples, read_size
from gpuload.sources.files import (
    Files,
    Findings,
    Ref,
    extension_of,
    lone_folder,
    readable,
)
from gpuload.sources.listing import SPLIT, words_of_splits
from gpuload.sources.shapes import Shape
from gpuload.sources.source import CONTENT, FilesSource, Row, Sight
from gpuload.sources.split_lists import YAML, NamedSplits, named_splits_of, read_yaml

_NAME_FILES = (
    "classes.txt",
    "obj.names",
    "_darknet.labels",
)  # LabelImg's, CVAT's and Roboflow's
_LOOKED_INTO = 8  # folders, and files of each, to tell whether a container is YOLO's
_MOST_CLASSES = 1 << 16
_LINES = "YOLO's boxes: lines of class, x, y, width and height, or of a class and a polygon, in shares of the image"


class YoloSource(FilesSource):
    """Images, each with its objects in a `.txt` of its name: beside it, or in a folder `labels` where it lies in a
    folder `images`; in the layouts of Ultralytics, Roboflow, darknet, CVAT and LabelImg.

    A line is a class and a box (4 numbers), a polygon (6 or more, also the 8 of a turned box), or, where a `.yaml` has
    `kpt_shape`, a box with keypoints. Files may mix boxes and polygons.

    Fields: "boxes", x0 y0 x1 y1 in pixels of the upright image, with outlines where there is a polygon, "labels", the
    classes in it, and "keypoints". An image without a `.txt` has no object; one with another line, or whose class has
    no name, is left out with that line.

    Names of the classes are those of a `.yaml` with `names`, of `classes.txt`, `obj.names` or `_darknet.labels` at the
    first level. Splits are those that the `.yaml`, `obj.data` or lists such as `train.txt` name (see `split_lists`),
    else folders named after splits (see `splits`). Samples are in the order of their paths.
    """

    advice = (
        "Give a folder of images with YOLO's .txt; for captions give --from sidecar"
    )
    uses = ("yolo", "list", "text")  # a text that is no box is the fault of its image

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        """By the first texts beside images, or in `labels` beside `images`, if these resemble boxes.

        A folder around everything is not the beginning, unless names of classes or lists of images lie beside it.
        """
        folders = files.folders()[:_LOOKED_INTO]
        if lone_folder(files) and not _describes(files.names()):
            folders = []
        for place in ("", *folders):
            names = sorted(_texts_beside(files, place))[:_LOOKED_INTO]
            if resemble_boxes(list(readable_texts(files, names))):
                where = place or "it"
                return Sight(CONTENT, f"{where} holds YOLO's boxes for its images")
        return None

    def rows(self, findings: Findings) -> Iterator[Row]:
        findings.strict = True
        texts, text_of = self._texts_of_images(findings)
        images = list(text_of)
        splits = NamedSplits({})
        if self.options.own_splits:
            splits = named_splits_of(
                self.files, self.title, [image.name for image in images], findings
            )
        if splits.split_of:
            images = [image for image in images if image.name in splits.split_of]
        described = self._described(findings)
        names = _class_names(described, self.title) or self._listed_names(findings)
        drawn = self._drawn(images, text_of, names, _point_shape(described), findings)
        samples = Samples(list(drawn.values()), findings, names or None)
        self.expect([image.address for image in drawn])
        for image, drawing in drawn.items():
            size = read_size(self.files, image, findings)
            if 0 in size:
                continue
            row = dict(samples.row(image, drawing, size))
            if image.name in splits.split_of:
                row[SPLIT] = splits.split_of[image.name]
            yield row
        findings.notes += _notes(text_of, texts, splits)

    def _texts_of_images(
        self, findings: Findings
    ) -> tuple[dict[str, Ref], dict[Ref, Ref | None]]:
        """All texts by their paths without extension, and that of each image.

        Raises:
            SourceError: no image has one.
        """
        files = list(self.files.walk({*image_extensions(), "txt"}, findings))
        texts = {
            file.name.rpartition(".")[0]: file
            for file in files
            if extension_of(file.name) == "txt"
        }
        images = [file for file in files if extension_of(file.name) != "txt"]
        text_of = {image: _text_of(image, texts) for image in images}
        if not any(text_of.values()):
            lacks = "no image has a .txt of its name, beside it or in a folder 'labels' beside 'images'"
            raise SourceError(f"{self.title}: {lacks}. {self.advice}")
        return texts, text_of

    def _drawn(
        self,
        images: Sequence[Ref],
        text_of: dict[Ref, Ref | None],
        names: Sequence[str],
        points: tuple[int, int],
        findings: Findings,
    ) -> dict[Ref, Drawing]:
        """What is drawn on each image whose text is right.

        Args:
            names: Of classes.
            points: As `parse_lines` takes them.
        """
        drawn = dict[Ref, Drawing]()
        for image in images:
            shapes = self._shapes(image, text_of[image], names, points, findings)
            if shapes is not None:
                drawn[image] = Drawing(image.name, shapes, in_shares=True)
        lost = [text_of[image] for image in images if image not in drawn]
        self._refuse_numbers_from_1(list(drawn.values()), lost, len(names))
        return drawn

    def _shapes(
        self,
        image: Ref,
        text: Ref | None,
        names: Sequence[str],
        points: tuple[int, int],
        findings: Findings,
    ) -> list[Shape] | None:
        """Those of an image; None if its text is damaged, or a class has no name."""
        if text is None:
            return []
        file = text
        return read_or_reject(
            lambda: list(parse_lines(text_in(self.files, file), names, points)),
            image,
            file,
            _LINES,
            findings,
            ValueError,
        )

    def _refuse_numbers_from_1(
        self, drawn: Sequence[Drawing], lost: Sequence[Ref | None], count: int
    ) -> None:
        """Raises SourceError if classes are numbered from 1, so that all would have the name of the next one.

        Args:
            drawn: What was read.
            lost: The texts of images that are left out.
            count: Of names.
        """
        used = {shape.label for drawing in drawn for shape in drawing.shapes}
        for text in filter(None, lost):
            with suppress(OSError, DecodeError, ValueError):
                shapes = parse_lines(text_in(self.files, text))
                used.update(shape.label for shape in shapes)
        if count in used and 0 not in used and max(used) == count:
            raise SourceError(
                f"{self.title}: the texts use the classes 1 to {count}, and {count} names are numbered from 0. Number "
                "the classes from 0, or put a name for class 0 before the others"
            )

    def _described(self, findings: Findings) -> dict[str, Any]:
        """The first `.yaml` at the first level that names classes; {} without one."""
        for name in self.files.names():
            if name.endswith(YAML):
                file = self.files.find(name)
                document = read_yaml(self.files, file, self.title, as_texts=True)
                if isinstance(document, dict) and document.get("names"):
                    findings.use(name)
                    return {**document, "": name}
        return {}

    def _listed_names(self, findings: Findings) -> tuple[str, ...]:
        """The names in the first list that has any; () if none has."""
        folders = self.files.folders()
        for name in (*_NAME_FILES, *(f"{place}/_darknet.labels" for place in folders)):
            with suppress(OSError):  # there is no such file
                names = self._in_lines(self.files.find(name))
                if any(names):
                    findings.use(name)
                    return tuple(line.strip() for line in names)
        return ()

    def _in_lines(self, file: Ref) -> list[str]:
        lines = read_text(self.files, file, self.title).rstrip().split("\n")
        if any(lines) and not all(map(str.strip, lines)):
            empty = next(
                number for number, line in enumerate(lines) if not line.strip()
            )
            raise SourceError(
                f"{self.title}/{file.name}: line {empty + 1} is empty, so that class {empty} has no name. Write one "
                "name in each line, that of class 0 first"
            )
        return lines


def _describes(names: Sequence[str]) -> bool:
    """Whether files of these names list classes or images."""
    if any(words_of_splits(name) for name in _texts(names)):
        return True
    return any(name.endswith((*YAML, ".data")) or name in _NAME_FILES for name in names)


def _texts_beside(files: Files, place: str) -> Iterator[str]:
    """The texts in a folder that may be those of its images: of the same name, or in `labels` beside `images`."""
    yield from partners(files, place, "txt")
    if {"images", "labels"} <= set(files.folders(place)):
        labels = posixpath.join(place, "labels")
        for folder in (labels, *(f"{labels}/{name}" for name in files.folders(labels))):
            for name in _texts(files.names(folder)):
                yield f"{folder}/{name}"


def _class_names(described: dict[str, Any], title: str) -> tuple[str, ...]:
    """The names in a `.yaml`, as they are written: `no`, `007` and `1.10` are texts, too.

    Where they are numbered with gaps, as COCO's are, a class that has no name is called by its number.

    Raises:
        SourceError: they are no list of names.
    """
    if not described:
        return ()
    names = described["names"]
    with readable(f"{title}/{described['']}", "YAML with names of classes", ValueError):
        if isinstance(names, dict):
            numbered = {int(number): name for number, name in names.items()}
            if min(numbered) < 0 or max(numbered) >= _MOST_CLASSES:
                raise ValueError("the numbers of 'names' start at 0")
            names = [numbered.get(n, str(n)) for n in range(max(numbered) + 1)]
        if not isinstance(names, list) or not all(
            isinstance(name, str) and name.strip() for name in names
        ):
            raise ValueError("'names' must list the names of all classes")
    return tuple(name.strip() for name in names)


def _point_shape(described: dict[str, Any]) -> tuple[int, int]:
    """Keypoints of an object and numbers of each, 2 or 3; 0, 0 without."""
    match described.get("kpt_shape"):
        case [count, size]:
            return int(count), int(size)
    return 0, 0


def _notes(
    text_of: dict[Ref, Ref | None], texts: dict[str, Ref], splits: NamedSplits
) -> Iterator[str]:
    """Sentences on images without a text, and texts without an image."""
    alone = [image.name for image, text in text_of.items() if text is None]
    if alone:
        have = counted(len(alone), "image has", "images have")
        yield f"{have} no .txt, so no boxes: {some_of(alone)}"
    used = splits.lists.union(text.name for text in text_of.values() if text)
    unused = [
        text.name
        for text in texts.values()
        if text.name not in used and "/" in text.name
    ]
    if unused:
        belong = counted(len(unused), ".txt belongs", ".txt belong")
        yield f"{belong} to no image: {some_of(unused)}"


def _texts(names: Sequence[str]) -> list[str]:
    return [name for name in names if extension_of(name) == "txt"]


def _text_of(image: Ref, texts: dict[str, Ref]) -> Ref | None:
    """The text of an image: where the last folder `images` of its path is `labels`, or beside it."""
    stem = f"/{image.name.rpartition('.')[0]}"
    there = "/labels/".join(stem.rsplit("/images/", 1))
    return texts.get(there[1:]) or texts.get(stem[1:])
