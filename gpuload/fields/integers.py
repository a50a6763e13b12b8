"""Fields with one integer per sample: class numbers, sample numbers and data set numbers."""

from dataclasses import dataclass

import numpy as np

from gpuload.fields.rows import Rows
from gpuload.types import I64


@dataclass(frozen=True)
class BoundIntegers:
    """int64 (N,): "label", "index" (number of the sample in stored order) or "dataset" (number of its data set)."""

    name: str
    members: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def values(self, rows: Rows) -> I64:
        numbers: I64 = np.array(rows.columns[self.name], np.int64)
        return numbers
