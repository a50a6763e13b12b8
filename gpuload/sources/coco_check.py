"""What COCO's JSON may hold: types and numbers of every entry that is used, before anything is looked up by it."""

import math
from collections.abc import Callable
from typing import Any

from gpuload.checks import shown

# A lookup by number, and a sort, need one type; JSON that other tools write has texts for numbers.
_ID = (int, str)


def check_document(found: Any) -> None:
    """Raises ValueError where the document is not COCO's."""
    if not isinstance(found, dict) or not isinstance(found.get("images"), list) or not found["images"]:
        raise ValueError("lists no images")
    if not isinstance(found.get("annotations"), list) or not isinstance(found.get("categories") or [], list):
        raise ValueError("its annotations or categories are no list")
    for name, check in (("images", _image), ("annotations", _annotation), ("categories", _category)):
        for entry in found.get(name) or []:
            if not isinstance(entry, dict):
                raise ValueError(f"has an entry of {name} that is no object: {shown(entry)}")
            check(entry)
        if len({type(entry["id"]) for entry in found.get(name) or []}) > 1:
            raise ValueError(f"has ids in {name} of which some are numbers and some are texts")
    if any("bbox" in entry and "category_id" not in entry for entry in found["annotations"]) and found.get(
        "categories"
    ):
        raise ValueError("has an annotation with a bbox and without a category_id")
    if len({entry["id"] for entry in found["images"]}) < len(found["images"]):
        raise ValueError("lists two images with one id")


def _image(entry: dict[str, Any]) -> None:
    if "id" not in entry or "file_name" not in entry:
        raise ValueError("lists an image without an id or a file_name")
    _require(entry, "an image", id=_is_id, file_name=_is_text)


def _annotation(entry: dict[str, Any]) -> None:
    if "caption" not in entry and "bbox" not in entry:
        raise ValueError("has an annotation with neither a caption nor a bbox")
    if "id" not in entry or "image_id" not in entry:
        raise ValueError("has an annotation without an id or an image_id")
    _require(entry, "an annotation", id=_is_id, image_id=_is_id)
    optional: dict[str, Callable[[Any], bool]] = {
        "caption": _is_text,
        "bbox": _is_box,
        "category_id": _is_id,
        "keypoints": lambda value: isinstance(value, list),
    }
    _require(entry, "an annotation", **{name: check for name, check in optional.items() if name in entry})


def _category(entry: dict[str, Any]) -> None:
    _require(entry, "a category", id=lambda value: _is_id(value) and _is_whole(value), name=_is_name)
    if entry.get("keypoints"):
        _require(entry, "a category", keypoints=lambda value: isinstance(value, list) and all(map(_is_text, value)))


def _require(entry: dict[str, Any], what: str, **checks: Callable[[Any], bool]) -> None:
    for name, check in checks.items():
        if name not in entry:
            raise ValueError(f"has {what} without {name}")
        if not check(entry[name]):
            raise ValueError(f"has {what} whose {name} is {shown(entry[name])}")


def _is_id(value: Any) -> bool:
    return isinstance(value, _ID) and not isinstance(value, bool) and len(str(value)) <= 80


def _is_whole(value: int | str) -> bool:
    return isinstance(value, int) or (value.isascii() and value.isdecimal())


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _is_name(value: Any) -> bool:
    return _is_text(value) or (isinstance(value, int) and len(str(value)) <= 80)


def _is_box(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(side, int | float) and not isinstance(side, bool) for side in value)
        and all(abs(side) < 1e12 and math.isfinite(side) for side in value)
    )
