"""Arrays of images and their fields: `.npy`, `.npz` and HDF5 (extra `sources`); never a pickle."""

import math
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpuload.errors import SourceError
from gpuload.headers import npy
from gpuload.sources.files import Findings, readable
from gpuload.sources.named_arrays import NamedArrays, unstored
from gpuload.sources.source import (
    ColumnOptions,
    Row,
)
from gpuload.types import Array

_MATLAB_CELLS = "#refs#/"  # what the cells of MATLAB's cell arrays hold


@dataclass(frozen=True)
class ArraysOptions(ColumnOptions):
    """The options of arrays.

    Args:
        labels: An `.npy` of class numbers, for an `.npy` of images.
    """

    labels: str | Path | None = None


class ArraysSource(NamedArrays):
    """An `.npz` with arrays of images and labels or targets, or an `.npy` of images with one of labels beside it.

    columns: as in HDF5. The arrays of an `.npz` are unpacked into the packer's scratch folder and mapped there. Their
    files are read from a disk alone.
    """

    Options = ArraysOptions
    options: ArraysOptions
    suffixes = (".npz", ".npy")

    @property
    def labels(self) -> Path | None:
        """The array of labels, where the user gave one."""
        labels = self.options.labels
        return None if labels is None else Path(labels)

    def rows(self, findings: Findings) -> Iterator[Row]:
        unpacked = self._scratch / "arrays"
        yield from self.rows_of(self._arrays(unpacked), findings)
        shutil.rmtree(unpacked, ignore_errors=True)  # what it held is in the spool

    def _arrays(self, unpacked: Path) -> dict[str, Array]:
        """The arrays by their names; those of an `.npz` are mapped from files in a folder."""
        is_npy = self._local.suffix.lower() == ".npy"
        paths = {"image": self._local} if is_npy else _unpack_npz(self._local, unpacked)
        if self.labels is not None:
            paths["label"] = self.labels
        return {
            name: np.atleast_1d(self._open(name, path)) for name, path in paths.items()
        }

    def _open(self, name: str, path: Path) -> Array:
        """An `.npy`, mapped.

        Raises:
            SourceError: it cannot be.
        """
        title = self.labels if path == self.labels else self.title
        form = f"an array of numbers or texts for {name!r}; of Python objects it would be a pickle, never opened"
        with readable(title, form, ValueError, OverflowError):
            with path.open("rb") as file:
                header = npy.read_header(file.read(1 << 16))
            order: Literal["F", "C"] = "F" if header.in_fortran_order else "C"
            if (
                math.prod(header.shape) * header.dtype.itemsize
                > path.stat().st_size - header.size
            ):
                raise ValueError(
                    f"it is too short for an array of shape {header.shape}"
                )
            return np.memmap(path, header.dtype, "r", header.size, header.shape, order)


def _unpack_npz(path: Path, folder: Path) -> dict[str, Path]:
    # RuntimeError: encrypted, or compressed by what Python does not have.
    errors = (
        EOFError,
        ValueError,
        RuntimeError,
        struct.error,
        zlib.error,
        zipfile.BadZipFile,
    )
    with readable(path, ".npz", *errors), zipfile.ZipFile(path) as archive:
        members = [
            info for info in archive.infolist() if info.filename.endswith(".npy")
        ]
        needed = sum(info.file_size for info in members)
        free = shutil.disk_usage(folder.parent).free
        if needed > free:
            space = f"its arrays take {needed:,} bytes unpacked, and {folder.parent} has {free:,} free"
            raise SourceError(
                f"{path}: {space}. Free some space, or choose another output folder"
            )
        # Each in a folder of its own, by a name that does not lead out of it, and no longer than its `file_size`.
        return {
            info.filename.removesuffix(".npy"): Path(
                archive.extract(info, folder / str(number))
            )
            for number, info in enumerate(members)
        }


class Hdf5Source(NamedArrays):
    """Arrays of equal length in one HDF5 file, wherever in it, as h5py or PyTables write them.

    Images are uint8 or floats, (N, H, W, C) or (N, C, H, W); or
    encoded, each a row of uint8 of its own length (PyTables' VLArray). Chunks may be compressed by what HDF5 itself
    knows, and by more (PyTables' Blosc) where the package hdf5plugin is installed.

    So are MATLAB's files from version 7.3 on, such as NYU Depth v2's: their axes are in the opposite order, so that
    images are (width, height) as HDF5 tells it, and are turned back.
    """

    needs = ("h5py",)
    suffixes = (".h5", ".hdf5", ".hdf", ".mat")
    needs_process = True

    def rows(self, findings: Findings) -> Iterator[Row]:
        import h5py

        with suppress(ImportError):
            import_module("hdf5plugin")
        arrays: dict[str, Any] = {}
        is_matlab = self._local.suffix.lower() == ".mat"

        def add(name: str, item: Any) -> None:
            if (
                isinstance(item, h5py.Dataset) and item.shape and not item.dtype.names
            ):  # tables are none
                if fault := _fault(item):
                    raise SourceError(
                        f"{self._local}: {name!r} {fault}. Write its elements into the file"
                    )
                if not is_matlab:
                    arrays[name] = item
                elif not name.startswith(_MATLAB_CELLS):
                    arrays[name] = _MatlabArray(item)

        form = (
            "a MATLAB file of version 7.3 (`save('-v7.3', …)`)" if is_matlab else "HDF5"
        )
        form += "; if its chunks are compressed by PyTables' Blosc, install hdf5plugin or use `h5repack -f GZIP=1`"
        with (
            readable(self._local, form, Exception),
            h5py.File(self._local, "r") as file,
        ):
            file.visititems(add)  # which follows neither soft nor external links
            yield from self.rows_of(arrays, findings)


class _MatlabArray:
    """An array of a MATLAB file, one row for each index of its last axis, as h5py shows it first.

    Args:
        array: As h5py shows it: its axes are MATLAB's in the opposite order.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.dtype = array.dtype
        self.shape = (array.shape[0], *reversed(array.shape[1:]))
        self.chunks = array.chunks

    def __getitem__(self, rows: slice) -> Array:
        block = self._array[rows]
        turned: Array = block.transpose(0, *range(block.ndim - 1, 0, -1))
        return turned


def _fault(array: Any) -> str:
    """Why an array is not read: its elements are those of other files, or of none; "" if it is."""
    if array.is_virtual or array.external:
        return "takes its elements from other files, which a file of somebody else could choose"
    return unstored(array, array.id.get_storage_size())
