"""Numbers that lie in the index: classes, targets, and which samples these are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuload.errors import ArgumentError
from gpuload.fields.field import Field
from gpuload.fields.ragged import flat
from gpuload.fields.rows import Rows, Value
from gpuload.fields.spec import Target
from gpuload.types import Array


@dataclass(frozen=True)
class BoundNumbers:
    """One whole number a sample, int64 (N,): "label", "index" or "dataset"."""

    name: str
    members: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def values(self, rows: Rows) -> npt.NDArray[np.int64]:
        numbers: npt.NDArray[np.int64] = np.array(rows.columns[self.name], np.int64)
        return numbers


class BoundTarget:
    """float32 (N,) or (N, D); where a sign turns with a flip, those of each view.

    Raises:
        ArgumentError: the spec does not say of each number whether it turns.
    """

    members: tuple[str, ...] = ()

    def __init__(self, spec: Target, field: Field) -> None:
        self.name, self.columns, self._size = spec.name, (spec.name,), field.size
        turns, count = spec.negate_on_flip, max(field.size, 1)
        if isinstance(turns, tuple) and len(turns) != count:
            raise ArgumentError(
                f"Target({spec.name!r}, negate_on_flip={turns!r}): says it of {len(turns)} numbers, and "
                f"{spec.name!r} was packed with {count}"
            )
        self._turns = turns if isinstance(turns, tuple) else (turns,) * count

    def values(self, rows: Rows) -> Value:
        column = rows.columns[self.name]
        stored = flat(column).reshape(-1, self._size) if self._size else np.asarray(column)
        if not any(self._turns):
            return np.array(stored, np.float32)
        return rows.per_view(lambda view, size, affine: negate_flipped(stored, view.mirror, self._turns))


def negate_flipped(values: Array, mirror: npt.NDArray[np.int32], turns: Sequence[bool]) -> npt.NDArray[np.float32]:
    """float32, values (N,) or (N, D) as given, but negative where `mirror` (N,) is not 0, of those numbers that turn.

    turns: of each of the D numbers (of the one, if there is no D) whether its sign turns.

    2 targets, turns (True, False), flipped: (0.5, 3.0) gives (-0.5, 3.0).
    """
    flipped = mirror.astype(bool)
    turned = flipped[:, None] & np.array(turns) if values.ndim == 2 else flipped & turns[0]
    signed: npt.NDArray[np.float32] = np.where(turned, -values, values).astype(np.float32)
    return signed
