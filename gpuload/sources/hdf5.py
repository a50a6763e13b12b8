"""HDF5: an array of images and arrays of labels or targets, read chunk by chunk (extra `sources`)."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpuload.errors import MissingPackageError, SourceError
from gpuload.sources.columns import USUAL, find_column
from gpuload.sources.samples import FileSource, Sample, image_array

_CHUNK_BYTES = 32 << 20


class Hdf5Source(FileSource):
    """Arrays of equal length in one file, wherever in it, as h5py or PyTables write them.

    columns: names of arrays by what they hold ("image", "label", "target", "labels", "caption"); without, the array of
        images is the one with a usual name, or the only one with three or four dimensions, and every other of its
        length is taken: whole numbers named as labels are, else floats as a target, text as a caption.

    Images are uint8 or floats, in 0..1 or 0..255 by the largest of the first chunk, (N, H, W, C) or (N, C, H, W).
    """

    def samples(self) -> Iterator[Sample]:
        try:
            import h5py
        except ImportError:
            raise MissingPackageError(
                "HDF5 needs h5py, which is not installed: pip install 'gpuload[sources]'"
            ) from None
        try:
            file = h5py.File(self.path, "r")
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read as HDF5 ({error})") from None
        with file:
            arrays: dict[str, Any] = {}
            file.visititems(lambda name, item: arrays.update({name: item}) if isinstance(item, h5py.Dataset) else None)
            arrays = {name: item for name, item in arrays.items() if item.shape and item.dtype.names is None}
            yield from array_samples(self.title, arrays, self.columns)


def array_samples(title: str, arrays: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]]) -> Iterator[Sample]:
    """A sample for each row of arrays that can be sliced; whole chunks of the images are read, one after the other.

    Raises:
        SourceError: there is no array of images, or the others are of another length.
    """
    name = image_name(title, arrays, columns)
    images = arrays[name]
    count = len(images)
    others = other_names(title, arrays, columns, name, count)
    row_bytes = max(1, int(np.prod(images.shape[1:])) * images.dtype.itemsize)
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
            sample: dict[str, Any] = {"image": image_array(block[place], peak)}
            for role, found in rows.items():
                parts = [plain(values[place]) for values in found]
                sample[role] = parts[0] if len(parts) == 1 else [float(part) for part in parts]
            yield sample


def image_name(title: str, arrays: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]]) -> str:
    if "image" in columns:
        return find_column(title, list(arrays), "image", columns)[0]
    large = [name for name, item in arrays.items() if len(item.shape) in (3, 4)]
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
