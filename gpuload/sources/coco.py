"""COCO's JSON: captions, or instances with boxes and classes, beside a folder of images."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpuload.checks import as_items, as_text, number, several, shown
from gpuload.errors import SourceError, some_of
from gpuload.fields.instances import check_outline
from gpuload.machine.untrusted import parse_json
from gpuload.sources.annotations import NamedFiles, annotation_files, with_boxes
from gpuload.sources.files import Files, Findings, read_file, readable
from gpuload.sources.listing import SPLIT, named_splits, one_file_each
from gpuload.sources.rows import FilesSource, Names, Row

Entry = dict[str, Any]


class CocoSource(FilesSource):
    """Images that a file such as `instances_train2017.json` or `captions_train2017.json` names.

    labels: the file of annotations; None: the one in the folder `annotations` of the container, see `annotation_files`,
        or one for each split, such as `instances_train2017.json` and `instances_val2017.json`.

    Instances give the fields "boxes" (x0 y0 x1 y1), "labels" (the classes in the image) and "image_id" as JSON; an
    image without any keeps empty ones. Where they have areas or segmentations, the boxes have these, too, and those of
    crowds are marked; else crowds are left out. Captions give "caption", the first of an image, and
    "captions", all of them as JSON; an image without one is left out. Classes are numbered from 0 in the order of their
    COCO numbers, which have gaps. Samples are in the order of the file. Names in the file start at the root, or at a
    folder in it, such as `images/train2017`.
    """

    advice = "Give the folder of the images as SOURCE"

    def __init__(self, root: str | Path | Files, labels: str | Path | None = None) -> None:
        super().__init__(root)
        self.annotations = None if labels is None else Path(labels)

    @classmethod
    def fits(cls, files: Files) -> bool:
        return bool(annotation_files(files, ".json"))

    @property
    def title(self) -> str:
        return str(self.root if self.annotations is None else self.annotations)

    def rows(self, findings: Findings) -> Iterator[Row]:
        splits = {"": ""} if self.annotations is not None else self._choose()
        parts = {split: self._read(name, findings) for split, name in splits.items()}
        (_, first), *others = parts.items()
        for _, other in others:
            first.check_alike(other)
        findings.classes |= first.classes
        findings.kinds |= {"captions": "json", "image_id": "json"}
        findings.strict = None if others else False
        if others and self.own_splits:
            findings.origin = "by the names of the files in 'annotations'"
        for split, part in parts.items():
            for row in part.rows(findings):
                yield {**row, SPLIT: split} if findings.origin else row
        named = NamedFiles(self._files, " and ".join(part.title for part in parts.values()), self.root)
        findings.notes += named.beside([name for part in parts.values() for name in part.names])

    def _choose(self) -> dict[str, str]:
        """The files of annotations in the container by their splits; a single one by any name.

        Raises:
            SourceError: there is none, or there are several that are not one for each split.
        """
        every = annotation_files(self._files, ".json")
        chosen = [name for name in every if name.rpartition("/")[2].lower().startswith("instances")] or every
        if len(chosen) == 1:
            return {"": chosen[0]}
        if splits := one_file_each(chosen):
            return splits
        found = some_of([f"{self.root}/{name}" for name in chosen], 8) or "none"
        what = f"expected a .json in a folder 'annotations', or one for each split; found {found}"
        raise SourceError(f"{self.root}: {what}. Give the file of annotations with --labels")

    def _read(self, name: str, findings: Findings) -> "_Document":
        """name: of the file of annotations in the container, if it lies there."""
        title = f"{self.root}/{name}" if name else str(self.annotations)
        with readable(title, "COCO's JSON with images and annotations", ValueError):
            if self.annotations is None:
                content = self._files.read(self._files.find(name).address)
            else:
                content = read_file(self.annotations)
            document: dict[str, Any] = parse_json(content.decode("utf-8"))
            _check_document(document)
        files = NamedFiles(self._files, title, self.root)
        place = self._place(title, files, [image["file_name"] for image in document["images"]])
        if name or place:
            findings.notes.append(f"annotations are those in {title}, with names that start in {place or './'!r}")
        return _Document(title, document, files, place)

    def _place(self, title: str, files: NamedFiles, names: list[str]) -> str:
        """The folder that the names in the file are relative to, with a slash after it; "" for the root.

        Raises:
            SourceError: they exist in several folders.
        """
        if files.find(names[0]):
            return ""
        tops = [name for name in self._files.folders() if name.lower() != "annotations"]
        places = [*tops, *(f"{top}/{name}" for top in tops for name in self._files.folders(top))]
        some = [place for place in places if files.find(f"{place}/{names[0]}")]
        whole = [place for place in some if all(files.find(f"{place}/{name}") for name in names)] or some
        if len(whole) > 1 and (split := named_splits([title])):
            whole = [place for place in whole if named_splits([place]) == split] or whole
        if len(whole) > 1:
            what = f"the images that it names are in each of {some_of(whole)}"
            raise SourceError(f"{title}: {what}. Give one of these folders in {self.root} as SOURCE")
        return f"{whole[0]}/" if whole else ""


class _Document:
    """One file of annotations.

    images: its entries of images. names: of their files. classes: names by field; of keypoints those of the points.
    """

    def __init__(self, title: str, document: dict[str, Any], files: NamedFiles, place: str) -> None:
        self.title, self._files = title, files
        self.images: list[Entry] = document["images"]
        self.names = [f"{place}{image['file_name']}" for image in self.images]
        self._entries: dict[Any, list[Entry]] = defaultdict(list)
        for entry in sorted(document["annotations"], key=lambda entry: entry["id"]):
            self._entries[entry["image_id"]].append(entry)
        if unknown := sorted(map(str, set(self._entries) - {image["id"] for image in self.images})):
            raise SourceError(f"{title}: annotates images that it does not list: numbers {some_of(unknown)}")
        every = [entry for entries in self._entries.values() for entry in entries]
        self._has_captions = any("caption" in entry for entry in every)
        self._has_points = any("keypoints" in entry for entry in every if _is_instance(entry))
        self._has_masks = any("bbox" in entry and entry.keys() & {"segmentation", "area"} for entry in every)
        self._categories = sorted(document.get("categories") or [], key=lambda category: int(category["id"]))
        self._number_of = {category["id"]: number for number, category in enumerate(self._categories)}
        self.classes = self._class_names({entry.get("category_id") for entry in every if _is_instance(entry)})

    def _class_names(self, used: set[Any]) -> dict[str, Names]:
        """Raises SourceError if categories are unknown or differ in their keypoints."""
        if not self._categories:
            return {}
        if unknown := sorted(map(str, used - set(self._number_of))):
            raise SourceError(f"{self.title}: uses a category that it does not list: {some_of(unknown)}")
        names = tuple(str(category["name"]) for category in self._categories)
        points = [category.get("keypoints") for category in self._categories if category["id"] in used]
        different = {tuple(map(str, named)) for named in points if named and self._has_points}
        if len(different) > 1:
            what = "its categories have different keypoints, but all instances have the same points"
            raise SourceError(f"{self.title}: {what}. Keep the annotations of one category")
        return {"boxes": names, "labels": names, **dict(zip(["keypoints"], different, strict=False))}

    def check_alike(self, other: "_Document") -> None:
        """Raises SourceError if this and another file cannot be splits of one set."""
        alike = [(one.classes, one._has_captions, one._has_points, one._has_masks) for one in (self, other)]
        both = some_of(sorted({*self.names} & {*other.names}))
        if alike[0] != alike[1] or both:
            what = f"both name images such as {both}" if both else "have different categories or kinds of annotations"
            raise SourceError(f"{self.title} and {other.title} {what}. Give one of them with --labels")

    def rows(self, findings: Findings) -> Iterator[Row]:
        kept = []
        for image, name in zip(self.images, self.names, strict=True):
            if self._has_captions and not any("caption" in entry for entry in self._entries[image["id"]]):
                findings.reject(image["file_name"], "has no caption")
            else:
                kept.append((image["id"], name))
        files = self._files.find_all([name for _, name in kept])
        for (of_image, _), file in zip(kept, files, strict=True):
            yield {"image": file, **self._fields(of_image)}

    def _fields(self, of_image: Any) -> Row:
        """Those of an image. of_image: its id."""
        fields: dict[str, Any] = {}
        entries = self._entries[of_image]
        if self._has_captions:
            texts = [entry["caption"].strip() for entry in entries if "caption" in entry]
            fields |= {"caption": texts[0], "captions": texts}
        if self._categories:
            instances = [entry for entry in entries if _is_instance(entry)]
            fields |= with_boxes(*self._boxes(instances))
            if self._has_masks:
                every = [entry for entry in entries if "bbox" in entry]
                fields["boxes"], fields["boxes_class"] = self._boxes(every)
                fields["boxes_area"] = [entry.get("area", entry["bbox"][2] * entry["bbox"][3]) for entry in every]
                fields["boxes_crowd"] = [int(bool(entry.get("iscrowd"))) for entry in every]
                fields["boxes_masks"] = [entry.get("segmentation") or [] for entry in every]
            if self._has_points:
                fields["keypoints"] = [entry["keypoints"] for entry in instances if "keypoints" in entry]
            fields["image_id"] = json.dumps(of_image)
        return fields

    def _boxes(self, entries: list[Entry]) -> tuple[list[Any], list[int]]:
        """Corners and class numbers."""
        sides = [entry["bbox"] for entry in entries]
        corners = [(x, y, x + width, y + height) for x, y, width, height in sides]
        return corners, [self._number_of[entry["category_id"]] for entry in entries]


def _is_instance(entry: Entry) -> bool:
    return "bbox" in entry and not entry.get("iscrowd")


def _id(value: Any) -> None:
    if not isinstance(value, int | str) or isinstance(value, bool) or len(str(value)) > 80:
        raise ValueError


def _category_id(value: Any) -> None:
    _id(value)
    int(value)  # other tools write numbers as texts


def _text(value: Any) -> None:
    as_text(value).encode()  # fails for half of a surrogate pair


def _name(value: Any) -> None:
    (_id if isinstance(value, int) else _text)(value)


# For the keys of each list's entries, what raises an error for a wrong value, and the keys that must be there.
_CHECKS: dict[str, dict[str, Callable[[Any], object]]] = {
    "images": {"id": _id, "file_name": _text},
    "annotations": {
        "id": _id,
        "image_id": _id,
        "caption": _text,
        "bbox": several(number(-1e12, 1e12, ""), "", count=4).read,
        "category_id": _id,
        "keypoints": as_items,
        "area": number(-1e24, 1e24, "").read,
        "segmentation": lambda value: check_outline(value or []),
    },
    "categories": {
        "id": _category_id,
        "name": _name,
        "keypoints": lambda value: list(map(_text, as_items(value or ()))),
    },
}
_NEEDED = ("id", "file_name", "image_id", "name")


def _check_document(found: Any) -> None:
    """Raises ValueError if the document is not COCO's; called before any of its values is used as a key."""
    if not isinstance(found, dict) or not found.get("images") or not isinstance(found.get("annotations"), list):
        raise ValueError("it lists no images or no annotations")
    for name, checks in _CHECKS.items():
        entries = found.get(name) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"its {name} are not a list of objects")
        for entry in entries:
            for key in (key for key in checks if key in entry or key in _NEEDED):
                try:
                    checks[key](entry.get(key))
                except (TypeError, ValueError, OverflowError, KeyError):
                    raise ValueError(f"an entry of its {name} has the {key} {shown(entry.get(key))}") from None
        if len({type(entry["id"]) for entry in entries}) > 1:
            raise ValueError(f"ids of its {name} are numbers and texts")
    needed = {"category_id"} if found.get("categories") else set()
    if not all((needed if "bbox" in entry else {"caption"}) <= set(entry) for entry in found["annotations"]):
        raise ValueError("an annotation has neither a caption nor a bbox with a category_id")
    if len({entry["id"] for entry in found["images"]}) < len(found["images"]):
        raise ValueError("it lists two images with one id")
