"""The values of a column of a joined table, taken batch by batch and converted to the columns of their field."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.counted import counted
from gpuload.disk.dataset import Dataset
from gpuload.errors import SourceError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import LABEL, Field
from gpuload.fields.registry import kind_of
from gpuload.fields.rows import numbers_of
from gpuload.types import I64

_LABELS_NAMES = ("labels", "tags")
CLASSES_OF = "_class"  # ends the name of the column with the classes of boxes


class JoinedColumn:
    """The values of one field, in the rows of the table: those of Arrow's arrays.

    Args:
        name: Of the field.
        kind: Of the field.
        column_name: The name of the table's column.
        classes: Names of its class numbers, where the table has them.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        column_name: str,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.column_name = column_name
        self.classes = None if classes is None else tuple(classes)
        self.size = 0
        self._parts = dict[str, list[pa.Array]]()

    def field(self, dataset: Dataset) -> Field:
        """The field of the set that it becomes."""
        if self.kind == "class":
            return LABEL
        member = f"{self.name}.{'txt' if self.kind == 'caption' else 'json'}"
        return Field(self.name, self.kind, member, self.classes, self.size)

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the values of the next rows.

        Raises:
            SourceError: one is missing.
        """
        values = batch.column(self.column_name)
        if values.null_count:
            raise SourceError(
                f"column {self.column_name!r} lacks {counted(values.null_count, 'value')}. Leave these rows out, and "
                "give --missing skip"
            )
        for column, array in self.convert(values, batch).items():
            self._parts.setdefault(column, []).append(array)

    def convert(
        self, values: pa.Array, batch: pa.RecordBatch
    ) -> Mapping[str, pa.Array]:
        """The columns of the index, of some rows."""
        (kind,) = self.types().values()
        return {self.name: values.cast(kind)}

    def types(self) -> Mapping[str, pa.DataType]:
        field = Field(self.name, self.kind, "json", size=self.size)
        return kind_of(field).columns(field)

    def take(self, rows: I64) -> list[pa.Array]:
        """The columns of these rows; -1 is a row without a value.

        Raises:
            SourceError: a value cannot be empty.
        """
        columns = []
        for name, kind in self.types().items():
            if len(self._parts[name]) > 1:
                self._parts[name] = [pa.concat_arrays(self._parts[name])]
            (array,) = self._parts[name]
            if (rows < 0).any():
                array = pa.concat_arrays([array, array_of([self._empty(kind)], kind)])
            columns.append(
                array.take(array_of(np.where(rows < 0, len(array) - 1, rows)))
            )
        return columns

    def _empty(self, kind: pa.DataType) -> Any:
        if pa.types.is_large_string(kind):
            return "null" if self.kind == "json" else ""
        if pa.types.is_list(kind):
            return []
        raise SourceError(
            f"column {self.column_name!r} has no value that means none, and samples lack one. Give each a row"
        )


class _Numbers(JoinedColumn):
    """Numbers, as many in each row, in a temporary file."""

    def __init__(
        self,
        name: str,
        kind: str,
        column_name: str,
        size: int,
        dtype: Any,
        scratch: Path,
    ) -> None:
        super().__init__(name, kind, column_name)
        self.size = size
        self._dtype = np.dtype(dtype)
        self._path = scratch / f"{len(list(scratch.iterdir()))}.numbers"
        self._path.touch()

    def add(self, batch: pa.RecordBatch) -> None:
        values = batch.column(self.column_name)
        if values.null_count:
            super().add(batch)
        flat = values.flatten() if self.size else values
        if len(flat) != len(values) * max(1, self.size) or flat.null_count:
            raise SourceError(
                f"column {self.column_name!r} has {self.size} numbers in its first row, and not in all. Give each as "
                "many"
            )
        if self._dtype.kind == "i":
            flat = self._whole(flat)
        numbers: Any = numbers_of(flat).astype(self._dtype)
        if self._dtype.kind == "f" and not np.isfinite(numbers).all():
            raise SourceError(
                f"column {self.column_name!r} has numbers that are not finite"
            )
        with self._path.open("ab") as file:
            file.write(memoryview(numbers).cast("B"))

    def _whole(self, numbers: pa.Array) -> pa.Array:
        """Whole numbers as int64.

        Raises:
            SourceError: one does not fit.
        """
        try:
            return numbers.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise SourceError(
                f"column {self.column_name!r} has a number that int64 does not hold ({error}). Give such numbers as "
                "texts, or leave it out"
            ) from error

    def take(self, rows: I64) -> list[pa.Array]:
        row_bytes = self._dtype.itemsize * max(1, self.size)
        before = np.concatenate([[-1], rows[:-1]])
        begins = np.flatnonzero((before < 0) | (rows != before + 1))
        ends = np.append(begins[1:], len(rows))
        # Read, and not mapped: around each row, a map takes up to a megabyte into the memory of the process.
        with self._path.open("rb", buffering=0) as file:
            pieces = [
                os.pread(file.fileno(), count * row_bytes, max(0, row) * row_bytes)
                for row, count in zip(
                    rows[begins].tolist(), (ends - begins).tolist(), strict=True
                )
            ]
        taken = np.frombuffer(bytearray().join(pieces), self._dtype)
        taken = taken.reshape(-1, max(1, self.size))
        if (rows < 0).any():
            taken[rows < 0] = self._none()
        flat = array_of(taken.reshape(-1))
        if not self.size:
            return [flat]
        return [pa.FixedSizeListArray.from_arrays(flat, self.size)]

    def _none(self) -> float:
        if self._dtype.kind == "f":
            return float("nan")
        self._empty(pa.int64())
        raise AssertionError


class _Classes(JoinedColumn):
    """Names of classes, which are numbered in sorted order; of one in each row, or of lists."""

    def convert(
        self, values: pa.Array, batch: pa.RecordBatch
    ) -> Mapping[str, pa.Array]:
        import pyarrow.compute as pc

        return {self.name: pc.cast(values, self._text())}

    def _text(self) -> pa.DataType:
        text = pa.large_string()
        return text if self.kind == "class" else pa.list_(text)

    def take(self, rows: I64) -> list[pa.Array]:
        if self.classes is None:
            self._number()
        return super().take(rows)

    def _number(self) -> None:
        """Replaces names by numbers."""
        names = pa.concat_arrays(self._parts[self.name])
        self.classes, numbers = _numbered(names)
        self._parts[self.name] = [numbers]

    def field(self, dataset: Dataset) -> Field:
        if self.classes is None:
            self._number()
        return super().field(dataset)


def _numbered(names: pa.Array) -> tuple[tuple[str, ...], pa.Array]:
    """The names of classes, sorted, and the number of each, for an array of names, or of lists of names."""
    import pyarrow.compute as pc

    are_lists = pa.types.is_list(names.type)
    flat = names.flatten() if are_lists else names
    classes = sorted(pc.unique(flat).to_pylist())
    numbers = pc.index_in(flat, array_of(classes, pa.large_string())).cast(pa.int64())
    if are_lists:
        numbers = pa.ListArray.from_arrays(names.offsets, numbers)
    return tuple(classes), numbers


class _Boxes(JoinedColumn):
    """Lists of boxes x0 y0 x1 y1, with the column of their classes, as numbers or names."""

    def field(self, dataset: Dataset) -> Field:
        self._number()
        return super().field(dataset)

    def _number(self) -> None:
        """Replaces names of classes by numbers."""
        _, classes = self.types()
        named = pa.concat_arrays(self._parts[classes])
        if pa.types.is_large_string(named.type.value_type):
            self.classes, numbers = _numbered(named)
            self._parts[classes] = [numbers]

    def convert(
        self, values: pa.Array, batch: pa.RecordBatch
    ) -> Mapping[str, pa.Array]:
        boxes, classes = self.types()
        try:
            corners = values.cast(self.types()[boxes])
        except pa.ArrowInvalid:
            raise SourceError(
                f"column {self.column_name!r} has lists of boxes, and some are not four numbers. Give x0, y0, x1 and "
                "y1 of each"
            ) from None
        classes_name = f"{self.column_name}{CLASSES_OF}"
        if classes_name not in batch.schema.names:
            raise SourceError(
                f"column {self.column_name!r} has boxes, and there is no column {classes_name!r} of their classes. Add "
                "it"
            )
        numbers = self._classes(batch.column(classes_name), classes_name)
        if not numbers.offsets.equals(corners.offsets):
            class_counts = np.diff(numbers_of(numbers.offsets))
            if not np.array_equal(class_counts, np.diff(numbers_of(corners.offsets))):
                raise SourceError(
                    f"columns {self.column_name!r} and {classes_name!r} differ in how many boxes they have"
                )
        return {boxes: corners, classes: numbers}

    def _classes(self, values: pa.Array, name: str) -> pa.Array:
        """Lists of the numbers or names of classes."""
        kind = getattr(values.type, "value_type", values.type)
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        wanted = pa.list_(pa.large_string() if is_text else pa.int64())
        try:
            classes: pa.Array = values.cast(wanted)
        except pa.ArrowException:
            raise SourceError(
                f"column {name!r} is {values.type}, and the classes of boxes are lists of whole numbers or names, one "
                "for each box. Correct it"
            ) from None
        if classes.null_count or classes.flatten().null_count:
            raise SourceError(
                f"column {name!r} lacks the class of a box. Give each box one"
            )
        return classes


class _Documents(JoinedColumn):
    """Values of any other type, as JSON."""

    def convert(
        self, values: pa.Array, batch: pa.RecordBatch
    ) -> Mapping[str, pa.Array]:
        try:
            texts = [
                json.dumps(value, ensure_ascii=False) for value in values.to_pylist()
            ]
        except TypeError as error:
            raise SourceError(
                f"column {self.column_name!r} has {values.type}, which JSON does not hold ({error}). Give numbers or "
                "texts, or leave it out"
            ) from error
        return {self.name: array_of(texts, pa.large_string())}


def _refuse_floats_as_classes(name: str, kind: pa.DataType, column_name: str) -> None:
    """Raises SourceError if a column of classes holds floats, which would become numbers to predict."""
    if name == LABEL.name and pa.types.is_floating(kind):
        raise SourceError(
            f"column {column_name!r} holds floats, and a class is a whole number or a name. Write whole numbers, or "
            "call the column otherwise to predict numbers"
        )


def joined_column(
    name: str,
    schema: pa.Schema,
    column_name: str,
    classes: Sequence[str] | None,
    scratch: Path,
) -> JoinedColumn:
    """What takes the values of a column, by its type and name.

    Args:
        name: Of the field.
        schema: Of the table.
        column_name: Of the table.
        classes: Names of the class numbers, where the table has them.
        scratch: A folder for numbers, which are kept in files.
    """
    kind = schema.field(column_name).type
    is_class = name == LABEL.name
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    _refuse_floats_as_classes(name, kind, column_name)
    if types.is_integer(kind) and is_class:
        return JoinedColumn(LABEL.name, "class", column_name, classes)
    if types.is_boolean(kind) or types.is_integer(kind):
        return _Numbers(name, "integers", column_name, 0, "<i8", scratch)
    if types.is_floating(kind):
        return _Numbers(name, "target", column_name, 0, "<f4", scratch)
    if types.is_string(kind) or types.is_large_string(kind):
        if is_class:
            return _Classes(LABEL.name, "class", column_name)
        return JoinedColumn(name, "caption", column_name)
    if types.is_temporal(kind):  # in a CSV, any text that looks like a date
        return JoinedColumn(name, "caption", column_name)
    if (
        types.is_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_large_list(kind)
    ):
        has_classes = f"{column_name}{CLASSES_OF}" in schema.names
        return _list_column(name, kind, column_name, classes, scratch, has_classes)
    return _Documents(name, "json", column_name)


def _list_column(
    name: str,
    kind: Any,
    column_name: str,
    classes: Sequence[str] | None,
    scratch: Path,
    has_classes: bool,
) -> JoinedColumn:
    types = pa.types
    inner = kind.value_type
    if types.is_nested(inner):
        of_number = getattr(inner, "value_type", inner)
        is_whole = types.is_integer(of_number) and has_classes
        if types.is_floating(of_number) or is_whole:
            return _Boxes(name, "boxes", column_name, classes)
    if types.is_floating(inner):
        return _Lists(name, "target", column_name, "<f4", scratch)
    if types.is_integer(inner):
        if name in _LABELS_NAMES:
            return JoinedColumn(name, "labels", column_name, classes)
        return _Lists(name, "integers", column_name, "<i8", scratch)
    is_text = types.is_string(inner) or types.is_large_string(inner)
    if is_text and name in _LABELS_NAMES:
        return _Classes(name, "labels", column_name)
    return _Documents(name, "json", column_name)


class _Lists(_Numbers):
    """Lists of numbers, whose first one says how many there are in each row."""

    def __init__(
        self, name: str, kind: str, column_name: str, dtype: Any, scratch: Path
    ) -> None:
        super().__init__(name, kind, column_name, 0, dtype, scratch)

    def add(self, batch: pa.RecordBatch) -> None:
        values = batch.column(self.column_name)
        if not self.size and len(values) and not values.null_count:
            self.size = len(values.flatten()) // len(values)
            if not self.size:
                raise SourceError(
                    f"column {self.column_name!r} has empty lists. Leave it out"
                )
        super().add(batch)
