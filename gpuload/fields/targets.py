"""Numbers to be predicted, as float32, and whole numbers, which stay exact, such as ids and times."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa

from gpuload.checks import FLAG, either, settings, several, shown
from gpuload.errors import ArgumentError, SourceError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.cells import is_integer, is_whole
from gpuload.fields.field import Field
from gpuload.fields.kind import NAME, FieldSpec, Kind, Origin, Parsed, read_each
from gpuload.fields.motion import Motion
from gpuload.fields.rows import BoundField, Rows, Value, flat
from gpuload.types import F32, I64, Array, ClassNames

_NEGATED = either(
    "True, False or a tuple of these, one for each number of the target",
    FLAG,
    several(FLAG, ""),
)

_SIGNIFICAND_BITS = 24  # of float32
_EXPONENTS = 103  # by how many bits a whole number may be longer


@settings
class Target(FieldSpec):
    """Numbers to be predicted, float32 (N,) or (N, D).

    Attributes:
        name: Of the packed field. Of whole numbers, which by their name alone are int64, it gives float32, too.
        negate_on_flip: Whether the sign changes when the image is flipped left to right, as that of a steering angle
            must; one bool for all D numbers, or a tuple with one bool for each.

    Raises:
        ArgumentError: negate_on_flip is neither. When bound: the tuple does not have one bool for each number.
    """

    name: Annotated[str, NAME]
    negate_on_flip: Annotated[bool | tuple[bool, ...], _NEGATED] = False

    kind = "target"
    other_kinds = ("integers",)


class BoundTarget(BoundField):
    """float32 (N,) or (N, D), for each view if a flip changes a sign."""

    spec: Target

    def prepare(self) -> None:
        negated = self.spec.negate_on_flip
        count = max(self.field.size, 1)
        self._negated = negated if isinstance(negated, tuple) else (negated,) * count
        if len(self._negated) != count:
            raise ArgumentError(
                f"Target({self.name!r}, negate_on_flip={negated!r}): expected one bool for each of the packed numbers, "
                f"{count}; found {len(self._negated)}"
            )

    def values(self, rows: Rows) -> Value:
        stored = _stored_numbers(rows.columns[self.name], self.field.size)
        if not any(self._negated):
            return np.array(stored, np.float32)
        negated = np.array(self._negated if self.field.size else self._negated[0])

        def signed(motion: Motion) -> F32:
            flipped = motion.crops.mirror.astype(bool).reshape(
                -1, *[1] * (stored.ndim - 1)
            )
            return np.where(flipped & negated, -stored, stored).astype(np.float32)

        return rows.per_view(signed)


class BoundWhole(BoundField):
    """int64 (N,) or (N, D): whole numbers, as packed."""

    def values(self, rows: Rows) -> I64:
        return np.array(
            _stored_numbers(rows.columns[self.name], self.field.size), np.int64
        )


class TargetKind(Kind):
    """One float32 per sample, or `Field.size` of them, stored as a JSON number or list."""

    name = "target"
    specs = (Target,)
    bound: ClassVar[type[BoundField]] = BoundTarget
    in_tables = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {
            field.name: pa.list_(pa.float32(), field.size)
            if field.size
            else pa.float32()
        }

    def claims(self, value: Any) -> bool:
        if isinstance(value, (float, int, np.number)) or (
            isinstance(value, np.ndarray) and value.ndim == 0
        ):
            return True
        is_list = isinstance(value, (list, tuple)) and bool(value)
        return is_list and all(
            isinstance(entry, (float, np.floating)) for entry in value
        )

    def parse_cells(self, cells: Sequence[Any]) -> Any:
        """The column is one of numbers to be predicted, so that whole ones are floats, too.

        Raises:
            ValueError: a whole number has too many digits for float32.
        """
        numbers = [_as_float(cell) for cell in cells]
        return numbers[0] if len(numbers) == 1 else numbers

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        """float32 numbers, the same number of them in each sample; whole numbers in every sample are a field of kind
        "integers"."""
        if values and all(map(is_integer, values)):
            return IntegersKind().parse(where, name, values, classes, detail)
        arrays = read_each(
            where, name, values, _finite, "a finite number, or a list of these"
        )
        return _parsed_numbers(where, name, self.name, values, arrays)

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        return {
            field.name: np.array(row[field.name], np.float32)
            if field.size
            else row[field.name]
        }

    def caption(self, field: Field, spec: Any, value: Any, classes: ClassNames) -> str:
        return f"{field.name} {', '.join(f'{number:.3g}' for number in np.atleast_1d(value)[:3])}"


class IntegersKind(TargetKind):
    """One int64 per sample, or `Field.size` of them, stored as a JSON number or list: ids, counts and times."""

    name = "integers"
    plain: ClassVar[type[BoundField] | None] = BoundWhole

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {
            field.name: pa.list_(pa.int64(), field.size) if field.size else pa.int64()
        }

    def claims(self, value: Any) -> bool:
        return False  # whether all samples have whole numbers is known only once they are parsed

    def parse_cells(self, cells: Sequence[Any]) -> Any:
        return cells[0] if len(cells) == 1 else list(cells)

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        """Raises SourceError if samples differ in how many numbers they have, too."""
        arrays = read_each(
            where, name, values, _whole, "a whole number of 64 bits, or a list of these"
        )
        return _parsed_numbers(where, name, self.name, values, arrays)

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        return {
            field.name: np.array(row[field.name], np.int64)
            if field.size
            else row[field.name]
        }

    def caption(self, field: Field, spec: Any, value: Any, classes: ClassNames) -> str:
        return f"{field.name} {', '.join(f'{int(number)}' for number in np.atleast_1d(value)[:3])}"


def _stored_numbers(column: Any, size: int) -> Array:
    """(N,), or (N, size) where the size is not 0, of the column's dtype."""
    return flat(column).reshape(-1, size) if size else np.asarray(column)


def _parsed_numbers(
    where: Origin, name: str, kind: str, values: Sequence[Any], arrays: Sequence[Array]
) -> Parsed:
    """A field of as many numbers in each sample, and its column.

    Args:
        arrays: Of the values, a number or a list each.

    Raises:
        SourceError: two samples differ in how many numbers they have.
    """
    size = _common_size(where, name, values, arrays)
    numbers = array_of(np.stack(arrays).reshape(-1))
    field = Field(name, kind, f"{name}.json", size=size)
    return field, [
        pa.FixedSizeListArray.from_arrays(numbers, size) if size else numbers
    ]


def _common_size(
    where: Origin, name: str, values: Sequence[Any], arrays: Sequence[Array]
) -> int:
    """How many numbers each sample has; 0 for a single one without a list.

    Raises:
        SourceError: two samples differ.
    """
    first = arrays[0]
    for row, array in enumerate(arrays):
        if array.shape != first.shape:
            raise SourceError(
                f"{where}: {name!r} of {where.sample(row)} is {shown(values[row])}, the first one is "
                f"{shown(values[0])}. Give each sample as many numbers"
            )
    return first.size * first.ndim


def _as_float(value: Any) -> Any:
    """A whole number as a float; any other value unchanged.

    Raises:
        ValueError: float32 holds another number.
    """
    if not is_whole(value):
        return value
    number = int(value)
    surplus_bits = max(0, number.bit_length() - _SIGNIFICAND_BITS)
    if surplus_bits > _EXPONENTS or number % (1 << surplus_bits):
        raise ValueError(
            f"{shown(value)} has more digits than a target, float32, holds; --column integers=NAME keeps whole numbers"
        )
    return float(number)


def _finite(value: Any) -> F32:
    array = np.array(_as_float(value), np.float32)
    if array.ndim > 1 or not array.size or not np.isfinite(array).all():
        raise ValueError("neither a number nor a list of finite numbers")
    return array


def _whole(value: Any) -> I64:
    """int64, () or (n,)."""
    entries = value if isinstance(value, list | tuple) else [value]
    if not entries or not all(map(is_whole, entries)):
        raise ValueError("it is no whole number")
    numbers = np.array([int(entry) for entry in entries], np.int64)
    return numbers if isinstance(value, list | tuple) else numbers[0]
