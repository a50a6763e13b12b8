"""Captions: one text per sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gpuload.errors import SourceError, some_of
from gpuload.fields.chosen_caption import BoundCaptions, Captions
from gpuload.fields.field import Field
from gpuload.fields.kind import Columns, FieldSpec, Kind, Member, Placement
from gpuload.fields.rows import BoundField, DatasetView, Rows
from gpuload.types import I64, ClassNames


class CaptionKind(Kind):
    """A text, stored in a `.txt` member in UTF-8."""

    name = "caption"
    specs = (Captions,)
    usual_names = ("caption", "text")
    in_tables = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.large_string()}

    def claims(self, value: Any) -> bool:
        return isinstance(value, str)

    def parse_cell(self, cell: Any) -> Any:
        if isinstance(cell, list):
            raise ValueError(
                f"a caption is one text, found a list of {len(cell)}. Several of each image are for --column captions="
            )
        return cell

    def parse(
        self, where: str, name: str, values: Sequence[Any], classes: ClassNames = None, detail: str = ""
    ) -> tuple[Field, Columns]:
        """Raises SourceError if a text is missing."""
        missing = [row for row, text in enumerate(values) if text is None]
        if missing:
            raise SourceError(
                f"{where}: every sample needs a {name}; {len(missing):,} have none (numbers {some_of(missing)}). "
                "Fill them in"
            )
        member = "txt" if name == self.name else f"{name}.txt"
        return Field(name, self.name, member), [pa.array([str(text) for text in values], pa.large_string())]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        return Member(str(value[field.name]).encode(), 0, value)

    def estimate_bytes(self, field: Field, samples: pa.Table) -> I64:
        return text_bytes(samples.column(field.name))

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return {field.name: content.decode()}

    def guess(self, member: str, content: Any) -> Field | None:
        return Field("caption", self.name, member) if member == "txt" else None

    def bind(self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]) -> BoundField:
        return BoundCaptions(spec, datasets, is_json=False) if isinstance(spec, Captions) else BoundText(field.name)


def text_bytes(column: pa.ChunkedArray) -> I64:
    """int64 (N,): size of each text in bytes."""
    import pyarrow.compute as pc  # takes 30 ms, which workers are spared

    sizes: I64 = pc.binary_length(column).to_numpy()
    return sizes


@dataclass(frozen=True)
class BoundText:
    """A list of N str, as packed: captions, or "key"."""

    name: str
    members: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def values(self, rows: Rows) -> list[str]:
        texts: list[str] = rows.columns[self.name].to_pylist()
        return texts
