"""`.npy` and `.npz`: arrays of images and labels, memory-mapped; never a pickle."""

import shutil
import struct
import zipfile
import zlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.counted import counted
from gpuload.errors import SourceError
from gpuload.fields.field import Field
from gpuload.sources.field_columns import FieldColumns
from gpuload.sources.listing import Listing, Source, listing_schema
from gpuload.sources.named_arrays import image_array, image_name, notes_of_unused, other_names
from gpuload.sources.split_arrays import join_arrays, open_array, parts_of
from gpuload.sources.splits import COLUMNS, SPLIT, SourceSplits, splits_of_column
from gpuload.types import Array


class ArraysSource(Source):
    """An `.npz` with arrays of images and labels or targets, or an `.npy` of images with one of labels beside it.

    labels: an `.npy` of class numbers, for an `.npy` of images. columns: as in HDF5. An `.npz` is a zip, so its arrays
    are unpacked into the packer's scratch folder, once, and mapped there. Where all their names are those of splits, as
    Keras has them (x_train, y_train, x_test, y_test), these are the splits.
    """

    def __init__(
        self,
        path: str | Path,
        labels: str | Path | None = None,
        columns: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.path = Path(path)
        self.labels = None if labels is None else Path(labels)
        self.columns = dict(columns or {})
        self._files: dict[str, Path] = {}
        self._image = ""
        self._peak: float | None = 255.0
        self._splits: list[tuple[str, int]] = []  # and their lengths, where the names of arrays tell them

    def prepare(self, scratch: Path) -> None:
        if not self.path.is_file():
            raise SourceError(
                f"{self.path}: {'is a folder' if self.path.is_dir() else 'no such file'}. Give an .npy or .npz"
            )
        files = {"image": self.path} if self.path.suffix.lower() == ".npy" else self._unpack(scratch)
        if self.labels is not None:
            if self.labels.suffix.lower() != ".npy":
                raise SourceError(
                    f"{self.labels}: labels for an .npy of images are an .npy, too, a class number for each. Save one"
                )
            files["label"] = self.labels
        self._files = files
        arrays = self._arrays()
        self._image = image_name(str(self.path), arrays, self.columns)
        images = arrays[self._image]
        if self.as_stored:
            self._peak = None
        elif images.dtype.kind == "f" and float(images[:64].max(initial=0)) <= 1:
            self._peak = 1.0

    def _unpack(self, scratch: Path) -> dict[str, Path]:
        files = {}
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
                needed, free = sum(info.file_size for info in members), shutil.disk_usage(scratch).free
                if needed > free:
                    raise SourceError(
                        f"{self.path}: its arrays take {needed:,} bytes unpacked, and {scratch} has {free:,} free. "
                        "Free some space, or choose another output folder"
                    )
                for number, info in enumerate(members):
                    files[info.filename.removesuffix(".npy")] = path = scratch / f"array-{number}.npy"
                    with archive.open(info) as packed, path.open("wb") as file:
                        shutil.copyfileobj(packed, file, 1 << 20)  # no more than its `file_size`
        # RuntimeError: encrypted, or compressed by what Python does not have.
        except (OSError, EOFError, ValueError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile) as error:
            raise SourceError(f"{self.path}: cannot be read as .npz ({error}). Save it again") from None
        return files if self.columns else self._join(files, scratch)

    def _join(self, files: dict[str, Path], scratch: Path) -> dict[str, Path]:
        """One array out of those of each split, such as "x" out of "x_train" and "x_test"; else the same arrays."""
        parts, splits = parts_of(list(files))
        lengths: dict[str, list[int]] = {}
        joined = {whole: scratch / f"joined-{number}.npy" for number, whole in enumerate(parts)}
        for whole, names in parts.items():
            lengths[whole] = join_arrays(str(self.path), {name: files[name] for name in names}, joined[whole])
        for (first, one), (other, two) in pairwise(lengths.items()):
            if one != two:
                raise SourceError(
                    f"{self.path}: {parts[first]} have {one} rows, {parts[other]} have {two}. Give each image one"
                )
        self._splits = list(zip(splits, next(iter(lengths.values()), []), strict=True))
        return joined or files

    def _open(self, name: str) -> Array:
        path = self._files[name]
        return open_array(str(path if path in (self.path, self.labels) else self.path), name, path)

    def _arrays(self) -> dict[str, Array]:
        """All of them by name, but for single numbers."""
        arrays = {name: self._open(name) for name in self._files}
        if self.labels is not None and not arrays["label"].ndim:
            raise SourceError(f"{self.labels}: holds a single number. Give an array with a class number for each image")
        return {name: array for name, array in arrays.items() if array.ndim}

    def list_samples(self) -> Listing:
        """A sample a row.

        Raises:
            SourceError: there is no array of images, or the arrays are of unequal lengths.
        """
        arrays: dict[str, Any] = self._arrays()
        images = arrays[self._image]
        title = str(self.path)
        if self.labels is not None and len(arrays["label"]) != len(images):
            raise SourceError(
                f"{self.labels}: holds {counted(len(arrays['label']), 'label')}, but {title} holds "
                f"{counted(len(images), 'image')}. "
                "Give each image one"
            )
        names = [f"{number:08d}." for number in range(len(images))]
        found = FieldColumns(title)
        others = {} if self.images_alone else other_names(title, arrays, self.columns, self._image, len(images))
        own = self._own_splits()
        for role, columns in others.items():
            kind, values = _values([arrays[name] for name in columns], role)
            if (
                self.own_splits
                and own is None
                and (SPLIT in self.columns if role == SPLIT else kind == "caption" and role in COLUMNS)
            ):
                own = splits_of_column(title, columns[0], values or arrays[columns[0]].tolist(), SPLIT in self.columns)
                if own is not None:
                    continue
            if kind == "array":
                found.add(kind, role, [columns[0]] * len(names), detail=arrays[columns[0]].dtype.str)
            else:
                found.add(kind, role, values)
        sizes = np.full(len(names), images[:1].nbytes, np.int64)
        table = pa.table([names, sizes, *found.columns], schema=listing_schema(tuple(found.fields)))
        notes = tuple(notes_of_unused(arrays, self._image, others))
        return Listing(table, tuple(found.fields), found.classes, (), notes, own)

    def _own_splits(self) -> SourceSplits | None:
        values = [split for split, length in self._splits for _ in range(length)] if self.own_splits else []
        return SourceSplits.of(values, "by the names of its arrays") if values else None

    def read(self, row: int, name: str, where: str = "") -> Array:
        return image_array(self._open(self._image)[row], self._peak)

    def read_field(self, field: Field, row: int, where: str) -> Array:
        found: Array = self._open(where)[row]
        return found


def _values(arrays: list[Array], role: str) -> tuple[str, list[Any]]:
    """The kind of the field that these arrays hold, and a value for each sample; none of an array, which stays one."""
    first = arrays[0]
    if role in ("label", SPLIT) and first.dtype.kind == "S":
        first = np.char.decode(first, "utf-8", "replace")
    if role == "label":
        return "class", first.reshape(len(first)).tolist()
    if first.dtype.kind in "fiub" and all(array.ndim == 1 for array in arrays):
        return "target", list(first if len(arrays) == 1 else np.stack(arrays, 1))
    if first.dtype.kind == "f" and first.ndim == 2 and len(arrays) == 1:
        return "target", list(first)
    if first.dtype.kind == "U":
        return "caption", first.tolist()
    return "array", []
