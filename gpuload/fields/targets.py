"""Targets: floating-point numbers to be predicted."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import FLAG, either, settings, several
from gpuload.errors import ArgumentError, SourceError
from gpuload.fields.field import Field
from gpuload.fields.kind import NAME, FieldSpec, Kind, Member, Parsed, shortest
from gpuload.fields.motion import Placement
from gpuload.fields.parsing import is_number
from gpuload.fields.rows import BoundField, Rows, Value, flat
from gpuload.types import I64, Array, ClassNames

_NEGATED = either("True, False or a tuple of these, one for each number of the target", FLAG, several(FLAG, ""))


@settings
class Target(FieldSpec):
    """Numbers to be predicted, float32 (N,) or (N, D).

    name: of the packed field.
    negate_on_flip: whether the sign changes when the image is flipped left to right, as that of a steering angle must;
        one bool for all D numbers, or a tuple with one bool for each.

    Raises:
        ArgumentError: negate_on_flip is neither. When bound: the tuple does not have one bool for each number.
    """

    name: Annotated[str, NAME]
    negate_on_flip: Annotated[bool | tuple[bool, ...], _NEGATED] = False

    kind = "target"


class BoundTarget(BoundField):
    """float32 (N,) or (N, D), for each view if a flip changes a sign."""

    spec: Target

    def prepare(self) -> None:
        negated, count = self.spec.negate_on_flip, max(self.field.size, 1)
        self._negated = negated if isinstance(negated, tuple) else (negated,) * count
        if len(self._negated) != count:
            raise ArgumentError(
                f"Target({self.name!r}, negate_on_flip={negated!r}): expected one bool for each of the packed numbers, "
                f"{count}; found {len(self._negated)}"
            )

    def values(self, rows: Rows) -> Value:
        column, size = rows.columns[self.name], self.field.size
        stored = flat(column).reshape(-1, size) if size else np.asarray(column)
        if not any(self._negated):
            return np.array(stored, np.float32)
        return rows.per_view(lambda view, size, affine: negate_flipped(stored, view.mirror, self._negated))


class TargetKind(Kind):
    """One float32 per sample, or `Field.size` of them, stored as a JSON number or list."""

    name = "target"
    specs = (Target,)
    bound = BoundTarget
    in_tables = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.list_(pa.float32(), field.size) if field.size else pa.float32()}

    def claims(self, value: Any) -> bool:
        if isinstance(value, (float, int, np.number)) or (isinstance(value, np.ndarray) and value.ndim == 0):
            return True
        is_list = isinstance(value, (list, tuple)) and bool(value)
        return is_list and all(isinstance(entry, (float, np.floating)) for entry in value)

    def parse_cells(self, cells: Sequence[Any]) -> Any:
        return cells[0] if len(cells) == 1 else list(cells)

    def parse(self, where: str, name: str, values: Sequence[Any], classes: ClassNames, detail: str) -> Parsed:
        """float32 numbers, the same number of them in each sample.

        Raises:
            SourceError: a value is not a finite number or list of numbers, or differs in length from the first.
        """
        try:
            array = np.array(values, np.float32)
        except (TypeError, ValueError):
            wrong = next((value for value in values if not is_number(value)), values[0])
            raise SourceError(
                f"{where}: {name!r} must hold one number, or a list of the same length, in each sample; found "
                f"{wrong!r}. Correct that"
            ) from None
        if array.ndim > 2 or not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[:1].sum())
            raise SourceError(
                f"{where}: {name!r} must hold finite numbers; sample {row} has {values[row]!r}. Correct that"
            )
        size = array.shape[1] if array.ndim == 2 else 0
        numbers = pa.array(array.reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(numbers, size) if size else numbers
        return Field(name, self.name, f"{name}.json", size=size), [column]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        numbers = np.array(value[field.name], np.float32)
        return Member(json.dumps(shortest(numbers.reshape(-1) if field.size else numbers)).encode(), 0, value)

    def estimate_bytes(self, field: Field, samples: pa.Table) -> I64:
        return np.full(len(samples), 16 * field.size + 16)

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        return {field.name: np.array(row[field.name], np.float32) if field.size else row[field.name]}

    def caption(self, field: Field, spec: Any, value: Any, classes: ClassNames) -> str:
        return f"{field.name} {', '.join(f'{number:.3g}' for number in np.atleast_1d(value)[:3])}"


def negate_flipped(values: Array, mirror: npt.NDArray[np.int32], negated: Sequence[bool]) -> npt.NDArray[np.float32]:
    """float32: values (N,) or (N, D), with their sign changed where `mirror` (N,) is not 0.

    negated: for each of the D numbers (one for values (N,)) whether a flip changes its sign.

    With negated (True, False), the targets (0.5, 3.0) of a flipped image become (-0.5, 3.0).
    """
    flipped = mirror.astype(bool)
    sign_changes = flipped[:, None] & np.array(negated) if values.ndim == 2 else flipped & negated[0]
    signed: npt.NDArray[np.float32] = np.where(sign_changes, -values, values).astype(np.float32)
    return signed
