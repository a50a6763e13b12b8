"""Lists of unequal lengths as one array, for a whole batch at once."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpuload.types import I64

T = TypeVar("T", bound=np.generic)


def lengths_of(lists: Any) -> I64:
    """int64 (N,): the length of each list of an Arrow list array."""
    found: I64 = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def flat(lists: Any) -> npt.NDArray[Any]:
    """The numbers in all lists of an Arrow array, one after another, of any depth: a view, not to be written to."""
    while hasattr(lists, "flatten") and hasattr(lists.type, "value_type"):
        lists = lists.flatten()
    numbers: npt.NDArray[Any] = lists.to_numpy()
    return numbers


def rows_of(counts: I64) -> I64:
    """int64 (sum of counts,): which list each entry is in. (2, 0, 1) gives 0, 0, 2."""
    return np.repeat(np.arange(len(counts)), counts)


def pad(values: npt.NDArray[T], counts: I64, width: int | None, fill: float) -> npt.NDArray[T]:
    """(N, width, …) out of (sum of counts, …): a row for each list, cut to the width or filled up behind its end.

    width: by default the largest count, or 0 where there is none.
    """
    width = int(counts.max(initial=0)) if width is None else width
    padded = np.full((len(counts), width, *values.shape[1:]), fill, values.dtype)
    rows = rows_of(counts)
    places = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    fits = places < width
    padded[rows[fits], places[fits]] = values[fits]
    return padded
