"""JSON: one document per sample."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gpuload.errors import DecodeError
from gpuload.fields.captions import text_bytes
from gpuload.fields.chosen_caption import BoundCaptions, Captions
from gpuload.fields.field import Field
from gpuload.fields.kind import Columns, FieldSpec, Kind, Member, Placement
from gpuload.fields.rows import BoundField, DatasetView, Rows
from gpuload.headers.json_text import parse_json
from gpuload.types import I64, ClassNames


class JsonKind(Kind):
    """A JSON document, stored as the text that the source gave."""

    name = "json"

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.large_string()}

    def claims(self, value: Any) -> bool:
        return True  # what no other kind claims

    def parse(
        self, where: str, name: str, values: Sequence[Any], classes: ClassNames = None, detail: str = ""
    ) -> tuple[Field, Columns]:
        """Any value that JSON can represent; a str is taken to be JSON text already."""
        texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
        member = "json" if name == self.name else f"{name}.json"
        return Field(name, self.name, member), [pa.array(texts, pa.large_string())]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        return Member(str(value[field.name]).encode(), 0, value)

    def estimate_bytes(self, field: Field, samples: pa.Table) -> I64:
        return text_bytes(samples.column(field.name))

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return {field.name: content.decode()}

    def guess(self, member: str, content: Any) -> Field | None:
        return Field("json", self.name, member) if member == "json" else None

    def bind(self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]) -> BoundField:
        if isinstance(spec, Captions):
            return BoundCaptions(spec, datasets, is_json=True)
        return BoundJson(field.name, tuple(datasets))


@dataclass(frozen=True)
class BoundJson:
    """A list of N documents, parsed by `json.loads`.

    Raises DecodeError for a text that is not JSON.
    """

    name: str
    datasets: Sequence[DatasetView]
    members: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def values(self, rows: Rows) -> list[Any]:
        documents: list[Any] = []
        for row, text in enumerate(rows.columns[self.name].to_pylist()):
            try:
                documents.append(parse_json(text))
            except ValueError as error:
                raise DecodeError(
                    f"{rows.sample_name(self.datasets, row)}: its field {self.name!r} is not a JSON document "
                    f"({error}). Correct it and pack again"
                ) from None
        return documents
