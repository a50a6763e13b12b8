"""Classes, targets, labels and boxes as people write them, turned into columns of a listing.

Each function takes a value a sample and gives the field and its Arrow columns. `where` opens every message.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.field import LABEL, Field
from gpuload.sources.listing import some_of
from gpuload.types import ClassNames

Columns = list[pa.Array]


def class_column(where: str, labels: pa.ChunkedArray, classes: ClassNames = None) -> tuple[Columns, ClassNames]:
    """Class numbers out of whole numbers, or out of names, whose classes are numbered in sorted order.

    classes: names by number, where they are known.

    Raises:
        SourceError: a label is missing, negative or fractional.
    """
    import pyarrow.compute as pc  # 30 ms that workers need not wait for

    labels = pc.utf8_trim_whitespace(labels.cast(pa.large_string()))
    texts = sorted(text for text in pc.unique(labels).to_pylist() if text)
    empty = pc.sum(pc.equal(pc.fill_null(labels, ""), "")).as_py()
    if empty:
        first = pc.index(pc.fill_null(labels, ""), pa.scalar("", pa.large_string())).as_py() + 2
        raise SourceError(f"{where}: {empty:,} rows have no label (first in line {first}). Fill or remove them")
    if all(_is_number(text) for text in texts):
        try:
            numbers = labels.cast(pa.int64())
        except pa.ArrowInvalid:
            wrong = [text for text in texts if not text.lstrip("+-").isdecimal()]
            raise SourceError(
                f"{where}: labels must be whole numbers or names of classes, found {some_of(wrong or texts)}. "
                "Give another --label-column, or --column target=… for a number to be predicted"
            ) from None
        if pc.min(numbers).as_py() < 0:
            raise SourceError(
                f"{where}: class numbers start at 0, found {pc.min(numbers).as_py()}. Renumber or remove the rows"
            )
        return [_flat(numbers)], classes
    found = pa.array(texts, pa.large_string())
    return [_flat(pc.index_in(labels, found).cast(pa.int64()))], tuple(texts)


def target_column(where: str, name: str, rows: Sequence[Any]) -> tuple[Field, Columns]:
    """float32 numbers, one or the same count in each sample.

    Raises:
        SourceError: one is no number, not finite, or of another length than the first.
    """
    try:
        array = np.array(rows, np.float32)
    except (TypeError, ValueError):
        wrong = next((row for row in rows if not _is_number(row)), rows[0])
        raise SourceError(
            f"{where}: {name!r} must hold a number, or equally many, in each sample; found {wrong!r}. Correct that"
        ) from None
    if array.ndim > 2 or not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[:1].sum())
        raise SourceError(f"{where}: {name!r} must hold finite numbers; sample {row} has {rows[row]!r}. Correct that")
    size = array.shape[1] if array.ndim == 2 else 0
    field = Field(name, "target", f"{name}.json", size=size)
    flat = pa.array(array.reshape(-1))
    return field, [pa.FixedSizeListArray.from_arrays(flat, size) if size else flat]


def labels_column(
    where: str, name: str, rows: Sequence[Sequence[Any]], classes: ClassNames = None
) -> tuple[Field, Columns]:
    """Any number of classes a sample, as numbers or names; `classes` names the numbers where that is known."""
    numbers, names = _classes_of(where, name, [list(row) for row in rows], classes)
    return Field(name, "labels", f"{name}.json", names), [pa.array(numbers, pa.list_(pa.int64()))]


def boxes_column(
    where: str, name: str, boxes: Sequence[Any], box_classes: Sequence[Sequence[Any]], classes: ClassNames = None
) -> tuple[Field, Columns]:
    """Any number of boxes a sample, x0 y0 x1 y1 in pixels of the image, each with a class.

    Raises:
        SourceError: a box has no four numbers, or its corners are in the wrong order.
    """
    checked: list[list[list[float]]] = []
    for row, found in enumerate(boxes):
        try:
            array = np.array(list(found), np.float32).reshape(len(found), 4)
        except (TypeError, ValueError):
            raise SourceError(
                f"{where}: {name!r} of sample {row} is {str(found)[:60]}; a box is four numbers, x0 y0 x1 y1"
            ) from None
        if not (np.isfinite(array).all() and (array[:, 2:] >= array[:, :2]).all()):
            raise SourceError(
                f"{where}: {name!r} of sample {row} has a box whose right or lower side comes first: {array.tolist()}. "
                "Boxes are x0 y0 x1 y1 in pixels, not x y width height"
            )
        if len(found) != len(box_classes[row]):
            raise SourceError(
                f"{where}: sample {row} has {len(found)} {name} and {len(box_classes[row])} classes of them. "
                "Give each box one class"
            )
        checked.append(array.tolist())
    numbers, names = _classes_of(where, name, box_classes, classes)
    field = Field(name, "boxes", f"{name}.json", names)
    types = field.value_columns
    return field, [pa.array(checked, types[name]), pa.array(numbers, types[field.class_column])]


def caption_column(where: str, name: str, texts: Sequence[Any]) -> tuple[Field, Columns]:
    """A text a sample; one that is missing is refused."""
    lacking = [str(row) for row, text in enumerate(texts) if text is None]
    if lacking:
        raise SourceError(f"{where}: {len(lacking):,} samples have no {name} (numbers {some_of(lacking)}). Fill them")
    member = "txt" if name == "caption" else f"{name}.txt"
    return Field(name, "caption", member), [pa.array([str(text) for text in texts], pa.large_string())]


def json_column(name: str, values: Sequence[Any]) -> tuple[Field, Columns]:
    """Anything that JSON can hold; text is taken as JSON already."""
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    return Field(name, "json", "json" if name == "json" else f"{name}.json"), [pa.array(texts, pa.large_string())]


def label_field(columns: Columns) -> tuple[Field, Columns]:
    return LABEL, columns


def parse_list(text: Any) -> list[Any]:
    """A list out of a table's cell: a JSON list, or words between commas, semicolons, bars or spaces."""
    if text is None:
        return []
    if not isinstance(text, str):
        return list(text)
    text = text.strip()
    if text.startswith("["):
        try:
            return [*json.loads(text)]
        except ValueError:
            raise SourceError(f"{text[:60]!r} is not a JSON list") from None
    mark = next((mark for mark in ";|," if mark in text), None)
    return [part.strip() for part in str(text).split(mark) if part.strip()]


def _classes_of(
    where: str, name: str, rows: Sequence[Sequence[Any]], classes: ClassNames
) -> tuple[list[list[int]], ClassNames]:
    values = {value for row in rows for value in row}
    if all(_is_whole(value) for value in values):
        numbers = [[int(value) for value in row] for row in rows]
        lowest, highest = min(map(int, values), default=0), max(map(int, values), default=0)
        if lowest < 0 or (classes is not None and highest >= len(classes)):
            wrong = lowest if lowest < 0 else highest
            raise SourceError(f"{where}: {name!r} has class {wrong}; classes are numbered from 0. Renumber them")
        return numbers, classes
    names = tuple(sorted({str(value) for value in values})) if classes is None else classes
    place = {value: number for number, value in enumerate(names)}
    unknown = sorted({str(value) for value in values} - set(place))
    if unknown:
        raise SourceError(f"{where}: {name!r} has classes that are not listed: {some_of(unknown)}. List them")
    return [[place[str(value)] for value in row] for row in rows], names


def _flat(values: pa.ChunkedArray) -> pa.Array:
    flat = values.combine_chunks()
    return flat.chunk(0) if isinstance(flat, pa.ChunkedArray) else flat


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) or (isinstance(value, str) and value.strip().lstrip("+-").isdecimal())


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
