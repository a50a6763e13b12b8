"""Labels: any number of class numbers per sample."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import COUNT, check_fields, optional
from gpuload.errors import ArgumentError
from gpuload.fields.class_limits import check_classes, known_count
from gpuload.fields.field import Field
from gpuload.fields.kind import NAME, BadRows, Columns, FieldSpec, Kind, Member, Placement, describe
from gpuload.fields.parsing import number_classes, parse_list
from gpuload.fields.ragged import flat, lengths_of, rows_of
from gpuload.fields.rows import BoundField, DatasetView, Rows
from gpuload.headers.json_text import parse_json
from gpuload.types import I64, ClassNames


@dataclass(frozen=True)
class MultiHot(FieldSpec):
    """Several labels as float32 (N, num_classes): 1 in the column of each class that a sample has, else 0.

    name: of the packed field.
    num_classes: number of columns; by default the number of the field's named classes.

    Raises:
        ArgumentError: num_classes is below 1. When bound: it is smaller than the number of named classes, or not given
            while the classes have no names.
    """

    name: str = "labels"
    num_classes: int | None = None

    kind = "labels"

    def __post_init__(self) -> None:
        check_fields(self, name=NAME, num_classes=optional(COUNT))


class LabelsKind(Kind):
    """Class numbers, stored as a JSON list."""

    name = "labels"
    specs = (MultiHot,)
    keys = ("labels",)
    usual_names = ("labels", "tags")
    in_tables = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.list_(pa.int64())}

    def class_column(self, field: Field) -> str | None:
        return field.name

    def parse_cell(self, cell: Any) -> list[Any]:
        return parse_list(cell)

    def parse(
        self, where: str, name: str, values: Sequence[Any], classes: ClassNames = None, detail: str = ""
    ) -> tuple[Field, Columns]:
        """Class numbers from lists of integers or of names."""
        numbers, names = number_classes(where, name, [list(row) for row in values], classes)
        return Field(name, self.name, f"{name}.json", names), [pa.array(numbers, pa.list_(pa.int64()))]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        return Member(json.dumps(value[field.name]).encode(), 0, value)

    def estimate_bytes(self, field: Field, samples: pa.Table) -> I64:
        import pyarrow.compute as pc

        sizes: I64 = pc.list_value_length(samples.column(field.name)).to_numpy() * 6 + 30
        return sizes

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return {field.name: parse_json(content)}

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        labels = rows.column(field.name)
        yield BadRows(
            rows_of(lengths_of(labels))[flat(labels) < 0],
            lambda row: f"its {field.name!r} as {labels[row].as_py()}, expected class numbers from 0",
        )

    def bind(self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]) -> BoundField:
        wanted = spec if isinstance(spec, MultiHot) else MultiHot(field.name)
        return BoundMultiHot(wanted, field.classes, datasets)


class BoundMultiHot:
    """float32 (N, K), see `MultiHot`.

    Raises:
        ArgumentError: the number of classes is unknown, or too small for the named ones.
    """

    members: tuple[str, ...] = ()

    def __init__(self, spec: MultiHot, names: ClassNames, datasets: Sequence[DatasetView]) -> None:
        self.name, self.columns, self._datasets = spec.name, (spec.name,), tuple(datasets)
        if names is not None and spec.num_classes is not None and spec.num_classes < len(names):
            raise ArgumentError(
                f"{describe(spec)[:-1]}, num_classes={spec.num_classes}): {datasets[0].folder} has {len(names)} named "
                "classes. Leave num_classes out"
            )
        self._num_classes = (
            len(names) if names and spec.num_classes is None else known_count(spec, spec.num_classes, datasets)
        )

    def values(self, rows: Rows) -> npt.NDArray[np.float32]:
        labels = rows.columns[self.name]
        sample_rows, numbers = rows_of(lengths_of(labels)), flat(labels)
        check_classes(self.name, rows, self._datasets, numbers, sample_rows, self._num_classes)
        multi_hot = np.zeros((len(rows), self._num_classes), np.float32)
        multi_hot[sample_rows, numbers] = 1
        return multi_hot
