"""The engine of all sources: each yields a row for every sample, and here they are checked and become a listing.

Rows of files are listed at once, by reference. Rows that can be had only once, or hold their images (an iterable,
HDF5's chunks), first go through a spool in the packer's scratch folder: images, masks and arrays in one file, all else
as a line of JSON for each row. Workers then read images in any order. So a generator is asked once, a compressed chunk
is unpacked once, and a resumed run asks for nothing again.
"""

import glob
import io
import json
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.captions import CaptionKind
from gpuload.fields.field import Field
from gpuload.fields.kind import Columns
from gpuload.fields.registry import KINDS
from gpuload.machine.installed import require
from gpuload.sources.files import ARCHIVES, ELSEWHERE, Files, Folder, Ref, Told, read_file
from gpuload.sources.listing import BYTES, NAME, WHERE, Listing, Source, listing_schema, some_of
from gpuload.sources.splits import COLUMNS, SPLIT, SourceSplits, splits_of_column, splits_of_files, splits_of_paths
from gpuload.store.url import URL, as_location
from gpuload.types import Array, ClassNames

Row = Mapping[str, Any]
Names = tuple[str, ...]

_BLOBS, _ROWS, _KINDS = "samples.blobs", "samples.jsonl", "samples.json"
_NPY = b"\x93NUMPY"
_RESERVED = (NAME, BYTES, WHERE, "image")
_CHUNK_ROWS = 65_536  # rows kept as Python objects before they become Arrow columns
_BY_KEY = {key: kind for kind in KINDS.values() for key in kind.keys}

# Name and detail (see `Kind.detail`) of the kind of each field.
FieldKinds = dict[str, tuple[str, str]]


class RowSource(Source):
    """A source that yields its samples one after the other, as dicts with the same keys.

    "image": a `Ref`, encoded bytes, the path of a file, a PIL image, or an array, uint8 or float in 0..1, (H, W),
        (H, W, C) or (C, H, W) with 1 or 3 channels.
    "label": a class, as number or name. "labels": a list of them. "boxes": (M, 4) x0 y0 x1 y1 in pixels, with
        "boxes_class". "keypoints": a list of instances, each of points x, y, visibility. "mask": as an image, a class
        number for each pixel. "name": what the sample is called, by default as its file, or its number.
    "split": "train", "val" or "test", or another name of these (see `splits`); then the packer draws no splits.
    Any other key by the type of its value: a float or a list of floats is a target, a str a caption, an array stays
        one, an int a target too, and a dict or another list JSON.

    spools: whether images are in the rows, or these can be had only once. takes_paths: whether an image or a mask may
        be the path of a file, as a program may give it; a file of somebody else could name any.
    takes_labels, takes_columns: whether the class takes --labels, as its second argument, and --column, as `columns`.
    columns: names of columns by what they hold, where they are not the usual ones. suffixes: of the files that it reads
        from a URL; without, it is read from local files alone.
    """

    takes_labels: ClassVar[bool] = False
    takes_columns: ClassVar[bool] = False
    suffixes: ClassVar[Names] = ()
    spools: ClassVar[bool] = False
    takes_paths: ClassVar[bool] = False
    columns: Mapping[str, Names] = {}
    _scratch = Path()

    @classmethod
    def fits(cls, files: Files) -> bool:
        """Whether a folder or archive, whose name says nothing, holds one of these."""
        return bool(cls.suffixes) and files.kind == "folder" and bool(files.split_files(cls.suffixes[0]))

    @abstractmethod
    def rows(self, told: Told) -> Iterator[Row]:
        """Each sample, once; what else there is to say goes to `told`.

        Raises:
            SourceError: there is none, or what is there contradicts itself.
        """

    def read_address(self, address: str) -> bytes | Array:
        """What a `Ref` stands for; raises as `read`."""
        raise NotImplementedError

    def prepare(self, scratch: Path) -> None:
        """Fills the spool, unless an earlier run has filled it."""
        self._scratch = scratch
        if not self.spools or (scratch / _KINDS).exists():
            return
        told = Told()
        rows = self.rows(told)
        with (scratch / _BLOBS).open("wb") as blobs, (scratch / _ROWS).open("wb") as lines:
            try:
                reader = _Reader(self, told, blobs)
                for number, entry in enumerate(reader.entries(rows)):
                    lines.write(reader.line(number, entry))
            finally:
                if isinstance(rows, Generator):  # closes its file now, and not when the error is forgotten
                    rows.close()
        (scratch / _KINDS).write_text(json.dumps([reader.kinds, told.notes, told.origin, told.classes]))

    def list_samples(self) -> Listing:
        told = Told()
        if self.spools:
            kinds, told.notes, told.origin, classes = json.loads((self._scratch / _KINDS).read_text())
            told.classes = {name: tuple(names) for name, names in classes.items()}
            with (self._scratch / _ROWS).open("rb") as lines:
                return _list(self, told, kinds, map(json.loads, lines))
        reader = _Reader(self, told)
        return _list(self, told, reader.kinds, reader.entries(self.rows(told)))

    def read(self, row: int, name: str, where: str = "") -> bytes | Array:
        if not self.spools:
            return self.read_address(where or name)
        offset, size = map(int, where.split(":"))
        with (self._scratch / _BLOBS).open("rb") as file:
            blob = os.pread(file.fileno(), size, offset)
        if not blob.startswith(_NPY):
            return blob
        array: Array = np.load(io.BytesIO(blob), allow_pickle=False)
        return array


class FilesSource(RowSource):
    """Images, and perhaps masks, that are files of a container.

    root: a folder, a zip archive, a URL, or any other `Files`.
    advice: what to do where nothing can be listed.
    """

    advice: ClassVar[str] = "Give a folder of images"

    def __init__(self, root: str | Path | URL | Files) -> None:
        self._files = open_files(root)
        location = as_location(root) if isinstance(root, (str, os.PathLike)) else root
        self.root = Path(location) if isinstance(location, str) else location

    @property
    def title(self) -> str:
        return str(self.root)

    def leave_out(self, folder: Path) -> None:
        if isinstance(self._files, Folder):
            self._files.leave_out(folder)

    def list_samples(self) -> Listing:
        if fault := self._files.fault():
            raise SourceError(f"{self.root}: {fault}. {self.advice}")
        return super().list_samples()

    def no_image(self, told: Told, what: str = "holds no image") -> SourceError:
        others = f", found: {told.by_extension()}" if told.others else ""
        usual = "Images are known by their extension, such as .jpg, .png or .webp"
        return SourceError(f"{self.title}: {what}. {usual}{others}")

    def expect(self, addresses: Sequence[str]) -> None:
        self._files.expect(addresses)

    def wait(self, address: str) -> None:
        self._files.wait(address)

    def read_address(self, address: str) -> bytes:
        return self._files.read(address)


class LocalSource(RowSource):
    """Samples in files that are not images, all of which lie at one path.

    path: as it was given; at a URL, the files that are copied from there. needs: packages.

    Raises:
        MissingPackageError: one of the packages that it needs cannot be used.
    """

    needs: ClassVar[Names] = ()

    def __init__(self, path: str | Path | URL, columns: Mapping[str, Names] | None = None) -> None:
        require(str(path), *self.needs)
        self.path: Any = as_location(path) if self.suffixes else path
        if isinstance(self.path, URL):
            from gpuload.sources.remote import Copies  # asyncio

            self.path = Copies(self.path, self.suffixes)
        else:
            self.path = Path(self.path)
        self._local = self.path if isinstance(self.path, Path) else Path()
        self.columns = dict(columns or {})

    @property
    def title(self) -> str:
        return str(self.path if isinstance(self.path, Path) else self.path.given)

    def files_here(self, suffix: str) -> list[Path]:
        """The files with this suffix, sorted: those of the folder, see `Files.split_files`, those that fit wildcards,
        or the one at the path."""
        if self._local.is_dir():
            paths = [self._local / name for name in Folder(self._local).split_files(suffix)]
        elif self._local.exists():
            return [self._local]
        else:
            paths = [Path(name) for name in sorted(glob.glob(str(self._local)))]
        if not paths:
            what = f"holds no {suffix}" if self._local.is_dir() else "no such file"
            raise SourceError(f"{self._local}: {what}. Give a file, or the folder that holds some")
        return paths

    def name_of(self, path: Path) -> str:
        """Of one of its files, below its folder."""
        return path.relative_to(self._local if self._local.is_dir() else path.parent).as_posix()

    def splits_of(self, paths: Sequence[Path], told: Told) -> list[str]:
        """The split of each file; [] where they are of one, or given one by one."""
        if not self.own_splits or not self._local.is_dir():
            return []
        splits = splits_of_files(self.title, list(map(self.name_of, paths)))
        told.origin = "by the names of its files or their folders" if splits else ""
        return splits

    def prepare(self, scratch: Path) -> None:
        if isinstance(self.path, Path):
            return super().prepare(scratch)
        self._local = self.path.fetch(scratch)
        try:
            super().prepare(scratch)
        except SourceError as error:
            raise SourceError(str(error).replace(str(scratch / "copies"), str(self.path.root))) from None


class _Reader:
    """Finds mistakes in the rows of a source, and what each of their values is.

    blobs: gets the images, masks and arrays that are in the rows. kinds: of the fields, once a row was read.
    """

    def __init__(self, source: RowSource, told: Told, blobs: BinaryIO | None = None) -> None:
        self._source, self._told, self._blobs = source, told, blobs
        self._offset = 0
        self._label_type: type | None = None
        self.kinds: FieldKinds = {}

    def entries(self, rows: Iterable[Row]) -> Iterator[list[Any]]:
        """Of each row the name, size and address of its image, then a value for each field.

        All rows of files are made by the same lines of a source, so that the first one tells of all.
        """
        number = -1
        for number, row in enumerate(rows):
            if number == 0 or self._source.spools:
                self._check(number, row)
                self._check_kinds(number, row)
            yield self._entry(number, row)
        if number < 0:
            raise SourceError(f"{self._source.title}: holds no sample. Give at least one")

    def _check_kinds(self, number: int, row: Row) -> None:
        """Raises SourceError where a row has other fields than those before."""
        kinds = self._kinds_of(row)
        if number == 0:
            self.kinds.update(kinds)
        elif kinds != self.kinds:
            differing = sorted({*kinds.items()} ^ {*self.kinds.items()})[0][0]
            what = f"has {_described(kinds)}, those before have {_described(self.kinds)} (see {differing!r})"
            raise self._error(number, what, "Give every sample the same fields")

    def _entry(self, number: int, row: Row) -> list[Any]:
        image = self._stored(row["image"], number, "image")
        name = row.get(NAME)
        entry: list[Any] = [image.name or f"{number:08d}." if name is None else str(name), image.size, image.address]
        for field, (kind, _) in self.kinds.items():
            if KINDS[kind].stays_in_shard:
                entry.append(self._stored(row[field], number, kind).address)
            else:
                entry.append(row[field] if self._told.picked else KINDS[kind].pick(field, row))
        return entry

    def line(self, number: int, entry: Sequence[Any]) -> bytes:
        """JSON of an entry."""
        parts = []
        for name, value in zip((NAME, BYTES, WHERE, *self.kinds), entry, strict=True):
            try:
                parts.append(json.dumps(value, ensure_ascii=False, default=_plain).encode())
            except (TypeError, ValueError) as error:
                raise SourceError(
                    f"{self._source.title}: sample {number}: {name!r} cannot be stored ({error}). Give numbers, texts, "
                    "arrays, or lists and dicts of these"
                ) from None
        return b"[%s]\n" % b", ".join(parts)

    def _check(self, number: int, row: Any) -> None:
        """Raises SourceError where this is not a dict with an image, or its label is invalid."""
        if not isinstance(row, Mapping):
            what = f"is a {type(row).__name__}, not a dict"
            raise self._error(number, what, 'Give such as {"image": image, "label": label}')
        if "image" not in row:
            raise self._error(number, f"has no 'image', only {sorted(map(str, row))}", "Give it one")
        if "label" in row:
            self._check_label(number, row["label"])
        labels = row.get("labels", ())
        if not (isinstance(labels, (list, tuple)) or getattr(labels, "ndim", 0) == 1):
            what = f"has the labels {str(labels)[:60]!r}; they must be a list"
            raise self._error(number, what, "Give a list, or one 'label'")

    def _check_label(self, number: int, given: Any) -> None:
        label = given.tolist() if hasattr(given, "tolist") else given
        kind = str if isinstance(label, str) else int
        if label is None or label == "":
            what, advice = f"no label, but {label!r}", (
                "Give it one or leave it out; for a set without labels leave 'label' out of every sample"
            )  # fmt: skip
        elif isinstance(label, float):
            what, advice = f"the label {label}, a float", (
                "Give whole numbers or names for classes; for a number to be predicted call it by another name, such "
                "as 'target'"
            )  # fmt: skip
        elif not isinstance(label, (int, str)):
            what = f"the label {str(label)[:60]}, a {type(given).__name__}"
            advice = "Give the number of its class, or its name; several of them are 'labels'"
        elif self._label_type not in (None, kind):
            what = f"the label {label!r}, those before are {'names' if kind is int else 'numbers'}"
            advice = "Give numbers or names for all"
        else:
            self._label_type = kind
            return
        raise self._error(number, f"has {what}", advice)

    def _error(self, number: int, what: str, advice: str) -> SourceError:
        return SourceError(f"{self._source.title}: sample {number} {what}. {advice}")

    def _kinds_of(self, row: Row) -> FieldKinds:
        """The kind of each field of a row: as the source tells it, by its key, or else the first that claims it."""
        kinds: FieldKinds = {}
        companions: set[str] = set()
        for name, value in row.items():
            if name in _RESERVED or (self._source.images_alone and name not in COLUMNS):
                continue
            kind = KINDS[self._told.kinds[name]] if name in self._told.kinds else _BY_KEY.get(name)
            if isinstance(value, Ref):
                kinds[name] = kind.name if kind else "array", value.detail
                continue
            kind = kind or next(kind for kind in KINDS.values() if kind.claims(value))
            kinds[name] = kind.name, kind.detail(value)
            companions.update(kind.companions(name))
        return {name: kind for name, kind in kinds.items() if name not in companions}

    def _stored(self, value: Any, number: int, kind: str) -> Ref:
        """Where a value lies, and the size of an image as it is packed."""
        if isinstance(value, Ref):
            return value
        assert self._blobs is not None
        blob = self._blob(value, number, kind)
        self._offset += self._blobs.write(blob)
        return Ref("", len(blob), f"{self._offset - len(blob)}:{len(blob)}")

    def _blob(self, value: Any, number: int, kind: str) -> bytes:
        if isinstance(value, (str, os.PathLike)):
            return self._content(value, number, kind)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        as_stored = self._source.as_stored
        if hasattr(value, "getexif"):  # a PIL image
            kept = ("RGB", "L", "RGBA", "I;16", "F") if as_stored else ("RGB", "L")
            value = np.asarray(value if kind != "image" or value.mode in kept else value.convert("RGB"))
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError) as error:  # such as lists within lists, 65 deep
            raise self._error(number, f"has a {kind} that is not an array ({error})", "Give numbers") from None
        if kind == "image":
            array = image_array(array, None if as_stored else 1.0)
        if array.dtype.hasobject:
            raise self._error(number, f"has a {kind} of Python objects", "Give numbers")
        file = io.BytesIO()
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)
        return file.getvalue()

    def _content(self, path: str | os.PathLike[str], number: int, kind: str) -> bytes:
        if not self._source.takes_paths:
            what = f"has a text for its {kind}, expected bytes or an array"
            raise self._error(number, what, "Paths are taken from programs and tables (--labels) alone")
        try:
            return read_file(path)
        except OSError as error:
            raise SourceError(
                f"{self._source.title}: sample {number}: {path}: cannot be read ({error.strerror}). Correct its path"
            ) from None


def open_files(root: str | Path | URL | Files) -> Files:
    """The container at a path: an archive by its name, else a folder, perhaps at a URL; a container is given back."""
    if isinstance(root, Files):
        return root
    path = as_location(root)
    if isinstance(path, URL):
        if path.suffix.lower() in ARCHIVES:
            raise SourceError(f"{path}: is an archive at a URL. {ELSEWHERE}")
        from gpuload.sources.remote import RemoteFolder  # asyncio

        return RemoteFolder(path)
    path = Path(path)
    if path.suffix.lower() in ARCHIVES and not path.is_dir():
        from gpuload.sources.zip_archive import ZipArchive  # imports compression modules that few need

        return ZipArchive(path)
    return Folder(path)


def _list(source: RowSource, told: Told, kinds: FieldKinds, entries: Iterable[Sequence[Any]]) -> Listing:
    """kinds: complete once the first of the entries is there."""
    schema = listing_schema((), where=True)
    chunks, images, values = list[pa.Table](), list[Sequence[Any]](), list[list[Any]]()
    for entry in entries:
        images.append(entry[:3])
        values = values or [[] for _ in entry[3:]]
        for column, value in zip(values, entry[3:], strict=True):
            column.append(value)
        if len(images) == _CHUNK_ROWS:
            chunks.append(pa.table([list(column) for column in zip(*images, strict=True)], schema=schema))
            images = []
    if images or not chunks:
        rest = [list(column) for column in zip(*images, strict=True)] or [[], [], []]
        chunks.append(pa.table(rest, schema=schema))
    table = pa.concat_tables(chunks)
    of_rows, splits = {(name, *kind): column for (name, kind), column in zip(kinds.items(), values, strict=False)}, None
    if source.own_splits:
        splits, used = _splits_in(source, told, of_rows)
        of_rows = {key: column for key, column in of_rows.items() if key[0] not in used}
        if splits is None and told.strict is not None:
            splits = splits_of_paths(source.title, table.column(NAME).to_pylist(), told.strict)
    if source.images_alone:
        of_rows = {}
    fields, classes, columns = _fields(source.title, told, of_rows)
    if alike := names_alike(list(classes or ())):
        told.notes.append(f"classes that differ only in case are different classes: {some_of(alike)}")
    if table.column(WHERE).equals(table.column(NAME)):
        table = table.drop_columns([WHERE])
    schema = listing_schema(fields, where=WHERE in table.column_names)
    rejected = tuple(sorted(told.rejected, key=lambda rejection: rejection.source))
    table = pa.table([*table.columns, *columns], schema=schema)
    return Listing(table, fields, classes, rejected, told.all_notes(), splits)


Values = Mapping[tuple[str, str, str], Sequence[Any]]  # of the fields, by their names, kinds and details


def _splits_in(source: RowSource, told: Told, of_rows: Values) -> tuple[SourceSplits | None, set[str]]:
    """The splits that rows tell, and the keys that are no fields."""
    unused = {SPLIT} if told.origin else set()
    for (name, kind, _), values in of_rows.items():
        asked = name == SPLIT and SPLIT in source.columns
        if asked or (name in COLUMNS and kind == CaptionKind.name):
            splits = splits_of_column(source.title, name, values, asked, told.origin)
            if splits is not None:
                return splits, {*unused, name}
    return None, unused


def _fields(title: str, told: Told, of_rows: Values) -> tuple[tuple[Field, ...], ClassNames, Columns]:
    """The fields, the class names of the set, and the columns."""
    fields, columns, classes = list[Field](), list[Any](), None
    for (name, kind, detail), values in of_rows.items():
        field, of_field = KINDS[kind].parse(title, name, values, told.classes.get(name), detail)
        if KINDS[kind].names_set_classes:
            classes, field = field.classes, replace(field, classes=None)
        fields.append(told.fields.get(name, field))
        columns += of_field
    return tuple(fields), classes, columns


def names_alike(names: list[str]) -> list[str]:
    """Those that differ from another one in case only."""
    counts = Counter(name.lower() for name in names)
    return [name for name in names if counts[name.lower()] > 1]


def image_array(array: Array, peak: float | None = 1.0) -> Array:
    """uint8 (H, W, C) out of uint8 or float in 0..peak, with the channels first or last; without a peak as it is.

    What cannot be an image is given back as it is: the packer then rejects it with its type and shape.
    """
    if peak is None:
        return array
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.dtype.kind == "f" and array.size and float(array.min()) >= 0 and float(array.max()) <= peak:
        array = np.round(array.astype(np.float64) * (255 / peak)).astype(np.uint8)
    return array


def _described(kinds: FieldKinds) -> dict[str, str]:
    return {name: f"{kind} {detail}".strip() for name, (kind, detail) in sorted(kinds.items())}


def _plain(value: Any) -> Any:
    """What JSON can hold, out of NumPy's arrays and numbers."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"it holds a {type(value).__name__}")
    return value.tolist()
