"""Images with boxes in a file for each: Pascal VOC's and ILSVRC's XML, and YOLO's texts."""

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple

from gpuload.counted import counted
from gpuload.errors import DecodeError, RemoteError, SourceError, some_of
from gpuload.fields.numbers import BACKGROUND
from gpuload.formats import Conversion, open_file
from gpuload.headers.jpeg import upright_size
from gpuload.machine.installed import require
from gpuload.pictures import reason_of
from gpuload.sources.annotations import (
    Box,
    annotation_files,
    by_stem,
    parse_boxes,
    read_or_reject,
    read_text,
    resemble_boxes,
    text_in,
    with_boxes,
)
from gpuload.sources.files import (
    IMAGE_EXTENSIONS,
    Files,
    Findings,
    Ref,
    extension_of,
    lone_folder,
    readable,
)
from gpuload.sources.listing import (
    DRAWN_ON,
    SPLIT,
    one_file_each,
    split_called,
    splits_of_paths,
    words_of_splits,
)
from gpuload.sources.source import (
    CONTENT,
    LAYOUT,
    FilesSource,
    Row,
    Sight,
    SourceOptions,
)
from gpuload.sources.split_lists import NamedSplits, named_splits_of
from gpuload.types import WidthHeight

_IMAGE_FOLDERS = ("data", "jpegimages", "images")  # in any case
_LISTS = "ImageSets/Main"
_SIDES = ("xmin", "ymin", "xmax", "ymax")

_NAME_FILES = (
    "classes.txt",
    "obj.names",
    "_darknet.labels",
)  # LabelImg's, CVAT's and Roboflow's
_YAML = (".yaml", ".yml")
_LOOKED_INTO = 8  # folders, and files of each, to tell whether a container is YOLO's
_MOST_YAML_BYTES = 1 << 20
_MOST_PX = 1 << 30

_XML = "an annotation in XML, with a name and a bndbox for each object"
_LINES = "YOLO's boxes: lines of class, x, y, width and height, in shares of the image, without polygons and keypoints"


class Objects(NamedTuple):
    """What an XML says of its image. boxes: x0 y0 x1 y1. names: their classes. size: of the image; (0, 0): unknown."""

    boxes: list[list[float]]
    names: list[str]
    size: WidthHeight


_NO_OBJECTS = Objects([], [], (0, 0))


@dataclass(frozen=True)
class VocOptions(SourceOptions):
    """The options of Pascal VOC.

    Args:
        negatives: whether an image without an XML is one without an object; else it is an error.
    """

    negatives: bool = False


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
        xml, data = _folders(self.files)
        if not (xml and data) and _are_beside(self.files):
            xml = data = ""
        elif not xml or not data:
            what = "holds no Annotations beside Data (ILSVRC), JPEGImages (Pascal VOC) or images"
            raise SourceError(f"{self.title}: {what}. {self.advice}")
        images, annotations = self._pairs(data, xml, findings)
        objects = self._read_all(images, annotations, findings)
        names = sorted(
            {name for of_image in objects.values() for name in of_image.names}
        )
        classes = (BACKGROUND, *(name for name in names if name != BACKGROUND))
        findings.classes |= {"label": classes, "boxes": tuple(names)}
        findings.draws = True
        findings.strict = True
        split_of = dict[str, str]()
        if (
            self.options.own_splits
            and splits_of_paths(self.title, [image.name for image in images.values()])
            is None
        ):
            split_of = self._listed_splits(images, findings)
        if split_of:
            findings.origin = f"by the lists in {_LISTS!r}"
        for stem, of_image in objects.items():
            image = images[stem]
            row = {
                "image": image,
                "label": classes.index(_largest(of_image)),
                "boxes": of_image.boxes,
                "boxes_class": of_image.names,
                DRAWN_ON: of_image.size if of_image.boxes else (0, 0),
            }
            if not split_of:
                yield row
            elif stem in split_of:
                yield {**row, SPLIT: split_of[stem]}
            else:
                findings.reject(image.name, f"is in no list of {_LISTS}", True)

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
        split_of, twice = dict[str, str](), False
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
        images, texts = (
            {
                stem.removeprefix(top): of[kind]
                for stem, of in stems.items()
                if stem.startswith(top) and kind in of
            }
            for top, kind in (
                (f"{data}/" * bool(data), "image"),
                (f"{xml}/" * bool(xml), "xml"),
            )
        )
        lacking = sorted(images[stem].name for stem in images.keys() - texts.keys())
        alone = sorted(texts[stem].name for stem in texts.keys() - images.keys())
        if lacking and self.options.negatives:
            have = counted(len(lacking), "image has", "images have")
            findings.notes.append(f"{have} no XML, so no objects: {some_of(lacking)}")
            lacking = []
        if lacking or alone:
            files_have = counted(len(lacking + alone), "file has", "files have")
            places = f"{xml} or {data}" if xml else "the same folder"
            what = f"{files_have} no partner of the same path in {places}: {some_of(lacking + alone)}"
            negatives = (
                "; --negatives packs images without an XML as images without objects"
                if lacking
                else ""
            )
            raise SourceError(
                f"{self.title}: {what}. Add the partner, or remove them{negatives}"
            )
        return dict(sorted(images.items())), texts

    def _read_all(
        self, images: dict[str, Ref], texts: dict[str, Ref], findings: Findings
    ) -> dict[str, Objects]:
        """The objects of each image, by stem; without those whose XML is damaged."""
        from xml.etree import ElementTree

        objects: dict[str, Objects] = {}
        for stem, image in images.items():
            if stem not in texts:
                objects[stem] = _NO_OBJECTS
                continue
            text = texts[stem]
            # LookupError: an encoding that Python lacks.
            errors = (ElementTree.ParseError, ValueError, LookupError, OverflowError)
            described = read_or_reject(
                lambda: self._objects(text),  # noqa: B023
                image,
                text,
                _XML,
                findings,
                *errors,
            )
            if described is not None:
                objects[stem] = described
        return objects

    def _objects(self, file: Ref) -> Objects:
        """Raises ElementTree.ParseError, ValueError, LookupError or OverflowError for what is no annotation."""
        from xml.etree import ElementTree

        text = self.files.read(file.address)
        # Entities are what XML attacks are made of, and no annotation has any; UTF-16, with its zeros, hides them.
        if b"<!" in text.replace(b"<!--", b"") or b"\0" in text:
            raise ValueError("it declares entities or is not UTF-8")
        root = ElementTree.fromstring(text)
        width, height = (
            int(float(root.findtext(f"size/{side}", "") or 0))
            for side in ("width", "height")
        )
        boxes, names = list[list[float]](), list[str]()
        for entry in root.iter("object"):
            if (box := entry.find("bndbox")) is None or not (
                name := (entry.findtext("name") or "").strip()
            ):
                raise ValueError("an object without a name or a bndbox")
            boxes.append([float(box.findtext(side, "")) for side in _SIDES])
            names.append(name)
        return Objects(
            boxes,
            names,
            (width, height)
            if min(width, height) > 0 and max(width, height) < _MOST_PX
            else (0, 0),
        )


def _largest(objects: Objects) -> str:
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in objects.boxes]
    return objects.names[areas.index(max(areas))] if areas else BACKGROUND


def _folders(files: Files) -> tuple[str, str]:
    """Names of the folders of XML and of images; "" for a missing one."""
    named = {name.lower(): name for name in reversed(files.folders())}
    data = next((named[name] for name in _IMAGE_FOLDERS if name in named), "")
    xml = named.get("annotations", "")
    if not xml and "labels" in named and _named(files.names(named["labels"]), "xml"):
        xml = named["labels"]  # of FiftyOne
    return xml, data


def _are_beside(files: Files) -> bool:
    """Whether XML of Pascal VOC lies beside images, as LabelImg and Roboflow write it."""
    places = [] if lone_folder(files) else files.folders()[:_LOOKED_INTO]
    for place in ("", *places):
        names = files.names(place)
        stems = {
            name.rpartition(".")[0]
            for name in names
            if extension_of(name) in IMAGE_EXTENSIONS
        }
        texts = [
            posixpath.join(place, name)
            for name in _named(names, "xml")
            if name[: -len(".xml")] in stems
        ]
        if any(
            "<annotation>" in text or "<annotation " in text
            for text in _readable(files, texts[:_LOOKED_INTO])
        ):
            return True
    return False


class YoloSource(FilesSource):
    """Images, each with its boxes in a `.txt` of its name: beside it, or in a folder `labels` where it lies in a folder
    `images`; in the layouts of Ultralytics, Roboflow, darknet, CVAT and LabelImg.

    Fields: "boxes", x0 y0 x1 y1 in pixels of the upright image, and "labels", the classes in it. An image without a
    `.txt` has no object; one with a line that is no box, or whose class has no name, is left out with that line.

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
        names = files.names()
        lists = [name for name in _texts(names) if words_of_splits(name)]
        describes = lists or any(
            name.endswith((*_YAML, ".data")) or name in _NAME_FILES for name in names
        )
        places = (
            []
            if lone_folder(files) and not describes
            else files.folders()[:_LOOKED_INTO]
        )
        for place in ("", *places):
            names = files.names(place)
            stems = {
                name.rpartition(".")[0]
                for name in names
                if extension_of(name) in IMAGE_EXTENSIONS
            }
            texts = [
                posixpath.join(place, name)
                for name in _texts(names)
                if name[:-4] in stems
            ]
            if {"images", "labels"} <= set(files.folders(place)):
                labels = posixpath.join(place, "labels")
                folders = [
                    labels,
                    *(f"{labels}/{name}" for name in files.folders(labels)),
                ]
                texts += [
                    f"{folder}/{name}"
                    for folder in folders
                    for name in _texts(files.names(folder))
                ]
            if resemble_boxes(list(_readable(files, sorted(texts)[:_LOOKED_INTO]))):
                where = place or "it"
                return Sight(CONTENT, f"{where} holds YOLO's boxes for its images")
        return None

    def rows(self, findings: Findings) -> Iterator[Row]:
        findings.strict = True
        files = list(self.files.walk({*IMAGE_EXTENSIONS, "txt"}, findings))
        texts = {
            file.name.rpartition(".")[0]: file
            for file in files
            if extension_of(file.name) == "txt"
        }
        images = [file for file in files if extension_of(file.name) != "txt"]
        text_of = {image.name: _text_of(image, texts) for image in images}
        if not any(text_of.values()):
            what = "no image has a .txt of its name, beside it or in a folder 'labels' beside 'images'"
            raise SourceError(f"{self.title}: {what}. {self.advice}")
        names = self._class_names()
        if names:
            findings.classes |= {"boxes": names, "labels": names}
        splits = NamedSplits({})
        if self.options.own_splits:
            splits = named_splits_of(
                self.files, self.title, [image.name for image in images], findings
            )
        if splits.split_of:
            images = [image for image in images if image.name in splits.split_of]
        self.expect([image.address for image in images])
        for image in images:
            boxes = self._boxes(image, text_of[image.name], names, findings)
            if boxes is None:
                continue
            try:
                size = _upright_size(self.files.read(image.address))
            except RemoteError:
                raise
            except DecodeError as error:  # names the format
                findings.reject(image.name, str(error))
                continue
            except Exception as error:  # Pillow's many parsers may raise anything
                findings.reject(
                    image.name, f"its size cannot be read: {reason_of(error)}"
                )
                continue
            corners = [_in_pixels(box, *size) for box in boxes]
            row = {"image": image, **with_boxes(corners, [box[0] for box in boxes])}
            yield (
                {**row, SPLIT: splits.split_of[image.name]} if splits.split_of else row
            )
        if alone := [name for name, text in text_of.items() if text is None]:
            findings.notes.append(
                f"{counted(len(alone), 'image has', 'images have')} no .txt, so no boxes: {some_of(alone)}"
            )
        used = splits.lists.union(text.name for text in text_of.values() if text)
        if left := [
            text.name
            for text in texts.values()
            if text.name not in used and "/" in text.name
        ]:
            findings.notes.append(
                f"{counted(len(left), '.txt belongs', '.txt belong')} to no image: {some_of(left)}"
            )

    def _boxes(
        self, image: Ref, text: Ref | None, names: Sequence[str], findings: Findings
    ) -> list[Box] | None:
        """Those of an image; None if its text is damaged, or a class has no name."""
        if text is None:
            return []
        file = text
        return read_or_reject(
            lambda: list(parse_boxes(text_in(self.files, file), names)),
            image,
            file,
            _LINES,
            findings,
            ValueError,
        )

    def _class_names(self) -> tuple[str, ...]:
        """The names in the first file that has any; () if none has."""
        yamls = [name for name in self.files.names() if name.endswith(_YAML)]
        for name in (
            *yamls,
            *_NAME_FILES,
            *(f"{folder}/_darknet.labels" for folder in self.files.folders()),
        ):
            with suppress(OSError):  # there is no such file
                file = self.files.find(name)
                names = self._in_yaml(file) if name in yamls else self._in_lines(file)
                if any(names):
                    return tuple(name.strip() for name in names)
        return ()

    def _in_lines(self, file: Ref) -> list[str]:
        lines = read_text(self.files, file, self.title).rstrip().split("\n")
        if any(lines) and not all(map(str.strip, lines)):
            number = 1 + next(
                number for number, line in enumerate(lines) if not line.strip()
            )
            what = f"line {number} is empty, so that class {number - 1} has no name"
            raise SourceError(
                f"{self.title}/{file.name}: {what}. Write one name in each line, that of class 0 first"
            )
        return lines

    def _in_yaml(self, file: Ref) -> list[str]:
        """The names as they are written: `no`, `007` and `1.10` are texts, too."""
        title = f"{self.title}/{file.name}"
        require(title, "yaml")
        yaml = import_module("yaml")
        with readable(title, "YAML with names of classes", yaml.YAMLError, ValueError):
            if file.size > _MOST_YAML_BYTES:
                raise ValueError(
                    f"{file.size:,} bytes are more than names of classes take"
                )
            loader = type(
                "TextLoader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {}}
            )
            document = yaml.load(read_text(self.files, file, self.title), loader)
            names = document.get("names") or [] if isinstance(document, dict) else []
            if isinstance(names, dict) and set(names) == set(
                map(str, range(len(names)))
            ):
                names = [names[str(number)] for number in range(len(names))]
            if not isinstance(names, list) or not all(
                isinstance(name, str) and name.strip() for name in names
            ):
                raise ValueError(
                    "'names' must list the names of all classes, or number them from 0 without a gap"
                )
        return names


def _texts(names: Sequence[str]) -> list[str]:
    return _named(names, "txt")


def _named(names: Sequence[str], extension: str) -> list[str]:
    return [name for name in names if extension_of(name) == extension]


def _readable(files: Files, names: Sequence[str]) -> Iterator[str]:
    """The texts of those files that can be read."""
    for name in names:
        with suppress(OSError, DecodeError):
            yield files.read(files.find(name).address).decode("utf-8", "replace")


def _upright_size(data: bytes) -> WidthHeight:
    """Width and height of an encoded image, of the page that is packed.

    Raises:
        DecodeError: it is of a kind that is not read, and the message names it. Exception: of many kinds, by Pillow.
    """
    opened = open_file(data, Conversion(alpha="drop"))
    return (
        opened.size
        if opened.image is None
        else upright_size(opened.size, opened.image.getexif())
    )


def _in_pixels(box: Box, width: int, height: int) -> tuple[float, ...]:
    """x0, y0, x1 and y1, within the image."""
    _, x, y, wide, high = box
    x0, x1 = (min(max(side, 0), 1) * width for side in (x - wide / 2, x + wide / 2))
    y0, y1 = (min(max(side, 0), 1) * height for side in (y - high / 2, y + high / 2))
    return x0, y0, x1, y1


def _text_of(image: Ref, texts: dict[str, Ref]) -> Ref | None:
    """The text of an image: where the last folder `images` of its path is `labels`, or beside it."""
    stem = f"/{image.name.rpartition('.')[0]}"
    there = "/labels/".join(stem.rsplit("/images/", 1))
    return texts.get(there[1:]) or texts.get(stem[1:])
