"""The rows of a batch: nested containers and ragged arrays of values, and the interface of a bound field to them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.fields.arrow_arrays import array_of, dtype_of
from gpuload.fields.field import Field
from gpuload.fields.motion import Motion
from gpuload.lists import bounds_of, owners_of, places_of, spread, starts_of
from gpuload.store.url import URL
from gpuload.types import I64, U64, Array, ClassNames

T = TypeVar("T")

# A tuple is a named one, such as PaddedBoxes, or has a value for each view.
Value = Array | list[Any] | tuple[Any, ...] | dict[str, Any]


class Batched:
    """Base class of dataclasses that are containers."""

    __slots__ = ()


@dataclass(frozen=True)
class Ragged(Generic[T]):
    """Any number of rows for each of N samples, as one container of them all.

    For `map_tree`, `take` and `merge` it is a value with N rows.

    Attributes:
        counts: int64 (N,), the rows of each sample.
        content: A container of sum(counts) rows, those of one sample after another.
    """

    counts: I64
    content: T

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def ends(self) -> I64:
        """int64 (N,): where the rows of each sample end."""
        return np.cumsum(self.counts)

    @property
    def samples(self) -> I64:
        """int64 (sum(counts),): the sample of each row."""
        return owners_of(self.counts)

    @property
    def positions(self) -> I64:
        """int64 (sum(counts),): the number of each row among those of its sample."""
        return places_of(self.counts)

    def rows_of(self, samples: I64) -> I64:
        """The rows of these samples, in this order."""
        starts = starts_of(self.counts)
        return spread(starts[samples], self.counts[samples])

    def take(self, samples: I64 | slice) -> "Ragged[T]":
        """That of these samples, in this order; a slice copies nothing."""
        if isinstance(samples, slice):
            first, stop, _ = samples.indices(len(self.counts))
            bounds = bounds_of(self.counts)
            rows = slice(int(bounds[first]), int(bounds[max(first, stop)]))
            return Ragged(self.counts[samples], take(self.content, rows))
        content = take(self.content, self.rows_of(samples))
        return Ragged(self.counts[samples], content)

    @staticmethod
    def merged(parts: "Sequence[Ragged[T]]", samples: Sequence[I64]) -> "Ragged[T]":
        """Joins some; those of each go to its samples."""
        counts = _merge([part.counts for part in parts], samples)
        joined = Ragged(counts, None)
        rows = [joined.rows_of(of_part) for of_part in samples]
        return Ragged(counts, merge([part.content for part in parts], rows))


class Each(list[Any]):
    """A container for each of N samples, as a list: for `map_tree` and `take` a value with N rows."""


def map_tree(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """A container with a function applied to each value, or to the values that several alike have in one place.

    Args:
        function: Gets a value of each container.
        first: A value, or a dict, tuple or `Batched` of containers.
        *others: Further containers of the same form.
    """
    if isinstance(first, dict):
        return {
            name: map_tree(function, value, *(other[name] for other in others))
            for name, value in first.items()
        }
    if isinstance(first, tuple):
        values = [
            map_tree(function, *parts) for parts in zip(first, *others, strict=True)
        ]
        return type(first)(*values) if hasattr(first, "_fields") else tuple(values)
    if isinstance(first, Batched):
        return type(first)(**map_tree(function, vars(first), *map(vars, others)))
    return function(first, *others)


def take(tree: T, rows: npt.NDArray[Any] | slice) -> T:
    """The samples at these rows, in this order, with repetitions. A slice copies nothing."""
    return map_tree(lambda values: _take(values, rows), tree)


def merge(parts: Sequence[T], rows: Sequence[I64]) -> T:
    """Joins containers of the same structure; the samples of each go to its rows."""
    return map_tree(lambda *values: _merge(values, rows), *parts)


def _take(values: Any, rows: Any) -> Any:
    if isinstance(values, Ragged):
        return values.take(rows)
    if getattr(values, "ndim", 0) or (isinstance(rows, slice) and _has_rows(values)):
        return values[rows]
    if isinstance(values, pa.Array):
        return values.take(array_of(rows))
    if isinstance(values, list):
        return type(values)(values[row] for row in rows.tolist())
    return values.take(rows) if _has_rows(values) else values


def _has_rows(values: Any) -> bool:
    return isinstance(values, pa.Array | Sequence) and not isinstance(values, str)


def _merge(parts: Sequence[Any], rows: Sequence[I64]) -> Any:
    first = parts[0]
    if isinstance(first, Ragged):
        return Ragged.merged(parts, rows)
    if isinstance(first, np.ndarray):
        merged = np.empty((sum(map(len, parts)), *first.shape[1:]), first.dtype)
        for part, places in zip(parts, rows, strict=True):
            merged[places] = part
        return merged
    if isinstance(first, pa.Array):
        return pa.concat_arrays(parts).take(array_of(np.argsort(np.concatenate(rows))))
    if _has_rows(first):
        values = dict(
            zip(
                np.concatenate(rows).tolist(),
                (value for part in parts for value in part),
                strict=True,
            )
        )
        return [values[row] for row in range(len(values))]
    for part in parts:
        is_same = part is first or (type(part) is type(first) and part == first)
        if not is_same:
            raise AssertionError(f"{part!r} and {first!r} in rows of one batch")
    return first


def numbers_of(column: Any) -> npt.NDArray[Any]:
    """The numbers of an Arrow array, read-only and without a copy, or of a chunked array, joined if it has several
    chunks. With nulls, floats with NaN for them.

    By DLPack, since pyarrow's `to_numpy` imports pandas where that is installed, which takes longer than opening a set.
    """
    is_numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if not is_numeric or column.null_count:
        if isinstance(column, pa.ChunkedArray):
            return column.to_numpy()
        return column.to_numpy(zero_copy_only=False)
    if isinstance(column, pa.Array):
        return np.from_dlpack(column)
    if column.num_chunks == 0:
        return np.empty(0, dtype_of(column.type))
    chunks = [np.from_dlpack(chunk) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def lengths_of(lists: Any) -> I64:
    """int64 (N,): the length of each list of an Arrow list array."""
    return numbers_of(lists.value_lengths()).astype(np.int64)


def flat(lists: Any) -> npt.NDArray[Any]:
    """The numbers in all lists of an Arrow array, nested to any depth, as one array: a read-only view."""
    while hasattr(lists, "flatten") and hasattr(lists.type, "value_type"):
        lists = lists.flatten()
    return numbers_of(lists)


def rows_of(lists: Any) -> I64:
    """int64 (n,): the row of each entry of an Arrow list array. [[5, 6], [], [7]] gives 0, 0, 2."""
    return owners_of(lengths_of(lists))


def rows_of_numbers(lists: Any) -> I64:
    """int64 (n,): the row of each of the numbers that `flat` gives."""
    rows = rows_of(lists)
    inner = lists.flatten()
    while hasattr(inner.type, "value_type"):
        each = (
            inner.type.list_size
            if pa.types.is_fixed_size_list(inner.type)
            else lengths_of(inner)
        )
        rows = np.repeat(rows, each)
        inner = inner.flatten()
    return rows


def pad_all(
    counts: I64, width: int | None, *columns: tuple[Array, float]
) -> tuple[Array, ...]:
    """Values of lists as rows of one width (N, width, …), for each column, and the counts int64 (N,) of what is left of
    each list.

    Args:
        counts: int64 (N,), the length of each list.
        width: Where lists are cut off or padded; None: the largest count, or 0 if there are no lists.
        *columns: Each the values (sum of counts, …) of all lists, one after another, and what they are padded with.
    """
    width = int(counts.max(initial=0)) if width is None else width
    rows = owners_of(counts)
    places = places_of(counts)
    fits = places < width
    padded = []
    for values, fill in columns:
        column = np.full((len(counts), width, *values.shape[1:]), fill, values.dtype)
        column[rows[fits], places[fits]] = values[fits]
        padded.append(column)
    return (*padded, np.minimum(counts, width))


def split_rows(values: Array, counts: Sequence[int] | I64) -> list[Array]:
    """The values of each list.

    Args:
        values: (sum of counts, …), one list after another.
        counts: The length of each list.
    """
    return np.split(values, np.cumsum(counts)[:-1]) if len(counts) else []


def joined_lists(rows: Sequence[Array], size: int = 0) -> pa.ListArray:
    """An Arrow array of lists.

    Args:
        rows: The values of each list.
        size: The length of every list, which then holds float32 numbers; 0: lists differ.
    """
    values = np.concatenate(rows)
    ends = np.cumsum([0, *map(len, rows)])
    offsets = array_of(ends.astype(np.int32))
    if not size:
        return pa.ListArray.from_arrays(offsets, array_of(values))
    numbers = array_of(values.reshape(-1).astype(np.float32))
    return pa.ListArray.from_arrays(
        offsets, pa.FixedSizeListArray.from_arrays(numbers, size)
    )


class DatasetView(Protocol):
    """The part of `gpuload.disk.dataset.Dataset` that fields need: its fields, names for messages, and first row."""

    @property
    def folder(self) -> Path | URL: ...
    @property
    def fields(self) -> Mapping[str, Field]: ...
    @property
    def classes(self) -> ClassNames: ...

    def require_field(self, name: str) -> Field: ...

    def keys(self, samples: npt.ArrayLike) -> list[str]: ...

    def first_row(self) -> pa.RecordBatch:
        """The first sample's row of the index, as a batch of one row."""


@dataclass(frozen=True)
class Rows:
    """N samples of a batch, without their pixels.

    Attributes:
        columns: The requested index columns, (N,): numbers as NumPy arrays, others as Arrow arrays. Always includes
            "index" and "dataset", int64 (N,): the number of each sample in stored order, and that of its data set.
        members: For fields that stay in the shard, the bytes of their elements: N views, uint8 (bytes,).
        views: How each view moves what is in the images, at least one; without its map for fields that do not move.
        bucket: The number of the batch's bucket; None without buckets.
        keys: uint64 (N,), from which random numbers of the samples are drawn.
    """

    columns: Mapping[str, Any]
    members: Mapping[str, Sequence[npt.NDArray[np.uint8]]]
    views: Sequence[Motion]
    bucket: int | None = None
    keys: U64 | None = None

    def __len__(self) -> int:
        return len(self.columns["index"])

    @property
    def sizes(self) -> I64:
        """int64 (N, 2): height and width of the stored images, whose columns were requested."""
        return np.stack([self.columns["height"], self.columns["width"]], axis=1).astype(
            np.int64
        )

    def sample_name(self, datasets: Sequence[DatasetView], row: int) -> str:
        """The sample in a row of the batch, in messages."""
        dataset = datasets[int(self.columns["dataset"][row])]
        return f"{dataset.folder}: sample {dataset.keys([int(self.columns['index'][row])])[0]!r}"

    def per_view(self, values: "Callable[[Motion], Value]") -> "Value":
        """The function's result for the view; with several views, a tuple of the results."""
        results = tuple(map(values, self.views))
        return results[0] if len(results) == 1 else results


class BoundField:
    """A field bound to data sets, whose values can be taken from their batches.

    name: its key in a dict of outputs.

    Args:
        field: As it is packed.
        columns: Names of the index columns that it needs in `Rows`. members: names of the packed fields whose members
            it needs there.
        spec: By which it was requested.
        datasets: Those of the loader.

    Attributes:
        members: Names of the packed fields whose members it needs in `Rows`.
        name: Its key in a dict of outputs.
    """

    members: tuple[str, ...] = ()

    def __init__(
        self,
        field: Field,
        columns: tuple[str, ...] = (),
        spec: Any = None,
        datasets: Sequence[DatasetView] = (),
    ) -> None:
        self.name = field.name
        self.columns = columns
        self.field = field
        self.spec = spec
        self.datasets = datasets
        self.prepare()

    def prepare(self) -> None:
        """Checks the spec, and computes what does not depend on a batch.

        Raises:
            ArgumentError: the spec does not fit what was packed.
        """

    def values(self, rows: Rows) -> Value:
        """The field's values for a batch, in memory that is not reused; by default its texts, a list of N str. Called
        in the thread that reads batches.

        With several views, a field that depends on the view returns a plain tuple of one value per view.

        Raises:
            DecodeError: a sample's value is damaged or cannot be batched with the others.
        """
        return rows.columns[self.name].to_pylist()


class MovingField(BoundField, ABC):
    """A bound field whose values are places in an image.

    stays: what of it a function of the user's cannot move; "" if that is nothing.
    """

    stays = ""

    @property
    def points(self) -> int:
        """Of each instance; 0 for boxes."""
        return self.field.size

    @abstractmethod
    def split(
        self, columns: Mapping[str, Any], motion: Motion | None
    ) -> list[dict[str, Array]]:
        """The entries of each of N samples, in pixels of the stored images, or of what a crop without flips gives."""

    @abstractmethod
    def join(self, samples: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        """The columns of N samples, from their entries."""


MaskDType = Literal["uint8", "int64"]


@dataclass(frozen=True)
class PixelField:
    """A field whose values the decoder computes: the image, a mask, or a further picture.

    Attributes:
        name: Its key in a dict of outputs, and of the packed field.
        kind: "image", "mask" or "picture".
        fill: Of a mask, the class of pixels outside of it.
        dtype: Of a mask in the batch; the decoder's is uint8.
        field: The packed one.
        spec: With which a further picture was requested.
        values: What becomes of a map's values (`gpuload.fields.maps.MapValues`); None for images and masks.
    """

    name: str
    kind: str
    fill: int = 0
    dtype: MaskDType = "uint8"
    field: Field | None = None
    spec: Any = None
    values: Any = None
