"""COCO's JSON: captions, or instances with boxes and classes, beside a folder or archive of images."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from gpuload.errors import SourceError
from gpuload.sources.field_columns import FieldColumns
from gpuload.sources.files import Files
from gpuload.sources.files.source import FilesSource, files_table
from gpuload.sources.listing import Listing, Rejection, some_of


class CocoSource(FilesSource):
    """Images that a file such as `instances_train2017.json` or `captions_train2017.json` names.

    Instances give the fields "boxes" (x0 y0 x1 y1; those of crowds left out) and "labels" (the classes in the image);
    an image without any keeps empty ones. Captions give "caption", the first of an image, and "captions", all of them
    as JSON; an image without one is left out. Classes are numbered from 0 in the order of their COCO numbers, which
    have gaps. Samples are in the order of the file.
    """

    def __init__(self, root: str | Path | Files, annotations: str | Path) -> None:
        super().__init__(root)
        self.annotations = Path(annotations)

    def list_samples(self) -> Listing:
        """Every image of the file.

        Raises:
            SourceError: the file is not COCO's, names a missing image, or contradicts itself.
        """
        self.check_root("Give the folder of the images as SOURCE")
        found = self._read()
        images: list[dict[str, Any]] = found["images"]
        by_image: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for entry in sorted(found["annotations"], key=lambda entry: entry["id"]):
            by_image[entry["image_id"]].append(entry)
        unknown = sorted(map(str, set(by_image) - {image["id"] for image in images}))
        if unknown:
            raise SourceError(f"{self.annotations}: annotates images that it does not list: numbers {some_of(unknown)}")
        rejected = []
        if any("caption" in entry for entries in by_image.values() for entry in entries[:1]):
            lacking = [image for image in images if not any("caption" in e for e in by_image[image["id"]])]
            rejected = [Rejection(image["file_name"], "has no caption") for image in lacking]
            images = [image for image in images if any("caption" in e for e in by_image[image["id"]])]
        files, missing = self.find_all([image["file_name"] for image in images])
        if missing:
            raise SourceError(
                f"{self.annotations}: names {len(missing):,} of {len(images):,} files that are not in {self.root}: "
                f"{some_of(missing)}. Give the folder of the images as SOURCE"
            )
        entries = [by_image[image["id"]] for image in images]
        fields = FieldColumns(str(self.annotations))
        self._add_captions(fields, entries)
        self._add_instances(fields, entries, found.get("categories") or [])
        table = files_table(files, fields.fields, fields.columns)
        return Listing(table, tuple(fields.fields), None, tuple(rejected), ())

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.annotations.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or not found["images"] or not isinstance(found["annotations"], list):
                raise ValueError("lists no images")
            if any("caption" not in entry and "bbox" not in entry for entry in found["annotations"]):
                raise ValueError("has an annotation with neither a caption nor a bbox")
        except OSError as error:
            raise SourceError(f"{self.annotations}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{self.annotations}: not COCO's JSON with images and annotations ({error}). Tables of other kinds are "
                "CSV, TSV, JSONL or Parquet"
            ) from None
        return found

    def _add_captions(self, fields: FieldColumns, entries: list[list[dict[str, Any]]]) -> None:
        texts = [[entry["caption"].strip() for entry in found if "caption" in entry] for found in entries]
        if any(texts):
            fields.add("caption", "caption", [found[0] for found in texts])
            fields.add("json", "captions", texts)

    def _add_instances(
        self, fields: FieldColumns, entries: list[list[dict[str, Any]]], categories: list[dict[str, Any]]
    ) -> None:
        if not categories:
            return
        ordered = sorted(categories, key=lambda category: int(category["id"]))
        names = tuple(str(category["name"]) for category in ordered)
        number_of = {category["id"]: number for number, category in enumerate(ordered)}
        instances = [[entry for entry in found if "bbox" in entry and not entry.get("iscrowd")] for found in entries]
        used = {entry["category_id"] for found in instances for entry in found}
        if unknown := sorted(map(str, used - set(number_of))):
            raise SourceError(f"{self.annotations}: uses a category that it does not list: {some_of(unknown)}")
        classes = [[number_of[entry["category_id"]] for entry in found] for found in instances]
        boxes = [[_corners(entry["bbox"]) for entry in found] for found in instances]
        fields.add("boxes", "boxes", list(zip(boxes, classes, strict=True)), names)
        fields.add("labels", "labels", [sorted(set(row)) for row in classes], names)
        if any("keypoints" in entry for found in instances for entry in found):
            points = self._point_names([category for category in ordered if category["id"] in used])
            found_points = [[entry["keypoints"] for entry in found if "keypoints" in entry] for found in instances]
            fields.add("keypoints", "keypoints", found_points, points)

    def _point_names(self, categories: list[dict[str, Any]]) -> tuple[str, ...] | None:
        """Names of the points, which all categories with keypoints must share; None where the file does not name them.

        Raises:
            SourceError: two categories have different points.
        """
        named = {tuple(map(str, category["keypoints"])) for category in categories if category.get("keypoints")}
        if len(named) > 1:
            raise SourceError(
                f"{self.annotations}: its categories have different keypoints "
                f"({some_of([', '.join(names) for names in named])}). A field has the same points in all instances: "
                "keep the annotations of one category"
            )
        return next(iter(named), None)


def _corners(box: list[float]) -> tuple[float, float, float, float]:
    x, y, width, height = box
    return x, y, x + width, y + height
