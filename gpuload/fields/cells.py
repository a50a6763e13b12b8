"""Values as people write them in tables."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from gpuload.machine.untrusted import parse_json

T = TypeVar("T")
_WHOLE = re.compile(r"[+-]?\d{1,100}")  # `int` refuses thousands of digits
_SEPARATORS = ";|,"  # of the words in a cell


def is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def is_whole(value: Any) -> bool:
    """Whether the value is an integer, or text that represents one."""
    if isinstance(value, str):
        return _WHOLE.fullmatch(value.strip()) is not None
    return is_integer(value)


def is_integer(value: Any) -> bool:
    """Whether a program gave an integer; a text is none, and a bool is not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def read_cells(rows: Sequence[T], read: Callable[[T], Any]) -> list[Any]:
    """What a function makes of each row's cells.

    Raises:
        ValueError: the function raised one; the message names the row of the table, the first one being 1.
    """
    values = []
    for number, cells in enumerate(rows, 1):
        try:
            values.append(read(cells))
        except (ValueError, TypeError) as error:
            raise ValueError(f"row {number:,}: {error}") from None
    return values


def parse_list(cell: Any, separator: str | None = None) -> list[Any]:
    """A list from a table's cell: a JSON list, or words between separators.

    Args:
        cell: Text of the table, or a list already.
        separator: Between words; None for blanks.

    Raises:
        ValueError: the cell begins with "[" but is not a JSON list.
    """
    if cell is None:
        return []
    if not isinstance(cell, str):
        return list(cell)
    text = cell.strip()
    if text.startswith("["):
        try:
            return [*parse_json(text)]
        except (ValueError, TypeError):
            raise ValueError(f"{text[:60]!r} is not a JSON list") from None
    return [part.strip() for part in text.split(separator) if part.strip()]


def texts_of(cells: Sequence[Any]) -> list[str]:
    """The cells that are texts, but for lists in JSON."""
    return [
        cell
        for cell in cells
        if isinstance(cell, str) and not cell.lstrip().startswith("[")
    ]


def separator_of(cells: Sequence[Any]) -> str | None:
    """What separates words in all cells of a column: the first of ";", "|" and "," that is in any; None for blanks.

    One cell cannot tell: "fire truck" is one word in a column where another cell is "fire truck, car".
    """
    texts = texts_of(cells)
    return next(
        (
            separator
            for separator in _SEPARATORS
            if any(separator in text for text in texts)
        ),
        None,
    )
