"""Ragged arrays: the lists of a whole batch, of unequal lengths, as one array."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.types import I64, Array

T = TypeVar("T", bound=np.generic)


def lengths_of(lists: Any) -> I64:
    """int64 (N,): the length of each list of an Arrow list array."""
    found: I64 = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def flat(lists: Any) -> npt.NDArray[Any]:
    """The numbers in all lists of an Arrow array, nested to any depth, as one array: a read-only view."""
    while hasattr(lists, "flatten") and hasattr(lists.type, "value_type"):
        lists = lists.flatten()
    numbers: npt.NDArray[Any] = lists.to_numpy()
    return numbers


def rows_of(counts: I64) -> I64:
    """int64 (sum of counts,): the number of the list that each entry is in. (2, 0, 1) gives 0, 0, 2."""
    return np.repeat(np.arange(len(counts)), counts)


def pad(values: npt.NDArray[T], counts: I64, width: int | None, fill: float) -> npt.NDArray[T]:
    """(N, width, …) from values (sum of counts, …): one row per list, cut off at the width or padded with `fill`.

    counts: int64 (N,), the length of each list. width: by default the largest count, or 0 if there are no lists.
    """
    width = int(counts.max(initial=0)) if width is None else width
    padded = np.full((len(counts), width, *values.shape[1:]), fill, values.dtype)
    rows = rows_of(counts)
    columns = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    fits = columns < width
    padded[rows[fits], columns[fits]] = values[fits]
    return padded


def pad_all(counts: I64, width: int | None, *columns: tuple[Array, float]) -> tuple[Array, ...]:
    """`pad` of each column, values and what they are filled with; and the counts of what is left of each list."""
    padded = [pad(values, counts, width, fill) for values, fill in columns]
    return (*padded, counts if width is None else np.minimum(counts, width))


def split_rows(values: Array, counts: I64) -> list[Array]:
    """The values (sum of counts, …) of each list. counts: int64 (N,)."""
    return np.split(values, np.cumsum(counts)[:-1]) if len(counts) else []


def joined_lists(rows: Sequence[Array], size: int = 0) -> pa.ListArray:
    """An Arrow array of N lists, one of each row's values, or with a `size` of lists of so many float32 numbers."""
    offsets = pa.array(np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32))
    values = np.concatenate(rows)
    if not size:
        return pa.ListArray.from_arrays(offsets, pa.array(values))
    numbers = pa.array(values.reshape(-1).astype(np.float32))
    return pa.ListArray.from_arrays(offsets, pa.FixedSizeListArray.from_arrays(numbers, size))
