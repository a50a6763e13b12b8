"""Text of the index: captions, keys, and JSON, which is parsed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuload.errors import DecodeError
from gpuload.fields.rows import Rows

if TYPE_CHECKING:
    from gpuload.disk.dataset import Dataset


@dataclass(frozen=True)
class BoundText:
    """N str, as they were packed: captions, or "key"."""

    name: str
    members: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def values(self, rows: Rows) -> list[str]:
        texts: list[str] = rows.columns[self.name].to_pylist()
        return texts


@dataclass(frozen=True)
class BoundJson:
    """N documents, as `json.loads` gives them."""

    name: str
    datasets: "Sequence[Dataset]"
    members: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def values(self, rows: Rows) -> list[Any]:
        documents: list[Any] = []
        for place, text in enumerate(rows.columns[self.name].to_pylist()):
            try:
                documents.append(json.loads(text))
            except ValueError as error:
                raise DecodeError(
                    f"{rows.sample_name(self.datasets, place)}: its field {self.name!r} is no JSON document ({error}). "
                    "Mend it and pack it again"
                ) from None
        return documents
