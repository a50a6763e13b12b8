"""The form of COCO's JSON: what is nearly COCO is made so, and what is not is refused, entry by entry."""

from collections.abc import Callable, Sequence
from typing import Any

from gpuload.checks import as_items, as_text, number, several, shown, whole
from gpuload.fields.instances import check_outline

Entry = dict[str, Any]
CROWD = {0: 0, 1: 1, "0": 0, "1": 1, None: 0}  # what `iscrowd` may be
_MOST_PX = 1 << 30
_MOST_SEGMENTS = 1 << 24  # what three channels of a PNG can number


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


_TRIANGLE = 6  # numbers of the smallest polygon


def _crowd(value: Any) -> None:
    CROWD[value]


def _outline(value: Any) -> None:
    check_outline(value or [])
    # Two points cover nothing, and pycocotools takes four numbers for a box.
    polygons = value if isinstance(value, list) else []
    if any(0 < len(polygon) < _TRIANGLE for polygon in polygons):
        raise ValueError("a polygon has three points or more")


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
        "segmentation": _outline,
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
    if not isinstance(document, dict) or not document.get("images"):
        raise ValueError("it lists no images or no annotations")
    if not isinstance(document.get("annotations"), list):
        raise ValueError("it lists no images or no annotations")
    for name in _CHECKS:
        _check_entries(name, document.get(name) or [])
    _check_contents(document["annotations"], bool(document.get("categories")))
    if len({entry["id"] for entry in document["images"]}) < len(document["images"]):
        raise ValueError("it lists two images with one id")


def _check_entries(name: str, entries: Any) -> None:
    """Raises ValueError if a list of a document holds what it should not.

    Args:
        name: Of the list.
    """
    are_objects = isinstance(entries, list) and all(
        isinstance(entry, dict) for entry in entries
    )
    if not are_objects:
        raise ValueError(f"its {name} are not a list of objects")
    for entry in entries:
        for key, check in _CHECKS[name].items():
            if key not in entry and key not in _NEEDED[name]:
                continue
            try:
                check(entry.get(key))
            except (TypeError, ValueError, OverflowError, KeyError):
                raise ValueError(
                    f"an entry of its {name} has the {key} {shown(entry.get(key))}"
                ) from None
    if len({type(entry["id"]) for entry in entries if "id" in entry}) > 1:
        raise ValueError(f"ids of its {name} are numbers and texts")
