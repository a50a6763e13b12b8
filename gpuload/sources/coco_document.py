"""One file of COCO's JSON, checked: images, captions, instances with boxes and classes, and keypoints."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from gpuload.counted import counted
from gpuload.errors import SourceError, some_of
from gpuload.fields.instances import Outline
from gpuload.sources.annotations import NamedFiles, with_boxes
from gpuload.sources.coco_form import CROWD, Entry
from gpuload.sources.files import Findings
from gpuload.sources.listing import DRAWN_ON
from gpuload.sources.panoptic import PanopticMasks
from gpuload.sources.shapes import size_in
from gpuload.sources.source import Names, Row
from gpuload.types import WidthHeight


@dataclass(frozen=True)
class Contents:
    """What the annotations of a file, or of several splits, hold.

    Attributes:
        captions: Whether there are any.
        masks: Whether boxes have areas or segmentations, so that crowds are kept.
        points: Of an instance, in keypoints; 0 without.
        most_classes: Of a whole image; 0 where annotations have boxes or captions.
    """

    captions: bool
    masks: bool
    points: int
    most_classes: int

    def is_like(self, other: "Contents") -> bool:
        """Whether two splits hold the same, though one may have more classes in an image."""
        alike = replace(other, most_classes=self.most_classes)
        has_classes = self.most_classes > 0
        return self == alike and has_classes == (other.most_classes > 0)


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
        self._repeated = 0
        self._add_entries(every)
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
            masks=any(map(_has_mask, every)),
            points=self._count_points(instances),
            most_classes=self._most_classes(),
        )

    def _add_entries(self, every: Sequence[Entry]) -> None:
        """Notes the annotations of each image, in the order of their ids, but one that stands twice.

        Raises:
            SourceError: an image is not listed.
        """
        if all("id" in entry for entry in every):
            every = sorted(every, key=lambda entry: entry["id"])
        for entry in every:
            of_image = self._entries[entry["image_id"]]
            if "id" in entry and of_image and entry == of_image[-1]:
                self._repeated += 1  # as PyLabel 0.1 writes it
            else:
                of_image.append(entry)
        listed = {image["id"] for image in self.images}
        if unknown := sorted(map(str, self._entries.keys() - listed)):
            raise SourceError(
                f"{self.title}: annotates images that it does not list: numbers {some_of(unknown)}"
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
            int(entry["category_id"])
            for entry in entries
            if "category_id" in entry and "caption" not in entry
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

        Args:
            others: Of the other splits, which annotate nothing if this one does not.

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
        documents = (self, *others)
        most = max(document.contents.most_classes for document in documents)
        contents = replace(self.contents, most_classes=most)
        for document in documents:
            document.contents = contents
            document._points = self._points
            # That of a split without an object may have none.
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
            lack = self._lack(self._entries[image["id"]])
            if lack:
                findings.reject(image["file_name"], lack)
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

    def _lack(self, entries: Sequence[Entry]) -> str:
        """What an image with these annotations lacks that others have; "" if nothing."""
        has_caption = any("caption" in entry for entry in entries)
        if self.contents.captions and not has_caption:
            return "has no caption"
        if self.contents.most_classes == 1 and not entries:
            return "has no class"
        return ""

    @property
    def segments(self) -> list[list[Entry]]:
        """The segments of each image with a PNG, as `PanopticMasks` takes them; [] if the document is not panoptic."""
        every = self._entries.values()
        return [
            entries for entries in every if any("png" in entry for entry in entries)
        ]

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
        return size_in(image)

    def _fields(self, of_image: Any) -> Row:
        """The fields of an image.

        Args:
            of_image: Its id.
        """
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
        else:
            fields |= self._instances(entries)
        fields["image_id"] = json.dumps(of_image)
        return fields

    def _instances(self, entries: Sequence[Entry]) -> Row:
        """The fields of boxes; with masks, those of crowds, too, though `labels` lists no class of a crowd alone."""
        instances = [entry for entry in entries if _is_instance(entry)]
        fields = with_boxes(*self._boxes(instances))
        if self.contents.masks:
            instances = [entry for entry in entries if "bbox" in entry]
            corners, classes = self._boxes(instances)
            fields["boxes"] = corners
            fields["boxes_class"] = classes
            fields["boxes_area"] = [
                entry.get("area", entry["bbox"][2] * entry["bbox"][3])
                for entry in instances
            ]
            crowds = [CROWD[entry.get("iscrowd")] for entry in instances]
            fields["boxes_crowd"] = crowds
            outlines = [entry.get("segmentation") or [] for entry in instances]
            fields["boxes_masks"] = outlines
        if self.contents.points:
            unlabelled = [0] * (3 * self.contents.points)
            points = [entry.get("keypoints") or unlabelled for entry in instances]
            fields["keypoints"] = points
        return fields

    def _boxes(self, entries: Sequence[Entry]) -> tuple[list[Any], list[int]]:
        """Corners and class numbers."""
        sides = [entry["bbox"] for entry in entries]
        corners = [(x, y, x + width, y + height) for x, y, width, height in sides]
        return corners, [
            self._number_of[int(entry["category_id"])] for entry in entries
        ]


def _is_instance(entry: Entry) -> bool:
    return "bbox" in entry and not CROWD[entry.get("iscrowd")]


def _has_mask(entry: Entry) -> bool:
    return "bbox" in entry and bool(entry.keys() & {"segmentation", "area"})
