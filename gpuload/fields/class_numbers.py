"""Classes: one class number per sample."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from gpuload.checks import COUNT, FLAG, optional, settings
from gpuload.counted import counted
from gpuload.errors import ArgumentError, SourceError, some_of
from gpuload.fields.field import LABEL, Field
from gpuload.fields.kind import NAME, BadRows, FieldSpec, Kind, Member, Parsed, describe
from gpuload.fields.motion import Placement
from gpuload.fields.parsing import flat_array, is_number, names_of, number_classes, parse_list
from gpuload.fields.rows import BoundField, BoundIntegers, Rows, flat, lengths_of, rows_of
from gpuload.types import F32, I64, ClassNames

BACKGROUND = "background"  # the packer's name for the class of images without an object

_MOST_NAMES, _LEAST_WEIGHT = 3, 0.05  # classes under a picture, and the weight in a mixed label from which one counts


@settings
class OneHot(FieldSpec):
    """A class as float32 (N, num_classes): 1 in the column of the sample's class, else 0.

    name: of the packed field.
    background: gives column 0 to the class named "background" (which packing from XML assigns to images without an
        object) and to negative class numbers; the other classes follow in their order. There are then as many columns
        as classes, and one more if no class has that name. By default neither has a column, and their samples are rows
        of zeros.
    num_classes: number of columns; by default as many as the named classes need.

    Raises:
        ArgumentError: num_classes is below 1. When bound: it is smaller than the named classes need, or not given while
            the classes have no names.
    """

    name: Annotated[str, NAME] = "label"
    num_classes: Annotated[int | None, optional(COUNT)] = None
    background: Annotated[bool, FLAG] = False

    kind = "class"


@settings
class MultiHot(FieldSpec):
    """Several labels as float32 (N, num_classes): 1 in the column of each class that a sample has, else 0.

    name: of the packed field.
    num_classes: number of columns; by default the number of the field's named classes.

    Raises:
        ArgumentError: num_classes is below 1. When bound: it is smaller than the number of named classes, or not given
            while the classes have no names.
    """

    name: Annotated[str, NAME] = "labels"
    num_classes: Annotated[int | None, optional(COUNT)] = None

    kind = "labels"


class BoundHot(BoundField):
    """float32 (N, K): 1 in the columns of a sample's classes, else 0. See `OneHot` and `MultiHot`."""

    def prepare(self) -> None:
        spec, is_one = self.spec, isinstance(self.spec, OneHot)
        names = self.datasets[0].classes if is_one else self.field.classes
        if spec.num_classes is None and not names:
            raise ArgumentError(
                f"{describe(spec)}: the number of classes is unknown, since the classes in {self.datasets[0].folder} "
                f"have no names. Use {describe(spec)[:-1]}, num_classes=…)"
            )
        first = int(is_one and spec.background)  # column of the first class that is not the background
        needed = first + sum(not is_one or name != BACKGROUND for name in names or ())
        self._count = needed if spec.num_classes is None else spec.num_classes
        if self._count < needed:
            raise ArgumentError(
                f"{describe(spec)[:-1]}, num_classes={spec.num_classes}): the named classes of "
                f"{self.datasets[0].folder} need {needed}. Leave num_classes out"
            )
        known = names if is_one and names else [""] * (self._count - first)
        has_own = np.array(known) != BACKGROUND
        # Column of each class, -1 for none; the last entry is for negative class numbers.
        self._column_of = np.append(np.where(has_own, np.cumsum(has_own) - 1 + first, first - 1), first - 1)

    def values(self, rows: Rows) -> F32:
        numbers, of_rows = rows.columns[self.name], np.arange(len(rows))
        if isinstance(numbers, pa.Array):
            numbers, of_rows = flat(numbers), rows_of(lengths_of(numbers))
        known = len(self._column_of) - 1
        if numbers.max(initial=-1) >= known:
            wrong = int(np.argmax(numbers >= known))
            raise ArgumentError(
                f"{rows.sample_name(self.datasets, int(of_rows[wrong]))}: its {self.name!r} has class "
                f"{numbers[wrong]}, expected {counted(known, 'class', 'classes')}, numbered from 0. Give a larger "
                "num_classes"
            )
        columns = self._column_of[np.maximum(numbers, -1)]
        has_column = columns >= 0
        hot = np.zeros((len(rows), self._count), np.float32)
        hot[of_rows[has_column], columns[has_column]] = 1
        return hot


class ClassKind(Kind):
    """A class number, stored as text in a `.cls` member. The data set holds the names of the classes."""

    name = "class"
    role = "label"
    specs = (OneHot,)
    bound, plain = BoundHot, BoundIntegers
    keys = (LABEL.name,)
    usual_names = ("label", "class", "target", "y", "fine_label")
    in_tables = True
    names_set_classes = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.int64()}

    def class_column(self, field: Field) -> str | None:
        return field.name

    def parse(self, where: str, name: str, values: Sequence[Any], classes: ClassNames, detail: str) -> Parsed:
        """Class numbers from integers, or from names, which are numbered in sorted order.

        The field's `classes` are the names, which a listing takes as those of the data set.

        Raises:
            SourceError: a label is missing, negative or fractional.
        """
        import pyarrow.compute as pc  # takes 30 ms, which workers are spared

        labels = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([pa.array(map(_text, values))])
        labels = pc.utf8_trim_whitespace(labels.cast(pa.large_string()))
        texts = sorted(text for text in pc.unique(labels).to_pylist() if text)
        empty = pc.sum(pc.equal(pc.fill_null(labels, ""), "")).as_py()
        if empty:
            first = pc.index(pc.fill_null(labels, ""), pa.scalar("", pa.large_string())).as_py() + 2
            raise SourceError(
                f"{where}: every row needs a label; {empty:,} have none, the first in line {first}. Fill in or remove "
                "them"
            )
        if not all(is_number(text) for text in texts):
            found = pa.array(texts, pa.large_string())
            return _label(tuple(texts)), [flat_array(pc.index_in(labels, found).cast(pa.int64()))]
        try:
            numbers = labels.cast(pa.int64())
        except pa.ArrowInvalid:
            wrong = [text for text in texts if not text.lstrip("+-").isdecimal()]
            raise SourceError(
                f"{where}: labels must be integers or class names, found {some_of(wrong or texts)}. "
                "Give another --label-column, or --column target=… for a number to be predicted"
            ) from None
        if pc.min(numbers).as_py() < 0:
            raise SourceError(
                f"{where}: class numbers must be 0 or more, found {pc.min(numbers).as_py()}. "
                "Renumber or remove the rows"
            )
        return _label(classes), [flat_array(numbers)]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        return Member(str(value[field.name]).encode(), 0, value)

    def estimate_bytes(self, field: Field, samples: pa.Table) -> I64:
        import pyarrow.compute as pc

        sizes: I64 = pc.binary_length(samples.column(field.name).cast(pa.large_string())).to_numpy()
        return sizes

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return {field.name: int(content.decode())}

    def guess(self, member: str, content: Any) -> Field | None:
        return LABEL if member == LABEL.member else None

    def find_fault(self, field: Field, row: Mapping[str, Any], content: bytes, header: int, image_size: Any) -> str:
        # Compared as text, so that " 7" or "+7", which the packer never writes, is a fault too.
        if content.decode() != str(row[field.name]):
            return f"is {content[:40]!r}, the index says {str(row[field.name])[:40]!r}"
        return ""

    def texts(self, field: Field, found: Mapping[str, Any], classes: ClassNames) -> dict[str, str]:
        return {field.name: names_of([found[field.name]], classes, with_numbers=True)}

    def caption(self, field: Field, spec: Any, value: Any, classes: ClassNames) -> str:
        if np.ndim(value) and classes is not None and isinstance(spec, OneHot):  # which moves the background's column
            others = tuple(name for name in classes if name != BACKGROUND)
            classes = (BACKGROUND, *others) if spec.background else others
        return _most_likely(value, classes)


def _label(classes: ClassNames) -> Field:
    return Field(LABEL.name, LABEL.kind, LABEL.member, classes)


def _text(label: Any) -> str | None:
    return None if label is None else str(label)


class LabelsKind(Kind):
    """Class numbers, stored as a JSON list."""

    name = "labels"
    specs = (MultiHot,)
    bound = BoundHot
    keys = ("labels",)
    usual_names = ("labels", "tags")
    in_tables = True
    entry_bytes = 6

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.list_(pa.int64())}

    def class_column(self, field: Field) -> str | None:
        return field.name

    def parse_cell(self, cell: Any) -> list[Any]:
        return parse_list(cell)

    def parse(self, where: str, name: str, values: Sequence[Any], classes: ClassNames, detail: str) -> Parsed:
        """Class numbers from lists of integers or of names."""
        numbers, names = number_classes(where, name, [list(row) for row in values], classes)
        return Field(name, self.name, f"{name}.json", names), [pa.array(numbers, pa.list_(pa.int64()))]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        return Member(json.dumps(value[field.name]).encode(), 0, value)

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        labels = rows.column(field.name)
        yield BadRows(
            rows_of(lengths_of(labels))[flat(labels) < 0],
            lambda row: f"its {field.name!r} as {labels[row].as_py()}, expected class numbers from 0",
        )

    def texts(self, field: Field, found: Mapping[str, Any], classes: ClassNames) -> dict[str, str]:
        return {field.name: names_of(found[field.name], classes, with_numbers=True)}

    def caption(self, field: Field, spec: Any, value: Any, classes: ClassNames) -> str:
        return _most_likely(value, classes)


def _most_likely(value: Any, classes: ClassNames) -> str:
    """The class of a number; of a row of weights, the classes with the largest."""
    if np.ndim(value) == 0:
        return names_of([int(value)], classes)
    weights = np.asarray(value, np.float64)
    order = [int(n) for n in np.argsort(-weights, kind="stable")[:_MOST_NAMES] if weights[n] >= _LEAST_WEIGHT]
    whole = all(weights[n] > 0.99 for n in order)
    return ", ".join(names_of([n], classes) + ("" if whole else f" {weights[n]:.2f}") for n in order)
