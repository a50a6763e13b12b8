"""Data sets with texts of boxes, KITTI, VisDrone, DOTA, WIDER FACE and MOTChallenge; and CVAT's XML."""

import posixpath
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from gpuload.errors import SourceError
from gpuload.formats import image_extensions
from gpuload.sources.annotations import parse_xml, read_or_reject, text_in
from gpuload.sources.drawn import FORM_ERRORS, Drawing, DrawnSource, add_classes, tell
from gpuload.sources.files import Findings, Ref, readable
from gpuload.sources.listing import split_called
from gpuload.sources.shapes import (
    Shape,
    blank_mask,
    box_of,
    ellipse,
    polygon,
    turned_box,
)
from gpuload.sources.survey import DOTA_HEADS
from gpuload.types import Array

_VISDRONE = (
    "ignored regions",
    "pedestrian",
    "people",
    "bicycle",
    "car",
    "van",
    "truck",
    "tricycle",
    "awning-tricycle",
    "bus",
    "motor",
    "others",
)
_MOT = (
    "pedestrian",
    "person on vehicle",
    "car",
    "bicycle",
    "motorbike",
    "non motorized vehicle",
    "static person",
    "distractor",
    "occluder",
    "occluder on the ground",
    "occluder full",
    "reflection",
)


class Line(NamedTuple):
    """How a line of a text describes a box.

    Attributes:
        separator: Between its words; "": blanks.
        box: Numbers of the words that hold it.
        is_sized: Whether these are x y width height, else x0 y0 x1 y1.
        label: Number of the word with the class.
        names: Of the class numbers in these words; () where the words are names.
        first: The number of the first class.
        counted: Number of a word that is 0 where the box does not count; -1 without.
        crowd: The class of regions that are not annotated further.
    """

    separator: str
    box: Sequence[int]
    is_sized: bool
    label: int
    names: Sequence[str] = ()
    first: int = 0
    counted: int = -1
    crowd: str = ""

    def shape(self, text: str) -> Shape | None:
        """The box of a line; None where it does not count."""
        words = text.rstrip(", ").split(self.separator or None)
        if self.counted >= 0 and float(words[self.counted]) == 0:
            return None
        label = words[self.label].strip()
        if self.names:
            label = self.names[int(label) - self.first]
        numbers = [float(words[place]) for place in self.box]
        shape = Shape(label, (numbers[0], numbers[1], numbers[2], numbers[3]))
        if self.is_sized:
            shape = box_of(label, *numbers)
        return shape._replace(crowd=bool(self.crowd) and label == self.crowd)


_KITTI_LINE = Line("", (4, 5, 6, 7), False, 0, crowd="DontCare")
_VISDRONE_LINE = Line(",", (0, 1, 2, 3), True, 5, _VISDRONE, crowd="ignored regions")
_MOT_LINE = Line(",", (2, 3, 4, 5), True, 7, _MOT, first=1, counted=6)


# The folder of images for one of texts.
_PARTNERS = {
    "label_2": "image_2",
    "labels": "data",
    "annotations": "images",
    "labelTxt": "images",
}


class _LinesSource(DrawnSource):
    """A text for each image, with a line for each box."""

    beside = True
    line = Line("", (), False, 0)

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        if self.line.names:
            findings.classes["boxes"] = tuple(self.line.names)
        images = self.files.walk(image_extensions(), Findings())
        stems = {posixpath.basename(image.name).rpartition(".")[0] for image in images}
        for file in self.files.walk({"txt"}, Findings()):
            if posixpath.basename(file.name).removesuffix(".txt") not in stems:
                continue
            findings.use(file.name)
            shapes = read_or_reject(
                lambda: self._read(file),  # noqa: B023
                file,
                file,
                f"a text of {self.kind}",
                findings,
                *FORM_ERRORS,
            )
            if shapes is not None:
                parts = file.name.removesuffix(".txt").split("/")
                yield Drawing(
                    "/".join(_PARTNERS.get(part, part) for part in parts), shapes
                )

    def _read(self, file: Ref) -> list[Shape]:
        lines = filter(str.strip, text_in(self.files, file).split("\n"))
        shapes = (self.line.shape(line) for line in lines)
        return [shape for shape in shapes if shape is not None]


class KittiSource(_LinesSource):
    """KITTI's objects, in `label_2` beside `image_2`, or `labels` beside `data` as FiftyOne writes it. `DontCare` is a
    crowd of its own class."""

    kind = "kitti"
    line = _KITTI_LINE


class VisDroneSource(_LinesSource):
    """VisDrone's boxes in `annotations` beside `images`. Classes are its 12 numbers, and ignored regions are crowds."""

    kind = "visdrone"
    line = _VISDRONE_LINE


class DotaSource(_LinesSource):
    """DOTA's turned boxes, in `labelTxt` beside `images`: the four corners of each, its class, and how difficult it is.

    Classes are in sorted order. Difficult objects are kept as all others.
    """

    kind = "dota"

    def _read(self, file: Ref) -> list[Shape]:
        shapes = list[Shape]()
        for line in filter(str.strip, text_in(self.files, file).split("\n")):
            if line.startswith(DOTA_HEADS):
                continue
            *sides, label, _ = line.split()
            xs = map(float, sides[0::2])
            ys = map(float, sides[1::2])
            shapes.append(polygon(label, list(zip(xs, ys, strict=True))))
        return shapes


class MotSource(DrawnSource):
    """MOTChallenge: sequences with `gt/gt.txt` beside `img1`. Boxes that do not count are left out; the numbers of
    classes are those of MOT17, from 0."""

    kind = "mot"

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        for file in self.files.walk({"txt"}, Findings()):
            if posixpath.basename(file.name) != "gt.txt":
                continue
            findings.use(file.name)
            place = posixpath.dirname(posixpath.dirname(file.name))
            form = self._form(posixpath.dirname(file.name), findings)
            add_classes(findings, self.title, form.names)
            frames: dict[int, list[Shape]] = {}
            with readable(f"{self.title}/{file.name}", "MOT's boxes", *FORM_ERRORS):
                for line in filter(str.strip, text_in(self.files, file).split("\n")):
                    of_frame = frames.setdefault(int(line.partition(",")[0]), [])
                    shape = form.shape(line)
                    if shape is not None:
                        of_frame.append(shape)
            for number, shapes in sorted(frames.items()):
                yield Drawing(f"{place}/img1/{number:06d}".lstrip("/"), shapes)

    def _form(self, folder: str, findings: Findings) -> Line:
        """What lines of a `gt.txt` hold; Datumaro writes names of its own beside it."""
        with suppress(OSError):
            self.files.find(f"{folder}/labels.txt")
            findings.use(f"{folder}/labels.txt")
            names = self.files.text(f"{folder}/labels.txt").split("\n")
            return _MOT_LINE._replace(
                names=[name.strip() for name in names if name.strip()]
            )
        return _MOT_LINE


class WiderSource(DrawnSource):
    """WIDER FACE: `wider_face_train_bbx_gt.txt`, a block of faces for each image. Invalid faces are crowds."""

    kind = "wider"

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        for file in self.sheets(findings, "txt"):
            words = posixpath.basename(file.name).split("_")
            split = next(filter(split_called, words), "")
            with readable(f"{self.title}/{file.name}", "WIDER's faces", *FORM_ERRORS):
                yield from self._read(file, split)

    def _read(self, file: Ref, split: str) -> Iterator[Drawing]:
        lines = deque(text_in(self.files, file).strip().split("\n"))
        while lines:
            image = lines.popleft()
            is_counted = bool(lines) and lines[0].strip().isdecimal()
            count = int(lines.popleft()) if is_counted else 0
            rows = [lines.popleft().split() for _ in range(count)]
            if not count and lines and len(lines[0].split()) >= 4:
                lines.popleft()  # a face of zeros, where there is none
            shapes = [_face(row) for row in rows]
            yield Drawing(image.strip(), shapes, split=split)


class LabelMeXmlSource(DrawnSource):
    """The XML of LabelMe's old web tool, as Datumaro writes it, too: boxes and polygons, but for deleted ones."""

    kind = "labelme-xml"
    uses = ("xml",)  # that of an image without an object

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        for file in self.files.walk({"xml"}, Findings()):
            findings.use(file.name)
            drawing = read_or_reject(
                lambda: self._read(file),  # noqa: B023
                file,
                file,
                "LabelMe's XML",
                findings,
                *FORM_ERRORS,
            )
            if drawing is not None:
                yield drawing

    def _read(self, file: Ref) -> Drawing:
        root = parse_xml(self.files.read(file.address))
        height = int(float(root.findtext("imagesize/nrows") or 0))
        width = int(float(root.findtext("imagesize/ncols") or 0))
        shapes = list[Shape]()
        for entry in root.iter("object"):
            if (entry.findtext("deleted") or "0").strip() == "1":
                continue
            points = [
                (float(point.findtext("x")), float(point.findtext("y")))
                for point in entry.iter("pt")
            ]
            shape = polygon((entry.findtext("name") or "").strip(), points)
            is_box = entry.findtext("type") == "bounding_box"
            shapes.append(shape._replace(outline=()) if is_box else shape)
        folder = (root.findtext("folder") or "").strip()
        name = (root.findtext("filename") or "").strip()
        return Drawing(f"{folder}/{name}".lstrip("/"), shapes, (width, height))


def _face(row: Sequence[str]) -> Shape:
    """A face, whose box is given by the first four cells."""
    x, y, width, height = map(float, row[:4])
    is_invalid = len(row) > 7 and row[7] == "1"
    label = row[4] if len(row) == 5 else "face"  # Datumaro writes one
    return box_of(label, x, y, width, height)._replace(crowd=is_invalid)


class CvatSource(DrawnSource):
    """ "CVAT for images 1.1", as CVAT and FiftyOne write it: boxes, turned ones too, polygons, ellipses, masks, tags.

    Classes are in the order of the project's labels. Shapes without an area are left out with a note.
    """

    kind = "cvat"

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        passed_over = Counter[str]()
        for file in self.sheets(findings, "xml"):
            with readable(f"{self.title}/{file.name}", "CVAT's XML", *FORM_ERRORS):
                root = parse_xml(self.files.read(file.address))
                names = [label.findtext("name", "") for label in root.iter("label")]
                if names:
                    add_classes(findings, self.title, names)
                if root.find("track") is not None:
                    raise SourceError(
                        f"{self.title}/{file.name}: holds tracks of a video, whose frames are no files. Export it as "
                        "CVAT for images"
                    )
                stem = posixpath.basename(file.name).rpartition(".")[0]
                for image in root.iter("image"):
                    yield _cvat_drawing(image, stem, passed_over)
        tell(passed_over, findings)


def _cvat_drawing(image: Any, stem: str, passed_over: Counter[str]) -> Drawing:
    """The drawing in an image's element.

    Args:
        stem: Name of the file without extension, which is the split where Datumaro has written one for each.
    """
    size = int(image.get("width") or 0), int(image.get("height") or 0)
    shapes = list[Shape]()
    labels = list[str]()
    for entry in image:
        if entry.tag == "tag":
            labels.append(entry.get("label"))
            continue
        shape = _cvat_shape(entry.tag, entry.attrib, size[::-1])
        if shape is None:
            passed_over[entry.tag] += 1
        else:
            shapes.append(shape)
    subset = image.get("subset") or stem
    split = subset if split_called(subset) else ""
    return Drawing(image.get("name"), shapes, size, (*labels,), split)


def _cvat_shape(
    tag: str, values: Mapping[str, str], height_width: tuple[int, int]
) -> Shape | None:
    label = values.get("label", "")
    degrees = float(values.get("rotation") or 0)
    if tag == "box":
        x0, y0, x1, y1 = _numbers(values, "xtl", "ytl", "xbr", "ybr")
        center = ((x0 + x1) / 2, (y0 + y1) / 2)
        return turned_box(label, (x0, y0, x1, y1), degrees, center)
    if tag == "polygon":
        points = [point.split(",") for point in values["points"].split(";")]
        return polygon(label, [(float(x), float(y)) for x, y in points])
    if tag == "ellipse":
        x, y, *radii = _numbers(values, "cx", "cy", "rx", "ry")
        return ellipse(label, (x, y), (radii[0], radii[1]), degrees)
    if tag == "mask":
        return _cvat_mask(label, values, height_width)
    return None


def _numbers(values: Mapping[str, str], *names: str) -> tuple[float, ...]:
    return tuple(float(values[name]) for name in names)


def _cvat_mask(
    label: str, values: Mapping[str, str], height_width: tuple[int, int]
) -> Shape:
    """A mask: runs of the pixels in a box.

    Raises:
        ValueError: the runs are not as long as the box is large.
    """
    box = _numbers(values, "left", "top", "width", "height")
    x, y, width, height = map(int, box)
    mask = blank_mask(*height_width)
    runs = [int(run) for run in values["rle"].split(",")]
    if sum(runs) != width * height or width * height > mask.size:
        raise ValueError(f"runs of {sum(runs)} pixels for {width} x {height}")
    part = unpacked_runs(runs)
    mask[y : y + height, x : x + width] = part.reshape(height, width)
    return box_of(label, x, y, width, height)._replace(outline=mask)


def unpacked_runs(runs: Sequence[int]) -> Array:
    """Zeros and ones of runs that begin with zeros."""
    values = np.arange(len(runs)) % 2
    return np.repeat(values, runs).astype(np.uint8)
