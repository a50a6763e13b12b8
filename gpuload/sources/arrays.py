"""`.npy`, `.npz` and MNIST's idx: arrays of images and labels, memory-mapped; never a pickle."""

import gzip
import math
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpuload.counted import counted
from gpuload.errors import SourceError, some_of
from gpuload.headers import npy
from gpuload.sources.at_path import LocalSource
from gpuload.sources.files import Files, Findings, Ref
from gpuload.sources.listing import SPLIT, split_called, without_split
from gpuload.sources.local_folder import Folder
from gpuload.sources.named_arrays import NamedArrays, is_in_unit_range
from gpuload.sources.rows import Names, Row, image_array
from gpuload.types import Array

_IDX = re.compile(r".*[-.]idx[1-4]-ubyte(\.gz)?")
_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # by the third byte of a file


class ArraysSource(LocalSource):
    """An `.npz` with arrays of images and labels or targets, an `.npy` of images with one of labels beside it, or a
    folder of MNIST's idx files, plain or as .gz.

    labels: an `.npy` of class numbers, for an `.npy` of images. columns: as in HDF5. Compressed arrays are unpacked
    into the packer's scratch folder and mapped there. Where all names of arrays are those of splits, as Keras has them
    (x_train, y_train, x_test, y_test), these are the splits; so are MNIST's train and t10k.
    """

    takes_labels = True
    takes_columns = True

    def __init__(
        self, path: str | Path, labels: str | Path | None = None, columns: Mapping[str, Names] | None = None
    ) -> None:
        super().__init__(path, columns)
        self.labels = None if labels is None else Path(labels)
        self._paths: dict[str, dict[str, Path]] = {}  # of the arrays of each split, or of "", by their names
        self._image = ""
        self._peak: float | None = 255.0

    @classmethod
    def fits(cls, files: Files) -> bool:
        return isinstance(files, Folder) and bool(_idx_files(files.names()))

    def prepare(self, scratch: Path) -> None:
        super().prepare(scratch)
        paths = self._unpacked(scratch)
        if self.labels is not None:
            if self.labels.suffix.lower() != ".npy":
                raise SourceError(
                    f"{self.labels}: labels for an .npy of images are an .npy, too, a class number for each. Save one"
                )
            paths["label"] = self.labels
        self._paths = {} if self.columns else by_split(paths)
        self._paths = self._paths or {"": paths}
        arrays = self._arrays()
        if self.labels is not None and len(arrays["label"]) != len(arrays["image"]):
            labels, images = counted(len(arrays["label"]), "label"), counted(len(arrays["image"]), "image")
            raise SourceError(f"{self.labels}: holds {labels}, but {self.path} holds {images}. Give each image one")
        self._image = NamedArrays(self.title, arrays, self.columns, self.as_stored).image
        self._peak = None if self.as_stored else 1.0 if is_in_unit_range(arrays[self._image][:64]) else 255.0

    def _unpacked(self, scratch: Path) -> dict[str, Path]:
        """An `.npy` for each array."""
        names = _idx_files([path.name for path in self._local.iterdir()]) if self._local.is_dir() else []
        if not names and not self._local.is_file():
            what = "is a folder" if self._local.is_dir() else "no such file"
            raise SourceError(f"{self.path}: {what}. Give an .npy or .npz")
        if self._local.suffix.lower() == ".npy" and not names:
            return {"image": self._local}
        return _unpack_idx(self._local, names, scratch) if names else _unpack_npz(self._local, scratch)

    def _arrays(self, split: str | None = None) -> dict[str, Any]:
        """Those of a split, by default the first, by name; not those that hold a single number."""
        first, *_ = self._paths
        arrays = {}
        for name, path in self._paths[first if split is None else split].items():
            arrays[name] = _open_array(str(self.labels) if path == self.labels else self.title, name, path)
        if self.labels is not None and not arrays["label"].ndim:
            raise SourceError(f"{self.labels}: holds a single number. Give an array with a class number for each image")
        return {name: array for name, array in arrays.items() if array.ndim}

    def rows(self, findings: Findings) -> Iterator[Row]:
        findings.origin = "by the names of its arrays" if self.own_splits and "" not in self._paths else ""
        first = self._arrays()
        for split in self._paths:
            arrays, columns = self._arrays(split), self.columns
            for name, array in arrays.items():
                if (array.shape[1:], array.dtype.kind) != (first[name].shape[1:], first[name].dtype.kind):
                    raise SourceError(
                        f"{self.title}: {name!r} is {array.shape} of {array.dtype} in {split!r}, elsewhere "
                        f"{first[name].shape} of {first[name].dtype}. Arrays of two splits of one set differ in their "
                        "lengths only: save them so"
                    )
            if self.images_alone:
                arrays, columns = {self._image: arrays[self._image]}, {}
            title = f"{self.title} ({split})" if split else self.title
            named = NamedArrays(title, arrays, columns, self.as_stored)
            for sample in named.samples(
                findings if split == next(iter(self._paths)) else Findings(), partial(_refer, split)
            ):
                yield {**sample, SPLIT: split} if findings.origin else sample

    def read(self, address: str) -> Array:
        split, row, name = address.split(":", 2)
        array: Array = _open_array(self.title, name, self._paths[split][name])[int(row)]
        return image_array(array, self._peak) if name == self._image else array


def _refer(split: str, name: str, row: int, value: Array) -> Ref:
    return Ref("", value.nbytes, f"{split}:{row}:{name}", value.dtype.str)


def by_split(arrays: Mapping[str, Path]) -> dict[str, dict[str, Path]]:
    """The arrays of each split, train, val and test, by their names without it, such as "x" of "x_train".

    Nothing unless every array is named after one split, and each split has the same arrays.
    """
    found = {(split, whole): path for name, path in arrays.items() for whole, split in [without_split(name)]}
    splits = [split for split in ("train", "val", "test") if any(split == one for one, _ in found)]
    wholes = dict.fromkeys(whole for _, whole in found)
    if (
        len(splits) < 2
        or len(found) < len(arrays)
        or set(found) != {(split, one) for split in splits for one in wholes}
    ):
        return {}
    return {split: {whole: found[split, whole] for whole in wholes} for split in splits}


def _open_array(title: str, name: str, path: Path) -> Array:
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


def _unpack_npz(path: Path, scratch: Path) -> dict[str, Path]:
    files = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            needed, free = sum(info.file_size for info in members), shutil.disk_usage(scratch).free
            if needed > free:
                raise SourceError(
                    f"{path}: its arrays take {needed:,} bytes unpacked, and {scratch} has {free:,} free. "
                    "Free some space, or choose another output folder"
                )
            for number, info in enumerate(members):
                files[info.filename.removesuffix(".npy")] = target = scratch / f"array-{number}.npy"
                with archive.open(info) as packed, target.open("wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)  # no more than its `file_size`
    # RuntimeError: encrypted, or compressed by what Python does not have.
    except (OSError, EOFError, ValueError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile) as error:
        raise SourceError(f"{path}: cannot be read as .npz ({error}). Save it again") from None
    return files


def _idx_files(names: Sequence[str]) -> list[str]:
    """Those of these files that are called as MNIST's are."""
    return [name for name in names if _IDX.fullmatch(name)]


def _unpack_idx(folder: Path, names: Sequence[str], scratch: Path) -> dict[str, Path]:
    """An `.npy` for each file, by "images" or "labels", and its split where there are several: images_train.

    Raises:
        SourceError: a file is damaged, or there are several sets.
    """
    found: dict[str, Path] = {}
    for number, name in enumerate(sorted(names)):
        target = scratch / f"array-{number}.npy"
        role = "labels" if _unpack_one_idx(folder / name, target) == 1 else "images"
        words = ["test" if word == "t10k" else split_called(word) for word in re.split("[^a-z0-9]+", name.lower())]
        whole = f"{role}_{''.join(words)}"
        if whole in found:
            raise SourceError(f"{folder}: holds several sets ({some_of(sorted(names))}). Move each into its own folder")
        found[whole] = target
    if len({name.partition("_")[2] for name in found}) == 1:
        return {name.partition("_")[0]: path for name, path in found.items()}
    return found


def _unpack_one_idx(path: Path, target: Path) -> int:
    """Writes one file as an `.npy`; returns the number of its dimensions."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file, target.open("wb") as out:
            zero, code, dimensions = struct.unpack(">HBB", file.read(4))
            if zero or code not in _IDX_TYPES or dimensions not in (1, 3, 4):
                raise ValueError("its header is not that of an idx file")
            dtype, shape = _IDX_TYPES[code], struct.unpack(f">{dimensions}i", file.read(4 * dimensions))
            np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
            left = math.prod(shape) * np.dtype(dtype).itemsize + 1  # one more, which must not be there
            while left > 0 and (part := file.read(min(left, 1 << 20))):
                left -= out.write(part)
            if left != 1:
                raise ValueError(f"it holds {'more' if left < 1 else 'less'} than an array of shape {shape}")
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise SourceError(f"{path}: cannot be read as an idx file ({error}). Copy it again") from None
    return len(shape)
