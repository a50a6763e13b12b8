"""Annotation tools that write JSON: LabelMe, Label Studio, VIA, Datumaro, FiftyOne, Ultralytics' NDJSON, CrowdHuman."""

import base64
import io
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from gpuload.errors import SourceError, some_of
from gpuload.machine.untrusted import parse_json
from gpuload.sources.annotations import read_or_reject
from gpuload.sources.drawn import (
    FORM_ERRORS,
    Drawing,
    DrawnSource,
    add_classes,
    tell,
)
from gpuload.sources.drawn_regions import AttributeOptions, attribute_of, via_shape
from gpuload.sources.files import Findings, Ref, readable
from gpuload.sources.listing import words_of_splits
from gpuload.sources.shapes import (
    Shape,
    box_of,
    ellipse,
    keypoints_of,
    polygon,
    turned_box,
)
from gpuload.sources.source import Names
from gpuload.sources.survey import kind_of_file
from gpuload.types import WidthHeight

Entry = Mapping[str, Any]


class DocumentSource(DrawnSource):
    """Documents of JSON that describe many images each."""

    form = "its tool's JSON"
    extensions: ClassVar[Names] = ("json",)

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        passed_over = Counter[str]()
        for file in self.files.walk(self.extensions, Findings()):
            if kind_of_file(self.files, file.name) != self.kind:
                continue
            with readable(f"{self.title}/{file.name}", self.form, *FORM_ERRORS):
                yield from self.read_document(file, findings, passed_over)
        tell(passed_over, findings)

    def read_document(
        self, file: Ref, findings: Findings, passed_over: Counter[str]
    ) -> Iterator[Drawing]:
        """The drawings of one document. passed_over: counts what is no object."""
        raise NotImplementedError

    def document(self, file: Ref) -> Any:
        """The content of a document of JSON."""
        return parse_json(self.files.text(file.name))


class LabelMeSource(DrawnSource):
    """A JSON of LabelMe beside each image, or in a folder of its own (4.5 to 6.3)."""

    kind = "labelme"
    beside = True

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        passed_over = Counter[str]()
        for file in self.files.walk({"json"}, Findings()):
            if kind_of_file(self.files, file.name) != self.kind:
                continue
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
        (left, top), (right, bottom) = points
        part = Image.open(io.BytesIO(base64.b64decode(entry["mask"])))
        mask = np.zeros(size[::-1], np.uint8)
        pixels = np.asarray(part.convert("L")) > 0
        x = round(left)
        y = round(top)
        mask[y : y + pixels.shape[0], x : x + pixels.shape[1]] = pixels
        return Shape(label, (left, top, right + 1, bottom + 1), mask)
    return None


class LabelStudioSource(DocumentSource):
    """The exports "JSON" and "JSON-MIN" of Label Studio: rectangles, turned ones too, ellipses, polygons and choices.

    Of several annotations of an image the last one that was not cancelled counts.
    """

    kind = "label-studio"
    form = "Label Studio's JSON"

    def read_document(
        self, file: Ref, findings: Findings, passed_over: Counter[str]
    ) -> Iterator[Drawing]:
        several = 0
        for task in self.document(file):
            if "data" not in task:
                yield _of_minimal(task, passed_over)
                continue
            done = task.get("annotations") or task.get("completions") or []
            done = [one for one in done if not one.get("was_cancelled")]
            several += len(done) > 1
            results = done[-1]["result"] if done else []
            values = [_merged(result) for result in results if "value" in result]
            yield _of_task(_image_in(task["data"]), values, passed_over)
        if several:
            findings.notes.append(
                f"{several:,} images have several annotations, of which the last is packed"
            )


def _merged(result: Entry) -> Entry:
    sizes = {key: result.get(key) for key in ("original_width", "original_height")}
    return {**result["value"], **sizes}


def _image_in(data: Entry) -> str:
    """The image of a task: the value that is called so, or the only text."""
    texts = {key: value for key, value in data.items() if isinstance(value, str)}
    for key in ("image", "img", "image_url", "url"):
        if key in texts:
            return texts[key]
    if len(texts) != 1:
        raise ValueError(f"its data have {some_of(sorted(data))}; which is the image?")
    return next(iter(texts.values()))


def _of_minimal(task: Entry, passed_over: Counter[str]) -> Drawing:
    """The drawing of a task of JSON-MIN."""
    values = list[Entry]()
    for value in task.values():
        if isinstance(value, list):
            values += [one for one in value if isinstance(one, dict)]
    choice = task.get("choice")
    if choice is not None:
        chosen = choice["choices"] if isinstance(choice, dict) else [choice]
        values.append({"choices": chosen})
    return _of_task(str(task["image"]), values, passed_over)


def _of_task(image: str, values: Sequence[Entry], passed_over: Counter[str]) -> Drawing:
    shapes = list[Shape]()
    labels = list[str]()
    size = (0, 0)
    for value in values:
        if "choices" in value:
            labels += value["choices"]
            continue
        size = int(value["original_width"]), int(value["original_height"])
        shape = _label_studio_shape(value, *size)
        if shape is None:
            kind = next((key for key in value if key.endswith("labels")), "shape")
            passed_over[kind] += 1
        else:
            shapes.append(shape)
    return Drawing(image, shapes, size, tuple(map(str, labels)))


def _label_studio_shape(value: Entry, width: int, height: int) -> Shape | None:
    """A shape, whose values are percent of the sides of the image."""
    kinds = ("rectanglelabels", "polygonlabels", "ellipselabels", "labels")
    names = next((value[kind] for kind in kinds if value.get(kind)), None)
    if names is None:
        return None
    label = str(names[0])
    degrees = float(value.get("rotation") or 0)
    if "points" in value:
        points = [(x * width / 100, y * height / 100) for x, y in value["points"]]
        return polygon(label, points)
    x = value["x"] * width / 100
    y = value["y"] * height / 100
    if "radiusX" in value:
        radii = value["radiusX"] * width / 100, value["radiusY"] * height / 100
        return ellipse(label, (x, y), radii, degrees)
    right = x + value["width"] * width / 100
    bottom = y + value["height"] * height / 100
    return turned_box(label, (x, y, right, bottom), degrees, (x, y))


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
        for item in document["items"]:
            image = item.get("image") or {}
            height, width = image.get("size") or (0, 0)
            shapes = list[Shape]()
            labels = list[str]()
            for entry in item["annotations"]:
                label = entry.get("label_id")
                if entry["type"] == "label":
                    labels.append(names[label])
                elif (shape := _datumaro_shape(entry, names)) is not None:
                    shapes.append(shape)
                else:
                    passed_over[entry["type"]] += 1
            path = image.get("path") or item["id"]
            split = "" if subset == "default" else subset
            size = int(width), int(height)
            yield Drawing(f"{subset}/{path}", shapes, size, (*labels,), split)


def _datumaro_shape(entry: Entry, names: Sequence[str]) -> Shape | None:
    number = entry.get("label_id")
    label = "object" if number is None else names[number]
    if entry["type"] == "bbox":
        return box_of(label, *entry["bbox"])
    if entry["type"] == "polygon":
        points = entry["points"]
        return polygon(label, list(zip(points[0::2], points[1::2], strict=True)))
    if entry["type"] == "mask":
        return box_of(label, *entry["bbox"])._replace(outline=entry["rle"])
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
                else:
                    findings.reject(image, "has no label")
                continue
            shapes = [
                box_of(_named(entry["label"], names), *entry["bounding_box"])
                for entry in value
            ]
            yield Drawing(image, shapes, in_shares=True)

    def _samples(
        self, samples: Sequence[Entry], passed_over: Counter[str]
    ) -> Iterator[Drawing]:
        kinds = ("Detections", "Polylines", "Classification", "Classifications")
        fields = {
            name
            for sample in samples
            for name, value in sample.items()
            if isinstance(value, dict) and value.get("_cls") in kinds
        }
        chosen = self.options.attribute
        if not chosen and len(fields) > 1:
            raise SourceError(
                f"{self.title}: its samples have the fields {some_of(sorted(fields))}. Give --option attribute=NAME"
            )
        chosen = chosen or next(iter(fields), "")
        for sample in samples:
            metadata = sample.get("metadata") or {}
            size = int(metadata.get("width") or 0), int(metadata.get("height") or 0)
            shapes, labels = _fiftyone_labels(sample.get(chosen) or {}, passed_over)
            tags = [tag for tag in sample.get("tags") or () if words_of_splits(tag)]
            split = tags[0] if len(tags) == 1 else ""
            yield Drawing(sample["filepath"], shapes, size, labels, split, True)


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
        return [], tuple(str(one["label"]) for one in value["classifications"])
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
            entry = parse_json(line)
            size = int(entry.get("width") or 0), int(entry.get("height") or 0)
            shapes = list[Shape]()
            labels = list[str]()
            for kind, rows in (entry.get("annotations") or {}).items():
                if kind == "classification":
                    labels += [names[int(row)] for row in rows]
                else:
                    shapes += [_ndjson_shape(kind, row, names, width) for row in rows]
            split = str(entry.get("split") or "")
            yield Drawing(entry["file"], shapes, size, (*labels,), split, True)


def _ndjson_shape(
    kind: str, row: Sequence[float], names: Sequence[str], width: int
) -> Shape:
    """A shape in shares of the image. width: numbers of each keypoint."""
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
