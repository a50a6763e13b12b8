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
# All integers below are floats of the type.
_END_OF_INTEGERS = {pa.float32(): 2**24, pa.float64(): 2**53}
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
    array = _laid_out(values, kind)
    return _other(values, kind) if array is None else array


def _laid_out(
    values: npt.NDArray[Any] | Sequence[Any], kind: pa.DataType | None
) -> pa.Array | None:
    """The array as it is laid out here; None if Arrow has to make it."""
    if isinstance(values, np.ndarray):
        return _numbers(_with_kind(values, kind))
    if kind is None:
        return None
    if kind in _OFFSETS:
        return _texts(values, kind)
    if pa.types.is_list(kind):
        return _lists(values, kind)
    if pa.types.is_fixed_size_list(kind):
        return _lists_of_one_size(values, kind)
    if pa.types.is_integer(kind):
        return _numbers(_with_kind(np.array(values), kind))
    if kind in _END_OF_INTEGERS:
        return _numbers(_floats(values, kind))
    return None


def _floats(values: Sequence[Any], kind: pa.DataType) -> npt.NDArray[Any] | None:
    """Floats and integers as floats of `kind`; None if there are others, or some that it may not hold."""
    types = set(map(type, values))
    if types - {float, int}:
        return None
    try:
        floats = np.array(values, np.float64)
    except OverflowError:  # by an integer
        return None
    dtype = dtype_of(kind)
    end = _END_OF_INTEGERS[kind] if int in types else np.finfo(dtype).max
    return None if (np.abs(floats) >= end).any() else floats.astype(dtype)


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


def _numbers(values: npt.NDArray[Any] | None) -> pa.Array | None:
    if values is None:
        return None
    kind = pa.from_numpy_dtype(values.dtype)
    stored = np.ascontiguousarray(values)
    if values.dtype.kind == "b":
        stored = np.packbits(stored, bitorder="little")
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(stored)])


def _texts(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if set(map(type, values)) - {str if is_text else bytes}:
        return None
    encoded = [text.encode() for text in values] if is_text else values
    ends = np.cumsum([0, *map(len, encoded)])
    if ends[-1] > _LARGEST_OFFSET and _OFFSETS[kind] is np.int32:
        return None
    offsets = pa.py_buffer(ends.astype(_OFFSETS[kind]))
    content = pa.py_buffer(b"".join(encoded))
    return pa.Array.from_buffers(kind, len(values), [None, offsets, content])


def _lists(
    values: Sequence[Sequence[Any] | None], kind: pa.DataType
) -> pa.Array | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    ends = np.cumsum([0, *map(len, known)])
    flat = array_of(list(chain.from_iterable(known)), kind.value_type)
    return pa.ListArray.from_arrays(array_of(ends, pa.int32()), flat, type=kind)


def _lists_of_one_size(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    sizes = {
        len(value) if isinstance(value, list | tuple) else None for value in values
    }
    if sizes != {kind.list_size}:
        return None
    flat = array_of(list(chain.from_iterable(values)), kind.value_type)
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)


def _other(values: Any, kind: pa.DataType | None) -> pa.Array:
    _import_pandas()
    return pa.array(values, kind)


@cache
def _import_pandas() -> None:
    """Lets Arrow import pandas, if it is installed. Arrow swallows a Ctrl-C that comes meanwhile."""
    with sigint_deferred():
        pa.array([None])
