"""HDF5: an array of images and arrays of labels or targets, read chunk by chunk (extra `sources`)."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from gpuload.errors import MissingPackageError, SourceError
from gpuload.sources.columns import USUAL, find_column
from gpuload.sources.samples import FileSource, Sample, image_array

_CHUNK_BYTES = 32 << 20
_ENCODED_BYTES = 1 << 20  # what is reckoned with for an encoded image, whose size only its row tells


class Hdf5Source(FileSource):
    """Arrays of equal length in one file, wherever in it, as h5py or PyTables write them; columns of tables are arrays.

    columns: names of arrays by what they hold ("image", "label", "target", "labels", "caption"); without, the array of
        images is the one with a usual name, or the only one with three or four dimensions, and every other of its
        length is taken: whole numbers named as labels are, else floats as a target, text as a caption.

    Images are uint8 or floats, in 0..1 or 0..255 by the largest of the first chunk, (N, H, W, C) or (N, C, H, W); or
    encoded, each a row of uint8 of its own length (PyTables' VLArray). Chunks may be compressed by what HDF5 itself
    knows, and by more (PyTables' Blosc) where the package hdf5plugin is installed.
    """

    def samples(self) -> Iterator[Sample]:
        try:
            import h5py
        except ImportError:
            raise MissingPackageError(
                "HDF5 needs h5py, which is not installed: pip install 'gpuload[sources]'"
            ) from None
        with suppress(ImportError):
            import_module("hdf5plugin")
        try:
            file = h5py.File(self.path, "r")
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read as HDF5 ({error})") from None
        with file:
            arrays: dict[str, Any] = {}

            def add(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and item.shape:
                    names = item.dtype.names
                    arrays.update({f"{name}/{n}": _Column(item, n) for n in names} if names else {name: item})

            file.visititems(add)
            try:
                yield from array_samples(self.title, arrays, self.columns)
            except OSError as error:
                raise SourceError(
                    f"{self.path}: cannot be read ({error}). If its chunks are compressed by PyTables' Blosc: "
                    "pip install hdf5plugin; else copy it anew by `h5repack -f GZIP=1`"
                ) from None


class _Column:
    """A column of a table, as an array that can be sliced."""

    def __init__(self, table: Any, name: str) -> None:
        self._rows = table.fields(name)
        column = table.dtype[name]
        self.shape = (len(table), *column.shape)
        self.dtype = column.base
        self.chunks = table.chunks

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Any:
        return self._rows[rows]


def _is_encoded(array: Any) -> bool:
    """Whether each row is bytes of its own length."""
    return len(array.shape) == 1 and (array.dtype.metadata or {}).get("vlen") == np.uint8


def array_samples(title: str, arrays: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]]) -> Iterator[Sample]:
    """A sample for each row of arrays that can be sliced; whole chunks of the images are read, one after the other.

    Raises:
        SourceError: there is no array of images, or the others are of another length.
    """
    name = image_name(title, arrays, columns)
    images = arrays[name]
    count = len(images)
    others = other_names(title, arrays, columns, name, count)
    encoded = _is_encoded(images)
    row_bytes = _ENCODED_BYTES if encoded else max(1, int(np.prod(images.shape[1:])) * images.dtype.itemsize)
    chunk = (getattr(images, "chunks", None) or (1,))[0]
    step = max(1, _CHUNK_BYTES // row_bytes // chunk) * chunk
    peak = 255.0
    for start in range(0, count, step):
        stop = min(start + step, count)
        block = images[start:stop]
        if start == 0 and block.dtype.kind == "f" and float(block.max(initial=0)) <= 1:
            peak = 1.0
        rows = {role: [arrays[column][start:stop] for column in found] for role, found in others.items()}
        for place in range(stop - start):
            sample: dict[str, Any] = {"image": block[place].tobytes() if encoded else image_array(block[place], peak)}
            for role, found in rows.items():
                parts = [plain(values[place]) for values in found]
                sample[role] = parts[0] if len(parts) == 1 else [float(part) for part in parts]
            yield sample


def image_name(title: str, arrays: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]]) -> str:
    if "image" in columns:
        return find_column(title, list(arrays), "image", columns)[0]
    large = [name for name, item in arrays.items() if len(item.shape) in (3, 4) or _is_encoded(item)]
    usual = [name for name in large if name.rpartition("/")[2].lower() in USUAL["image"]]
    if len(usual or large) != 1:
        shapes = ", ".join(f"{name} {tuple(item.shape)}" for name, item in arrays.items())
        raise SourceError(f"{title}: which array holds the images? It has {shapes or 'none'}. Give --column image=NAME")
    return (usual or large)[0]


def other_names(
    title: str, arrays: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]], image: str, count: int
) -> dict[str, tuple[str, ...]]:
    """Names of the arrays for each field."""
    found: dict[str, tuple[str, ...]] = {}
    for role in columns:
        if role != "image":
            found[role] = find_column(title, list(arrays), role, columns)
    if not found:
        for name, item in arrays.items():
            last = name.rpartition("/")[2]
            if name == image or len(item) != count:
                continue
            whole = item.dtype.kind in "iu" and len(item.shape) == 1
            found["label" if whole and last.lower() in (*USUAL["label"], "labels") else last] = (name,)
    wrong = [name for names in found.values() for name in names if len(arrays[name]) != count]
    if wrong:
        raise SourceError(
            f"{title}: {wrong[0]!r} has {len(arrays[wrong[0]]):,} rows, {image!r} {count:,}. They must agree"
        )
    return found


def plain(value: Any) -> Any:
    """A value of an array as a Python number, text, list of floats, or array."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f":
        return [float(number) for number in value]
    return value.item() if isinstance(value, np.generic) else value
