"""HDF5: an array of images and arrays of labels or targets, read chunk by chunk (extra `sources`)."""

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from gpuload.errors import SourceError
from gpuload.sources.named_arrays import array_samples
from gpuload.sources.samples import FileSource
from gpuload.sources.spool import Sample


class Hdf5Source(FileSource):
    """Arrays of equal length in one file, wherever in it, as h5py or PyTables write them; columns of tables are arrays.

    columns: names of arrays by what they hold ("image", "label", "target", "labels", "caption"); without, the array of
        images is the one with a usual name, or the only one with three or four dimensions, and every other of its
        length is taken: whole numbers named as labels are, else floats as a target, text as a caption.

    Images are uint8 or floats, in 0..1 or 0..255 by the largest of the first chunk, (N, H, W, C) or (N, C, H, W); or
    encoded, each a row of uint8 of its own length (PyTables' VLArray). Chunks may be compressed by what HDF5 itself
    knows, and by more (PyTables' Blosc) where the package hdf5plugin is installed.
    """

    needs = ("h5py",)

    def samples(self) -> Iterator[Sample]:
        import h5py

        with suppress(ImportError):
            import_module("hdf5plugin")
        if self.path.is_dir():
            raise SourceError(f"{self.path}: is a folder, not an HDF5 file. Give the file")
        try:
            file = h5py.File(self.path, "r")
        except OSError as error:
            raise SourceError(
                f"{self.path}: cannot be read as HDF5 ({' '.join(str(error).split())}). Give an .h5 file"
            ) from None
        with file:
            arrays: dict[str, Any] = {}

            def add(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and item.shape:
                    names = item.dtype.names
                    arrays.update({f"{name}/{n}": _Column(item, n) for n in names} if names else {name: item})

            file.visititems(add)
            self._notes = notes = list[str]()
            try:
                yield from array_samples(self.title, arrays, self.columns, notes)
            except OSError as error:
                raise SourceError(
                    f"{self.path}: cannot be read ({error}). If its chunks are compressed by PyTables' Blosc: "
                    "pip install hdf5plugin; else copy it with `h5repack -f GZIP=1`"
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
