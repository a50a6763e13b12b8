"""Numbers of samples: a class, several labels, and arrays, which stay in the shard."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.checks import COUNT, FLAG, optional, settings, whole
from gpuload.counted import counted
from gpuload.errors import ArgumentError, DecodeError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.cells import parse_list, read_cells, separator_of
from gpuload.fields.class_values import number_classes
from gpuload.fields.field import LABEL, Field
from gpuload.fields.kind import (
    NAME,
    BadRows,
    FieldSpec,
    Kind,
    Origin,
    Parsed,
    StoredMember,
    read_each,
)
from gpuload.fields.motion import Placement
from gpuload.fields.rows import (
    BoundField,
    Rows,
    flat,
    joined_lists,
    lengths_of,
    numbers_of,
    pad_all,
    rows_of,
    split_rows,
)
from gpuload.headers.npy import read_array
from gpuload.pictures import name_of
from gpuload.types import F32, I64, Array, ClassNames

BACKGROUND = "background"  # the packer's name for the class of images without an object

_MOST_NAMES = 3  # classes under a picture
_LEAST_WEIGHT = 0.05  # in a mixed label, from which a class counts
_INT64 = whole(-(2**63), 2**63 - 1, "a whole number of 64 bits")
_NO_BYTES = np.empty(0, np.uint8)
# The largest item in bytes that torch.from_numpy accepts: bool, integers, floats up to 64 bits, complex up to 128.
_LARGEST_ITEM = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}


@settings
class OneHot(FieldSpec):
    """A class as float32 (N, num_classes): 1 in the column of the sample's class, else 0.

    Attributes:
        name: Of the packed field.
        num_classes: Number of columns; by default as many as the named classes need.
        background: Gives column 0 to the class named "background" (which packing from XML assigns to images without an
            object) and to negative class numbers; the other classes follow in their order. There are then as many
            columns as classes, and one more if no class has that name. By default neither has a column, and their
            samples are rows of zeros.

    Raises:
        ArgumentError: num_classes is below 1. When bound: it is smaller than the named classes need, or not given while
            the classes have no names.
    """

    name: Annotated[str, NAME] = "label"
    num_classes: Annotated[int | None, optional(COUNT)] = None
    background: Annotated[bool, FLAG] = False

    kind = "class"


@settings
class MultiHot(FieldSpec):
    """Several labels as float32 (N, num_classes): 1 in the column of each class that a sample has, else 0.

    Attributes:
        name: Of the packed field.
        num_classes: Number of columns; by default the number of the field's named classes.

    Raises:
        ArgumentError: num_classes is below 1. When bound: it is smaller than the number of named classes, or not given
            while the classes have no names.
    """

    name: Annotated[str, NAME] = "labels"
    num_classes: Annotated[int | None, optional(COUNT)] = None

    kind = "labels"


@settings
class Tokens(FieldSpec):
    """One-dimensional integer arrays of any length, as `PaddedTokens` of int64.

    Attributes:
        name: Of the packed field.
        pad: The value with which shorter arrays are padded.
        max_length: L of every batch; longer arrays are cut off at their end. By default the longest array's length.

    Raises:
        ArgumentError: a value out of its range. When bound: the arrays are not integers.
        DecodeError: while iterating, where an array does not have one dimension.
    """

    name: Annotated[str, NAME] = "tokens"
    pad: Annotated[int, _INT64] = 0
    max_length: Annotated[int | None, optional(COUNT)] = None

    kind = "array"


class PaddedTokens(NamedTuple):
    """N arrays of tokens.

    Attributes:
        values: int64 (N, L), padded at the end.
        lengths: int64 (N,), the number of tokens in each array.
    """

    values: Any
    lengths: Any


class BoundIntegers(BoundField):
    """int64 (N,): class numbers."""

    def values(self, rows: Rows) -> I64:
        return np.array(rows.columns[self.name], np.int64)


class BoundHot(BoundField):
    """float32 (N, K): 1 in the columns of a sample's classes, else 0. See `OneHot` and `MultiHot`."""

    def prepare(self) -> None:
        spec = self.spec
        is_one = isinstance(self.spec, OneHot)
        names = (self.datasets[0].classes if is_one else self.field.classes) or ()
        first = int(
            is_one and spec.background
        )  # column of the first class that is not the background
        has_own = [not is_one or name != BACKGROUND for name in names]
        needed = first + sum(has_own)
        self._count = needed if spec.num_classes is None else spec.num_classes
        if self._count < needed or (spec.num_classes is None and not names):
            raise ArgumentError(
                f"{spec}: num_classes={spec.num_classes}, expected at least {needed}, since "
                f"{self.datasets[0].folder} has {counted(len(names), 'class', 'classes')} with names. Give a larger "
                "num_classes"
            )
        has_column = np.array(
            has_own if is_one and names else [True] * (self._count - first)
        )
        # Column of each class, -1 for none; the last entry is for negative class numbers.
        self._column_of = np.append(
            np.where(has_column, np.cumsum(has_column) - 1 + first, first - 1),
            first - 1,
        )

    def values(self, rows: Rows) -> F32:
        numbers = rows.columns[self.name]
        of_rows = np.arange(len(rows))
        if isinstance(numbers, pa.Array):
            of_rows = rows_of(numbers)
            numbers = flat(numbers)
        classes = len(self._column_of) - 1
        if numbers.max(initial=-1) >= classes:
            wrong = int(np.argmax(numbers >= classes))
            raise ArgumentError(
                f"{rows.sample_name(self.datasets, int(of_rows[wrong]))}: its {self.name!r} has class "
                f"{numbers[wrong]}, expected {counted(classes, 'class', 'classes')}, numbered from 0. Give a larger "
                "num_classes"
            )
        columns = self._column_of[np.maximum(numbers, -1)]
        has_column = columns >= 0
        hot = np.zeros((len(rows), self._count), np.float32)
        hot[of_rows[has_column], columns[has_column]] = 1
        return hot


class BoundArray(BoundField):
    """(N, …) of the packed dtype, in native byte order; or `PaddedTokens`, see `Tokens`."""

    def prepare(self) -> None:
        self.members = (self.name,)
        self._stored = np.dtype(self.field.dtype)
        if self._stored.itemsize > _LARGEST_ITEM.get(self._stored.kind, 0):
            raise ArgumentError(
                f"{self.name!r}: torch does not have the packed dtype {self._stored}. Leave the field out, or pack it "
                "with another dtype"
            )
        if self.spec is not None and self._stored.kind not in "iu":
            raise ArgumentError(
                f"{self.spec}: tokens must be integers, the packed arrays have dtype {self._stored}. Request "
                f"{self.name!r} by its name"
            )

    def values(self, rows: Rows) -> Array | PaddedTokens:
        shapes = rows.columns[self.columns[0]]
        # The views may be unaligned.
        joined = np.concatenate([_NO_BYTES, *rows.members[self.name]]).view(
            self._stored
        )
        elements = joined.astype(self._stored.newbyteorder("="), copy=False)
        if self.spec is not None:
            self._check(
                rows,
                (lengths_of(shapes) == 1).tolist(),
                "tokens in one dimension. Pack it again with one",
            )
            lengths = flat(shapes).astype(np.int64)
            tokens = elements.astype(np.int64)
            return PaddedTokens(
                *pad_all(lengths, self.spec.max_length, (tokens, self.spec.pad))
            )
        # Without samples, of the first sample's array: O(1), where checking all samples would cost O(samples).
        first = (
            shapes[0].as_py()
            if len(rows)
            else self.datasets[0].first_row().column(self.columns[0])[0].as_py()
        )
        alike = (lengths_of(shapes) == len(first)).all()
        if not alike or (flat(shapes).reshape(len(rows), len(first)) != first).any():
            expected = f"{tuple(first)} as of the batch's first. Tokens({self.name!r}) pads arrays of one dimension"
            self._check(
                rows, [shape == first for shape in shapes.to_pylist()], expected
            )
        return elements.reshape(len(rows), *first)

    def _check(self, rows: Rows, fits: Sequence[bool], expected: str) -> None:
        """Raises DecodeError for the first row whose shape does not fit."""
        if not all(fits):
            row = fits.index(False)
            shape = tuple(rows.columns[self.columns[0]][row].as_py())
            sample = rows.sample_name(self.datasets, row)
            raise DecodeError(
                f"{sample}: its {self.name!r} has shape {shape}, expected {expected}"
            )


class ClassKind(Kind):
    """A class number, stored as text in a `.cls` member. The data set holds the names of the classes."""

    name = "class"
    role = "label"
    specs: ClassVar[tuple[type[FieldSpec], ...]] = (OneHot,)
    bound = BoundHot
    plain: ClassVar[type[BoundField] | None] = BoundIntegers
    keys: ClassVar[tuple[str, ...]] = (LABEL.name,)
    usual_names: ClassVar[tuple[str, ...]] = (
        "label",
        "class",
        "target",
        "y",
        "fine_label",
    )
    in_tables = True
    members: ClassVar[tuple[str, ...]] = (LABEL.member,)
    names_set_classes = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.int64()}

    def class_column(self, field: Field) -> str | None:
        return field.name

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        """The field and its columns. Its `classes` are the names, which a listing takes as those of the data set.

        Args:
            where: As of `Kind.parse`, which see for all of these.
            name: Of the field.
            values: Numbers or names, one for each sample.
            classes: Names by number, if the source knows them.
            detail: Unused.
        """
        numbers, names = number_classes(where, LABEL.name, values, classes)
        return Field(LABEL.name, LABEL.kind, LABEL.member, names), [array_of(numbers)]

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return {field.name: int(content.decode())}

    def caption(self, field: Field, spec: Any, value: Any, classes: ClassNames) -> str:
        """The class of a number; of a row of weights, the classes with the largest."""
        if np.ndim(value) == 0:
            return name_of(int(value), classes)
        if classes is not None and isinstance(
            spec, OneHot
        ):  # which moves the background's column
            others = tuple(name for name in classes if name != BACKGROUND)
            classes = (BACKGROUND, *others) if spec.background else others
        weights = np.asarray(value, np.float64)
        order = [
            int(n)
            for n in np.argsort(-weights, kind="stable")[:_MOST_NAMES]
            if weights[n] >= _LEAST_WEIGHT
        ]
        all_certain = all(weights[n] > 0.99 for n in order)
        return ", ".join(
            name_of(n, classes) + ("" if all_certain else f" {weights[n]:.2f}")
            for n in order
        )


class LabelsKind(ClassKind):
    """Class numbers, stored as a JSON list, with names of their own."""

    name = "labels"
    role = ""
    specs = (MultiHot,)
    plain = None
    keys = ("labels",)
    usual_names = ("labels", "tags")
    members = ()
    entry_bytes = 6
    names_set_classes = False

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.list_(pa.int64())}

    def parse_column(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        cells = super().parse_column(rows)
        separator = separator_of(cells)
        return read_cells(cells, lambda cell: parse_list(cell, separator))

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        """Class numbers from lists of integers or of names."""
        rows = read_each(where, name, values, list, "a list of classes")
        counts = list(map(len, rows))
        places = np.repeat(np.arange(len(rows)), counts).tolist()
        numbers, names = number_classes(
            where, name, [value for row in rows for value in row], classes, places
        )
        return Field(name, self.name, f"{name}.json", names), [
            joined_lists(split_rows(numbers, counts))
        ]

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return Kind.load(self, field, content)


class ArrayKind(Kind):
    """A NumPy array of any shape, with dtype `Field.dtype`, stored as `.npy`; the index holds its shape."""

    name = "array"
    specs = (Tokens,)
    bound = plain = BoundArray
    stays_in_shard = True

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {f"{field.name}_shape": pa.list_(pa.int32())}

    def field_fault(self, field: Field) -> str:
        try:
            dtype = np.dtype(field.dtype or "?O")
        except Exception:  # of Python's parser, too
            return f"there is no dtype {field.dtype!r}"
        return (
            ""
            if dtype.itemsize and not dtype.hasobject
            else f"its arrays cannot be of dtype {field.dtype!r}"
        )

    def hub_feature(
        self, field: Field, classes: ClassNames, dimensions: Set[int]
    ) -> dict[str, Any]:
        """Nested lists of numbers or texts, where Arrow has the type and all arrays have as many dimensions."""
        dtype = np.dtype(field.dtype)
        is_number = dtype.isnative and dtype.kind in "biuf" and dtype.itemsize <= 8
        if len(dimensions) == 1 and (is_number or dtype.kind == "U"):
            return nested_lists(dtype.name if is_number else "string", *dimensions)
        return {"dtype": "json"}

    def claims(self, value: Any) -> bool:
        return isinstance(value, np.ndarray) and value.ndim > 0

    def detail(self, value: Any) -> str:
        return str(np.asarray(value).dtype.str)

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        return Field(name, self.name, f"{name}.npy", dtype=detail), [
            array_of(values, pa.large_string())
        ]

    def store(self, field: Field, value: Any, placement: Placement) -> StoredMember:
        array = np.ascontiguousarray(value)
        if array.dtype.str != field.dtype:
            raise DecodeError(
                f"{field.name!r} is an array of {array.dtype.str}, the first one is of {field.dtype}"
            )
        header = npy_header(array)
        return StoredMember(
            header + array.tobytes(),
            len(header),
            {f"{field.name}_shape": list(array.shape)},
        )

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return {f"{field.name}_shape": list(read_array(content).shape)}

    def guess(self, member: str, content: Callable[[], bytes]) -> Field | None:
        name, _, extension = member.rpartition(".")
        if extension != "npy":
            return None
        return Field(
            name or self.name, self.name, member, dtype=read_array(content()).dtype.str
        )

    def find_fault(
        self,
        field: Field,
        row: Mapping[str, Any],
        content: bytes,
        header: int,
        image_size: Any,
    ) -> str:
        return array_fault(
            content, header, tuple(row[f"{field.name}_shape"]), field.dtype
        )

    def look(
        self, field: Field, row: Mapping[str, Any], read: Callable[[], bytes]
    ) -> dict[str, Any]:
        elements = np.frombuffer(read(), np.dtype(field.dtype))
        return {field.name: elements.reshape(row[f"{field.name}_shape"]).copy()}

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        """Members that are not as large as an array of their shape."""
        shapes = rows.column(f"{field.name}_shape")
        size = numbers_of(rows.column(field.bytes_column))
        sides = flat(shapes).astype(np.float64)
        # Products in float64, which do not overflow: exact up to 2**53, and larger than any shard beyond.
        needed = np.full(len(size), float(np.dtype(field.dtype).itemsize))
        np.multiply.at(needed, rows_of(shapes), np.where(sides < 0, np.nan, sides))
        yield BadRows(
            np.flatnonzero(~(needed == size)),
            lambda row: (
                f"its {field.name!r} as {size[row]:,} bytes for an array of shape {tuple(shapes[row].as_py())}"
            ),
        )


def nested_lists(dtype: str, depth: int) -> dict[str, Any]:
    """`Kind.hub_feature` of arrays.

    Args:
        dtype: Of the elements.
        depth: Number of dimensions.
    """
    feature: dict[str, Any] = {"dtype": dtype}
    for _ in range(depth):
        feature = {"list": feature}
    return feature


def npy_header(array: npt.NDArray[np.generic]) -> bytes:
    """The bytes before the elements of a C-ordered array in a `.npy` file of format 1.0."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, np.lib.format.header_data_from_array_1_0(array)
    )
    return file.getvalue()


def array_fault(
    content: bytes, header: int, shape: tuple[int, ...], dtype: str | None
) -> str:
    """`Kind.find_fault` for a `.npy` member that should hold an array of this shape and dtype."""
    array = read_array(content)
    if (
        array.shape != shape
        or array.dtype.str != dtype
        or content[header:] != array.tobytes()
    ):
        return f"is an array {array.shape} of {array.dtype.str}, the index says {shape} of {dtype}"
    return ""
