"""HDF5: an array of images and arrays of labels or targets, read chunk by chunk (extra `sources`)."""

import math
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from gpuload.errors import GpuloadError, SourceError
from gpuload.sources.at_path import LocalSource
from gpuload.sources.files import Findings
from gpuload.sources.named_arrays import NamedArrays
from gpuload.sources.rows import Row

# What is not stored reads as zeros: a file of 1 kB can claim any number of images. DEFLATE makes at most 1,032 bytes of
# one, other filters more of what is blank; so a small array may be blank, and a large one must hold something.
_ASSUMED_BYTES, _MOST_RATIO = 1 << 30, 10_000


class Hdf5Source(LocalSource):
    """Arrays of equal length in one file, wherever in it, as h5py or PyTables write them.

    columns: names of arrays by what they hold ("image", "label", "target", "labels", "caption"); without, the array of
        images is the one with a usual name, or the only one with three or four dimensions, and every other of its
        length is taken: whole numbers named as labels are, else floats as a target, text as a caption.

    Images are uint8 or floats, in 0..1 or 0..255 by the largest of the first chunk, (N, H, W, C) or (N, C, H, W); or
    encoded, each a row of uint8 of its own length (PyTables' VLArray). Chunks may be compressed by what HDF5 itself
    knows, and by more (PyTables' Blosc) where the package hdf5plugin is installed.
    """

    needs = ("h5py",)
    spools = True
    takes_columns = True
    needs_process = True

    def rows(self, findings: Findings) -> Iterator[Row]:
        import h5py

        with suppress(ImportError):
            import_module("hdf5plugin")
        if self._local.is_dir():
            raise SourceError(f"{self._local}: is a folder, not an HDF5 file. Give the file")
        try:
            file = h5py.File(self._local, "r")
        except OSError as error:
            reason = " ".join(str(error).split())
            raise SourceError(f"{self._local}: cannot be read as HDF5 ({reason}). Give an .h5 file") from None
        with file:
            arrays: dict[str, Any] = {}

            def add(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and item.shape and not item.dtype.names:  # tables are none
                    if fault := _fault(item):
                        raise SourceError(f"{self._local}: {name!r} {fault}. Write its elements into the file")
                    arrays[name] = item

            try:
                file.visititems(add)  # which follows neither soft nor external links
                yield from NamedArrays(self.title, arrays, self.columns, self.as_stored).samples(findings)
            except GpuloadError:
                raise
            except Exception as error:  # h5py raises many kinds for a damaged file
                reason = " ".join(str(error).split()) or type(error).__name__
                raise SourceError(
                    f"{self._local}: cannot be read ({reason}). If its chunks are compressed by PyTables' Blosc: pip "
                    "install hdf5plugin; else copy it with `h5repack -f GZIP=1`"
                ) from None


def _fault(array: Any) -> str:
    """Why an array is not read: its elements are those of other files, or of none; "" if it is."""
    if array.is_virtual or array.external:
        return "takes its elements from other files, which a file of somebody else could choose"
    stored = array.id.get_storage_size()
    needed = math.prod(map(int, array.shape)) * array.dtype.itemsize
    if needed > _ASSUMED_BYTES and needed > _MOST_RATIO * stored:
        return f"claims {needed:,} bytes, of which the file stores {stored:,}"
    return ""
