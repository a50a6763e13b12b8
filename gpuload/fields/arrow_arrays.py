"""Arrow arrays of NumPy's numbers and of Python's values, without pandas.

`pyarrow.array` imports pandas wherever that is installed, which takes a process 0.2 s: as long as packing fifty JPEGs.
What a set consists of, numbers, texts, bytes and lists of these, is as fast to lay out here.
"""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.machine.fork_server import sigint_deferred

_OFFSETS = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}
_LARGEST_OFFSET = 2**31 - 1
_NUMBERS = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
)
# Since `pyarrow.DataType.to_pandas_dtype` needs pandas in pyarrow 25.
_DTYPES = {
    pa.from_numpy_dtype(np.dtype(name)): np.dtype(name) for name in _NUMBERS.split()
}


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """NumPy's type of the numbers of an Arrow type."""
    return _DTYPES[kind]


def array_of(
    values: npt.NDArray[Any] | Sequence[Any], kind: pa.DataType | None = None
) -> pa.Array:
    """As `pyarrow.array`, which makes the arrays of other values than numbers, texts, bytes and lists of these.

    Args:
        values: numbers (N,), or N values.
        kind: the type of the array; of numbers, by default theirs.

    Raises:
        pyarrow.ArrowInvalid: `kind` cannot hold the values.
    """
    if kind is not None and not len(values):
        return pa.nulls(0, kind)
    if isinstance(values, np.ndarray):
        numbers = _with_kind(values, kind)
        return _other(values, kind) if numbers is None else _numbers(numbers)
    if kind in _OFFSETS:
        return _texts(values, kind)
    if kind is not None and pa.types.is_list(kind):
        has_nulls = any(value is None for value in values)
        return _other(values, kind) if has_nulls else _lists(values, kind)
    if kind is not None and pa.types.is_integer(kind):
        numbers = _with_kind(np.array(values), kind)
        return _other(values, kind) if numbers is None else _numbers(numbers)
    return _other(values, kind)


def _with_kind(
    values: npt.NDArray[Any], kind: pa.DataType | None
) -> npt.NDArray[Any] | None:
    """Numbers with the type of `kind`; None if they are none, or it cannot hold them as they are."""
    if values.ndim != 1 or values.dtype.kind not in "iufb":
        return None
    if kind is None or kind == pa.from_numpy_dtype(values.dtype):
        return values
    if values.dtype.kind not in "iu" or not pa.types.is_integer(kind):
        return None
    converted = values.astype(dtype_of(kind))
    return converted if np.array_equal(converted, values) else None


def _numbers(values: npt.NDArray[Any]) -> pa.Array:
    kind = pa.from_numpy_dtype(values.dtype)
    stored = np.ascontiguousarray(values)
    if values.dtype.kind == "b":
        stored = np.packbits(stored, bitorder="little")
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(stored)])


def _texts(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if set(map(type, values)) - {str if is_text else bytes}:
        return _other(values, kind)
    encoded = [text.encode() for text in values] if is_text else values
    ends = np.cumsum([0, *map(len, encoded)])
    if ends[-1] > _LARGEST_OFFSET and _OFFSETS[kind] is np.int32:
        return _other(values, kind)
    offsets = pa.py_buffer(ends.astype(_OFFSETS[kind]))
    content = pa.py_buffer(b"".join(encoded))
    return pa.Array.from_buffers(kind, len(values), [None, offsets, content])


def _lists(values: Sequence[Sequence[Any]], kind: pa.DataType) -> pa.Array:
    ends = np.cumsum([0, *map(len, values)])
    flat = array_of(list(chain.from_iterable(values)), kind.value_type)
    return pa.ListArray.from_arrays(array_of(ends, pa.int32()), flat, type=kind)


def _other(values: Any, kind: pa.DataType | None) -> pa.Array:
    _import_pandas()
    return pa.array(values, kind)


@cache
def _import_pandas() -> None:
    """Lets Arrow import pandas, if it is installed. Arrow swallows a Ctrl-C that comes meanwhile."""
    with sigint_deferred():
        pa.array([None])
