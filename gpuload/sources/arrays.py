"""Arrays of images and their fields: `.npy`, `.npz` and HDF5 (extra `sources`); never a pickle."""

import math
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from gpuload.errors import SourceError
from gpuload.formats import as_levels
from gpuload.headers import npy
from gpuload.sources.columns import USUAL, check_columns, predicted
from gpuload.sources.files import Files, Findings, readable
from gpuload.sources.source import (
    CERTAIN,
    ColumnOptions,
    Names,
    Row,
    Sight,
    Source,
    SourceOptions,
)
from gpuload.types import Array

_CHUNK_BYTES = 32 << 20
_ENCODED_BYTES = 1 << 20  # assumed for an encoded image, whose size only its row tells
_LABEL = ("label", "labels")

# What is not stored in HDF5 reads as zeros: a file of 1 kB can claim any number of images. DEFLATE makes at most 1,032
# bytes of one, other filters more of what is blank; so a small array may be blank, and a large one must hold something.
_ASSUMED_BYTES, _MOST_RATIO = 1 << 30, 10_000


class _NamedArrays(Source):
    """Arrays that can be sliced, each with a row for every sample; images are read chunk by chunk.

    columns: names of arrays by what they hold ("image", "label", "target", "labels", "caption"); without, the array of
        images is the one with a usual name, or the only one with three or four dimensions, and every other of its
        length is taken: whole numbers named as labels are, else floats as a target, text as a caption.
    """

    Options: ClassVar[type[SourceOptions]] = ColumnOptions
    options: ColumnOptions

    def rows_of(
        self, arrays: Mapping[str, Any], findings: Findings
    ) -> Iterator[dict[str, Any]]:
        """Raises SourceError if there is not exactly one array of images, another array differs in length, or labels
        are not classes."""
        check_columns(self.title, list(arrays), self.options.columns)
        image = self._image_name(arrays)
        fields = self._fields(arrays, image)
        used = {image, *(name for names in fields.values() for name in names)}
        if left := [
            f"{name} {tuple(item.shape)}"
            for name, item in arrays.items()
            if name not in used
        ]:
            findings.notes.append(f"arrays that are not packed: {', '.join(left)}")
        images, peak = arrays[image], 255.0
        encoded = _is_encoded(images)
        for start, stop in _steps(images, encoded):
            block = images[start:stop]
            if (
                start == 0
                and block.dtype.kind == "f"
                and float(block.max(initial=0)) <= 1
            ):
                peak = 1.0
            values = {
                role: [arrays[name][start:stop] for name in names]
                for role, names in fields.items()
            }
            values |= (
                {"label": [of.reshape(-1) for of in values["label"]]}
                if "label" in values
                else {}
            )
            for row, pixels in enumerate(block):
                if encoded:
                    pixels = pixels.tobytes()
                elif not self.options.as_stored:
                    pixels = as_levels(pixels, peak)
                found = {
                    role: [_plain(of[row]) for of in every]
                    for role, every in values.items()
                }
                sample = {role: of_role[0] for role, of_role in found.items()}
                if "target" in found:
                    sample["target"] = predicted(self.title, found["target"])
                yield {"image": pixels, **sample}

    def _image_name(self, arrays: Mapping[str, Any]) -> str:
        large = [
            name
            for name, item in arrays.items()
            if _are_images(tuple(item.shape)) or _is_encoded(item)
        ]
        usual = [
            name for name in large if name.rpartition("/")[2].lower() in USUAL["image"]
        ]
        names = [
            name
            for name in self.options.columns.get("image", usual or large)
            if name in large
        ]
        if len(names) != 1:
            has = (
                ", ".join(
                    f"{name} {tuple(item.shape)}" for name, item in arrays.items()
                )
                or "none"
            )
            what = f"which array holds the images, (N, height, width) or (N, height, width, 3)? It has {has}"
            raise SourceError(f"{self.title}: {what}. Give --column image=NAME")
        return names[0]

    def _fields(self, arrays: Mapping[str, Any], image: str) -> dict[str, Names]:
        """The arrays of each field: those that the user named, else every one with the length of the images, and those
        with the name of labels."""
        count = len(arrays[image])
        fields = {
            role: names
            for role, names in self.options.columns.items()
            if role != "image"
        }
        for name, item in () if fields or self.options.images_alone else arrays.items():
            last = name.rpartition("/")[2]
            is_label = last.lower() in (*USUAL["label"], *_LABEL)
            if name == image or (len(item) != count and not is_label):
                continue
            role = (
                "label"
                if is_label and (item.dtype.kind != "f" or last.lower() in _LABEL)
                else last
            )
            if role in fields:
                both = f"{fields[role][0]!r} and {name!r}"
                raise SourceError(
                    f"{self.title}: {both} would both be the field {role!r}. Give --column ROLE=NAME for one"
                )
            fields[role] = (name,)
        for name in (name for names in fields.values() for name in names):
            if len(arrays[name]) != count:
                rows = f"{name!r} has {len(arrays[name]):,} rows, {image!r} {count:,}"
                raise SourceError(
                    f"{self.title}: {rows}. They must agree: give each image one"
                )
        for name in fields.get("label", ()):
            shape, dtype = tuple(arrays[name].shape), arrays[name].dtype
            if math.prod(shape[1:]) != 1 or dtype.kind == "f":
                what = f"{name!r} is {shape} of {dtype}, but a label is one whole number for each image"
                raise SourceError(
                    f"{self.title}: {what}. Convert them, or give --column target={name} to predict numbers"
                )
        return fields


def _are_images(shape: tuple[int, ...]) -> bool:
    """Whether this is the shape of images; (height, width, 3) is that of a single one."""
    return len(shape) == 4 or (
        len(shape) == 3 and not (shape[0] > 4 and shape[2] in (3, 4))
    )


def _is_encoded(array: Any) -> bool:
    """Whether each row is bytes of its own length."""
    return (
        len(array.shape) == 1 and (array.dtype.metadata or {}).get("vlen") == np.uint8
    )


def _steps(images: Any, encoded: bool) -> Iterator[tuple[int, int]]:
    """Start and end of each run of rows that is read at once."""
    row_bytes = (
        _ENCODED_BYTES
        if encoded
        else max(1, math.prod(images.shape[1:]) * images.dtype.itemsize)
    )
    chunk = (getattr(images, "chunks", None) or (1,))[0]
    step = max(1, _CHUNK_BYTES // row_bytes // chunk) * chunk
    return (
        (start, min(start + step, len(images))) for start in range(0, len(images), step)
    )


def _plain(value: Any) -> Any:
    """A value of an array as a Python number, text, list of floats, or array."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f":
        return [float(number) for number in value]
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class ArraysOptions(ColumnOptions):
    """The options of arrays.

    Args:
        labels: an `.npy` of class numbers, for an `.npy` of images.
    """

    labels: str | Path | None = None


class ArraysSource(_NamedArrays):
    """An `.npz` with arrays of images and labels or targets, or an `.npy` of images with one of labels beside it.

    columns: as in HDF5. The arrays of an `.npz` are unpacked into the packer's scratch folder and mapped there. Their
    files are read from a disk alone.
    """

    Options = ArraysOptions
    options: ArraysOptions

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        is_array = files.suffix in (".npy", ".npz")
        return Sight(CERTAIN, f"its name ends in {files.suffix}") if is_array else None

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
        what = f"an array of numbers or texts for {name!r}; of Python objects it would be a pickle, never opened"
        with readable(title, what, ValueError, OverflowError):
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
        needed, free = (
            sum(info.file_size for info in members),
            shutil.disk_usage(folder.parent).free,
        )
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


class Hdf5Source(_NamedArrays):
    """Arrays of equal length in one HDF5 file, wherever in it, as h5py or PyTables write them.

    Images are uint8 or floats, in 0..1 or 0..255 by the largest of the first chunk, (N, H, W, C) or (N, C, H, W); or
    encoded, each a row of uint8 of its own length (PyTables' VLArray). Chunks may be compressed by what HDF5 itself
    knows, and by more (PyTables' Blosc) where the package hdf5plugin is installed.
    """

    needs = ("h5py",)
    needs_process = True

    @classmethod
    def recognise(cls, files: Files) -> Sight | None:
        is_hdf5 = files.suffix in (".h5", ".hdf5", ".hdf")
        return Sight(CERTAIN, f"its name ends in {files.suffix}") if is_hdf5 else None

    def rows(self, findings: Findings) -> Iterator[Row]:
        import h5py

        with suppress(ImportError):
            import_module("hdf5plugin")
        arrays: dict[str, Any] = {}

        def add(name: str, item: Any) -> None:
            if (
                isinstance(item, h5py.Dataset) and item.shape and not item.dtype.names
            ):  # tables are none
                if fault := _fault(item):
                    raise SourceError(
                        f"{self._local}: {name!r} {fault}. Write its elements into the file"
                    )
                arrays[name] = item

        what = "HDF5; if its chunks are compressed by PyTables' Blosc, install hdf5plugin or use `h5repack -f GZIP=1`"
        with (
            readable(self._local, what, Exception),
            h5py.File(self._local, "r") as file,
        ):
            file.visititems(add)  # which follows neither soft nor external links
            yield from self.rows_of(arrays, findings)


def _fault(array: Any) -> str:
    """Why an array is not read: its elements are those of other files, or of none; "" if it is."""
    if array.is_virtual or array.external:
        return "takes its elements from other files, which a file of somebody else could choose"
    stored = array.id.get_storage_size()
    needed = math.prod(map(int, array.shape)) * array.dtype.itemsize
    if needed > _ASSUMED_BYTES and needed > _MOST_RATIO * stored:
        return f"claims {needed:,} bytes, of which the file stores {stored:,}"
    return ""
