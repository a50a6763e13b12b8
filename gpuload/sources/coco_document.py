"""One file of COCO's JSON, checked: images, captions, instances with boxes and classes, and keypoints."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from gpuload.checks import as_items, as_text, number, several, shown, whole
from gpuload.counted import counted
from gpuload.errors import SourceError, some_of
from gpuload.fields.instances import Outline, check_outline
from gpuload.sources.annotations import NamedFiles, with_boxes
from gpuload.sources.files import Findings
from gpuload.sources.listing import DRAWN_ON
from gpuload.sources.panoptic import PanopticMasks
from gpuload.sources.source import Names, Row
from gpuload.types import WidthHeight

Entry = dict[str, Any]
_MOST_PX = 1 << 30
_MOST_SEGMENTS = 1 << 24  # what three channels of a PNG can number
_CROWD = {0: 0, 1: 1, "0": 0, "1": 1, None: 0}  # what `iscrowd` may be


@dataclass(frozen=True)
class Contents:
    """What the annotations of a file, or of several splits, hold.

    masks: whether boxes have areas or segmentations, so that crowds are kept. points: of an instance, in keypoints; 0
    without. most_classes: of a whole image; 0 where annotations have boxes or captions.
    """

    captions: bool
    masks: bool
    points: int
    most_classes: int

    def is_like(self, other: "Contents") -> bool:
        """Whether two splits hold the same, though one may have more classes in an image."""
        alike = replace(other, most_classes=self.most_classes)
        has_classes = [bool(one.most_classes) for one in (self, other)]
        return self == alike and has_classes[0] == has_classes[1]


class CocoDocument:
    """One file of annotations.

    images: its entries of images. names: of their files. classes: names by field; of keypoints those of the points.
    category_ids: COCO's numbers of the classes. contents: of this file; of all splits together, once `share` is called.
    is_empty: whether it annotates nothing, as a split of negatives. masks: of panoptic segments, where their PNGs are
    there.

    Raises:
        SourceError: its annotations contradict each other.
    """

    def __init__(
        self, title: str, document: Mapping[str, Any], files: NamedFiles, place: str
    ) -> None:
        self.title = title
        self.masks: PanopticMasks | None = None
        self._files = files
        self.images: list[Entry] = document["images"]
        self.names = [f"{place}{image['file_name']}" for image in self.images]
        every: list[Entry] = document["annotations"]
        self._entries: dict[Any, list[Entry]] = defaultdict(list)
        if all("id" in entry for entry in every):
            every = sorted(every, key=lambda entry: entry["id"])
        self._repeated = 0
        for entry in every:
            of_image = self._entries[entry["image_id"]]
            if "id" in entry and of_image and entry == of_image[-1]:
                self._repeated += 1  # as PyLabel 0.1 writes it
            else:
                of_image.append(entry)
        if unknown := sorted(
            map(str, set(self._entries) - {image["id"] for image in self.images})
        ):
            raise SourceError(
                f"{title}: annotates images that it does not list: numbers {some_of(unknown)}"
            )
        self.is_empty = not every
        self._names_of = self._categories(document.get("categories") or [])
        self.category_ids = tuple(sorted(self._names_of))
        self._number_of = {
            of_coco: number for number, of_coco in enumerate(self.category_ids)
        }
        if not self._names_of and any("bbox" in entry for entry in every):
            fault = "has boxes but no 'categories', which list the classes of 'category_id' by id and name"
            raise SourceError(f"{title}: {fault}. Add them to the file")
        instances = [entry for entry in every if _is_instance(entry)]
        self._points = self._point_names(document, instances)
        self.contents = Contents(
            captions=any("caption" in entry for entry in every),
            masks=any(
                "bbox" in entry and entry.keys() & {"segmentation", "area"}
                for entry in every
            ),
            points=self._count_points(instances),
            most_classes=self._most_classes(),
        )

    @property
    def classes(self) -> dict[str, Names]:
        if not self._names_of:
            return {}
        names = tuple(self._names_of[of_coco] for of_coco in self.category_ids)
        if self.contents.most_classes:
            return {self._field_of_classes: names}
        return {
            "boxes": names,
            "labels": names,
            **({"keypoints": self._points} if self._points else {}),
        }

    @property
    def _field_of_classes(self) -> str:
        """The field of the classes of whole images."""
        return "label" if self.contents.most_classes == 1 else "labels"

    def _most_classes(self) -> int:
        entries = [of_image for of_image in self._entries.values() if of_image]
        if any("bbox" in entry for of_image in entries for entry in of_image):
            return 0
        return max((len(self._classes_in(of_image)) for of_image in entries), default=0)

    def _classes_in(self, entries: Sequence[Entry]) -> list[int]:
        """The classes of a whole image."""
        numbers = {
            int(entry["category_id"]) for entry in entries if "category_id" in entry
        }
        if unknown := numbers - set(self._names_of):
            raise SourceError(
                f"{self.title}: uses a category that it does not list: {some_of(sorted(map(str, unknown)))}"
            )
        return sorted(self._number_of[number] for number in numbers)

    def _categories(self, categories: Sequence[Entry]) -> dict[int, str]:
        """The name of each category by its number."""
        name_of: dict[int, str] = {}
        for category in categories:
            of_coco = int(category["id"])
            name = str(category["name"])
            first = name_of.setdefault(of_coco, name)
            if first != name:
                fault = f"its category {of_coco} is {first!r} and {name!r}"
                raise SourceError(
                    f"{self.title}: {fault}. Give each category its own id"
                )
        return name_of

    def _point_names(
        self, document: Mapping[str, Any], instances: Sequence[Entry]
    ) -> Names:
        """The names of the points of an instance; () without.

        Raises:
            SourceError: an instance has a category that is not listed, or used categories differ in their points.
        """
        used = {int(entry["category_id"]) for entry in instances}
        if unknown := sorted(map(str, used - set(self._names_of))):
            raise SourceError(
                f"{self.title}: uses a category that it does not list: {some_of(unknown)}"
            )
        if not any("keypoints" in entry for entry in instances):
            return ()
        named = [
            category.get("keypoints")
            for category in document["categories"]
            if int(category["id"]) in used
        ]
        different = {tuple(map(str, names)) for names in named if names}
        if len(different) > 1:
            fault = "its categories have different keypoints, but all instances have the same points"
            raise SourceError(
                f"{self.title}: {fault}. Keep the annotations of one category"
            )
        return next(iter(different), ())

    def _count_points(self, instances: Sequence[Entry]) -> int:
        """The points of an instance: those that have names, else those of the first instance with any; 0 without."""
        numbers = next(
            (entry["keypoints"] for entry in instances if entry.get("keypoints")), ()
        )
        if not numbers:
            return 0
        return len(self._points) or len(numbers) // 3

    def share(self, others: Sequence["CocoDocument"]) -> None:
        """Takes the contents of all splits together for its own.

        Raises:
            SourceError: another file cannot be a split of the same set: it names the same images, or has other
                categories or kinds of annotations.
        """
        for other in others:
            both = some_of(sorted({*self.names} & {*other.names}))
            if both or not self._is_alike(other):
                fault = (
                    f"both name images such as {both}"
                    if both
                    else "have different categories or kinds of annotations"
                )
                raise SourceError(
                    f"{self.title} and {other.title} {fault}. Give one of them with --labels"
                )
        contents = next(
            (other.contents for other in (self, *others) if not other.is_empty),
            self.contents,
        )
        most = max(other.contents.most_classes for other in (self, *others))
        contents = replace(contents, most_classes=most)
        points = next((other._points for other in (self, *others) if other._points), ())
        for document in (self, *others):
            document.contents = contents
            document._points = points
            if (
                document.is_empty and not document._names_of
            ):  # of a split without an object
                document._names_of = self._names_of
                document.category_ids = self.category_ids

    def _is_alike(self, other: "CocoDocument") -> bool:
        if other.is_empty and not other._names_of:
            return True
        if self._names_of != other._names_of:
            return False
        if self.is_empty or other.is_empty:
            return True
        return self._points == other._points and self.contents.is_like(other.contents)

    def rows(self, findings: Findings) -> Iterator[Row]:
        kept = []
        for image, name in zip(self.images, self.names, strict=True):
            if self.contents.captions and not any(
                "caption" in entry for entry in self._entries[image["id"]]
            ):
                findings.reject(image["file_name"], "has no caption")
            elif self.contents.most_classes == 1 and not self._entries[image["id"]]:
                findings.reject(image["file_name"], "has no class")
            else:
                kept.append((image, name))
        files = self._files.find_all([name for _, name in kept])
        masks: Iterator[list[Outline] | str | None] = repeat(None)
        if self.masks is not None:
            masks = self.masks.read([self._entries[image["id"]] for image, _ in kept])
        for (image, _), file, outlines in zip(kept, files, masks, strict=False):
            if isinstance(outlines, str):
                findings.reject(file.name, outlines)
                continue
            fields = dict(self._fields(image["id"]))
            if outlines is not None:
                fields["boxes_masks"] = outlines
            yield {"image": file, DRAWN_ON: self._drawn_on(image), **fields}

    @property
    def segments(self) -> list[list[Entry]]:
        """The segments of each image with a PNG, as `PanopticMasks` takes them; [] if the document is not panoptic."""
        every = self._entries.values()
        return [entries for entries in every if any("png" in one for one in entries)]

    def notes(self) -> list[str]:
        """Sentences about what may surprise."""
        counts = Counter(self._names_of.values())
        notes = []
        if self._repeated:
            stand = counted(self._repeated, "annotation stands", "annotations stand")
            notes.append(f"{self.title}: {stand} there twice, and once in the set")
        if alike := [name for name, count in counts.items() if count > 1]:
            notes.append(
                f"{self.title}: several categories are called {some_of(alike)}, and stay different classes"
            )
        every = [
            entry
            for entries in self._entries.values()
            for entry in entries
            if _is_instance(entry)
        ]
        lacking = (
            sum(not entry.get("keypoints") for entry in every)
            if self.contents.points
            else 0
        )
        if lacking:
            notes.append(
                f"{self.title}: {lacking:,} instances have no keypoints; their points are not labelled"
            )
        return notes

    def _drawn_on(self, image: Entry) -> WidthHeight:
        """The size of the image that its boxes and points were drawn on; (0, 0) if it is unknown, or there are none."""
        if not any("bbox" in entry for entry in self._entries[image["id"]]):
            return 0, 0
        return int(image.get("width") or 0), int(image.get("height") or 0)

    def _fields(self, of_image: Any) -> Row:
        """Those of an image. of_image: its id."""
        fields: dict[str, Any] = {}
        entries = self._entries[of_image]
        if self.contents.captions:
            texts = [
                entry["caption"].strip() for entry in entries if "caption" in entry
            ]
            fields |= {"caption": texts[0], "captions": texts}
        if not self._names_of:
            return fields
        if self.contents.most_classes:
            numbers = self._classes_in(entries)
            is_single = self.contents.most_classes == 1
            fields[self._field_of_classes] = numbers[0] if is_single else numbers
            return fields | {"image_id": json.dumps(of_image)}
        instances = [entry for entry in entries if _is_instance(entry)]
        fields |= with_boxes(*self._boxes(instances))
        if self.contents.masks:
            every = [entry for entry in entries if "bbox" in entry]
            fields["boxes"], fields["boxes_class"] = self._boxes(every)
            fields["boxes_area"] = [
                entry.get("area", entry["bbox"][2] * entry["bbox"][3])
                for entry in every
            ]
            fields["boxes_crowd"] = [_CROWD[entry.get("iscrowd")] for entry in every]
            fields["boxes_masks"] = [entry.get("segmentation") or [] for entry in every]
            instances = every
        if self.contents.points:
            unlabelled = [0] * (3 * self.contents.points)
            fields["keypoints"] = [
                entry.get("keypoints") or unlabelled for entry in instances
            ]
        fields["image_id"] = json.dumps(of_image)
        return fields

    def _boxes(self, entries: Sequence[Entry]) -> tuple[list[Any], list[int]]:
        """Corners and class numbers."""
        sides = [entry["bbox"] for entry in entries]
        corners = [(x, y, x + width, y + height) for x, y, width, height in sides]
        return corners, [
            self._number_of[int(entry["category_id"])] for entry in entries
        ]


def _is_instance(entry: Entry) -> bool:
    return "bbox" in entry and not _CROWD[entry.get("iscrowd")]


def _id(value: Any) -> None:
    if (
        not isinstance(value, int | str)
        or isinstance(value, bool)
        or len(str(value)) > 80
    ):
        raise ValueError


def _category_id(value: Any) -> None:
    _id(value)
    int(value)  # other tools write numbers as texts


def _text(value: Any) -> None:
    as_text(value).encode()  # fails for half of a surrogate pair


def _name(value: Any) -> None:
    (_id if isinstance(value, int) else _text)(value)


def _side(value: Any) -> None:
    """Of an image; tools write null or 0 where they do not know it."""
    if value is not None and not (
        float(value).is_integer() and 0 <= float(value) <= _MOST_PX
    ):
        raise ValueError


def _crowd(value: Any) -> None:
    _CROWD[value]


# For the keys of each list's entries, what raises an error for a wrong value, and the keys that must be there.
_CHECKS: dict[str, dict[str, Callable[[Any], object]]] = {
    "images": {"id": _id, "file_name": _text, "width": _side, "height": _side},
    "annotations": {
        "id": _id,
        "image_id": _id,
        "caption": _text,
        "bbox": several(number(-1e12, 1e12, ""), "", count=4).read,
        "category_id": _category_id,
        "iscrowd": _crowd,
        "keypoints": lambda value: as_items(value or ()),
        "area": number(-1e24, 1e24, "").read,
        "segmentation": lambda value: check_outline(value or []),
        "segment": whole(0, _MOST_SEGMENTS).read,
        "png": _text,
    },
    "categories": {
        "id": _category_id,
        "name": _name,
        "keypoints": lambda value: list(map(_text, as_items(value or ()))),
    },
}
_NEEDED = {
    "images": ("id", "file_name"),
    "annotations": ("image_id",),
    "categories": ("id", "name"),
}


def plain_document(document: Any) -> Any:
    """COCO's form of what is nearly COCO: LVIS names images by URL, and panoptic annotations hold several segments."""
    if not isinstance(document, dict):
        return document
    images = document.get("images")
    if isinstance(images, list):
        images = [
            {**entry, "file_name": "/".join(entry["coco_url"].split("/")[-2:])}
            if _is_named_by_url(entry)
            else entry
            for entry in images
        ]
    annotations = document.get("annotations")
    if isinstance(annotations, list):
        annotations = [
            segment
            for entry in annotations
            for segment in (_segments(entry) if _is_panoptic(entry) else [entry])
        ]
    return {**document, "images": images, "annotations": annotations}


def _is_named_by_url(entry: Any) -> bool:
    if not isinstance(entry, dict) or "file_name" in entry:
        return False
    return isinstance(entry.get("coco_url"), str)


def _is_panoptic(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("segments_info"), list)


def _segments(entry: Entry) -> list[Any]:
    """The segments of an image as instances; their numbers repeat in other images."""
    picture = {"image_id": entry.get("image_id"), "png": entry.get("file_name")}
    instances = list[Any]()
    for segment in entry["segments_info"]:
        instance = segment
        if isinstance(segment, dict):
            instance = {**segment, **picture, "segment": segment.get("id")}
            instance.pop("id", None)
        instances.append(instance)
    return instances


def _check_contents(annotations: Sequence[Entry], has_categories: bool) -> None:
    """Raises ValueError if an annotation is neither a caption nor an instance; where none has a box or an outline, it
    may be the class of its image."""
    keys = set[str]().union(*annotations)
    alone = {"caption"}
    if not keys & {"bbox", "segmentation", "keypoints", "caption"} and has_categories:
        alone = {"category_id"}
    of_box = {"category_id"} if has_categories else set[str]()
    if not all(
        (of_box if "bbox" in entry else alone) <= set(entry) for entry in annotations
    ):
        raise ValueError(
            "an annotation has neither a caption nor a bbox with a category_id"
        )


def check_document(document: Any) -> None:
    """Raises ValueError if the document is not COCO's; called before any of its values is used as a key."""
    if (
        not isinstance(document, dict)
        or not document.get("images")
        or not isinstance(document.get("annotations"), list)
    ):
        raise ValueError("it lists no images or no annotations")
    for name, checks in _CHECKS.items():
        entries = document.get(name) or []
        if not isinstance(entries, list) or not all(
            isinstance(entry, dict) for entry in entries
        ):
            raise ValueError(f"its {name} are not a list of objects")
        for entry in entries:
            for key in (key for key in checks if key in entry or key in _NEEDED[name]):
                try:
                    checks[key](entry.get(key))
                except (TypeError, ValueError, OverflowError, KeyError):
                    raise ValueError(
                        f"an entry of its {name} has the {key} {shown(entry.get(key))}"
                    ) from None
        if len({type(entry["id"]) for entry in entries if "id" in entry}) > 1:
            raise ValueError(f"ids of its {name} are numbers and texts")
    _check_contents(document["annotations"], bool(document.get("categories")))
    if len({entry["id"] for entry in document["images"]}) < len(document["images"]):
        raise ValueError("it lists two images with one id")
