"""Classes: one class number per sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import COUNT, FLAG, check_fields, optional
from gpuload.errors import ArgumentError, SourceError, some_of
from gpuload.fields.class_limits import check_classes, known_count
from gpuload.fields.field import LABEL, Field
from gpuload.fields.integers import BoundIntegers
from gpuload.fields.kind import NAME, Columns, FieldSpec, Kind, Member, Placement, describe
from gpuload.fields.parsing import flat_array, is_number
from gpuload.fields.rows import BoundField, DatasetView, Rows
from gpuload.types import I64, ClassNames

BACKGROUND = "background"  # the packer's name for the class of images without an object


@dataclass(frozen=True)
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

    name: str = "label"
    num_classes: int | None = None
    background: bool = False

    kind = "class"

    def __post_init__(self) -> None:
        check_fields(self, name=NAME, num_classes=optional(COUNT), background=FLAG)


class ClassKind(Kind):
    """A class number, stored as text in a `.cls` member. The data set holds the names of the classes."""

    name = "class"
    role = "label"
    specs = (OneHot,)
    keys = (LABEL.name,)
    usual_names = ("label", "class", "target", "y", "fine_label")
    in_tables = True
    names_set_classes = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.int64()}

    def class_column(self, field: Field) -> str | None:
        return field.name

    def parse(
        self, where: str, name: str, values: Sequence[Any], classes: ClassNames = None, detail: str = ""
    ) -> tuple[Field, Columns]:
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

    def bind(self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]) -> BoundField:
        if isinstance(spec, OneHot):
            return BoundOneHot(spec, datasets[0].classes, datasets)
        return BoundIntegers(field.name)


def _label(classes: ClassNames) -> Field:
    return Field(LABEL.name, LABEL.kind, LABEL.member, classes)


def _text(label: Any) -> str | None:
    return None if label is None else str(label)


class BoundOneHot:
    """float32 (N, K), see `OneHot`.

    Raises:
        ArgumentError: the number of classes is unknown, or too small for the named ones.
    """

    members: tuple[str, ...] = ()

    def __init__(self, spec: OneHot, names: ClassNames, datasets: Sequence[DatasetView]) -> None:
        self.name, self.columns, self._datasets = spec.name, (spec.name,), tuple(datasets)
        if not names:
            self._num_classes = known_count(spec, spec.num_classes, datasets)
            foreground = np.arange(self._num_classes - spec.background)
        else:
            foreground = np.flatnonzero(np.array(names) != BACKGROUND)
            needed = len(foreground) + spec.background
            self._num_classes = needed if spec.num_classes is None else spec.num_classes
            if self._num_classes < needed:
                raise ArgumentError(
                    f"{describe(spec)[:-1]}, num_classes={spec.num_classes}): the named classes of "
                    f"{datasets[0].folder} need {needed}. Leave num_classes out"
                )
        # Column of each class, -1 for none; the last entry is for negative class numbers.
        self._column_of = np.full((len(names) if names else len(foreground)) + 1, 0 if spec.background else -1)
        self._column_of[foreground] = np.arange(len(foreground)) + spec.background

    def values(self, rows: Rows) -> npt.NDArray[np.float32]:
        numbers = np.maximum(rows.columns[self.name], -1)
        check_classes(self.name, rows, self._datasets, numbers, np.arange(len(rows)), len(self._column_of) - 1)
        columns = self._column_of[numbers]
        with_column = np.flatnonzero(columns >= 0)
        one_hot = np.zeros((len(rows), self._num_classes), np.float32)
        one_hot[with_column, columns[with_column]] = 1
        return one_hot
