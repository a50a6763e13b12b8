"""Reads an `.npy` strictly: numbers and texts that fill the file exactly, and never a pickle.

`numpy.load` allocates what the header asks for before it looks for the elements, and its parser raises more kinds of
errors than it documents.
"""

import io
import math
from typing import Any, NamedTuple

import numpy as np

from gpuload.types import Array

START = b"\x93NUMPY"

_READERS = {
    1: np.lib.format.read_array_header_1_0,
    2: np.lib.format.read_array_header_2_0,
}
_MOST_DIMENSIONS = 32  # NumPy 1's limit


class NpyHeader(NamedTuple):
    """What precedes the elements of an array.

    Attributes:
        shape: Of the array.
        in_fortran_order: Whether the first index changes fastest.
        dtype: Of the array.
        size: Bytes before the first element.
    """

    shape: tuple[int, ...]
    in_fortran_order: bool
    dtype: np.dtype[Any]
    size: int


def read_header(data: bytes) -> NpyHeader:
    """Reads what precedes the elements of an array.

    Args:
        data: Content of a `.npy` file, or its beginning.

    Raises:
        ValueError: it is damaged, or describes what no file can hold: Python objects, or a negative size.
    """
    if data.startswith(b"PK"):
        raise ValueError("it is an archive of arrays by another name, an .npz")
    file = io.BytesIO(data[: 1 << 16])
    try:
        major, _ = np.lib.format.read_magic(file)
        shape, in_fortran_order, dtype = _READERS[min(major, 2)](file)
    except Exception as error:  # Python's parser, which gets the header, may raise any
        raise ValueError(
            f"its header cannot be read ({type(error).__name__})"
        ) from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are pickles and never opened")
    if dtype.subdtype is not None or not dtype.itemsize:
        raise ValueError(f"its elements cannot be of dtype {str(dtype)[:80]}")
    sides = [int(side) for side in shape]
    if (
        len(sides) > _MOST_DIMENSIONS
        or min(sides, default=0) < 0
        or any(type(side) is bool for side in shape)
    ):
        raise ValueError(f"its shape cannot be {str(shape)[:80]}")
    return NpyHeader(tuple(sides), bool(in_fortran_order), dtype, file.tell())


def read_array(data: bytes) -> Array:
    """The array in a file, which cannot be written to: its elements are the file's bytes.

    Args:
        data: Content of a `.npy` file.

    Raises:
        ValueError: as `read_header`, or the array is not as large as the file.
    """
    header = read_header(data)
    count = math.prod(header.shape)
    needed = count * header.dtype.itemsize
    present = len(data) - header.size
    if needed != present:
        raise ValueError(
            f"its shape {str(header.shape)[:80]} takes {needed:,} bytes, and there are {present:,}"
        )
    elements: Array = (
        np.frombuffer(data, header.dtype, count, header.size)
        if count
        else np.empty(0, header.dtype)
    )
    return elements.reshape(header.shape, order="F" if header.in_fortran_order else "C")
