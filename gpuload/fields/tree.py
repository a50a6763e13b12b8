"""Values of N samples in nested containers: `take` selects rows, `merge` joins parts.

A container is a dict, a tuple, named or not, or a `Batched`. What is in it has N rows (an array of NumPy's, Arrow's,
torch's or CuPy's, a list, or a `Sequence` with `take`), or is something else, which speaks of the whole batch and stays
as it is.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.types import I64

T = TypeVar("T")


class Batched:
    """Base class of dataclasses that are containers."""

    __slots__ = ()


class Each(list[Any]):
    """A container for each of N samples, as a list: for `map_tree` and `take` a value with N rows."""


def map_tree(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """The container with `function` applied to each value, or to the values that several alike have in one place."""
    if isinstance(first, dict):
        return {name: map_tree(function, value, *(one[name] for one in others)) for name, value in first.items()}
    if isinstance(first, tuple):
        values = [map_tree(function, *parts) for parts in zip(first, *others, strict=True)]
        return type(first)(*values) if hasattr(first, "_fields") else tuple(values)
    if isinstance(first, Batched):
        return type(first)(**map_tree(function, vars(first), *map(vars, others)))
    return function(first, *others)


def take(tree: T, rows: npt.NDArray[Any] | slice) -> T:
    """The samples at these rows, in this order, with repetitions. A slice copies nothing."""
    taken: T = map_tree(lambda values: _take(values, rows), tree)
    return taken


def merge(parts: Sequence[T], rows: Sequence[I64]) -> T:
    """Joins containers of the same structure; the samples of each go to its rows."""
    merged: T = map_tree(lambda *values: _merge(values, rows), *parts)
    return merged


def _take(values: Any, rows: Any) -> Any:
    if getattr(values, "ndim", 0) or (isinstance(rows, slice) and _has_rows(values)):
        return values[rows]
    if isinstance(values, pa.Array):
        return values.take(pa.array(rows))
    if isinstance(values, list):
        return type(values)(values[row] for row in rows.tolist())
    return values.take(rows) if _has_rows(values) else values


def _has_rows(values: Any) -> bool:
    return isinstance(values, pa.Array | Sequence) and not isinstance(values, str)


def _merge(parts: Sequence[Any], rows: Sequence[I64]) -> Any:
    first = parts[0]
    if isinstance(first, np.ndarray):
        whole = np.empty((sum(map(len, parts)), *first.shape[1:]), first.dtype)
        for part, at in zip(parts, rows, strict=True):
            whole[at] = part
        return whole
    if isinstance(first, pa.Array):
        return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(rows))))
    if _has_rows(first):
        values = dict(zip(np.concatenate(rows).tolist(), (value for part in parts for value in part), strict=True))
        return [values[row] for row in range(len(values))]
    return first
