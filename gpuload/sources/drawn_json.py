"""Annotation tools that write JSON: LabelMe, VIA, Datumaro, FiftyOne, Ultralytics' NDJSON, Create ML, BDD100K,
CrowdHuman."""

import base64
import io
import posixpath
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from gpuload.errors import SourceError, some_of
from gpuload.fields.instances import box_of_runs, outline_of
from gpuload.headers.npy import read_array
from gpuload.pictures import reason_of
from gpuload.sources.drawn import (
    AttributeOptions,
    Drawing,
    DrawnSource,
    add_classes,
    areas,
)
from gpuload.sources.drawn_regions import attribute_of, via_shape
from gpuload.sources.files import Findings, Ref
from gpuload.sources.listing import word_of_split, words_of_splits
from gpuload.sources.shapes import (
    Corners,
    Shape,
    box_of,
    centered_box,
    ellipse,
    flat_polygon,
    joined,
    keypoints_of,
    part_of_mask,
    polygon,
    size_in,
    turned_box,
)
from gpuload.types import Array, WidthHeight

Entry = Mapping[str, Any]


class LabelMeSource(DrawnSource):
    """A JSON of LabelMe beside each image, or in a folder of its own (4.5 to 6.3)."""

    kind = "labelme"
    form = "LabelMe's JSON"
    beside = True
    rejects = True

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        document = self.document(file)
        size = int(document["imageWidth"]), int(document["imageHeight"])
        drawn = (_labelme_shape(entry, size) for entry in document["shapes"])
        path = document["imagePath"].replace("\\", "/")
        image = posixpath.normpath(f"{posixpath.dirname(file.name)}/{path}")
        yield Drawing(image.lstrip("/"), areas(drawn, findings), size)


def _labelme_shape(entry: Entry, size: WidthHeight) -> Shape | str:
    """Points and lines have no area."""
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
        (x0, y0), (x1, y1) = points
        pixels = _pixels_in(base64.b64decode(entry["mask"]))
        mask = part_of_mask(pixels, round(x0), round(y0), size)
        return Shape(label, (x0, y0, x1 + 1, y1 + 1), mask)
    return str(kind)


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


class ViaSource(DrawnSource):
    """A project or an export of VGG's VIA 1 and 2: JSON, with regions by image. A CSV of VIA is one of `boxes`."""

    kind = "via"
    form = "VIA's JSON"
    Options = AttributeOptions
    options: AttributeOptions

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        document = self.document(file)
        for entry in document.get("_via_img_metadata", document).values():
            regions = entry["regions"]
            every = regions.values() if isinstance(regions, dict) else regions
            shapes = areas(map(self._shape, every), findings)
            yield Drawing(entry["filename"], shapes)

    def _shape(self, region: Entry) -> Shape | str:
        attributes = region["region_attributes"]
        label = attribute_of(self.title, attributes, self.options.attribute)
        return via_shape(label, region["shape_attributes"])


class DatumaroSource(DrawnSource):
    """Datumaro's own format: `annotations/<subset>.json` beside `images/<subset>`; of `default` alone, no splits."""

    kind = "datumaro"
    form = "Datumaro's JSON"

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        document = self.document(file)
        subset = posixpath.basename(file.name).removesuffix(".json")
        categories = document["categories"].get("label") or {"labels": []}
        names = tuple(label["name"] for label in categories["labels"])
        add_classes(findings, self.title, names)
        split = "" if subset == "default" else subset
        for item in document["items"]:
            image = item.get("image") or {}
            path = image.get("path") or item["id"]
            height, width = image.get("size") or (0, 0)
            drawn = _datumaro_shapes(item["annotations"], names)
            yield Drawing(
                f"{subset}/{path}",
                areas(drawn, findings),
                (int(width), int(height)),
                _datumaro_labels(item["annotations"], names),
                split,
            )


def _datumaro_labels(entries: Iterable[Entry], names: Sequence[str]) -> tuple[str, ...]:
    """The classes of a whole image."""
    return tuple(
        names[entry["label_id"]] for entry in entries if entry["type"] == "label"
    )


def _datumaro_shapes(
    entries: Iterable[Entry], names: Sequence[str]
) -> Iterator[Shape | str]:
    """What is drawn on an image."""
    for entry in entries:
        if entry["type"] != "label":
            yield _datumaro_shape(entry, names)


def _datumaro_shape(entry: Entry, names: Sequence[str]) -> Shape | str:
    number = entry.get("label_id")
    label = "object" if number is None else names[number]
    match entry["type"]:
        case "bbox":
            return box_of(label, *entry["bbox"])
        case "polygon":
            return flat_polygon(label, entry["points"])
        case "mask":
            return Shape(label, box_of_runs(entry["rle"]), entry["rle"])
        case "rotated_bbox":
            x, y, width, height, degrees = entry["points"]
            box = centered_box(label, x, y, width, height)
            return turned_box(label, box.corners, degrees, (x, y))
        case kind:
            return str(kind)


class FiftyOneSource(DrawnSource):
    """FiftyOne's `labels.json` of classes or boxes beside `data`, and its own data set with `samples.json`."""

    kind = "fiftyone"
    form = "FiftyOne's JSON"
    Options = AttributeOptions
    options: AttributeOptions

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        document = self.document(file)
        if "samples" in document:
            yield from self._samples(document["samples"], findings)
            return
        names = document.get("classes") or ()
        if names:
            add_classes(findings, self.title, names)
        for image, value in document["labels"].items():
            entries = value if isinstance(value, list) else [value]
            shapes = [
                box_of(_named(entry["label"], names), *entry["bounding_box"])
                for entry in entries
                if isinstance(entry, dict)
            ]
            labels = [
                _named(entry, names)
                for entry in entries
                if not (entry is None or isinstance(entry, dict))
            ]
            if value is not None or not _has_whole_labels(document["labels"]):
                yield Drawing(image, shapes, labels=(*labels,), in_shares=True)

    def _samples(
        self, samples: Sequence[Entry], findings: Findings
    ) -> Iterator[Drawing]:
        field = self.options.attribute or self._field_of_labels(samples)
        self._check_field(field, samples)
        for sample in samples:
            value = sample.get(field) or {}
            size = size_in(sample.get("metadata") or {})
            splits = list(filter(words_of_splits, sample.get("tags") or ()))
            yield Drawing(
                sample["filepath"],
                areas(_fiftyone_shapes(value, size), findings),
                size,
                _fiftyone_classes(value),
                splits[0] if len(splits) == 1 else "",
                in_shares=True,
            )

    def _field_of_labels(self, samples: Sequence[Entry]) -> str:
        """The field that holds the labels; "" if none does.

        Raises:
            SourceError: several do.
        """
        fields = set[str]()
        others = set[str]()
        for sample in samples:
            for name, value in sample.items():
                if not isinstance(value, dict):
                    continue
                if value.get("_cls") in _FIFTYONE_LABELS:
                    fields.add(name)
                elif value.get("_cls") in _FIFTYONE_OTHERS:
                    others.add(name)
        if len(fields) > 1:
            raise SourceError(
                f"{self.title}: its samples have the fields {some_of(sorted(fields))}. Give --option attribute=NAME"
            )
        return next(iter(fields or sorted(others)), "")

    def _check_field(self, field: str, samples: Sequence[Entry]) -> None:
        """Raises SourceError if no sample has labels in a field, or these are of a kind that is not read."""
        kinds = {
            value.get("_cls")
            for value in (sample.get(field) for sample in samples)
            if isinstance(value, dict)
        }
        unread = sorted(map(str, kinds - {*_FIFTYONE_LABELS}))
        if not kinds:
            named = f"the field {field!r}" if field else "any field"
            raise SourceError(
                f"{self.title}: none of its samples has labels in {named}. Give --option attribute=NAME, or "
                "--no-labels for the images alone"
            )
        if unread:
            raise SourceError(
                f"{self.title}: its field {field!r} holds {some_of(unread)}, which is not read from samples.json. "
                "Export masks as fiftyone.types.ImageSegmentationDirectory, give others to gpuload.pack() from a "
                "program, or give --no-labels for the images alone"
            )


# Labels of samples that are read, and those that are not.
_FIFTYONE_LABELS = ("Detections", "Polylines", "Classification", "Classifications")
_FIFTYONE_OTHERS = ("Segmentation", "Keypoints", "Heatmap", "Detection", "Polyline")
_MOST_OF_A_MASK = 1 << 28  # bytes of a mask of an object, decompressed


def _has_whole_labels(labels: Mapping[str, Any]) -> bool:
    entries = (
        entry
        for value in labels.values()
        for entry in (value if isinstance(value, list) else [value])
    )
    return any(not (entry is None or isinstance(entry, dict)) for entry in entries)


def _named(label: Any, names: Sequence[str]) -> str:
    return str(names[label]) if isinstance(label, int) and names else str(label)


def _fiftyone_classes(value: Entry) -> tuple[str, ...]:
    """The classes of a whole image."""
    entries = [value] if "label" in value else value.get("classifications") or ()
    return tuple(str(entry["label"]) for entry in entries)


def _fiftyone_shapes(value: Entry, size: WidthHeight) -> Iterator[Shape | str]:
    """What is drawn on an image; lines that are neither closed nor filled have no area.

    Args:
        value: The labels of a sample.
        size: (width, height) of the image; (0, 0) where it is unknown.
    """
    for entry in value.get("detections") or ():
        shape = box_of(str(entry["label"]), *entry["bounding_box"])
        mask = entry.get("mask")
        if isinstance(mask, dict) and 0 not in size:
            shape = shape._replace(outline=_fiftyone_mask(mask, shape.corners, size))
        yield shape
    for entry in value.get("polylines") or ():
        if entry.get("closed") or entry.get("filled"):
            label = str(entry["label"])
            yield joined([polygon(label, part) for part in entry["points"]])
        else:
            yield "polyline"


def _fiftyone_mask(mask: Entry, corners: Corners, size: WidthHeight) -> Any:
    """The runs of an object's mask, which is stretched over its box.

    Args:
        mask: An `.npy` of its own pixels, compressed by zlib, in Base64.
        corners: Of its box, in shares of the image.
        size: (width, height) of the image.

    Raises:
        ValueError: it is damaged.
    """
    packed = base64.b64decode(mask["$binary"]["base64"])
    try:
        content = zlib.decompressobj().decompress(packed, _MOST_OF_A_MASK)
    except zlib.error as error:
        raise ValueError(f"a mask cannot be read: {error}") from None
    pixels = read_array(content)
    width, height = size
    x0 = round(corners[0] * width)
    y0 = round(corners[1] * height)
    x1 = round(corners[2] * width)
    y1 = round(corners[3] * height)
    if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
        raise ValueError(
            f"a mask lies in a box {x0} {y0} {x1} {y1} of {width} x {height}"
        )
    part = Image.fromarray((pixels != 0).astype(np.uint8))
    if part.size != (x1 - x0, y1 - y0):
        part = part.resize((x1 - x0, y1 - y0), Image.Resampling.NEAREST)
    return outline_of(part_of_mask(np.asarray(part), x0, y0, size))


class NdjsonSource(DrawnSource):
    """Ultralytics' NDJSON: a line for the set and one for each image; tasks detect, segment, pose, obb and classify."""

    kind = "ndjson"
    form = "Ultralytics' NDJSON"
    extensions = ("ndjson", "jsonl")

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        entries = self.documents(file)
        head: Entry = next(entries, {})
        numbered = {int(key): name for key, name in head["class_names"].items()}
        names = tuple(numbered[number] for number in range(len(numbered)))
        width = (head.get("kpt_shape") or (0, 3))[1]
        add_classes(findings, self.title, names)
        for entry in entries:
            rows = dict(entry.get("annotations") or {})
            classes = rows.pop("classification", ())
            yield Drawing(
                entry["file"],
                list(_ndjson_shapes(rows, names, width)),
                size_in(entry),
                tuple(names[int(number)] for number in classes),
                split=str(entry.get("split") or ""),
                in_shares=True,
            )


def _ndjson_shapes(
    rows_by_kind: Mapping[str, Sequence[Sequence[float]]],
    names: Sequence[str],
    width: int,
) -> Iterator[Shape]:
    for kind, rows in rows_by_kind.items():
        for row in rows:
            yield _ndjson_shape(kind, row, names, width)


def _ndjson_shape(
    kind: str, row: Sequence[float], names: Sequence[str], width: int
) -> Shape:
    """A shape in shares of the image.

    Args:
        width: Numbers of each keypoint.
    """
    label = names[int(row[0])]
    if kind in ("segments", "obb"):
        return flat_polygon(label, row[1:])
    box = centered_box(label, *row[1:5])
    return box._replace(points=keypoints_of(row[5:], width))


class CreateMlSource(DrawnSource):
    """The JSON of Apple's Create ML, as Roboflow and supervision export it: boxes by their centres, or classes."""

    kind = "createml"
    form = "Create ML's JSON"

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        for entry in self.document(file):
            shapes = list[Shape]()
            labels = list[str]()
            for annotation in entry["annotations"]:
                label = str(annotation["label"])
                box = annotation.get("coordinates")
                if box is None:
                    labels.append(label)
                    continue
                sides = (box["width"], box["height"])
                shapes.append(centered_box(label, box["x"], box["y"], *sides))
            yield Drawing(entry["image"], shapes, labels=(*labels,))


class BddSource(DrawnSource):
    """The JSON of BDD100K and Scalabel: boxes and polygons; lines have no area."""

    kind = "bdd"
    form = "BDD100K's JSON"

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        document = self.document(file)
        frames = document["frames"] if isinstance(document, dict) else document
        split = word_of_split(posixpath.basename(file.name))
        for frame in frames:
            drawn = map(_bdd_shape, frame.get("labels") or ())
            yield Drawing(frame["name"], areas(drawn, findings), split=split)


def _bdd_shape(entry: Entry) -> Shape | str:
    label = str(entry["category"])
    is_crowd = bool((entry.get("attributes") or {}).get("crowd"))
    box = entry.get("box2d")
    parts = entry.get("poly2d") or ()
    if all(part.get("closed") for part in parts) and parts:
        shape = joined([polygon(label, part["vertices"]) for part in parts])
    elif box:
        shape = Shape(label, (box["x1"], box["y1"], box["x2"], box["y2"]))
    else:
        return "poly2d" if parts else "label"
    return shape._replace(crowd=is_crowd)


class CrowdHumanSource(DrawnSource):
    """CrowdHuman's `.odgt`: a line for each image; the full boxes of its people, and groups as crowds."""

    kind = "crowdhuman"
    form = "CrowdHuman's odgt"
    extensions = ("odgt",)

    def drawings_in(self, file: Ref, findings: Findings) -> Iterator[Drawing]:
        split = word_of_split(posixpath.basename(file.name))
        for entry in self.documents(file):
            shapes = [
                box_of("person", *box["fbox"])._replace(crowd=_is_ignored(box))
                for box in entry["gtboxes"]
            ]
            yield Drawing(entry["ID"], shapes, split=split)


def _is_ignored(box: Entry) -> bool:
    return box.get("tag") == "mask" or bool((box.get("extra") or {}).get("ignore"))
