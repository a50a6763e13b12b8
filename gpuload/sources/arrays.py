"""Named arrays of images and their fields; those of `.npy`, `.npz` and MNIST's idx, memory-mapped; never a pickle."""

import gzip
import math
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpuload.counted import counted
from gpuload.errors import SourceError, some_of
from gpuload.headers import npy
from gpuload.sources.at_path import LocalSource
from gpuload.sources.columns import USUAL, check_columns
from gpuload.sources.files import Files, Findings, Ref
from gpuload.sources.listing import SPLIT, split_called, without_split
from gpuload.sources.local_folder import Folder
from gpuload.sources.rows import Names, Row, image_array
from gpuload.types import Array

_CHUNK_BYTES = 32 << 20
_ENCODED_BYTES = 1 << 20  # assumed for an encoded image, whose size only its row tells
_LABEL = ("label", "labels")

_IDX = re.compile(r".*[-.]idx[1-4]-ubyte(\.gz)?")
_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}  # by the third byte of a file


class NamedArrays:
    """Arrays that can be sliced, each with a row for every sample.

    columns: names of arrays by what they hold, where they are not the usual ones. as_stored: see `Source`.
    image: name of the array of images. others: names of the arrays for each field.

    Raises:
        SourceError: there is not exactly one array of images, another array differs in length, or labels are not
        classes.
    """

    def __init__(self, title: str, arrays: Mapping[str, Any], columns: Mapping[str, Names], as_stored: bool) -> None:
        self._title, self._arrays, self._columns, self._as_stored = title, arrays, columns, as_stored
        check_columns(title, list(arrays), columns, "array")
        self.image = self._image_name()
        self.others = self._other_names()

    def samples(
        self, findings: Findings, refer: Callable[[str, int, Array], Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """A sample for each row; images are read chunk by chunk.

        refer: makes the `Ref` for a row of images, or of another array with more than a number or text a row, from the
        array's name, the row's number and its value; None: samples hold the rows themselves.
        """
        used = {self.image, *(name for names in self.others.values() for name in names)}
        if left := [f"{name} {tuple(item.shape)}" for name, item in self._arrays.items() if name not in used]:
            findings.notes.append(f"arrays that are not packed: {', '.join(left)}")
        images, peak = self._arrays[self.image], None if self._as_stored else 255.0
        encoded = _is_encoded(images)
        for start, stop in _steps(images, encoded):
            block = images[start:stop]
            if start == 0 and not self._as_stored and is_in_unit_range(block):
                peak = 1.0
            rows = {role: [self._arrays[name][start:stop] for name in names] for role, names in self.others.items()}
            for place in range(stop - start):
                sample = {role: _joined(role, [values[place] for values in of]) for role, of in rows.items()}
                if refer is None:
                    yield {"image": block[place].tobytes() if encoded else image_array(block[place], peak), **sample}
                    continue
                for role, value in sample.items():
                    if isinstance(value, np.ndarray):
                        sample[role] = refer(self.others[role][0], start + place, value)
                yield {"image": refer(self.image, start + place, block[place]), **sample}

    def _image_name(self) -> str:
        arrays = self._arrays
        large = [name for name, item in arrays.items() if len(item.shape) in (3, 4) or _is_encoded(item)]
        usual = [name for name in large if name.rpartition("/")[2].lower() in USUAL["image"]]
        names = self._columns.get("image", usual or large)
        if len(names) != 1:
            shapes = ", ".join(f"{name} {tuple(item.shape)}" for name, item in arrays.items())
            raise SourceError(
                f"{self._title}: which array holds the images? It has {shapes or 'none'}; images are (N, height, "
                "width) or (N, height, width, 3). Give --column image=NAME, and --column label=NAME for their classes"
            )
        shape = tuple(arrays[names[0]].shape)
        if len(shape) == 3 and shape[0] > 4 and shape[2] in (3, 4):
            raise SourceError(
                f"{self._title}: {names[0]!r} is {shape}, a single image and not many. Give an array of (N, height, "
                "width, 3)"
            )
        return names[0]

    def _other_names(self) -> dict[str, Names]:
        count = len(self._arrays[self.image])
        others = {role: names for role, names in self._columns.items() if role != "image"} or self._by_name(count)
        for name in (name for names in others.values() for name in names):
            if len(self._arrays[name]) != count:
                rows = counted(len(self._arrays[name]), "row")
                raise SourceError(
                    f"{self._title}: {name!r} has {rows}, {self.image!r} {count:,}. They must agree: give each image "
                    "one"
                )
        for name in others.get("label", ()):
            self._check_labels(name)
        return others

    def _by_name(self, count: int) -> dict[str, Names]:
        """Every array with the length of the images, and those with the name of labels."""
        others: dict[str, Names] = {}
        for name, item in self._arrays.items():
            last = name.rpartition("/")[2]
            is_label = last.lower() in (*USUAL["label"], *_LABEL)
            if name == self.image or (len(item) != count and not is_label):
                continue
            role = "label" if is_label and (item.dtype.kind != "f" or last.lower() in _LABEL) else last
            if role in others:
                which = "label" if role == "label" else "ROLE"
                raise SourceError(
                    f"{self._title}: {others[role][0]!r} and {name!r} would both be the field {role!r}. Give --column "
                    f"{which}=NAME for those that are wanted"
                )
            others[role] = (name,)
        return others

    def _check_labels(self, name: str) -> None:
        """Raises SourceError if an array does not hold one class for each sample."""
        labels = self._arrays[name]
        shape = tuple(labels.shape)
        if len(shape) > 1 and int(np.prod(shape[1:])) != 1:
            raise SourceError(
                f"{self._title}: {name!r} is {shape}, but a label is one number for each image. If these are one-hot, "
                f"save labels.argmax(1); numbers to be predicted are floats, with --column target={name}"
            )
        if labels.dtype.kind == "f":
            raise SourceError(
                f"{self._title}: {name!r} holds floats, but classes are whole numbers. Save labels.astype(int), or "
                f"give --column target={name} for numbers to be predicted"
            )


def _steps(images: Any, encoded: bool) -> Iterator[tuple[int, int]]:
    """Start and end of each run of rows that is read at once."""
    row_bytes = _ENCODED_BYTES if encoded else max(1, int(np.prod(images.shape[1:])) * images.dtype.itemsize)
    chunk = (getattr(images, "chunks", None) or (1,))[0]
    step = max(1, _CHUNK_BYTES // row_bytes // chunk) * chunk
    return ((start, min(start + step, len(images))) for start in range(0, len(images), step))


def _joined(role: str, values: list[Any]) -> Any:
    """The value of a field out of a row of each of its arrays."""
    if role == "label" and isinstance(values[0], np.ndarray):
        return plain(values[0].reshape(-1)[0])
    return plain(values[0]) if len(values) == 1 else [float(plain(value)) for value in values]


def plain(value: Any) -> Any:
    """A value of an array as a Python number, text, list of floats, or array."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == "f":
        return [float(number) for number in value]
    return value.item() if isinstance(value, np.generic) else value


def is_in_unit_range(images: Array) -> bool:
    """Whether these are floats of at most 1, so that 1 is the brightest."""
    return images.dtype.kind == "f" and float(images.max(initial=0)) <= 1


def _is_encoded(array: Any) -> bool:
    """Whether each row is bytes of its own length."""
    return len(array.shape) == 1 and (array.dtype.metadata or {}).get("vlen") == np.uint8


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
