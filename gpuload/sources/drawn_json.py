"""Annotation tools that write JSON: LabelMe, VIA, Datumaro, FiftyOne, Ultralytics' NDJSON, CrowdHuman."""

import base64
import io
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from gpuload.errors import SourceError, some_of
from gpuload.fields.instances import box_of_runs
from gpuload.machine.untrusted import parse_json
from gpuload.pictures import reason_of
from gpuload.sources.annotations import read_or_reject
from gpuload.sources.drawn import (
    FORM_ERRORS,
    Drawing,
    DrawnSource,
    add_classes,
    tell,
)
from gpuload.sources.drawn_documents import DocumentSource
from gpuload.sources.drawn_regions import AttributeOptions, attribute_of, via_shape
from gpuload.sources.files import Findings, Ref
from gpuload.sources.listing import words_of_splits
from gpuload.sources.shapes import (
    Shape,
    blank_mask,
    box_of,
    ellipse,
    keypoints_of,
    polygon,
    turned_box,
)
from gpuload.types import Array, WidthHeight

Entry = Mapping[str, Any]


class LabelMeSource(DrawnSource):
    """A JSON of LabelMe beside each image, or in a folder of its own (4.5 to 6.3)."""

    kind = "labelme"
    beside = True

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        passed_over = Counter[str]()
        for file in self.sheets(findings, "json"):
            drawing = read_or_reject(
                lambda: self._read(file, passed_over),  # noqa: B023
                file,
                file,
                "LabelMe's JSON",
                findings,
                *FORM_ERRORS,
            )
            if drawing is not None:
                yield drawing
        tell(passed_over, findings)

    def _read(self, file: Ref, passed_over: Counter[str]) -> Drawing:
        document = parse_json(self.files.text(file.name))
        size = int(document["imageWidth"]), int(document["imageHeight"])
        shapes = list[Shape]()
        for entry in document["shapes"]:
            shape = _labelme_shape(entry, size)
            if shape is None:
                passed_over[str(entry["shape_type"])] += 1
            else:
                shapes.append(shape)
        path = document["imagePath"].replace("\\", "/")
        image = posixpath.normpath(f"{posixpath.dirname(file.name)}/{path}")
        return Drawing(image.lstrip("/"), shapes, size)


def _labelme_shape(entry: Entry, size: WidthHeight) -> Shape | None:
    """None for points and lines, which have no area."""
    label = str(entry["label"])
    points = entry["points"]
    kind = entry.get("shape_type") or "polygon"
    if kind in ("polygon", "oriented_rectangle"):
        return polygon(label, points)
    if kind == "rectangle":
        return polygon(label, points)._replace(outline=())
    if kind == "circle":
        center, edge = points
        radius = float(np.hypot(edge[0] - center[0], edge[1] - center[1]))
        return ellipse(label, (center[0], center[1]), (radius, radius))
    if kind == "mask":
        return _labelme_mask(label, points, entry["mask"], size)
    return None


def _labelme_mask(label: str, points: Any, content: str, size: WidthHeight) -> Shape:
    """A mask: the pixels of a PNG, between these corners of the image."""
    (x0, y0), (x1, y1) = points
    mask = blank_mask(size[1], size[0])
    pixels = _pixels_in(base64.b64decode(content))
    column = round(x0)
    row = round(y0)
    mask[row : row + pixels.shape[0], column : column + pixels.shape[1]] = pixels
    return Shape(label, (x0, y0, x1 + 1, y1 + 1), mask)


def _pixels_in(png: bytes) -> Array:
    """Whether each pixel of a part of a mask belongs to the object.

    Raises:
        ValueError: it is no image.
    """
    try:
        with Image.open(io.BytesIO(png)) as part:
            return np.asarray(part.convert("L")) > 0
    except Exception as error:  # Pillow's parsers may raise anything
        raise ValueError(f"its mask cannot be read: {reason_of(error)}") from None


class ViaSource(DocumentSource):
    """A project or an export of VGG's VIA 1 and 2: JSON, with regions by image. A CSV of VIA is one of `boxes`."""

    kind = "via"
    form = "VIA's JSON"
    Options = AttributeOptions
    options: AttributeOptions

    def read_document(
        self, file: Ref, findings: Findings, passed_over: Counter[str]
    ) -> Iterator[Drawing]:
        document = self.document(file)
        for entry in document.get("_via_img_metadata", document).values():
            regions = entry["regions"]
            every = regions.values() if isinstance(regions, dict) else regions
            shapes = list[Shape]()
            for region in every:
                form = region["shape_attributes"]
                shape = via_shape(self._label(region["region_attributes"]), form)
                if shape is None:
                    passed_over[str(form["name"])] += 1
                else:
                    shapes.append(shape)
            yield Drawing(entry["filename"], shapes)

    def _label(self, attributes: Entry) -> str:
        return attribute_of(self.title, attributes, self.options.attribute)


class DatumaroSource(DocumentSource):
    """Datumaro's own format: `annotations/<subset>.json` beside `images/<subset>`; of `default` alone, no splits."""

    kind = "datumaro"
    form = "Datumaro's JSON"

    def read_document(
        self, file: Ref, findings: Findings, passed_over: Counter[str]
    ) -> Iterator[Drawing]:
        document = self.document(file)
        subset = posixpath.basename(file.name).removesuffix(".json")
        categories = document["categories"].get("label") or {"labels": []}
        names = tuple(label["name"] for label in categories["labels"])
        add_classes(findings, self.title, names)
        split = "" if subset == "default" else subset
        for item in document["items"]:
            drawing = _datumaro_drawing(item, names, passed_over)
            path = f"{subset}/{drawing.image}"
            yield drawing._replace(image=path, split=split)


def _datumaro_drawing(
    item: Entry, names: Sequence[str], passed_over: Counter[str]
) -> Drawing:
    """The drawing in an item of a subset.

    Args:
        names: Of the classes.
    """
    image = item.get("image") or {}
    height, width = image.get("size") or (0, 0)
    shapes = list[Shape]()
    labels = list[str]()
    for entry in item["annotations"]:
        kind = entry["type"]
        if kind == "label":
            labels.append(names[entry.get("label_id")])
            continue
        shape = _datumaro_shape(entry, names)
        if shape is None:
            passed_over[kind] += 1
        else:
            shapes.append(shape)
    path = image.get("path") or item["id"]
    return Drawing(path, shapes, (int(width), int(height)), tuple(labels))


def _datumaro_shape(entry: Entry, names: Sequence[str]) -> Shape | None:
    number = entry.get("label_id")
    label = "object" if number is None else names[number]
    if entry["type"] == "bbox":
        return box_of(label, *entry["bbox"])
    if entry["type"] == "polygon":
        points = entry["points"]
        return polygon(label, list(zip(points[0::2], points[1::2], strict=True)))
    if entry["type"] == "mask":
        return Shape(label, box_of_runs(entry["rle"]), entry["rle"])
    if entry["type"] == "rotated_bbox":
        x, y, width, height, degrees = entry["points"]
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        return turned_box(label, corners, degrees, (x, y))
    return None


class FiftyOneSource(DocumentSource):
    """FiftyOne's `labels.json` of classes or boxes beside `data`, and its own data set with `samples.json`."""

    kind = "fiftyone"
    form = "FiftyOne's JSON"
    Options = AttributeOptions
    options: AttributeOptions

    def read_document(
        self, file: Ref, findings: Findings, passed_over: Counter[str]
    ) -> Iterator[Drawing]:
        document = self.document(file)
        if "samples" in document:
            yield from self._samples(document["samples"], passed_over)
            return
        names = document.get("classes") or ()
        if names:
            add_classes(findings, self.title, names)
        for image, value in document["labels"].items():
            if not isinstance(value, list):
                labels = [] if value is None else [_named(value, names)]
                if labels or not _has_whole_labels(document["labels"]):
                    yield Drawing(image, (), (0, 0), (*labels,))
                continue
            shapes = [
                box_of(_named(entry["label"], names), *entry["bounding_box"])
                for entry in value
            ]
            yield Drawing(image, shapes, in_shares=True)

    def _samples(
        self, samples: Sequence[Entry], passed_over: Counter[str]
    ) -> Iterator[Drawing]:
        field = self.options.attribute or self._field_of_labels(samples)
        for sample in samples:
            size = _size_in(sample.get("metadata") or {})
            shapes, labels = _fiftyone_labels(sample.get(field) or {}, passed_over)
            tags = [tag for tag in sample.get("tags") or () if words_of_splits(tag)]
            split = tags[0] if len(tags) == 1 else ""
            yield Drawing(sample["filepath"], shapes, size, labels, split, True)

    def _field_of_labels(self, samples: Sequence[Entry]) -> str:
        """The field that holds the labels; "" if none does.

        Raises:
            SourceError: several do.
        """
        kinds = ("Detections", "Polylines", "Classification", "Classifications")
        fields = set[str]()
        for sample in samples:
            for name, value in sample.items():
                if isinstance(value, dict) and value.get("_cls") in kinds:
                    fields.add(name)
        if len(fields) > 1:
            raise SourceError(
                f"{self.title}: its samples have the fields {some_of(sorted(fields))}. Give --option attribute=NAME"
            )
        return next(iter(fields), "")


def _size_in(entry: Entry) -> WidthHeight:
    """The width and height that an entry tells; 0 where it does not."""
    return int(entry.get("width") or 0), int(entry.get("height") or 0)


def _has_whole_labels(labels: Mapping[str, Any]) -> bool:
    return any(
        value is not None and not isinstance(value, list) for value in labels.values()
    )


def _named(label: Any, names: Sequence[str]) -> str:
    return str(names[label]) if isinstance(label, int) and names else str(label)


def _fiftyone_labels(
    value: Entry, passed_over: Counter[str]
) -> tuple[list[Shape], tuple[str, ...]]:
    """The shapes and the classes of a sample."""
    if "label" in value:
        return [], (str(value["label"]),)
    if "classifications" in value:
        return [], tuple(str(entry["label"]) for entry in value["classifications"])
    shapes = [
        box_of(str(entry["label"]), *entry["bounding_box"])
        for entry in value.get("detections") or ()
    ]
    for entry in value.get("polylines") or ():
        if not entry.get("closed") and not entry.get("filled"):
            passed_over["polyline"] += 1
            continue
        outlines = [polygon(str(entry["label"]), part) for part in entry["points"]]
        shapes.append(_joined(outlines))
    return shapes, ()


def _joined(parts: Sequence[Shape]) -> Shape:
    """The polygons of one object as one shape."""
    sides = list(zip(*(part.corners for part in parts), strict=True))
    corners = (min(sides[0]), min(sides[1]), max(sides[2]), max(sides[3]))
    outline = [flat for part in parts for flat in part.outline]
    return Shape(parts[0].label, corners, outline)


class NdjsonSource(DocumentSource):
    """Ultralytics' NDJSON: a line for the set and one for each image; tasks detect, segment, pose, obb and classify."""

    kind = "ndjson"
    form = "Ultralytics' NDJSON"
    extensions = ("ndjson", "jsonl")

    def read_document(
        self, file: Ref, findings: Findings, passed_over: Counter[str]
    ) -> Iterator[Drawing]:
        lines = filter(str.strip, self.files.text(file.name).splitlines())
        head = parse_json(next(lines))
        numbered = {int(key): name for key, name in head["class_names"].items()}
        names = tuple(numbered[number] for number in range(len(numbered)))
        width = (head.get("kpt_shape") or (0, 3))[1]
        add_classes(findings, self.title, names)
        for line in lines:
            yield _ndjson_drawing(parse_json(line), names, width)


def _ndjson_drawing(entry: Entry, names: Sequence[str], width: int) -> Drawing:
    """The drawing in one line.

    Args:
        names: Of the classes.
        width: Numbers of a keypoint.
    """
    shapes = list[Shape]()
    labels = list[str]()
    for kind, rows in (entry.get("annotations") or {}).items():
        if kind == "classification":
            labels += [names[int(row)] for row in rows]
        else:
            shapes += [_ndjson_shape(kind, row, names, width) for row in rows]
    return Drawing(
        entry["file"],
        shapes,
        _size_in(entry),
        tuple(labels),
        split=str(entry.get("split") or ""),
        in_shares=True,
    )


def _ndjson_shape(
    kind: str, row: Sequence[float], names: Sequence[str], width: int
) -> Shape:
    """A shape in shares of the image.

    Args:
        width: Numbers of each keypoint.
    """
    label = names[int(row[0])]
    if kind in ("segments", "obb"):
        return polygon(label, list(zip(row[1::2], row[2::2], strict=True)))
    x, y, wide, high = row[1:5]
    shape = box_of(label, x - wide / 2, y - high / 2, wide, high)
    return shape._replace(points=keypoints_of(row[5:], width))


class CrowdHumanSource(DocumentSource):
    """CrowdHuman's `.odgt`: a line for each image; the full boxes of its people, and groups as crowds."""

    kind = "crowdhuman"
    form = "CrowdHuman's odgt"
    extensions = ("odgt",)

    def read_document(
        self, file: Ref, findings: Findings, passed_over: Counter[str]
    ) -> Iterator[Drawing]:
        splits = words_of_splits(posixpath.basename(file.name))
        split = next(iter(splits)) if len(splits) == 1 else ""
        for line in filter(str.strip, self.files.text(file.name).splitlines()):
            entry = parse_json(line)
            shapes = [
                box_of("person", *box["fbox"])._replace(crowd=_is_ignored(box))
                for box in entry["gtboxes"]
            ]
            yield Drawing(entry["ID"], shapes, split=split)


def _is_ignored(box: Entry) -> bool:
    return box.get("tag") == "mask" or bool((box.get("extra") or {}).get("ignore"))
