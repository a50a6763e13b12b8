"""Arrays that stay in the shard: stacked as they are, or padded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpuload.errors import ArgumentError, DecodeError
from gpuload.fields.field import Field
from gpuload.fields.ragged import flat, lengths_of, pad
from gpuload.fields.rows import PaddedTokens, Rows
from gpuload.fields.spec import Tokens, describe
from gpuload.types import Array

if TYPE_CHECKING:
    from gpuload.disk.dataset import Dataset

_NOTHING = np.empty(0, np.uint8)
# What torch.from_numpy takes: bool, whole numbers, floats up to 64 bits and complex numbers up to 128.
_LARGEST_ITEM = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}


class BoundArray:
    """(N, …) of the dtype that was packed, in the machine's byte order.

    Raises:
        ArgumentError: torch has no such dtype, or the first arrays of two data sets differ in shape.
    """

    def __init__(self, field: Field, datasets: "Sequence[Dataset]") -> None:
        self.name, self.members, self.columns = field.name, (field.name,), (field.shape_column,)
        self._datasets, self._stored = tuple(datasets), np.dtype(field.dtype)
        if self._stored.itemsize > _LARGEST_ITEM.get(self._stored.kind, 0):
            raise ArgumentError(
                f"{field.name!r}: arrays of dtype {self._stored} were packed, which torch does not have. Leave the "
                "field out, or pack it as numbers of another dtype"
            )
        shapes = [_first_shape(field, dataset) for dataset in datasets]
        for dataset, shape in zip(datasets, shapes, strict=True):
            if shape != shapes[0]:
                raise ArgumentError(
                    f"{dataset.folder}: its first {field.name!r} is an array of shape {shape}, that of "
                    f"{datasets[0].folder} of {shapes[0]}. {_advice(field.name)}"
                )
        self._first_shape = shapes[0]

    def values(self, rows: Rows) -> Array:
        shapes = rows.columns[self.columns[0]]
        shape = tuple(shapes[0].as_py()) if len(rows) else self._first_shape
        self._check_equal(rows, shape)
        found = join_elements(rows.members[self.name], self._stored)
        return found.reshape(len(rows), *shape)

    def _check_equal(self, rows: Rows, shape: tuple[int, ...]) -> None:
        shapes = rows.columns[self.columns[0]]
        if (lengths_of(shapes) == len(shape)).all() and (flat(shapes).reshape(len(rows), len(shape)) == shape).all():
            return
        found = [tuple(shape) for shape in shapes.to_pylist()]
        other = next(place for place, found_shape in enumerate(found) if found_shape != shape)
        raise DecodeError(
            f"{rows.sample_name(self._datasets, other)}: its {self.name!r} is an array of shape {found[other]}, that "
            f"of {rows.sample_name(self._datasets, 0)} of {shape}. {_advice(self.name)}"
        )


class BoundTokens:
    """`PaddedTokens`, see `Tokens`.

    Raises:
        ArgumentError: the arrays are not of whole numbers, or the first one has not one dimension.
    """

    def __init__(self, spec: Tokens, field: Field, datasets: "Sequence[Dataset]") -> None:
        self.name, self.members, self.columns = field.name, (field.name,), (field.shape_column,)
        self._spec, self._datasets, self._stored = spec, tuple(datasets), np.dtype(field.dtype)
        if self._stored.kind not in "iu":
            raise ArgumentError(
                f"{describe(spec)}: arrays of dtype {self._stored} were packed, and tokens are whole numbers. "
                f"Ask for {field.name!r} as it is"
            )
        for dataset in datasets:
            shape = _first_shape(field, dataset)
            if len(shape) != 1:
                raise ArgumentError(
                    f"{describe(spec)}: the first array in {dataset.folder} has shape {shape}, and tokens have one "
                    f"dimension. Ask for {field.name!r} as it is"
                )

    def values(self, rows: Rows) -> PaddedTokens:
        shapes = rows.columns[self.columns[0]]
        flat_ones = lengths_of(shapes) == 1
        if not flat_ones.all():
            other = int(np.argmin(flat_ones))
            raise DecodeError(
                f"{rows.sample_name(self._datasets, other)}: its {self.name!r} is an array of shape "
                f"{tuple(shapes[other].as_py())}, and tokens have one dimension. Pack it again as such"
            )
        lengths = flat(shapes).astype(np.int64)
        tokens = join_elements(rows.members[self.name], self._stored).astype(np.int64)
        width = self._spec.max_length
        return PaddedTokens(
            pad(tokens, lengths, width, self._spec.pad), lengths if width is None else np.minimum(lengths, width)
        )


def join_elements(members: Sequence[npt.NDArray[np.uint8]], stored: np.dtype[np.generic]) -> Array:
    """The elements of all members, one after another, in the machine's byte order; a copy, since views may be odd."""
    return np.concatenate([_NOTHING, *members]).view(stored).astype(stored.newbyteorder("="), copy=False)


def _first_shape(field: Field, dataset: "Dataset") -> tuple[int, ...]:
    """Shape of the array of the first sample; O(1), where looking at all of them would be O(samples)."""
    first = int(dataset.stored_samples(np.zeros(1, np.int64))[0])
    shard = int(np.searchsorted(dataset.first_samples, first, side="right")) - 1
    shape = dataset.rows(shard).column(field.shape_column)[first - int(dataset.first_samples[shard])].as_py()
    return tuple(shape)


def _advice(name: str) -> str:
    return f"Arrays are stacked, so they must be alike; Tokens({name!r}) pads those of one dimension"
