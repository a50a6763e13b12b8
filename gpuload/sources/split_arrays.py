"""Arrays that are cut into splits by their names, as Keras has them: x_train, y_train, x_test, y_test."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from gpuload.errors import SourceError
from gpuload.headers import npy
from gpuload.sources.splits import without_split
from gpuload.types import Array

# For each array of the whole set the names of its parts, in the order train, val, test.
Parts = dict[str, tuple[str, ...]]


def parts_of(names: Sequence[str]) -> tuple[Parts, tuple[str, ...]]:
    """The parts of each array, and the split of each part; nothing where the names are not those of whole splits.

    Every array must be that of one split, and each split have the same arrays.
    """
    found = {name: without_split(name) for name in names}
    wholes = list(dict.fromkeys(whole for whole, _ in found.values()))
    splits = tuple(split for split in ("train", "val", "test") if any(split == one for _, one in found.values()))
    name_of = {pair: name for name, pair in found.items()}
    if len(splits) < 2 or len(name_of) < len(names) or len(names) != len(wholes) * len(splits):
        return {}, ()
    return {whole: tuple(name_of[whole, split] for split in splits) for whole in wholes}, splits


def join_arrays(title: str, files: Mapping[str, Path], joined: Path) -> list[int]:
    """Writes arrays, `.npy` files by name, one after the other as one `.npy`, and removes them. Returns their lengths.

    Raises:
        SourceError: they differ in more than their lengths, or are no arrays that can be mapped.
    """
    arrays = {name: open_array(title, name, path) for name, path in files.items()}
    (first_name, first), *others = arrays.items()
    for name, array in others:
        if not first.ndim or array.shape[1:] != first.shape[1:] or array.dtype.kind != first.dtype.kind:
            raise SourceError(
                f"{title}: {first_name!r} is {first.shape} of {first.dtype}, {name!r} {array.shape} of {array.dtype}. "
                "Arrays of two splits of one set differ in their lengths only: save them so"
            )
    lengths = [len(array) for array in arrays.values()]
    dtype = np.result_type(*(array.dtype for array in arrays.values()))
    whole = np.lib.format.open_memmap(joined, mode="w+", dtype=dtype, shape=(sum(lengths), *first.shape[1:]))
    for array, end in zip(arrays.values(), np.cumsum(lengths).tolist(), strict=True):
        whole[end - len(array) : end] = array
    whole.flush()
    for path in files.values():
        path.unlink()
    return lengths


def open_array(title: str, name: str, path: Path) -> Array:
    """An `.npy`, mapped.

    Raises:
        SourceError: it cannot be.
    """
    try:
        with path.open("rb") as file:
            header = npy.read_header(file.read(1 << 16))
        order: Literal["F", "C"] = "F" if header.in_fortran_order else "C"
        if math.prod(header.shape) * header.dtype.itemsize > path.stat().st_size - header.size:
            raise ValueError(f"it is too short for an array of shape {header.shape}")
        array: Array = np.memmap(path, header.dtype, "r", header.size, header.shape, order)
    except (OSError, ValueError, OverflowError) as error:
        raise SourceError(
            f"{title}: {name!r} cannot be mapped ({error}). Arrays of Python objects are pickles, which are never "
            "opened; save numbers"
        ) from None
    return array
