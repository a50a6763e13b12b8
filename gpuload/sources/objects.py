"""Hugging Face's column `objects`: the boxes of an image and their classes in one value.

A value is a dict of lists, `{"bbox": [[x, y, width, height], …], "category": [0, …]}`, or a list of dicts. The boxes
are x y width height, as the documentation of Hugging Face has it, but some sets hold x0 y0 x1 y1. Neither is guessed:
the boxes themselves tell, or the user.
"""

import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from PIL import Image

from gpuload.errors import SourceError, some_of
from gpuload.fields.cells import is_number
from gpuload.sources.annotations import with_boxes
from gpuload.sources.files import Findings
from gpuload.sources.listing import first_named

_BOXES = ("bbox", "bboxes", "boxes", "box")
_CLASSES = (
    "category",
    "categories",
    "label",
    "labels",
    "class",
    "classes",
    "category_id",
    "class_id",
)
_CROWD = "iscrowd"
_SIDES = 4
_TOLERANCE = 1.01  # of the image's size, with a pixel more: as far as boxes reach beyond an image by rounding

Box = Sequence[float]


def class_key(keys: Collection[str]) -> str:
    """The key of the classes; "" if there is none."""
    return first_named(_CLASSES, keys)


class ObjectColumn:
    """The values of one column.

    Args:
        title: Of the source, for messages.
        column: Its name.
        findings: Gets the classes, and questions to the user.
        corners: Whether boxes are x0 y0 x1 y1.
        is_named: Whether the user said which of both they are.
        is_typed: Whether the schema says that all values are objects, so that an empty one is an image without any.
    """

    def __init__(
        self,
        title: str,
        column: str,
        findings: Findings,
        corners: bool,
        is_named: bool,
        is_typed: bool,
    ) -> None:
        self._title = title
        self._column = column
        self._findings = findings
        self._corners = corners
        self._is_named = is_named
        self._is_typed = is_typed

    def are_meant(self, value: Any) -> bool:
        """Whether a value is one of objects, not some other value in a column of this name."""
        if value is None or (isinstance(value, list | dict) and not value):
            return self._is_typed
        first = value[0] if isinstance(value, list) else value
        if isinstance(first, Mapping) and any(key in first for key in _BOXES):
            self._is_typed = True
            return True
        return False

    def fields(self, value: Any, row: Mapping[str, Any], image: Any) -> dict[str, Any]:
        """The fields of an image: boxes, their classes, and the classes in the image.

        Args:
            value: Of the column.
            row: The row as it is stored, perhaps with the size of the image.
            image: The image of the row.

        Raises:
            SourceError: it is no such value, or its boxes are x0 y0 x1 y1 and were taken for the other.
        """
        parts = self._parts(value)
        boxes = parts.pop(first_named(_BOXES, parts))
        key = class_key(parts)
        classes = parts.pop(key) if key else []
        crowds = parts.pop(_CROWD, None) or [0] * len(boxes)
        if parts:
            self._findings.note(
                f"parts of {self._column!r} that are not packed: {some_of(sorted(parts))}"
            )
        if len(crowds) != len(boxes) or (key and len(classes) != len(boxes)):
            raise self._error(
                f"has {len(boxes)} boxes and {len(classes)} classes",
                "Correct the column",
            )
        self._check_boxes(boxes)
        if not self._is_named:
            self._look_at(boxes, parts.get("area"), row, image)
        kept = [number for number, crowd in enumerate(crowds) if not crowd]
        corners = [self._corners_of(boxes[number]) for number in kept]
        if not key:
            return {"boxes": corners}
        return with_boxes(corners, [classes[number] for number in kept])

    def _check_boxes(self, boxes: Iterable[Any]) -> None:
        """Raises SourceError if one is not four numbers."""
        for box in boxes:
            is_box = isinstance(box, Sequence) and len(box) == _SIDES
            if not is_box or not all(map(is_number, map(str, box))):
                raise self._error(f"holds the box {str(box)[:60]}", "Give four numbers")

    def _parts(self, value: Any) -> dict[str, Any]:
        """The lists of a value by their keys."""
        if isinstance(value, Mapping):
            return {
                key: list(value[key] if value[key] is not None else ()) for key in value
            }
        entries = list(value or ())
        if not all(isinstance(entry, Mapping) for entry in entries):
            raise self._error(
                f"holds {str(value)[:60]}", "Give dicts with bbox and category"
            )
        keys = dict.fromkeys(key for entry in entries for key in entry)
        return {key: [entry.get(key) for entry in entries] for key in keys} or {
            _BOXES[0]: [],
            _CLASSES[0]: [],
        }

    def _corners_of(self, box: Box) -> tuple[float, ...]:
        if self._corners:
            return tuple(box)
        x, y, width, height = box
        return x, y, x + width, y + height

    def _look_at(
        self,
        boxes: Sequence[Box],
        areas: Sequence[float] | None,
        row: Mapping[str, Any],
        image: Any,
    ) -> None:
        """Notes whether boxes are x y width height for certain."""
        findings = self._findings
        column = self._column
        size = _size_of(row, image)
        for number, (x, y, width, height) in enumerate(boxes):
            if size is not None and not _fits(x + width, y + height, size):
                raise self._error(
                    f"holds the box {[x, y, width, height]}, which as x y width height leaves its image of {size}",
                    f"If boxes are x0 y0 x1 y1, give --column boxes={column}; if not, --column objects={column}",
                )
            area = width * height
            is_area = areas is not None and _is_near(areas[number], area)
            is_of_corners = _is_near(area, (width - x) * (height - y))
            if width < x or height < y or (is_area and not is_of_corners):
                findings.settled.add(column)
        if column in findings.settled:
            findings.doubts.pop(column, None)
        elif boxes:
            findings.doubts[column] = (
                f"the boxes of {column!r} may be x y width height, or x0 y0 x1 y1, and none of them tells which. Give "
                f"--column objects={column} for the first, or --column boxes={column} for the second; in a program, "
                "give 'boxes' x0 y0 x1 y1"
            )

    def _error(self, what: str, advice: str) -> SourceError:
        return SourceError(f"{self._title}: column {self._column!r} {what}. {advice}")


def _is_near(area: Any, other: float) -> bool:
    return (
        isinstance(area, int | float) and other > 0 and abs(area - other) < 1e-3 * other
    )


def _fits(right: float, bottom: float, size: tuple[int, int]) -> bool:
    """Whether a corner is in an image, upright or as it is stored."""
    return any(
        right <= wide * _TOLERANCE + 1 and bottom <= high * _TOLERANCE + 1
        for wide, high in (size, size[::-1])
    )


def _size_of(row: Mapping[str, Any], image: Any) -> tuple[int, int] | None:
    """Width and height of the image, if they are known or can be read from its header."""
    width = row.get("width")
    height = row.get("height")
    if isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0:
        return width, height
    with suppress(
        Exception
    ):  # Pillow's many parsers may raise anything; the packer says what is wrong with an image
        if isinstance(image, bytes):
            with Image.open(io.BytesIO(image)) as opened:
                return opened.size
        return image.size
    return None
