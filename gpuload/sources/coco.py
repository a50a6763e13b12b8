"""COCO's JSON: captions, or instances with boxes and classes, beside a folder or archive of images."""

from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from gpuload.errors import DecodeError, SourceError
from gpuload.headers.json_text import parse_json
from gpuload.sources.coco_check import check_document
from gpuload.sources.field_columns import FieldColumns
from gpuload.sources.files import Files, Folder
from gpuload.sources.files.source import FilesSource, files_table
from gpuload.sources.layout import annotation_files
from gpuload.sources.listing import NAME, Listing, Rejection, some_of
from gpuload.sources.splits import SourceSplits, named_splits, one_file_each, splits_of_paths


class _Part(NamedTuple):
    """What one file of annotations lists. title: for messages. named: all images that it names."""

    title: str
    listing: Listing
    named: list[str]


class CocoSource(FilesSource):
    """Images that a file such as `instances_train2017.json` or `captions_train2017.json` names.

    annotations: the file; None: the one in the folder `annotations` of the container, see `annotation_files`, or one
        for each split, such as `instances_train2017.json` and `instances_val2017.json`.

    Instances give the fields "boxes" (x0 y0 x1 y1; those of crowds left out) and "labels" (the classes in the image);
    an image without any keeps empty ones. Captions give "caption", the first of an image, and "captions", all of them
    as JSON; an image without one is left out. Classes are numbered from 0 in the order of their COCO numbers, which
    have gaps. Samples are in the order of the file. Names in the file start at the root, or at a folder in it, such as
    `images/train2017`.
    """

    def __init__(self, root: str | Path | Files, annotations: str | Path | None = None) -> None:
        super().__init__(root)
        self.annotations = None if annotations is None else Path(annotations)

    @staticmethod
    def fits(files: Files) -> bool:
        """Whether a container has a folder of annotations in JSON."""
        return bool(annotation_files(files, ".json"))

    def list_samples(self) -> Listing:
        """Every image of the file, or of the file of each split.

        Raises:
            SourceError: the file is not COCO's, names a missing image, or contradicts itself; or there are several, and
                it is not their names that tell the split of each.
        """
        self.check_root("Give the folder of the images as SOURCE")
        if self.annotations is not None:
            parts = {"": self._list(str(self.annotations), "")}
        else:
            parts = {split: self._list(f"{self.root}/{name}", name) for split, name in self._choose().items()}
        first, *others = parts.values()
        for other in others:
            self._check_alike(first, other)
        names = [name for part in parts.values() for name in part.listing.samples.column(NAME).to_pylist()]
        notes = [note for part in parts.values() for note in part.listing.notes]
        notes += self.beside(
            [name for part in parts.values() for name in part.named],
            " and ".join(part.title for part in parts.values()),
        )
        own = None
        if self.own_splits and others:
            values = [split for split, part in parts.items() for _ in range(len(part.listing))]
            own = SourceSplits.of(values, "by the names of the files in 'annotations'")
        elif self.own_splits:
            own = splits_of_paths(first.title, names, strict=False)
        return Listing(
            pa.concat_tables(part.listing.samples for part in parts.values()),
            first.listing.fields,
            None,
            tuple(rejection for part in parts.values() for rejection in part.listing.rejected),
            tuple(notes),
            own,
        )

    def _list(self, title: str, name: str) -> "_Part":
        """Every image of one file. name: of the file in the container, if it lies there."""
        found = self._parse(title, name)
        images: list[dict[str, Any]] = found["images"]
        by_image: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for entry in sorted(found["annotations"], key=lambda entry: entry["id"]):
            by_image[entry["image_id"]].append(entry)
        unknown = sorted(map(str, set(by_image) - {image["id"] for image in images}))
        if unknown:
            raise SourceError(f"{title}: annotates images that it does not list: numbers {some_of(unknown)}")
        rejected = []
        listed, place = [image["file_name"] for image in images], self._place(title, images)
        if any("caption" in entry for entries in by_image.values() for entry in entries[:1]):
            lacking = [image for image in images if not any("caption" in e for e in by_image[image["id"]])]
            rejected = [Rejection(image["file_name"], "has no caption") for image in lacking]
            images = [image for image in images if any("caption" in e for e in by_image[image["id"]])]
        files, missing = self.find_all([f"{place}{image['file_name']}" for image in images])
        if missing:
            raise SourceError(
                f"{title}: names {len(missing):,} of {len(images):,} files that are not in {self.root}: "
                f"{some_of(missing)}. Give the folder of the images as SOURCE"
            )
        entries = [by_image[image["id"]] for image in images]
        fields = FieldColumns(title)
        _add_captions(fields, entries)
        _add_instances(title, fields, entries, found.get("categories") or [])
        notes = [f"annotations are those in {name!r}"] if name else []
        notes += [f"names in {title} start in the folder {place.rstrip('/')!r}"] if place else []
        table = files_table(files, fields.fields, fields.columns)
        listing = Listing(table, tuple(fields.fields), None, tuple(rejected), tuple(notes))
        return _Part(title, listing, [f"{place}{name}" for name in listed])

    def _check_alike(self, one: "_Part", other: "_Part") -> None:
        """Raises SourceError where two files cannot be splits of one set."""
        if one.listing.fields != other.listing.fields:
            raise SourceError(
                f"{other.title}: has other fields or categories than {one.title}. Give one of them with --labels"
            )
        if both := sorted(set(one.named) & set(other.named)):
            raise SourceError(
                f"{other.title}: names images that {one.title} names, too: {some_of(both)}. Give one of them with "
                "--labels, or remove them from one"
            )

    def _choose(self) -> dict[str, str]:
        """The files of annotations in the container by their splits; a single one by any name.

        Raises:
            SourceError: there is none, or several and not one for each split.
        """
        found = annotation_files(self.files, ".json")
        if not found:
            raise SourceError(
                f"{self.root}: holds no .json in a folder 'annotations'. Give the file of annotations with --labels"
            )
        instances = [name for name in found if name.rpartition("/")[2].lower().startswith("instances")]
        chosen = instances or found
        if len(chosen) == 1:
            return {"": chosen[0]}
        if splits := one_file_each(chosen):
            return splits
        unpacked = "" if isinstance(self.files, Folder) else ", unpacked,"
        raise SourceError(
            f"{self.root}: holds several files of annotations. Give one of them{unpacked} with --labels: "
            f"{some_of([f'{self.root}/{name}' for name in chosen], 8)}"
        )

    def _parse(self, title: str, name: str) -> dict[str, Any]:
        try:
            if self.annotations is None:
                text = self.files.read(self.files.find(name).address).decode("utf-8")
            else:
                text = self.annotations.read_text(encoding="utf-8")
            found: dict[str, Any] = parse_json(text)
            check_document(found)
        except (OSError, DecodeError) as error:
            raise SourceError(f"{title}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
        except ValueError as error:
            raise SourceError(
                f"{title}: not COCO's JSON with images and annotations ({error}). Tables of other kinds are "
                "CSV, TSV, JSONL or Parquet"
            ) from None
        return found

    def _place(self, title: str, images: list[dict[str, Any]]) -> str:
        """The folder in which all images lie by the names in the file, with a slash after it; "" for the root.

        Raises:
            SourceError: they lie in several.
        """
        if self.has(images[0]["file_name"]):
            return ""
        tops = [name for name in self.files.folders() if name.lower() != "annotations"]
        places = [*tops, *(f"{top}/{name}" for top in tops for name in self.files.folders(top))]
        found = [place for place in places if self.has(f"{place}/{images[0]['file_name']}")]
        whole = [place for place in found if all(self.has(f"{place}/{image['file_name']}") for image in images)]
        if len(whole) > 1 and (split := named_splits([title])):
            whole = [place for place in whole if named_splits([place]) == split] or whole
        if len(whole) > 1:
            raise SourceError(
                f"{title}: all images that it names are in each of {some_of(whole)}. Give one of these "
                f"folders in {self.root} as SOURCE"
            )
        return f"{(whole or found)[0]}/" if len(whole or found) == 1 else ""


def _add_captions(fields: FieldColumns, entries: list[list[dict[str, Any]]]) -> None:
    texts = [[entry["caption"].strip() for entry in found if "caption" in entry] for found in entries]
    if any(texts):
        fields.add("caption", "caption", [found[0] for found in texts])
        fields.add("json", "captions", texts)


def _add_instances(
    title: str, fields: FieldColumns, entries: list[list[dict[str, Any]]], categories: list[dict[str, Any]]
) -> None:
    if not categories:
        return
    ordered = sorted(categories, key=lambda category: int(category["id"]))
    names = tuple(str(category["name"]) for category in ordered)
    number_of = {category["id"]: number for number, category in enumerate(ordered)}
    instances = [[entry for entry in found if "bbox" in entry and not entry.get("iscrowd")] for found in entries]
    used = {entry["category_id"] for found in instances for entry in found}
    if unknown := sorted(map(str, used - set(number_of))):
        raise SourceError(f"{title}: uses a category that it does not list: {some_of(unknown)}")
    classes = [[number_of[entry["category_id"]] for entry in found] for found in instances]
    boxes = [[_corners(entry["bbox"]) for entry in found] for found in instances]
    fields.add("boxes", "boxes", list(zip(boxes, classes, strict=True)), names)
    fields.add("labels", "labels", [sorted(set(row)) for row in classes], names)
    if any("keypoints" in entry for found in instances for entry in found):
        points = _point_names(title, [category for category in ordered if category["id"] in used])
        found_points = [[entry["keypoints"] for entry in found if "keypoints" in entry] for found in instances]
        fields.add("keypoints", "keypoints", found_points, points)


def _point_names(title: str, categories: list[dict[str, Any]]) -> tuple[str, ...] | None:
    """Names of the points, which all categories with keypoints must share; None where the file does not name them.

    Raises:
        SourceError: two categories have different points.
    """
    named = {tuple(map(str, category["keypoints"])) for category in categories if category.get("keypoints")}
    if len(named) > 1:
        raise SourceError(
            f"{title}: its categories have different keypoints ({some_of([', '.join(n) for n in named])}). "
            "A field has the same points in all instances: keep the annotations of one category"
        )
    return next(iter(named), None)


def _corners(box: list[float]) -> tuple[float, float, float, float]:
    x, y, width, height = box
    return x, y, x + width, y + height
