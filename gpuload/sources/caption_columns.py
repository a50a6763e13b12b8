"""Columns of a table with several captions for each image."""

from collections.abc import Sequence
from typing import Any

from gpuload.fields.documents import JsonKind
from gpuload.headers.json_text import parse_json


class CaptionLists(JsonKind):
    """Several texts for each image, a field of kind "json" as those of COCO are.

    They are the texts of several columns, or of one whose cells are lists, JSON lists or lines.
    """

    def parse_cells(self, cells: Sequence[Any]) -> list[str]:
        found = [text for cell in cells for text in _texts(cell)]
        if not found:
            raise ValueError("a row has no caption")
        return found


def _texts(cell: Any) -> list[str]:
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = parse_json(cell)
        except ValueError:
            raise ValueError(f"{cell[:60]!r} is not a JSON list of captions") from None
    texts = [] if cell is None else cell.splitlines() if isinstance(cell, str) else cell
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{str(cell)[:60]!r} is no list of captions")
    return [text.strip() for text in texts if text.strip()]
