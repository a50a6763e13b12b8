"""COCO's JSON: captions, or instances with boxes and classes, beside a folder or archive of images."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpuload.checks import as_items, as_text, number, several, shown
from gpuload.errors import SourceError
from gpuload.fields.instances import check_outline
from gpuload.machine.untrusted import parse_json
from gpuload.sources.annotations import NamedFiles, annotation_files, read_content, with_boxes
from gpuload.sources.at_path import FilesSource
from gpuload.sources.files import Files, Findings
from gpuload.sources.listing import SPLIT, named_splits, one_file_each, some_of
from gpuload.sources.local_folder import Folder, read_file
from gpuload.sources.rows import Names, Row

Entry = dict[str, Any]
Corners = tuple[float, float, float, float]


class CocoSource(FilesSource):
    """Images that a file such as `instances_train2017.json` or `captions_train2017.json` names.

    annotations: the file; None: the one in the folder `annotations` of the container, see `annotation_files`, or one
        for each split, such as `instances_train2017.json` and `instances_val2017.json`.

    Instances give the fields "boxes" (x0 y0 x1 y1), "labels" (the classes in the image) and "image_id" as JSON; an
    image without any keeps empty ones. Where they have areas or segmentations, the boxes have these, too, and those of
    crowds are marked; else crowds are left out. Captions give "caption", the first of an image, and
    "captions", all of them as JSON; an image without one is left out. Classes are numbered from 0 in the order of their
    COCO numbers, which have gaps. Samples are in the order of the file. Names in the file start at the root, or at a
    folder in it, such as `images/train2017`.
    """

    advice = "Give the folder of the images as SOURCE"
    takes_labels = True

    def __init__(self, root: str | Path | Files, annotations: str | Path | None = None) -> None:
        super().__init__(root)
        self.annotations = None if annotations is None else Path(annotations)

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
        if others and self.own_splits:
            findings.origin = "by the names of the files in 'annotations'"
        findings.strict = None if others else False
        for split, part in parts.items():
            for row in part.rows(findings):
                yield {**row, SPLIT: split} if findings.origin else row
        titles = " and ".join(part.title for part in parts.values())
        named = NamedFiles(self._files, titles, self.root)
        findings.notes += named.beside([part.name_of(image) for part in parts.values() for image in part.images])

    def _read(self, name: str, findings: Findings) -> "_Document":
        """name: of the file of annotations in the container, if it lies there."""
        title = f"{self.root}/{name}" if name else str(self.annotations)
        document = self._parse(title, name)
        files = NamedFiles(self._files, title, self.root)
        place = self._place(title, files, [image["file_name"] for image in document["images"]])
        findings.notes += [f"annotations are those in {name!r}"] if name else []
        findings.notes += [f"names in {title} start in the folder {place.rstrip('/')!r}"] if place else []
        return _Document(title, document, files, place)

    def _choose(self) -> dict[str, str]:
        """The files of annotations in the container by their splits; a single one by any name.

        Raises:
            SourceError: there is none, or there are several that are not one for each split.
        """
        every = annotation_files(self._files, ".json")
        if not every:
            raise SourceError(
                f"{self.root}: holds no .json in a folder 'annotations'. Give the file of annotations with --labels"
            )
        chosen = [name for name in every if name.rpartition("/")[2].lower().startswith("instances")] or every
        if len(chosen) == 1:
            return {"": chosen[0]}
        if splits := one_file_each(chosen):
            return splits
        unpacked = "" if isinstance(self._files, Folder) else ", unpacked,"
        raise SourceError(
            f"{self.root}: holds several files of annotations. Give one of them{unpacked} with --labels: "
            f"{some_of([f'{self.root}/{name}' for name in chosen], 8)}"
        )

    def _parse(self, title: str, name: str) -> dict[str, Any]:
        try:
            if self.annotations is None:
                content = read_content(self._files, self._files.find(name), str(self.root))
            else:
                content = read_file(self.annotations)
            document: dict[str, Any] = parse_json(content.decode("utf-8"))
            _check_document(document)
        except OSError as error:
            raise SourceError(f"{title}: cannot be read ({error.strerror or error})") from None
        except ValueError as error:
            raise SourceError(
                f"{title}: not COCO's JSON with images and annotations ({error}). Tables of other kinds are CSV, TSV, "
                "JSONL or Parquet"
            ) from None
        return document

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
        whole = [place for place in some if all(files.find(f"{place}/{name}") for name in names)]
        if len(whole) > 1 and (split := named_splits([title])):
            whole = [place for place in whole if named_splits([place]) == split] or whole
        if len(whole) > 1:
            raise SourceError(
                f"{title}: all images that it names are in each of {some_of(whole)}. Give one of these folders in "
                f"{self.root} as SOURCE"
            )
        return f"{(whole or some)[0]}/" if len(whole or some) == 1 else ""


class _Document:
    """One file of annotations.

    images: its entries of images; place: the folder in which they lie, with a slash after it. classes: names by field;
    of keypoints those of the points.
    """

    def __init__(self, title: str, document: dict[str, Any], files: NamedFiles, place: str) -> None:
        self.title, self._files, self._place = title, files, place
        self.images: list[Entry] = document["images"]
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
            lists = some_of([", ".join(named) for named in different])
            raise SourceError(
                f"{self.title}: its categories have different keypoints ({lists}). A field has the same points in all "
                "instances: keep the annotations of one category"
            )
        return {"boxes": names, "labels": names, **dict(zip(["keypoints"], different, strict=False))}

    def check_alike(self, other: "_Document") -> None:
        """Raises SourceError if this and another file cannot be splits of one set."""
        alike = [(one.classes, one._has_captions, one._has_points, one._has_masks) for one in (self, other)]
        if alike[0] != alike[1]:
            raise SourceError(
                f"{other.title}: has other fields or categories than {self.title}. Give one of them with --labels"
            )
        if both := sorted(set(map(self.name_of, self.images)) & set(map(other.name_of, other.images))):
            raise SourceError(
                f"{other.title}: names images that {self.title} names, too: {some_of(both)}. Give one of them with "
                "--labels, or remove them from one"
            )

    def name_of(self, image: Entry) -> str:
        return f"{self._place}{image['file_name']}"

    def rows(self, findings: Findings) -> Iterator[Row]:
        kept = []
        for image in self.images:
            if self._has_captions and not any("caption" in entry for entry in self._entries[image["id"]]):
                findings.reject(image["file_name"], "has no caption")
            else:
                kept.append(image)
        files = self._files.find_all([self.name_of(image) for image in kept])
        for image, file in zip(kept, files, strict=True):
            yield {"image": file, **self._fields(image["id"])}

    def _fields(self, number: Any) -> Row:
        """Those of an image. number: its id."""
        fields: dict[str, Any] = {}
        entries = self._entries[number]
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
            fields["image_id"] = json.dumps(number)
        return fields

    def _boxes(self, entries: list[Entry]) -> tuple[list[Corners], list[int]]:
        """Corners and class numbers."""
        return [_corners(entry["bbox"]) for entry in entries], [self._number_of[e["category_id"]] for e in entries]


def _is_instance(entry: Entry) -> bool:
    return "bbox" in entry and not entry.get("iscrowd")


def _corners(box: list[float]) -> Corners:
    x, y, width, height = box
    return x, y, x + width, y + height


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


def _texts(value: Any) -> None:
    for text in as_items(value or ()):
        _text(text)


_box = several(number(-1e12, 1e12, ""), "", count=4).read
Checks = dict[str, Callable[[Any], object]]
# Keys that each entry of a list must have and may have, and what raises an error for a wrong value.
_ENTRIES: dict[str, tuple[str, Checks, Checks]] = {
    "images": ("an image", {"id": _id, "file_name": _text}, {}),
    "annotations": (
        "an annotation",
        {"id": _id, "image_id": _id},
        {
            "caption": _text,
            "bbox": _box,
            "category_id": _id,
            "keypoints": as_items,
            "area": number(-1e24, 1e24, "").read,
            "segmentation": lambda value: check_outline(value or []),
        },
    ),
    "categories": ("a category", {"id": _category_id, "name": _name}, {"keypoints": _texts}),
}


def _check_document(found: Any) -> None:
    """Raises ValueError if the document is not COCO's; called before any of its values is used as a key."""
    if not isinstance(found, dict) or not isinstance(found.get("images"), list) or not found["images"]:
        raise ValueError("lists no images")
    if not isinstance(found.get("annotations"), list) or not isinstance(found.get("categories") or [], list):
        raise ValueError("its annotations or categories are not a list")
    for name, (what, required, optional) in _ENTRIES.items():
        entries = found.get(name) or []
        for entry in entries:
            if not isinstance(entry, dict):
                raise ValueError(f"has an entry of {name} that is not an object: {shown(entry)}")
            if not set(required) <= set(entry):
                raise ValueError(f"has {what} without {' or '.join(sorted(set(required) - set(entry)))}")
            for key in sorted(entry.keys() & {**required, **optional}):
                try:
                    {**required, **optional}[key](entry[key])
                except (TypeError, ValueError, OverflowError, KeyError):
                    raise ValueError(f"has {what} whose {key} is {shown(entry[key])}") from None
            if name == "annotations" and not {"caption", "bbox"} & set(entry):
                raise ValueError("has an annotation with neither a caption nor a bbox")
        if len({type(entry["id"]) for entry in entries}) > 1:
            raise ValueError(f"has ids in {name} of which some are numbers and some are texts")
    if found.get("categories") and any("bbox" in e and "category_id" not in e for e in found["annotations"]):
        raise ValueError("has an annotation with a bbox and without a category_id")
    if len({entry["id"] for entry in found["images"]}) < len(found["images"]):
        raise ValueError("lists two images with one id")
