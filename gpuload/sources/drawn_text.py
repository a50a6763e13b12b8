"""Data sets with texts of boxes, KITTI, VisDrone, DOTA, WIDER FACE and MOTChallenge; and CVAT's XML."""

import posixpath
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from gpuload.errors import SourceError
from gpuload.formats import image_extensions
from gpuload.sources.annotations import parse_xml, text_in
from gpuload.sources.drawn import Drawing, DrawnSource, add_classes, areas
from gpuload.sources.files import Findings, Ref
from gpuload.sources.listing import split_called
from gpuload.sources.shapes import (
    Shape,
    box_of,
    ellipse,
    flat_polygon,
    part_of_mask,
    polygon,
    size_in,
    turned_box,
)
from gpuload.sources.survey import DOTA_HEADS
from gpuload.types import Array, WidthHeight

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


class TextSource(DrawnSource):
    """Texts with a line for each box.

    line: how it is described.
    """

    extensions = ("txt",)
    line = Line("", (), False, 0)

    def lines(self, file: Ref) -> Iterator[str]:
        """The lines of a text that are not empty."""
        return filter(str.strip, text_in(self.files, file).split("\n"))


class _PartnerSource(TextSource):
    """A text for each image."""

    beside = True
    rejects = True

    def sheets(self, findings: Findings) -> Iterator[Ref]:
        """The texts that are called as an image is."""
        if self.line.names:
            findings.classes["boxes"] = tuple(self.line.names)
        images = self.files.walk(image_extensions(), Findings())
        stems = {posixpath.basename(image.name).rpartition(".")[0] for image in images}
        for file in self.files.walk({"txt"}, Findings()):
            if posixpath.basename(file.name).removesuffix(".txt") in stems:
                findings.use(file.name)
                yield file

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        parts = file.name.removesuffix(".txt").split("/")
        image = "/".join(_PARTNERS.get(part, part) for part in parts)
        shapes = map(self.shape, self.lines(file))
        yield Drawing(image, [shape for shape in shapes if shape is not None])

    def shape(self, line: str) -> Shape | None:
        """What a line describes; None for what is no object."""
        return self.line.shape(line)


class KittiSource(_PartnerSource):
    """KITTI's objects, in `label_2` beside `image_2`, or `labels` beside `data` as FiftyOne writes it. `DontCare` is a
    crowd of its own class."""

    kind = "kitti"
    form = "a text of kitti"
    line = _KITTI_LINE


class VisDroneSource(_PartnerSource):
    """VisDrone's boxes in `annotations` beside `images`. Classes are its 12 numbers, and ignored regions are crowds."""

    kind = "visdrone"
    form = "a text of visdrone"
    line = _VISDRONE_LINE


class DotaSource(_PartnerSource):
    """DOTA's turned boxes, in `labelTxt` beside `images`: the four corners of each, its class, and how difficult it is.

    Classes are in sorted order. Difficult objects are kept as all others.
    """

    kind = "dota"
    form = "a text of dota"

    def shape(self, line: str) -> Shape | None:
        if line.startswith(DOTA_HEADS):
            return None
        *sides, label, _ = line.split()
        return flat_polygon(label, [float(side) for side in sides])


class MotSource(TextSource):
    """MOTChallenge: sequences with `gt/gt.txt` beside `img1`. Boxes that do not count are left out; the numbers of
    classes are those of MOT17, from 0."""

    kind = "mot"
    form = "MOT's boxes"

    def sheets(self, findings: Findings) -> Iterator[Ref]:
        for file in self.files.walk({"txt"}, Findings()):
            if posixpath.basename(file.name) == "gt.txt":
                findings.use(file.name)
                yield file

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        folder = posixpath.dirname(file.name)
        line_form = self._line_form(folder, findings)
        add_classes(findings, self.title, line_form.names)
        frames: dict[int, list[Shape]] = {}
        for line in self.lines(file):
            of_frame = frames.setdefault(int(line.partition(",")[0]), [])
            shape = line_form.shape(line)
            if shape is not None:
                of_frame.append(shape)
        place = posixpath.dirname(folder)
        for number, shapes in sorted(frames.items()):
            yield Drawing(f"{place}/img1/{number:06d}".lstrip("/"), shapes)

    def _line_form(self, folder: str, findings: Findings) -> Line:
        """What lines of a `gt.txt` hold; Datumaro writes names of its own beside it."""
        with suppress(OSError):
            names = self.files.find(f"{folder}/labels.txt")
            findings.use(names.name)
            return _MOT_LINE._replace(
                names=[line.strip() for line in self.lines(names)]
            )
        return _MOT_LINE


class WiderSource(TextSource):
    """WIDER FACE: `wider_face_train_bbx_gt.txt`, a block of faces for each image. Invalid faces are crowds."""

    kind = "wider"
    form = "WIDER's faces"

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        words = posixpath.basename(file.name).split("_")
        split = next(filter(split_called, words), "")
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
    form = "LabelMe's XML"
    uses = ("xml",)  # that of an image without an object
    rejects = True

    def sheets(self, findings: Findings) -> Iterator[Ref]:
        for file in self.files.walk({"xml"}, Findings()):
            findings.use(file.name)
            yield file

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
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
        yield Drawing(f"{folder}/{name}".lstrip("/"), shapes, (width, height))


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
    form = "CVAT's XML"
    extensions = ("xml",)

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        root = parse_xml(self.files.read(file.address))
        names = [label.findtext("name", "") for label in root.iter("label")]
        if names:
            add_classes(findings, self.title, names)
        if root.find("track") is not None:
            raise SourceError(
                f"{self.title}/{file.name}: holds tracks of a video, whose frames are no files. Export it as "
                "CVAT for images"
            )
        # The split where Datumaro has written a file for each.
        stem = posixpath.basename(file.name).rpartition(".")[0]
        for image in root.iter("image"):
            size = size_in(image)
            labels = [entry.get("label") for entry in image.findall("tag")]
            drawn = (
                _cvat_shape(entry.tag, entry.attrib, size)
                for entry in image
                if entry.tag != "tag"
            )
            subset = image.get("subset") or stem
            split = subset if split_called(subset) else ""
            shapes = areas(drawn, findings)
            yield Drawing(image.get("name"), shapes, size, (*labels,), split)


def _cvat_shape(tag: str, values: Mapping[str, str], size: WidthHeight) -> Shape | str:
    """Points, lines and skeletons have no area."""
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
        return _cvat_mask(label, values, size)
    return tag


def _numbers(values: Mapping[str, str], *names: str) -> tuple[float, ...]:
    return tuple(float(values[name]) for name in names)


def _cvat_mask(label: str, values: Mapping[str, str], size: WidthHeight) -> Shape:
    """A mask: runs of the pixels in a box.

    Raises:
        ValueError: the runs are not as long as the box is large.
    """
    box = _numbers(values, "left", "top", "width", "height")
    x, y, width, height = map(int, box)
    runs = [int(run) for run in values["rle"].split(",")]
    if sum(runs) != width * height or width * height > size[0] * size[1]:
        raise ValueError(f"runs of {sum(runs)} pixels for {width} x {height}")
    part = unpacked_runs(runs).reshape(height, width)
    mask = part_of_mask(part, x, y, size)
    return box_of(label, x, y, width, height)._replace(outline=mask)


def unpacked_runs(runs: Sequence[int]) -> Array:
    """Zeros and ones of runs that begin with zeros."""
    values = np.arange(len(runs)) % 2
    return np.repeat(values, runs).astype(np.uint8)
