"""The engine of all sources: each yields a row for every sample; here rows are checked and become a listing.

Rows of files are listed at once, by reference. Rows that can be had only once, or hold their images (an iterable,
HDF5's chunks), first go through a spool in the packer's scratch folder: images, masks and arrays in one file, all else
as a line of JSON for each row. Workers then read images in any order. So a generator is asked once, a compressed chunk
is unpacked once, and a resumed run asks for nothing again.
"""

import glob
import io
import json
import os
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.errors import DecodeError, SourceError, some_of
from gpuload.fields.captions import CaptionKind
from gpuload.fields.field import Field
from gpuload.fields.kind import Origin
from gpuload.fields.registry import KINDS
from gpuload.formats import (
    Conversion,
    as_levels,
    converted,
    in_color_space,
    is_srgb,
    raster_of_image,
)
from gpuload.machine.installed import require
from gpuload.sources import listing
from gpuload.sources.files import (
    ARCHIVES,
    ELSEWHERE,
    Files,
    Findings,
    Folder,
    Ref,
    advice_on_images,
    read_at,
    read_file,
    readable,
)
from gpuload.store.url import URL, as_location
from gpuload.types import Array, ClassNames

Row = Mapping[str, Any]
Names = tuple[str, ...]

_BLOBS, _ROWS, _KINDS = "samples.blobs", "samples.jsonl", "samples.json"
_NPY = b"\x93NUMPY"
_REFUSED = b"\0refused: "  # begins what is spooled of an image that cannot be converted
_RESERVED = (listing.NAME, listing.BYTES, listing.WHERE, "image")
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
        one, ints in every sample are whole numbers (else a target), and a dict or another list JSON.

    It is sent to worker processes, so it must be picklable and hold no open files. A class whose constructor has the
    argument `labels` takes --labels, one with `columns` --column.

    spools: whether images are in the rows, or these can be had only once. takes_paths: whether an image or a mask may
        be the path of a file, as a program may give it; a file of somebody else could name any.
    advice: what to do where there is no sample. uses: the kinds of files of annotations that it reads (see `survey`);
        where it is recognised, others are an error.
    needs_process: whether `prepare` runs in a process of its own, since it calls C libraries that trust what they read,
        so that a damaged file may crash them.
    columns: names of columns by what they hold, where they are not the usual ones. suffixes: of the files that it reads
        from a URL; without, it is read from local files alone.
    own_splits: whether a listing has the splits that the source itself has. images_alone: whether only the images are
        listed, without fields. as_stored: whether arrays of images stay as they are, of any dtype and number of
        channels; else they become uint8. conversion: what PIL images become.
    """

    advice: ClassVar[str] = "Give at least one"
    suffixes: ClassVar[Names] = ()
    spools: ClassVar[bool] = False
    takes_paths: ClassVar[bool] = False
    needs_process: ClassVar[bool] = False
    uses: ClassVar[Names] = ()
    columns: Mapping[str, Names] = {}
    own_splits: bool = True
    images_alone: bool = False
    as_stored: bool = False
    conversion: Conversion = Conversion()
    _scratch = Path()

    @classmethod
    def fits(cls, files: Files) -> bool:
        """Whether a folder, whose name says nothing, holds one of these."""
        return bool(cls.suffixes) and bool(files.split_files(cls.suffixes[0]))

    @property
    def title(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    @property
    def identity(self) -> str:
        """Which images these are, as a text: a run is resumed only with the same."""
        given = {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and name != "conversion"
        }
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
        findings.images_alone = self.images_alone
        rows = self.rows(findings)
        with (
            (scratch / _BLOBS).open("wb") as blobs,
            (scratch / _ROWS).open("wb") as lines,
        ):
            try:
                reader = _Reader(self, findings, blobs)
                lines.writelines(map(reader.line, reader.entries(rows)))
            finally:
                if isinstance(
                    rows, Generator
                ):  # closes its file now, not when the error is collected
                    rows.close()
        findings.notes += [
            sentence.format(f"{count:,}")
            for sentence, count in sorted(reader.remarks.items())
        ]
        for doubt in findings.doubts.values():
            raise SourceError(f"{self.title}: {doubt}")
        (scratch / _KINDS).write_text(
            json.dumps(
                [reader.kinds, findings.notes, findings.origin, findings.classes]
            )
        )

    def list_samples(self) -> listing.Listing:
        """Every sample: names and numbers, no pixels; in an order that depends on the source alone.

        Raises:
            SourceError: as `rows`.
        """
        findings = Findings()
        if self.spools:
            kinds, findings.notes, findings.origin, classes = json.loads(
                (self._scratch / _KINDS).read_text()
            )
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
        blob = read_at(self._scratch / _BLOBS, offset, size)
        if blob.startswith(_REFUSED):
            raise DecodeError(blob.removeprefix(_REFUSED).decode())
        return (
            np.load(io.BytesIO(blob), allow_pickle=False)
            if blob.startswith(_NPY)
            else blob
        )


class FilesSource(Source):
    """Images, and perhaps masks, that are files of a container.

    root: a folder, a zip archive, a URL, or any other `Files`.
    """

    advice = "Give a folder of images, which are known by their extensions, such as .jpg, .png or .webp"

    def __init__(self, root: str | Path | URL | Files) -> None:
        self._files = open_files(root)
        self.root = root if isinstance(root, Files) else located(root)

    @property
    def title(self) -> str:
        return str(self.root)

    def leave_out(self, folder: Path) -> None:
        self._files.leave_out(folder)

    def list_samples(self) -> listing.Listing:
        if fault := self._files.fault():
            raise SourceError(f"{self.root}: {fault}. {self.advice}")
        return super().list_samples()

    def expect(self, addresses: Sequence[str]) -> None:
        self._files.expect(addresses)

    def wait(self, address: str) -> None:
        self._files.wait(address)

    def read(self, address: str) -> bytes | Array:
        return self._files.read(address)


class LocalSource(Source):
    """Samples in files that are not images, all at one path.

    path: as given; of a URL, the files that are copied from there. needs: packages.

    Raises:
        MissingPackageError: one of the packages that it needs cannot be used. SourceError: it is read from local files
        alone, and the path is a URL.
    """

    needs: ClassVar[Names] = ()

    def __init__(self, path: str | Path | URL) -> None:
        require(str(path), *self.needs)
        self.path: Any = located(path)
        self._local = Path()
        if isinstance(self.path, Path):
            self._local = self.path
        elif self.suffixes:
            from gpuload.sources.remote import Copies  # asyncio

            self.path = Copies(self.path, self.suffixes)
        else:
            raise SourceError(
                f"{self.path}: is a URL, and this kind of source is read from files. {ELSEWHERE}"
            )

    @property
    def title(self) -> str:
        return str(self.path if isinstance(self.path, Path) else self.path.given)

    def files_here(self, suffix: str) -> list[Path]:
        """The files with this suffix, sorted: those of the folder (`Files.split_files`), those that match wildcards, or
        the one at the path."""
        if self._local.is_dir():
            paths = [
                self._local / name for name in Folder(self._local).split_files(suffix)
            ]
        elif self._local.exists():
            return [self._local]
        else:
            paths = [Path(name) for name in sorted(glob.glob(str(self._local)))]
        if not paths:
            what = f"holds no {suffix}" if self._local.is_dir() else "no such file"
            raise SourceError(
                f"{self._local}: {what}. Give a file, or the folder that holds some"
            )
        return paths

    def name_of(self, path: Path) -> str:
        """The name of one of its files, relative to its folder."""
        return path.relative_to(
            self._local if self._local.is_dir() else path.parent
        ).as_posix()

    def splits_of(self, paths: Sequence[Path], findings: Findings) -> list[str]:
        """The split of each file; [] where all belong to one, or the path is not a folder.

        Files with the same suffix elsewhere in the folder are told.
        """
        if not self._local.is_dir():
            return []
        folder, names = Folder(self._local), list(map(self.name_of, paths))
        inner = [
            f"{place}/{name}"
            for place in folder.folders()
            for name in folder.names(place)
        ]
        left = {
            name for name in inner if name.lower().endswith(paths[0].suffix.lower())
        } - set(names)
        if left:
            findings.notes.append(
                f"passed over {some_of(sorted(left))}: in folders that are not named after splits"
            )
        splits = listing.splits_of_files(self.title, names) if self.own_splits else []
        findings.origin = "by the names of its files or their folders" if splits else ""
        return splits

    def prepare(self, scratch: Path) -> None:
        if not isinstance(self.path, Path):
            self._local = self.path.fetch(scratch)
        super().prepare(scratch)


class SpooledSource(LocalSource):
    """Files whose rows hold the images. columns: names of columns, arrays or keys by what they hold."""

    spools = True

    def __init__(
        self, path: str | Path | URL, columns: Mapping[str, Names] | None = None
    ) -> None:
        super().__init__(path)
        self.columns = dict(columns or {})


def located(path: Any) -> Path | URL:
    """A path, or a URL that can be read here; raises as `as_location`."""
    location = as_location(path)
    return location if isinstance(location, URL) else Path(location)


def open_files(
    root: str | Path | URL | Files, zip_encoding: str | None = None
) -> Files:
    """The container at a path: an archive by its name, else a folder, perhaps at a URL; a container is given back.

    zip_encoding: of names in a zip archive, see `ZipArchive`.
    """
    if isinstance(root, Files):
        return root
    path = located(root)
    if isinstance(path, URL):
        from gpuload.sources.remote import RemoteFolder  # asyncio

        return RemoteFolder(path)
    if path.suffix.lower() in ARCHIVES and not path.is_dir():
        from gpuload.sources.zip_archive import (
            ZipArchive,
        )  # imports compression modules that few need

        return ZipArchive(path, zip_encoding)
    return Folder(path)


class _Reader:
    """Checks the rows of a source, and finds the kind of each field.

    blobs: receives images, masks and arrays that the rows hold. kinds: of the fields, known after the first row.
    remarks: on PIL images, as `Kind.remarks`.
    """

    def __init__(
        self, source: Source, findings: Findings, blobs: BinaryIO | None = None
    ) -> None:
        self._source, self._told, self._blobs = source, findings, blobs
        self._number = -1  # of the row
        self._offset = 0
        self.kinds: FieldKinds = {}
        self.remarks: Counter[str] = Counter()

    def entries(self, rows: Iterable[Row]) -> Iterator[list[Any]]:
        """For each row the name, size and address of its image, then the value of each field.

        Where nothing is spooled, rows come from one place in the source's code, so only the first is checked.
        """
        for self._number, row in enumerate(rows):
            if self._number == 0 or self._source.spools:
                self._check(row)
            yield self._entry(row)
        if self._number < 0:
            left = [
                f"{rejection.source!r} {rejection.reason}"
                for rejection in self._told.rejected[:1]
            ]
            found = "; ".join([*left, *self._told.all_notes()]) or "nothing"
            advice = advice_on_images(self._told.others) or self._source.advice
            raise SourceError(
                f"{self._source.title}: holds no sample; found: {found}. {advice}"
            )

    def _entry(self, row: Row) -> list[Any]:
        image = self._stored(row["image"], "image")
        given = row.get(listing.NAME)
        name = image.name or f"{self._number:08d}." if given is None else str(given)
        entry: list[Any] = [name, image.size, image.address]
        for field, (kind, _) in self.kinds.items():
            if KINDS[kind].stays_in_shard:
                entry.append(self._stored(row[field], kind).address)
            else:
                entry.append(
                    row[field] if self._told.picked else KINDS[kind].pick(field, row)
                )
        return entry

    def line(self, entry: Sequence[Any]) -> bytes:
        """JSON of an entry."""
        try:
            return (
                json.dumps(entry, ensure_ascii=False, default=_plain).encode() + b"\n"
            )
        except (TypeError, ValueError) as error:
            what = f"has a value that cannot be stored ({error})"
            raise self._error(
                what, "Give numbers, texts, arrays, or lists and dicts of these"
            ) from None

    def _check(self, row: Any) -> None:
        """Raises SourceError if this is not a dict with an image, its labels are invalid, or it has other fields than
        the rows before."""
        if not isinstance(row, Mapping) or "image" not in row:
            what = (
                f"has only {sorted(map(str, row))}"
                if isinstance(row, Mapping)
                else f"is a {type(row).__name__}"
            )
            raise self._error(
                what, 'Give a dict such as {"image": image, "label": label}'
            )
        labels = row.get("labels", ())
        if not (isinstance(labels, (list, tuple)) or getattr(labels, "ndim", 0) == 1):
            raise self._error(
                f"has the labels {str(labels)[:60]!r}", "Give a list, or one 'label'"
            )
        kinds = self._kinds_of(row)
        if self._number == 0:
            self.kinds.update(kinds)
        elif kinds != self.kinds:
            names = sorted({name for name, _ in kinds.items() ^ self.kinds.items()})
            raise self._error(
                f"differs from those before in {some_of(names)}",
                "Give every sample the same fields",
            )

    def _error(self, what: str, advice: str) -> SourceError:
        return SourceError(
            f"{self._source.title}: sample {self._number} {what}. {advice}"
        )

    def _kinds_of(self, row: Row) -> FieldKinds:
        """The kind of each field of a row: given by the source, by its key, or the first that claims its value."""
        kinds: FieldKinds = {}
        companions: set[str] = set()
        for name, value in row.items():
            if name in _RESERVED or (
                self._source.images_alone and name not in listing.COLUMNS
            ):
                continue
            kind = (
                KINDS[self._told.kinds[name]]
                if name in self._told.kinds
                else _BY_KEY.get(name)
            )
            if isinstance(value, Ref):
                kinds[name] = kind.name if kind else "array", value.detail
                continue
            kind = kind or next(kind for kind in KINDS.values() if kind.claims(value))
            kind = KINDS[kind.with_others(name, row)]
            kinds[name] = kind.name, kind.detail(value)
            companions.update(kind.companions(name))
        return {name: kind for name, kind in kinds.items() if name not in companions}

    def _stored(self, value: Any, kind: str) -> Ref:
        """The reference to a value, which is spooled unless it is one already."""
        if isinstance(value, Ref):
            return value
        assert self._blobs is not None
        blob = self._blob(value, kind)
        self._offset += self._blobs.write(blob)
        return Ref("", len(blob), f"{self._offset - len(blob)}:{len(blob)}")

    def _blob(self, value: Any, kind: str) -> bytes:
        if isinstance(value, (str, os.PathLike)):
            if not self._source.takes_paths:
                advice = "Paths are taken from programs and tables (--labels) alone"
                raise self._error(
                    f"has a text for its {kind}, expected bytes or an array", advice
                )
            with readable(value, f"the {kind} of sample {self._number}"):
                return read_file(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, Image.Image):
            if (file := _file_of(value)) is not None:
                return file
            if kind == "image":
                return self._blob_of_picture(value)
            if kind == "mask":
                return _lossless(value)
            value = np.asarray(value)
        try:
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise ValueError("Python objects")
        except (
            ValueError,
            TypeError,
            OverflowError,
        ) as error:  # such as lists within lists, 65 deep
            raise self._error(
                f"has a {kind} that is not an array ({error})", "Give numbers"
            ) from None
        if kind == "image" and not self._source.as_stored:
            array = as_levels(array)
        return _npy_bytes(array)

    def _blob_of_picture(self, picture: Image.Image) -> bytes:
        """A PIL image, converted as a file of the same values is; or the reason why it cannot be."""
        conversion = self._source.conversion
        try:
            raster = raster_of_image(picture)
            image = converted(raster, conversion)
            profile = b""
            if isinstance(image, Image.Image):
                image, profile = in_color_space(image, raster.profile, conversion.icc)
        except (DecodeError, OSError) as error:
            return _REFUSED + str(error).encode()
        self.remarks.update(raster.remarks)
        if isinstance(image, Image.Image) and not is_srgb(profile):
            file = io.BytesIO()
            image.save(
                file, "TIFF", icc_profile=profile
            )  # an array has no place for it
            return file.getvalue()
        return _npy_bytes(np.asarray(image))


def _file_of(picture: Image.Image) -> bytes | None:
    """The bytes of the file from which a PIL image was opened, where nothing was done with it yet; else None."""
    file = getattr(picture, "fp", None)
    if file is None or not getattr(picture, "tile", None) or picture.tell() != 0:
        return None
    try:
        position = file.tell()
        file.seek(0)
        data: bytes = file.read()
        file.seek(position)
        with Image.open(io.BytesIO(data)) as again:
            is_same = (again.format, again.mode, again.size) == (
                picture.format,
                picture.mode,
                picture.size,
            )
    except (OSError, ValueError):
        return None
    return data if is_same else None


def _lossless(picture: Image.Image) -> bytes:
    """A mask as a TIFF, which has each of Pillow's modes with one number for a pixel, its palette and orientation."""
    file = io.BytesIO()
    if picture.mode == "P":
        picture.save(file, "PNG")
    else:
        picture.save(file, "TIFF")
    return file.getvalue()


def _npy_bytes(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    return file.getvalue()


def _list(
    source: Source,
    findings: Findings,
    kinds: FieldKinds,
    entries: Iterable[Sequence[Any]],
) -> listing.Listing:
    """kinds: complete once the first of the entries is there."""
    schema = listing.listing_schema((), where=True)
    chunks, values, rest = list[pa.Table](), list[list[Any]](), iter(entries)
    while some := list(islice(rest, _CHUNK_ROWS)):
        name, size, address, *columns = map(list, zip(*some, strict=True))
        chunks.append(pa.table([name, size, address], schema=schema))
        values = values or [[] for _ in columns]
        for column, more in zip(values, columns, strict=True):
            column += more
    table = pa.concat_tables(chunks)
    of_rows, splits = dict(zip(kinds, values, strict=True)), None
    if source.own_splits:
        splits, used = _splits(
            source, findings, table.column(listing.NAME), kinds, of_rows
        )
        of_rows.pop(used, None)
    drawn_on = of_rows.pop(listing.DRAWN_ON) if findings.draws else []
    fields, columns, classes = list[Field](), list[Any](), None
    where = Origin(source.title, table.column(listing.NAME))
    for field_name, column in () if source.images_alone else of_rows.items():
        kind, detail = kinds[field_name]
        given = findings.classes.get(field_name)
        field, of_field = KINDS[kind].parse(where, field_name, column, given, detail)
        if KINDS[kind].names_set_classes:
            classes, field = field.classes, replace(field, classes=None)
        ids = findings.category_ids.get(field_name)
        field = replace(
            field, category_ids=ids, instances_of=findings.instances_of.get(field_name)
        )
        fields.append(findings.fields.get(field_name, field))
        columns += of_field
    findings.notes += _notes_on_alike([classes, *(field.classes for field in fields)])
    if table.column(listing.WHERE).equals(table.column(listing.NAME)):
        table = table.drop_columns([listing.WHERE])
    schema = listing.listing_schema(
        tuple(fields), listing.WHERE in table.column_names, bool(drawn_on)
    )
    sizes = [pa.array(sides, pa.int32()) for sides in zip(*drawn_on, strict=True)]
    rejected = tuple(sorted(findings.rejected, key=lambda rejection: rejection.source))
    table = pa.table([*table.columns, *sizes, *columns], schema=schema)
    return listing.Listing(
        table, tuple(fields), classes, rejected, findings.all_notes(), splits
    )


def _notes_on_alike(lists: Iterable[ClassNames]) -> list[str]:
    """A sentence on names of classes that people read as one, for each list of names."""
    notes = list[str]()
    for names in lists:
        different = sorted(set(names or ()))
        for words, read in (
            ("in case", str.lower),
            ("in blanks or the form of their characters", _as_read),
        ):
            counts = Counter(map(read, different))
            if alike := [name for name in different if counts[read(name)] > 1]:
                notes.append(
                    f"classes that differ only {words} are different classes: {some_of(alike)}"
                )
                break
    return list(dict.fromkeys(notes))


def _as_read(name: str) -> str:
    """A name as it looks: composed letters and those of parts are one, and so are blanks of any kind."""
    return " ".join(unicodedata.normalize("NFKC", name).split())


def _splits(
    source: Source,
    findings: Findings,
    names: pa.ChunkedArray,
    kinds: FieldKinds,
    of_rows: Mapping[str, Sequence[Any]],
) -> tuple[listing.SourceSplits | None, str]:
    """The splits of the samples, and the field that names them, if one does."""
    for name, values in of_rows.items():
        asked = name == listing.SPLIT and listing.SPLIT in source.columns
        is_meant = asked or (
            name in listing.COLUMNS and kinds[name][0] == CaptionKind.name
        )
        if is_meant and (
            splits := listing.splits_of_column(source.title, name, values, asked)
        ):
            return listing.SourceSplits.of(
                splits, findings.origin or f"by its column {name!r}"
            ), name
    return (
        None
        if findings.strict is None
        else listing.splits_of_paths(source.title, names.to_pylist(), findings.strict)
    ), ""


def _plain(value: Any) -> Any:
    """Converts NumPy's arrays and numbers for JSON."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"it holds a {type(value).__name__}")
    return value.tolist()
