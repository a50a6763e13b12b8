"""Parsing of values as people write them, for several kinds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.checks import shown
from gpuload.errors import SourceError, some_of
from gpuload.machine.untrusted import parse_json
from gpuload.types import ClassNames


def is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


_MOST_CLASSES = 2**63


def is_whole(value: Any) -> bool:
    """Whether the value is an integer, or text that represents one."""
    return isinstance(value, (int, np.integer)) or (isinstance(value, str) and value.strip().lstrip("+-").isdecimal())


def parse_list(cell: Any) -> list[Any]:
    """A list from a table's cell: a JSON list, or words separated by commas, semicolons, bars or spaces.

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
    separator = next((separator for separator in ";|," if separator in text), None)
    return [part.strip() for part in text.split(separator) if part.strip()]


def number_classes(
    where: str, name: str, rows: Sequence[Sequence[Any]], classes: ClassNames
) -> tuple[list[list[int]], ClassNames]:
    """Class numbers from lists of numbers, or of names, which are numbered in sorted order; and the names.

    Raises:
        SourceError: a number is negative or has no name in `classes`, a name is not in `classes`, or a class is neither
            number nor name.
    """
    found = [value for row in rows for value in row]
    if others := [value for value in found if isinstance(value, list | tuple | dict)]:
        raise SourceError(f"{where}: classes of {name!r} are numbers or names; found {shown(others[0])}. Correct that")
    values = set(found)
    if all(is_whole(value) for value in values):
        numbers = [[int(value) for value in row] for row in rows]
        lowest, highest = min(map(int, values), default=0), max(map(int, values), default=0)
        most = _MOST_CLASSES if classes is None else len(classes)
        if lowest < 0 or highest >= most:
            wrong = shown(lowest if lowest < 0 else highest)
            allowed = "0 or more" if classes is None and lowest < 0 else f"in 0..{most - 1}"
            raise SourceError(f"{where}: class numbers of {name!r} must be {allowed}; found {wrong}. Renumber them")
        return numbers, classes
    names = tuple(sorted({str(value) for value in found})) if classes is None else classes
    number_of = {value: number for number, value in enumerate(names)}
    unknown = sorted({str(value) for value in found} - set(number_of))
    if unknown:
        raise SourceError(
            f"{where}: the classes of {name!r} must be in the source's list of classes; it lacks {some_of(unknown)}. "
            "Add them"
        )
    return [[number_of[str(value)] for value in row] for row in rows], names


def names_of(numbers: Sequence[int], names: ClassNames, with_numbers: bool = False) -> str:
    """The names of class numbers, or such as "class 3" where there is none, in one line."""
    from gpuload.pictures import name_of  # Pillow's fonts

    return ", ".join(name_of(number, names) + (f" ({number})" if with_numbers else "") for number in numbers)


def flat_array(values: pa.ChunkedArray) -> pa.Array:
    """The values as a single array."""
    flat = values.combine_chunks()
    return flat.chunk(0) if isinstance(flat, pa.ChunkedArray) else flat
