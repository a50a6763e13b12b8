"""Images with boxes in an XML for each: Pascal VOC's and ILSVRC's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuload.counted import counted
from gpuload.errors import SourceError, some_of
from gpuload.fields.numbers import BACKGROUND
from gpuload.sources.annotations import (
    annotation_files,
    by_stem,
    parse_xml,
    partners,
    read_or_reject,
    read_text,
    readable_texts,
)
from gpuload.sources.drawn import Drawing
from gpuload.sources.files import Files, Findings, Ref, extension_of, lone_folder
from gpuload.sources.listing import (
    DRAWN_ON,
    SPLIT,
    first_named,
    one_file_each,
    split_called,
    splits_of_paths,
)
from gpuload.sources.shapes import Shape, area_of
from gpuload.sources.source import (
    CONTENT,
    LAYOUT,
    FilesSource,
    Row,
    Sight,
    SourceOptions,
)
from gpuload.types import WidthHeight

_IMAGE_FOLDERS = ("data", "jpegimages", "images")  # in any case
_LISTS = "ImageSets/Main"
_SIDES = ("xmin", "ymin", "xmax", "ymax")

_LOOKED_INTO = 8  # folders, and files of each, to tell whether a container is VOC's
_MOST_PX = 1 << 30

_XML = "an annotation in XML, with a name and a bndbox for each object"


@dataclass(frozen=True)
class VocOptions(SourceOptions):
    """The options of Pascal VOC.

    Args:
        negatives: Whether an image without an XML is one without an object; else it is an error.
        first_pixel: The number that the first pixel has in `xmin` and `ymin`: 0, or 1 as in Pascal VOC itself and as
            supervision writes it. A note says so where no box begins at 0.
    """

    negatives: bool = False
    first_pixel: int = 0


class VocSource(FilesSource):
    """`Annotations/**.xml`, each with the image of the same path below `Data` (ILSVRC), `JPEGImages` (Pascal VOC) or
    `images`.

    Fields: "label", the class of the largest box, or "background" (number 0) where there is none; other classes are
    numbered from 1 in sorted order. "boxes", all of them, x0 y0 x1 y1 as the XML has them, in pixels of the image whose
    size the XML tells (see `gpuload.packing.annotations`); their classes are numbered from 0 in sorted order, without a
    background. An image whose XML is damaged is left out with the reason. Samples are in the order of their paths.

    Splits are the folders below `Data` that are named after them (see `splits`), or else the lists of Pascal VOC,
    `ImageSets/Main/train.txt`, `val.txt` and `test.txt`, if they have no image in common; then images in none of the
    lists are left out.
    """

    Options = VocOptions
    options: VocOptions
    advice = "Give the folder that holds Annotations"
    uses = ("voc", "list", "xml")  # an XML that is none of it is the fault of its image

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        xml, data = _folders(files)
        if xml and data and not annotation_files(files, ".json"):
            if data.lower() != "images" or _named(files.names(xml), "xml"):
                return Sight(LAYOUT, f"holds {xml!r} beside {data!r}")
        elif _are_beside(files):
            return Sight(CONTENT, "holds XML of Pascal VOC beside images")
        return None

    def rows(self, findings: Findings) -> Iterator[Row]:
        if self.options.first_pixel not in (0, 1):
            raise SourceError(
                f"--option first_pixel={self.options.first_pixel}: expected 0 or 1"
            )
        images, annotations = self._pairs(*self._places(), findings)
        drawings = self._read_all(images, annotations, findings)
        shapes = [shape for drawing in drawings.values() for shape in drawing.shapes]
        self._note_first_pixel(shapes, findings)
        names = tuple(sorted({str(shape.label) for shape in shapes}))
        classes = (BACKGROUND, *(name for name in names if name != BACKGROUND))
        findings.classes |= {"label": classes, "boxes": names}
        findings.draws = True
        findings.strict = True
        split_of = self._splits(images, findings)
        for stem, drawing in drawings.items():
            row = _row(images[stem], drawing, classes)
            if not split_of:
                yield row
            elif stem in split_of:
                yield {**row, SPLIT: split_of[stem]}
            else:
                name = images[stem].name
                findings.reject(name, f"is in no list of {_LISTS}", True)

    def _note_first_pixel(self, shapes: Sequence[Shape], findings: Findings) -> None:
        """Notes that pixels may be counted from 1, where no box begins at 0."""
        begins = [min(shape.corners[:2]) for shape in shapes]
        if self.options.first_pixel == 0 and min(begins, default=0) >= 1:
            findings.notes.append(
                "no box begins at pixel 0, and boxes are taken as they are; where pixels are counted from 1, as in "
                "Pascal VOC itself and by supervision, give --option first_pixel=1"
            )

    def _places(self) -> tuple[str, str]:
        """The folders of images and of annotations; "" for both where these lie beside each other.

        Raises:
            SourceError: there are none.
        """
        xml, data = _folders(self.files)
        if xml and data:
            return data, xml
        if _are_beside(self.files):
            return "", ""
        lacks = "holds no Annotations beside Data (ILSVRC), JPEGImages (Pascal VOC) or images"
        raise SourceError(f"{self.title}: {lacks}. {self.advice}")

    def _splits(self, images: dict[str, Ref], findings: Findings) -> dict[str, str]:
        """The split of each image by the lists; {} where folders are the splits, or nothing is."""
        if not self.options.own_splits:
            return {}
        names = [image.name for image in images.values()]
        if splits_of_paths(self.title, names) is not None:
            return {}
        split_of = self._listed_splits(images, findings)
        if split_of:
            findings.origin = f"by the lists in {_LISTS!r}"
        return split_of

    def _listed_splits(
        self, known: dict[str, Ref], findings: Findings
    ) -> dict[str, str]:
        """The split of each image by the lists of Pascal VOC; {} if there are no lists of two splits or more."""
        if _LISTS.partition("/")[0] not in self.files.folders():
            return {}
        texts = [
            name for name in self.files.names(_LISTS) if name.lower().endswith(".txt")
        ]
        lists = one_file_each(
            [f"{_LISTS}/{name}" for name in texts if split_called(name[: -len(".txt")])]
        )
        split_of = dict[str, str]()
        twice = False
        for split, name in lists.items():
            lines = read_text(self.files, self.files.find(name), self.title).split("\n")
            listed = [line.split()[0] for line in lines if line.strip()]
            twice = twice or any(split_of.get(stem, split) != split for stem in listed)
            split_of.update((stem, split) for stem in listed if stem in known)
        if not twice and len(set(split_of.values())) > 1:
            return split_of
        findings.notes.append(
            f"the lists in {_LISTS!r} are not used, since they are not lists of different images for two splits or "
            "more: all images are packed, and --val or --splits draws splits"
        )
        return {}

    def _pairs(
        self, data: str, xml: str, findings: Findings
    ) -> tuple[dict[str, Ref], dict[str, Ref]]:
        """Images and annotations by their paths below their folders ("": all), without extension, sorted."""
        stems = by_stem(self.files, ("xml",), findings, (data, xml) if data else ())
        images = _below(data, "image", stems)
        texts = _below(xml, "xml", stems)
        lacking = sorted(images[stem].name for stem in images.keys() - texts.keys())
        alone = sorted(texts[stem].name for stem in texts.keys() - images.keys())
        if lacking and self.options.negatives:
            have = counted(len(lacking), "image has", "images have")
            findings.notes.append(f"{have} no XML, so no objects: {some_of(lacking)}")
            lacking = []
        if lacking or alone:
            files_have = counted(len(lacking + alone), "file has", "files have")
            places = f"{xml} or {data}" if xml else "the same folder"
            advice = "Add the partner, or remove them"
            if lacking:
                advice += "; --negatives packs images without an XML as images without objects"
            raise SourceError(
                f"{self.title}: {files_have} no partner of the same path in {places}: {some_of(lacking + alone)}. "
                f"{advice}"
            )
        return dict(sorted(images.items())), texts

    def _read_all(
        self, images: dict[str, Ref], texts: dict[str, Ref], findings: Findings
    ) -> dict[str, Drawing]:
        """The objects of each image, by stem; without those whose XML is damaged."""
        drawings: dict[str, Drawing] = {}
        for stem, image in images.items():
            drawing: Drawing | None = Drawing(image.name)
            if stem in texts:
                text = texts[stem]
                drawing = read_or_reject(
                    partial(self._drawing, image.name, text),
                    image,
                    text,
                    _XML,
                    findings,
                    ValueError,
                    OverflowError,
                )
            if drawing is not None:
                drawings[stem] = drawing
        return drawings

    def _drawing(self, image: str, file: Ref) -> Drawing:
        """The objects that an XML names.

        Raises:
            ValueError, OverflowError: it is no annotation.
        """
        root = parse_xml(self.files.read(file.address))
        size = _size_in(root)
        return Drawing(image, list(map(self._shape, root.iter("object"))), size)

    def _shape(self, entry: Any) -> Shape:
        """The box of an element `object`.

        Raises:
            ValueError: it has none, or no name.
        """
        name = (entry.findtext("name") or "").strip()
        box = entry.find("bndbox")
        if not name or box is None:
            raise ValueError("an object without a name or a bndbox")
        x0, y0, x1, y1 = (float(box.findtext(side, "")) for side in _SIDES)
        first = self.options.first_pixel
        if first == 1 and min(x0, y0) < 1:
            raise ValueError("a box that begins before pixel 1, the first one")
        return Shape(name, (x0 - first, y0 - first, x1, y1))


def _row(image: Ref, drawing: Drawing, classes: Sequence[str]) -> Row:
    """A sample, labelled with the number of its class among these."""
    return {
        "image": image,
        "label": classes.index(_largest(drawing.shapes)),
        "boxes": [shape.corners for shape in drawing.shapes],
        "boxes_class": [shape.label for shape in drawing.shapes],
        DRAWN_ON: drawing.size if drawing.shapes else (0, 0),
    }


def _size_in(root: Any) -> WidthHeight:
    """Width and height of the image as its XML has them; (0, 0) where these cannot be."""
    width, height = (
        int(float(root.findtext(f"size/{side}", "") or 0))
        for side in ("width", "height")
    )
    is_known = min(width, height) > 0 and max(width, height) < _MOST_PX
    return (width, height) if is_known else (0, 0)


def _below(
    folder: str, kind: str, stems: Mapping[str, Mapping[str, Ref]]
) -> dict[str, Ref]:
    """The files of a kind below a folder ("": all), by their paths in it without extension."""
    top = f"{folder}/" if folder else ""
    return {
        stem.removeprefix(top): files[kind]
        for stem, files in stems.items()
        if stem.startswith(top) and kind in files
    }


def _largest(shapes: Sequence[Shape]) -> str:
    """The class of the largest box; the background where there is none."""
    return str(max(shapes, key=area_of).label) if shapes else BACKGROUND


def _folders(files: Files) -> tuple[str, str]:
    """Names of the folders of XML and of images; "" for a missing one."""
    named = {name.lower(): name for name in reversed(files.folders())}
    data = named.get(first_named(_IMAGE_FOLDERS, named), "")
    xml = named.get("annotations", "")
    if not xml and "labels" in named and _named(files.names(named["labels"]), "xml"):
        xml = named["labels"]  # of FiftyOne
    return xml, data


def _are_beside(files: Files) -> bool:
    """Whether XML of Pascal VOC lies beside images, as LabelImg and Roboflow write it."""
    places = [] if lone_folder(files) else files.folders()[:_LOOKED_INTO]
    for place in ("", *places):
        names = partners(files, place, "xml")[:_LOOKED_INTO]
        texts = readable_texts(files, names)
        if any("<annotation>" in text or "<annotation " in text for text in texts):
            return True
    return False


def _named(names: Sequence[str], extension: str) -> list[str]:
    return [name for name in names if extension_of(name) == extension]
