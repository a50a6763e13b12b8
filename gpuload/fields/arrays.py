"""Array fields, whose values stay in the shard: stacked as they are, or padded."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import COUNT, optional, settings, whole
from gpuload.errors import ArgumentError, DecodeError
from gpuload.fields.field import Field
from gpuload.fields.kind import NAME, BadRows, FieldSpec, Kind, Member, Parsed, describe
from gpuload.fields.motion import Placement
from gpuload.fields.rows import BoundField, Rows, flat, lengths_of, pad_all, rows_of
from gpuload.headers.npy import read_array
from gpuload.types import Array, ClassNames

_INT64 = whole(-(2**63), 2**63 - 1, "a whole number of 64 bits")
_NO_BYTES = np.empty(0, np.uint8)
# The largest item in bytes that torch.from_numpy accepts: bool, integers, floats up to 64 bits, complex up to 128.
_LARGEST_ITEM = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}


@settings
class Tokens(FieldSpec):
    """One-dimensional integer arrays of any length, as `PaddedTokens` of int64.

    name: of the packed field.
    pad: the value with which shorter arrays are padded.
    max_length: L of every batch; longer arrays are cut off at their end. By default the longest array's length.

    Raises:
        ArgumentError: a value out of its range. When bound: the arrays are not integers or not one-dimensional.
    """

    name: Annotated[str, NAME] = "tokens"
    pad: Annotated[int, _INT64] = 0
    max_length: Annotated[int | None, optional(COUNT)] = None

    kind = "array"


class PaddedTokens(NamedTuple):
    """N arrays of tokens. values: int64 (N, L), padded at the end. lengths: int64 (N,), without the padding."""

    values: Any
    lengths: Any


class _BoundElements(BoundField):
    """A field whose arrays are in `Rows.members`, and their shapes in its column."""

    def prepare(self) -> None:
        self.members, self._stored = (self.name,), np.dtype(self.field.dtype)
        # Of the first sample's array: O(1), where checking all samples would cost O(samples).
        self._first_shapes = [tuple(one.first_row().column(self.columns[0])[0].as_py()) for one in self.datasets]

    def _elements(self, rows: Rows) -> Array:
        return join_elements(rows.members[self.name], self._stored)


class BoundArray(_BoundElements):
    """(N, …) of the packed dtype, in native byte order."""

    def prepare(self) -> None:
        super().prepare()
        if self._stored.itemsize > _LARGEST_ITEM.get(self._stored.kind, 0):
            raise ArgumentError(
                f"{self.name!r}: torch does not have the packed dtype {self._stored}. Leave the field out, or pack it "
                "with another dtype"
            )
        first, *_ = self._first_shapes
        for dataset, shape in zip(self.datasets, self._first_shapes, strict=True):
            if shape != first:
                raise ArgumentError(
                    f"{dataset.folder}: its first {self.name!r} has shape {shape}, that of {self.datasets[0].folder} "
                    f"has {first}. {_advice(self.name)}"
                )

    def values(self, rows: Rows) -> Array:
        shapes = rows.columns[self.columns[0]]
        shape = tuple(shapes[0].as_py()) if len(rows) else self._first_shapes[0]
        alike = (lengths_of(shapes) == len(shape)).all()
        if not alike or (flat(shapes).reshape(len(rows), len(shape)) != shape).any():
            found = [tuple(shape) for shape in shapes.to_pylist()]
            other = next(row for row, found_shape in enumerate(found) if found_shape != shape)
            raise DecodeError(
                f"{rows.sample_name(self.datasets, other)}: its {self.name!r} has shape {found[other]}, that of "
                f"{rows.sample_name(self.datasets, 0)} has {shape}. {_advice(self.name)}"
            )
        return self._elements(rows).reshape(len(rows), *shape)


class BoundTokens(_BoundElements):
    """`PaddedTokens`, see `Tokens`."""

    def prepare(self) -> None:
        super().prepare()
        if self._stored.kind not in "iu":
            raise ArgumentError(
                f"{describe(self.spec)}: tokens must be integers, the packed arrays have dtype {self._stored}. Request "
                f"{self.name!r} by its name"
            )
        for dataset, shape in zip(self.datasets, self._first_shapes, strict=True):
            if len(shape) != 1:
                raise ArgumentError(
                    f"{describe(self.spec)}: tokens must have one dimension, the first array in {dataset.folder} has "
                    f"shape {shape}. Request {self.name!r} by its name"
                )

    def values(self, rows: Rows) -> PaddedTokens:
        shapes = rows.columns[self.columns[0]]
        one_dimensional = lengths_of(shapes) == 1
        if not one_dimensional.all():
            other = int(np.argmin(one_dimensional))
            raise DecodeError(
                f"{rows.sample_name(self.datasets, other)}: tokens must have one dimension, its {self.name!r} has "
                f"shape {tuple(shapes[other].as_py())}. Pack it again with one dimension"
            )
        tokens, lengths = self._elements(rows).astype(np.int64), flat(shapes).astype(np.int64)
        return PaddedTokens(*pad_all(lengths, self.spec.max_length, (tokens, self.spec.pad)))


class ArrayKind(Kind):
    """A NumPy array of any shape, with dtype `Field.dtype`, stored as `.npy`; the index holds its shape."""

    name = "array"
    specs = (Tokens,)
    bound, plain = BoundTokens, BoundArray
    stays_in_shard = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {shape_column(field): pa.list_(pa.int32())}

    def field_fault(self, field: Field) -> str:
        try:
            dtype = np.dtype(field.dtype or "?O")
        except Exception:  # of Python's parser, too
            return f"there is no dtype {field.dtype!r}"
        return "" if dtype.itemsize and not dtype.hasobject else f"its arrays cannot be of dtype {field.dtype!r}"

    def claims(self, value: Any) -> bool:
        return isinstance(value, np.ndarray) and value.ndim > 0

    def detail(self, value: Any) -> str:
        return str(np.asarray(value).dtype.str)

    def parse(self, where: str, name: str, values: Sequence[Any], classes: ClassNames, detail: str) -> Parsed:
        return Field(name, self.name, f"{name}.npy", dtype=detail), [pa.array(values, pa.large_string())]

    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        array = np.ascontiguousarray(value)
        if array.dtype.str != field.dtype:
            raise DecodeError(f"{field.name!r} is an array of {array.dtype.str}, the first one is of {field.dtype}")
        header = npy_header(array)
        return Member(header + array.tobytes(), len(header), {shape_column(field): list(array.shape)})

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return {shape_column(field): list(read_array(content).shape)}

    def guess(self, member: str, content: Callable[[], bytes]) -> Field | None:
        if member.rpartition(".")[2] != "npy":
            return None
        array = read_array(content())
        return Field(member.rpartition(".")[0] or self.name, self.name, member, dtype=array.dtype.str)

    def find_fault(self, field: Field, row: Mapping[str, Any], content: bytes, header: int, image_size: Any) -> str:
        return array_fault(content, header, tuple(row[shape_column(field)]), field.dtype)

    def look(self, field: Field, row: Mapping[str, Any], read: Callable[[], bytes]) -> dict[str, Any]:
        elements = np.frombuffer(read(), np.dtype(field.dtype))
        return {field.name: elements.reshape(row[shape_column(field)]).copy()}

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        """Members that are not as large as an array of their shape."""
        shapes, size = rows.column(shape_column(field)), rows.column(field.bytes_column).to_numpy()
        sides = flat(shapes).astype(np.float64)
        # Products in float64, which do not overflow: exact up to 2**53, and larger than any shard beyond.
        needed = np.full(len(size), float(np.dtype(field.dtype).itemsize))
        np.multiply.at(needed, rows_of(lengths_of(shapes)), np.where(sides < 0, np.nan, sides))
        yield BadRows(
            np.flatnonzero(~(needed == size)),
            lambda row: f"its {field.name!r} as {size[row]:,} bytes for an array of shape {tuple(shapes[row].as_py())}",
        )


def shape_column(field: Field) -> str:
    """Name of the index column with the shape of the array."""
    return f"{field.name}_shape"


def npy_header(array: npt.NDArray[np.generic]) -> bytes:
    """The bytes before the elements of a C-ordered array in a `.npy` file of format 1.0."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    return file.getvalue()


def array_fault(content: bytes, header: int, shape: tuple[int, ...], dtype: str | None) -> str:
    """`Kind.find_fault` for a `.npy` member that should hold an array of this shape and dtype."""
    array = read_array(content)
    if array.shape != shape or array.dtype.str != dtype or content[header:] != array.tobytes():
        return f"is an array {array.shape} of {array.dtype.str}, the index says {shape} of {dtype}"
    return ""


def join_elements(members: Sequence[npt.NDArray[np.uint8]], stored: np.dtype[np.generic]) -> Array:
    """The elements of all members, concatenated, in native byte order; a copy, since the views may be unaligned."""
    return np.concatenate([_NO_BYTES, *members]).view(stored).astype(stored.newbyteorder("="), copy=False)


def _advice(name: str) -> str:
    return f"Arrays are stacked, so their shapes must be equal; Tokens({name!r}) pads one-dimensional ones"
