"""The engine of all sources: each yields a row for every sample; here rows are checked and become a listing.

Rows of files are listed at once, by reference. Rows that can be had only once, or hold their images (an iterable,
HDF5's chunks), first go through a spool in the packer's scratch folder: images, masks and arrays in one file, all else
as a line of JSON for each row. Workers then read images in any order. So a generator is asked once, a compressed chunk
is unpacked once, and a resumed run asks for nothing again.
"""

import io
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.fields.captions import CaptionKind
from gpuload.fields.field import Field
from gpuload.fields.kind import Columns
from gpuload.fields.registry import KINDS
from gpuload.sources.files import Files, Findings, Ref
from gpuload.sources.listing import (
    BYTES,
    COLUMNS,
    NAME,
    SPLIT,
    WHERE,
    Listing,
    SourceSplits,
    listing_schema,
    some_of,
    splits_of_column,
    splits_of_paths,
)
from gpuload.sources.local_folder import read_file
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


class Source(ABC):
    """Where images come from: yields its samples one after the other, as dicts with the same keys.

    "image": a `Ref`, encoded bytes, the path of a file, a PIL image, or an array, uint8 or float in 0..1, (H, W),
        (H, W, C) or (C, H, W) with 1 or 3 channels.
    "label": a class, as number or name. "labels": a list of them. "boxes": (M, 4) x0 y0 x1 y1 in pixels, with
        "boxes_class", and of instances "boxes_masks", COCO's segmentations or masks (H, W), "boxes_area" and
        "boxes_crowd". "keypoints": a list of instances, each of points x, y, visibility. "mask": as an image, a class
        number for each pixel. "name": what the sample is called, by default as its file, or its number.
    "split": "train", "val" or "test", or another name of these (see `splits`); then the packer draws no splits.
    Any other key by the type of its value: a float or a list of floats is a target, a str a caption, an array stays
        one, an int a target too, and a dict or another list JSON.

    It is sent to worker processes, so it must be picklable and hold no open files.

    spools: whether images are in the rows, or these can be had only once. takes_paths: whether an image or a mask may
        be the path of a file, as a program may give it; a file of somebody else could name any.
    takes_labels, takes_columns: whether the class takes --labels, as its second argument, and --column, as `columns`.
    needs_process: whether `prepare` runs in a process of its own, since it calls C libraries that trust what they read,
        so that a damaged file may crash them.
    columns: names of columns by what they hold, where they are not the usual ones. suffixes: of the files that it reads
        from a URL; without, it is read from local files alone.
    own_splits: whether a listing has the splits that the source itself has. images_alone: whether only the images are
        listed, without fields. as_stored: whether arrays of images stay as they are, of any dtype and number of
        channels; else they become uint8.
    """

    takes_labels: ClassVar[bool] = False
    takes_columns: ClassVar[bool] = False
    suffixes: ClassVar[Names] = ()
    spools: ClassVar[bool] = False
    takes_paths: ClassVar[bool] = False
    needs_process: ClassVar[bool] = False
    columns: Mapping[str, Names] = {}
    own_splits: bool = True
    images_alone: bool = False
    as_stored: bool = False
    _scratch = Path()

    @classmethod
    def fits(cls, files: Files) -> bool:
        """Whether a folder or archive, whose name says nothing, holds one of these."""
        return bool(cls.suffixes) and files.kind == "folder" and bool(files.split_files(cls.suffixes[0]))

    @property
    def title(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    @property
    def identity(self) -> str:
        """Which images these are, as a text: a run is resumed only with the same."""
        given = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in sorted(given.items()))})"

    def leave_out(self, folder: Path) -> None:  # noqa: B027 -- most read no folder in which it could lie
        """Skips a folder from now on: the output folder."""

    @abstractmethod
    def rows(self, findings: Findings) -> Iterator[Row]:
        """Each sample, once; notes and rejected files go to `findings`.

        Raises:
            SourceError: there is no sample, or the data contradict themselves.
        """

    def prepare(self, scratch: Path) -> None:
        """Fills the spool, unless an earlier run has filled it.

        scratch: a folder that exists until the set is packed.
        """
        self._scratch = scratch
        if not self.spools or (scratch / _KINDS).exists():
            return
        findings = Findings()
        rows = self.rows(findings)
        with (scratch / _BLOBS).open("wb") as blobs, (scratch / _ROWS).open("wb") as lines:
            try:
                reader = _Reader(self, findings, blobs)
                for number, entry in enumerate(reader.entries(rows)):
                    lines.write(reader.line(number, entry))
            finally:
                if isinstance(rows, Generator):  # closes its file now, not when the error is collected
                    rows.close()
        (scratch / _KINDS).write_text(json.dumps([reader.kinds, findings.notes, findings.origin, findings.classes]))

    def list_samples(self) -> Listing:
        """Every sample: names and numbers, no pixels; in an order that depends on the source alone.

        Raises:
            SourceError: as `rows`.
        """
        findings = Findings()
        if self.spools:
            kinds, findings.notes, findings.origin, classes = json.loads((self._scratch / _KINDS).read_text())
            findings.classes = {name: tuple(names) for name, names in classes.items()}
            with (self._scratch / _ROWS).open("rb") as lines:
                return _list(self, findings, kinds, map(json.loads, lines))
        reader = _Reader(self, findings)
        return _list(self, findings, reader.kinds, reader.entries(self.rows(findings)))

    def expect(self, addresses: Sequence[str]) -> None:  # noqa: B027 -- for sources whose files take long to come
        """Called in a worker with all that it will `read`, in order."""

    def wait(self, address: str) -> None:  # noqa: B027
        """Called before each `read`, whose time is limited: what takes long for no fault of the image is done here."""

    def read(self, address: str) -> bytes | Array:
        """The image, mask or array at an address of the listing: encoded, or an array.

        Raises:
            OSError: it cannot be read any more; the packer leaves it out with that reason.
            DecodeError: the same, with the reason as its message.
        """
        offset, size = map(int, address.split(":"))
        with (self._scratch / _BLOBS).open("rb") as file:
            blob = os.pread(file.fileno(), size, offset)
        if not blob.startswith(_NPY):
            return blob
        array: Array = np.load(io.BytesIO(blob), allow_pickle=False)
        return array


class _Reader:
    """Checks the rows of a source, and finds the kind of each field.

    blobs: receives images, masks and arrays that the rows hold. kinds: of the fields, known after the first row.
    """

    def __init__(self, source: Source, findings: Findings, blobs: BinaryIO | None = None) -> None:
        self._source, self._told, self._blobs = source, findings, blobs
        self._offset = 0
        self._label_type: type | None = None
        self.kinds: FieldKinds = {}

    def entries(self, rows: Iterable[Row]) -> Iterator[list[Any]]:
        """For each row the name, size and address of its image, then the value of each field.

        Where nothing is spooled, rows come from one place in the source's code, so only the first is checked.
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
        """Raises SourceError if a row has other fields than those before."""
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
        """Raises SourceError if this is not a dict with an image, or its label is invalid."""
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
        """The kind of each field of a row: given by the source, by its key, or the first that claims its value."""
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
            kind = KINDS[kind.with_others(name, row)]
            kinds[name] = kind.name, kind.detail(value)
            companions.update(kind.companions(name))
        return {name: kind for name, kind in kinds.items() if name not in companions}

    def _stored(self, value: Any, number: int, kind: str) -> Ref:
        """The reference to a value, which is spooled unless it is one already."""
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


def _list(source: Source, findings: Findings, kinds: FieldKinds, entries: Iterable[Sequence[Any]]) -> Listing:
    """kinds: complete once the first of the entries is there."""
    schema = listing_schema((), where=True)
    chunks, values, rest = list[pa.Table](), list[list[Any]](), iter(entries)
    while some := list(islice(rest, _CHUNK_ROWS)):
        name, size, address, *columns = map(list, zip(*some, strict=True))
        chunks.append(pa.table([name, size, address], schema=schema))
        values = values or [[] for _ in columns]
        for column, more in zip(values, columns, strict=True):
            column += more
    table = pa.concat_tables(chunks)
    of_rows, splits = {(name, *kind): column for (name, kind), column in zip(kinds.items(), values, strict=True)}, None
    if source.own_splits:
        splits, used = _splits_in(source, findings, of_rows)
        of_rows = {key: column for key, column in of_rows.items() if key[0] not in used}
        if splits is None and findings.strict is not None:
            splits = splits_of_paths(source.title, table.column(NAME).to_pylist(), findings.strict)
    if source.images_alone:
        of_rows = {}
    fields, classes, columns = _fields(source.title, findings, of_rows)
    if alike := names_alike(list(classes or ())):
        findings.notes.append(f"classes that differ only in case are different classes: {some_of(alike)}")
    if table.column(WHERE).equals(table.column(NAME)):
        table = table.drop_columns([WHERE])
    schema = listing_schema(fields, where=WHERE in table.column_names)
    rejected = tuple(sorted(findings.rejected, key=lambda rejection: rejection.source))
    table = pa.table([*table.columns, *columns], schema=schema)
    return Listing(table, fields, classes, rejected, findings.all_notes(), splits)


Values = Mapping[tuple[str, str, str], Sequence[Any]]  # of the fields, by their names, kinds and details


def _splits_in(source: Source, findings: Findings, of_rows: Values) -> tuple[SourceSplits | None, set[str]]:
    """The splits of the rows, and the keys that are not fields because they name splits."""
    unused = {SPLIT} if findings.origin else set()
    for (name, kind, _), values in of_rows.items():
        asked = name == SPLIT and SPLIT in source.columns
        if asked or (name in COLUMNS and kind == CaptionKind.name):
            splits = splits_of_column(source.title, name, values, asked, findings.origin)
            if splits is not None:
                return splits, {*unused, name}
    return None, unused


def _fields(title: str, findings: Findings, of_rows: Values) -> tuple[tuple[Field, ...], ClassNames, Columns]:
    """The fields, the class names of the set, and the columns."""
    fields, columns, classes = list[Field](), list[Any](), None
    for (name, kind, detail), values in of_rows.items():
        field, of_field = KINDS[kind].parse(title, name, values, findings.classes.get(name), detail)
        if KINDS[kind].names_set_classes:
            classes, field = field.classes, replace(field, classes=None)
        fields.append(findings.fields.get(name, field))
        columns += of_field
    return tuple(fields), classes, columns


def names_alike(names: list[str]) -> list[str]:
    """The names that differ from another one in case alone."""
    counts = Counter(name.lower() for name in names)
    return [name for name in names if counts[name.lower()] > 1]


def image_array(array: Array, peak: float | None = 1.0) -> Array:
    """uint8 (H, W, C) out of uint8 or float in 0..peak, with the channels first or last; without a peak as it is.

    Anything else is returned as it is, and the packer rejects it with its type and shape.
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
    """Converts NumPy's arrays and numbers for JSON."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"it holds a {type(value).__name__}")
    return value.tolist()
