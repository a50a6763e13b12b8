"""Objects that people drew on images with an annotation tool: what all such tools' files have in common.

A reader of a tool's files yields a `Drawing` for each image; here images are found, classes are numbered, and
drawings become samples.
"""

import posixpath
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from gpuload.checks import shown
from gpuload.counted import counted
from gpuload.errors import DecodeError, RemoteError, SourceError, some_of
from gpuload.formats import Conversion, open_file
from gpuload.headers.jpeg import upright_size
from gpuload.machine.untrusted import parse_json
from gpuload.pictures import reason_of
from gpuload.sources.annotations import read_or_reject
from gpuload.sources.files import Files, Findings, Ref, is_text, readable
from gpuload.sources.listing import DRAWN_ON, SPLIT, split_called, splits_of_words
from gpuload.sources.named_images import NamedImages
from gpuload.sources.shapes import Runs, Shape, area_of, in_pixels
from gpuload.sources.source import (
    CONTENT,
    FilesSource,
    Names,
    Row,
    Sight,
    SourceOptions,
)
from gpuload.sources.survey import kind_of_file, survey
from gpuload.types import WidthHeight

_MOST_PX = 1 << 30


# What a document that is not of its tool's form raises while it is read.
FORM_ERRORS = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
)


class Drawing(NamedTuple):
    """What a tool says about one image.

    Attributes:
        image: Its name as the tool writes it, perhaps a path on another machine or a URL; or its path without
            extension.
        shapes: What is drawn, in pixels, or in shares of both sides.
        size: (width, height) of the image that they were drawn on; (0, 0): unknown.
        labels: Classes of the whole image.
        split: As the tool calls it; "" where it tells none.
        in_shares: Whether coordinates are shares of both sides, 0..1.
    """

    image: str
    shapes: Sequence[Shape] = ()
    size: WidthHeight = (0, 0)
    labels: Names = ()
    split: str = ""
    in_shares: bool = False

    def check(self) -> None:
        """Raises ValueError or TypeError as `Shape.check`."""
        for label in self.labels:
            if not isinstance(label, str) or not is_text(label):
                raise ValueError(f"the class {shown(label)}")
        if not all(0 <= side <= _MOST_PX for side in self.size):
            raise ValueError(f"the size {shown(self.size)}")
        for shape in self.shapes:
            shape.check()

    @property
    def needs_size(self) -> bool:
        """Whether its shapes mean nothing without the size of the image."""
        if self.in_shares:
            return bool(self.shapes)
        return any(isinstance(shape.outline, Runs) for shape in self.shapes)


@dataclass(frozen=True)
class DrawnOptions(SourceOptions):
    """The options of annotation tools.

    Args:
        negatives: Whether an image that no annotation names is one without an object; else it is left out, or an error
            where each image has a file of its own.
    """

    negatives: bool = False


@dataclass(frozen=True)
class AttributeOptions(DrawnOptions):
    """The options of tools whose shapes have several attributes, or whose samples have several fields.

    Args:
        attribute: The one that holds the class.
    """

    attribute: str = ""


class DrawnSource(FilesSource):
    """Images with the objects that an annotation tool has drawn on them.

    A subclass says which files the tool writes (`kind`, `form`, `extensions`), and reads one of them (`drawings_in`).

    Fields: "boxes", x0 y0 x1 y1 in pixels of the upright image, with outlines where the tool has any, polygons also for
    turned boxes, circles and ellipses. "labels" are the classes in an image; where the tool has classes of whole images
    alone, "label", or "labels" where an image has several. Classes are in the tool's own order, or else sorted. Samples
    are in the order of the tool.

    kind: of its files of annotations, see `survey`. form: what they are, for messages. extensions: of their names.
    beside: whether each image has a file of its own. rejects: whether an image is left out if its file is damaged; else
    that is an error.
    """

    Options: ClassVar[type[SourceOptions]] = DrawnOptions
    options: DrawnOptions
    kind: ClassVar[str] = ""
    form: ClassVar[str] = "its tool's JSON"
    extensions: ClassVar[Names] = ("json",)
    beside: ClassVar[bool] = False
    rejects: ClassVar[bool] = False

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        names = [sheet.name for sheet in survey(files) if sheet.kind == cls.kind]
        if not names:
            return None
        return Sight(CONTENT, f"holds {names[0]!r}", (*names,))

    @abstractmethod
    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        """A drawing for each image that a file describes.

        Args:
            file: Of annotations.
            findings: Gets what the source reports; `findings.classes["boxes"]` the names of all classes, where the tool
                has an order of its own; `findings.shapeless` what is no object (see `areas`).

        Raises:
            SourceError: it contradicts another file. Exception: it is damaged, one of `FORM_ERRORS`.
        """

    def sheets(self, findings: Findings) -> Iterator[Ref]:
        """The files of annotations: by default all of its kind."""
        for file in self.files.walk(self.extensions, Findings()):
            if kind_of_file(self.files, file.name) == self.kind:
                findings.use(file.name)
                yield file

    def document(self, file: Ref) -> Any:
        """The content of a document of JSON."""
        return parse_json(self.files.text(file.name))

    def documents(self, file: Ref) -> Iterator[Any]:
        """Those in a file with a document of JSON in each line."""
        # Not by splitlines, which ends lines within strings, at U+2028 and others.
        lines = self.files.text(file.name).split("\n")
        return map(parse_json, filter(str.strip, lines))

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        """The drawings of all files."""
        for file in self.sheets(findings):
            if self.rejects:
                drawings = read_or_reject(
                    partial(self._all_drawings_in, file, findings),
                    file,
                    file,
                    self.form,
                    findings,
                    *FORM_ERRORS,
                )
                yield from drawings or ()
            else:
                with readable(f"{self.title}/{file.name}", self.form, *FORM_ERRORS):
                    yield from self.drawings_in(file, findings)

    def _all_drawings_in(self, file: Ref, findings: Findings) -> list[Drawing]:
        return list(self.drawings_in(file, findings))

    def rows(self, findings: Findings) -> Iterator[Row]:
        images = NamedImages(self.files, findings)
        findings.notes.clear()  # of that walk; images are walked again below
        drawings = [
            drawing
            for drawing in self.drawings(findings)
            if self._is_right(drawing, findings)
        ]
        _note_shapeless(findings)
        refs = images.find_all(self.title, [drawing.image for drawing in drawings])
        drawings, refs = self._with_negatives(drawings, refs, images, findings)
        samples = Samples(drawings, findings)
        split_of = self._splits(drawings, findings)
        by_words = {} if split_of else self._splits_by_words(refs, findings)
        for drawing, image in zip(drawings, refs, strict=True):
            row = self._row(samples, drawing, image, findings)
            if row is None:
                continue
            split = split_of.get(drawing.split) or by_words.get(image.name)
            yield {**row, SPLIT: split} if split else row

    def _is_right(self, drawing: Drawing, findings: Findings) -> bool:
        """Whether the values of a drawing are what they should be; else its image is left out.

        Raises:
            SourceError: the name of the image is no text.
        """
        if not isinstance(drawing.image, str):
            raise SourceError(
                f"{self.title}: calls an image {shown(drawing.image)}, which is no name. Correct it, or leave it out"
            )
        try:
            drawing.check()
        except (ValueError, TypeError, OverflowError, KeyError) as error:
            findings.reject(drawing.image, f"its annotations hold {error}")
            return False
        return True

    def _splits_by_words(
        self, images: Sequence[Ref], findings: Findings
    ) -> dict[str, str]:
        """The split of each image by the words in its path; {} where these divide nothing."""
        if not self.options.own_splits:
            return {}
        splits = splits_of_words([image.name for image in images])
        if splits:
            findings.origin = "by words in the names of its folders"
        return splits

    def _row(
        self, samples: "Samples", drawing: Drawing, image: Ref, findings: Findings
    ) -> Row | None:
        """A sample; None if its image is left out, with the reason."""
        size = drawing.size
        if drawing.needs_size and 0 in size:
            size = read_size(self.files, image, findings)
            if 0 in size:
                return None
        try:
            return samples.row(image, drawing, size)
        except ValueError as error:
            findings.reject(image.name, str(error))
            return None

    def _with_negatives(
        self,
        drawings: list[Drawing],
        refs: list[Ref],
        images: NamedImages,
        findings: Findings,
    ) -> tuple[list[Drawing], list[Ref]]:
        """Both, and images that no annotation names where these are images without an object."""
        named = {ref.name for ref in refs}
        rest = [ref for name, ref in images.refs.items() if name not in named]
        if not rest:
            return drawings, refs
        names = some_of([ref.name for ref in rest])
        have = counted(len(rest), "image has", "images have")
        if self.options.negatives:
            findings.notes.append(f"{have} no annotation, so no object: {names}")
            return drawings + [Drawing(ref.name) for ref in rest], refs + rest
        advice = "--negatives packs such images as images without an object"
        folders = {posixpath.dirname(name) for name in named}
        if self.beside and any(posixpath.dirname(ref.name) in folders for ref in rest):
            raise SourceError(
                f"{self.title}: {have} no file of annotations: {names}. Add it, or remove them; {advice}"
            )
        findings.notes.append(
            f"left out, since {have} no annotation: {names}; {advice}"
        )
        return drawings, refs

    def _splits(
        self, drawings: Sequence[Drawing], findings: Findings
    ) -> dict[str, str]:
        """The split for each word of the tool; {} where it divides nothing."""
        findings.strict = False
        words = {drawing.split for drawing in drawings}
        if not self.options.own_splits or words == {""}:
            return {}
        splits = {word: split_called(word) for word in words}
        if not any(splits.values()):
            return {}
        if unknown := [word for word in words if not splits[word]]:
            raise SourceError(
                f"{self.title}: some images are in splits, others in {some_of(sorted(unknown))}. Correct it, or give "
                "--no-splits"
            )
        findings.origin = "by its annotations"
        return splits


def areas(shapes: Iterable[Shape | str], findings: Findings) -> list[Shape]:
    """The shapes of an image that have an area.

    Args:
        shapes: All of them; of one without an area, such as a point, the name of its kind.
        findings: Counts these.
    """
    kept = list[Shape]()
    for shape in shapes:
        if isinstance(shape, str):
            findings.shapeless[shape] += 1
        else:
            kept.append(shape)
    return kept


def _note_shapeless(findings: Findings) -> None:
    """Notes what `areas` has left out."""
    if findings.shapeless:
        kinds = [f"{count:,} × {name}" for name, count in findings.shapeless.items()]
        findings.notes.append(
            f"shapes that are no boxes or areas are left out: {', '.join(kinds)}"
        )


def add_classes(findings: Findings, title: str, names: Sequence[str]) -> None:
    """Notes the classes of a document in its own order.

    Raises:
        SourceError: another document has other ones.
    """
    before = findings.classes.setdefault("boxes", tuple(names))
    if before != tuple(names):
        raise SourceError(
            f"{title}: its files have different classes, {some_of(before)} and {some_of(names)}. Make them equal"
        )


def read_size(files: Files, image: Ref, findings: Findings) -> WidthHeight:
    """Width and height of an image; (0, 0) if it cannot be read, and is left out."""
    try:
        return size_of(files.read(image.address))
    except RemoteError:
        raise
    except DecodeError as error:  # names the format
        findings.reject(image.name, str(error))
    except Exception as error:  # Pillow's many parsers may raise anything
        reason = reason_of(error)
        findings.reject(image.name, f"its size cannot be read: {reason}")
    return 0, 0


def size_of(data: bytes) -> WidthHeight:
    """Width and height of an encoded image, upright, of the page that is packed.

    Raises:
        DecodeError: it is of a kind that is not read, and the message names it. Exception: of many kinds, by Pillow.
    """
    opened = open_file(data, Conversion(alpha="drop"))
    if opened.image is None:
        return opened.size
    return upright_size(opened.size, opened.image.getexif())


class Samples:
    """Makes rows, which have the same fields: those that any drawing needs.

    Args:
        drawings: Of all images, of which the fields follow.
        findings: Gets what the source reports.
        numbered: Names of the class numbers that shapes have for labels; None where those have no names.
    """

    def __init__(
        self,
        drawings: Sequence[Drawing],
        findings: Findings,
        numbered: Names | None = None,
    ) -> None:
        shapes = [shape for drawing in drawings for shape in drawing.shapes]
        labels = [label for drawing in drawings for label in drawing.labels]
        self._has_boxes = bool(shapes) or not labels
        self._has_masks = any(map(_needs_mask, shapes))
        self._points = _numbers_of_points(shapes)
        if self._points:
            findings.instances_of = {"keypoints": "boxes"}
        self._is_single = all(len(drawing.labels) == 1 for drawing in drawings)
        of_tool = findings.classes.pop("boxes", ())
        names = of_tool if numbered is None else numbered
        _check_names(names)
        used = set(labels)
        fields = ("label", "labels")
        if self._has_boxes:
            used = _names_in(shapes)
            fields = ("boxes", "labels")
        self._names = (*names, *sorted(used - set(names)))
        self._number = {name: number for number, name in enumerate(self._names)}
        if self._names:
            findings.classes |= dict.fromkeys(fields, self._names)
        findings.draws = self._has_boxes
        if self._has_boxes and labels:
            findings.notes.append(
                f"classes of whole images are left out beside those of boxes: {some_of(sorted(set(labels)))}"
            )

    def row(self, image: Ref, drawing: Drawing, size: WidthHeight) -> Row:
        """The row of one sample.

        Args:
            image: The file.
            drawing: What the tool says about it.
            size: (width, height) of the image that was drawn on.
        """
        if not self._has_boxes:
            return {"image": image, **self._whole_classes(drawing)}
        shapes = [in_pixels(shape, size, drawing.in_shares) for shape in drawing.shapes]
        classes = list(map(self._class_number, shapes))
        row: dict[str, Any] = {
            "image": image,
            DRAWN_ON: size if shapes else (0, 0),
            "boxes": [shape.corners for shape in shapes],
            "boxes_class": classes,
            "labels": sorted(set(classes)),
        }
        if self._has_masks:
            row["boxes_masks"] = [_outline_of(shape) for shape in shapes]
            row["boxes_area"] = [area_of(shape) for shape in shapes]
            row["boxes_crowd"] = [int(shape.crowd) for shape in shapes]
        if self._points:
            none = [0.0] * self._points
            row["keypoints"] = [list(shape.points) or none for shape in shapes]
        return row

    def _class_number(self, shape: Shape) -> int:
        if isinstance(shape.label, int):
            return shape.label
        return self._number[shape.label]

    def _whole_classes(self, drawing: Drawing) -> Row:
        """The field of the classes of a whole image."""
        numbers = [self._number[label] for label in drawing.labels]
        if self._is_single:
            return {"label": numbers[0]}
        return {"labels": sorted(set(numbers))}


def _needs_mask(shape: Shape) -> bool:
    """Whether more than a box was drawn: an outline, or a crowd."""
    return len(shape.outline) > 0 or shape.crowd


def _names_in(shapes: Sequence[Shape]) -> set[str]:
    """The names of classes that shapes have for labels."""
    return {shape.label for shape in shapes if isinstance(shape.label, str)}


def _outline_of(shape: Shape) -> Any:
    """As the field of masks takes it: [] for a shape without one."""
    return [] if isinstance(shape.outline, tuple) else shape.outline


def _check_names(names: Names) -> None:
    """Raises SourceError if names of classes are no texts."""
    wrong = [shown(name) for name in names if not isinstance(name, str)]
    if wrong:
        raise SourceError(
            f"its classes are called {some_of(wrong)}, which are no names. Correct it"
        )


def _numbers_of_points(shapes: Sequence[Shape]) -> int:
    """How many numbers the keypoints of each shape have; 0 without any.

    Raises:
        SourceError: they have different ones.
    """
    counts = {len(shape.points) for shape in shapes if shape.points}
    if len(counts) > 1:
        raise SourceError(
            f"its objects have {some_of(sorted(counts))} numbers of keypoints. Give all of them the same points"
        )
    return max(counts, default=0)
