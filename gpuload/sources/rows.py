"""The engine of all sources: each yields a row for every sample; here rows are checked and become a listing.

Rows of files are listed at once, by reference. Rows that can be had only once, or hold their images (an iterable,
HDF5's chunks), first go through a spool in the packer's scratch folder: images, masks and arrays in one file, all else
as a line of JSON for each row. Workers then read images in any order. So a generator is asked once, a compressed chunk
is unpacked once, and a resumed run asks for nothing again.
"""

import io
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.errors import DecodeError, SourceError, naming, some_of
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.captions import CaptionKind
from gpuload.fields.field import Field
from gpuload.fields.kind import Kind, Origin
from gpuload.fields.picture_lists import PICTURES_KIND, PicturesKind
from gpuload.fields.pictures import PictureKind
from gpuload.fields.registry import all_kinds
from gpuload.formats import (
    FloatRange,
    channels_last,
    converted,
    in_color_space,
    is_srgb,
    raster_of_image,
    refuse_lost_meaning,
    unknown_range,
)
from gpuload.formats.raster import EIGHT_BITS
from gpuload.pictures import reason_of
from gpuload.sources import listing
from gpuload.sources.files import (
    Findings,
    Ref,
    advice_on_images,
    read_at,
    read_file,
    readable,
)
from gpuload.sources.loaded import (
    REFUSED,
    blob_of_mask,
    blob_of_raster,
    file_of,
    file_with,
    npy_bytes,
    tiff_of,
)
from gpuload.types import Array, ClassNames

if TYPE_CHECKING:
    from gpuload.sources.source import Row, Source

_BLOBS = "samples.blobs"
_ROWS = "samples.jsonl"
_KINDS = "samples.json"
_NPY = b"\x93NUMPY"
_FLOATS = b"\0floats: "  # begins an image of floats, whose white all of them tell
# What `Findings` holds besides the rejections that a spool keeps.
_KEPT_FINDINGS = (
    "notes",
    "origin",
    "classes",
    "category_ids",
    "instances_of",
    "strict",
)
_RESERVED = (listing.NAME, listing.BYTES, listing.WHERE, "image")
_OF_PICTURES = (PictureKind.name, PicturesKind.name)
_PICTURE = PictureKind()
_NO_KIND = ("", "")
_ROWS_AHEAD = (
    10_000  # that are looked into for the kinds of the first row's empty lists
)
_CHUNK_ROWS = 65_536  # rows kept as Python objects before they become Arrow columns

# Name and detail (see `Kind.detail`) of the kind of each field.
FieldKinds = dict[str, tuple[str, str]]


def fill_spool(source: "Source", scratch: Path) -> int:
    """Writes the rows of a source into its spool, unless an earlier run has filled it.

    Returns:
        What is white in its images of floats, see `FloatRange.white`.

    Raises:
        SourceError: as `Source.rows`, or a row is not what it should be.
    """
    if (scratch / _KINDS).exists():
        _, _, floats, *_ = json.loads((scratch / _KINDS).read_text())
        return FloatRange(**floats).white
    findings = Findings(source.options.images_alone)
    findings.kinds |= source.options.kinds
    rows = source.rows(findings)
    with (
        naming(source.originals),
        (scratch / _BLOBS).open("wb") as blobs,
        (scratch / _ROWS).open("wb") as lines,
    ):
        try:
            reader = _RowReader(source, findings, blobs)
            lines.writelines(map(reader.line, reader.entries(rows)))
        finally:
            if isinstance(rows, Generator):
                rows.close()  # its file now, not when the error is collected
    findings.notes += [
        sentence.format(f"{count:,}")
        for sentence, count in sorted(reader.remarks.items())
    ]
    for doubt in findings.doubts.values():
        raise SourceError(f"{source.title}: {doubt}")
    kept = [
        reader.image,
        reader.kinds,
        asdict(reader.floats),
        *(getattr(findings, name) for name in _KEPT_FINDINGS),
    ]
    rejected = [asdict(rejection) for rejection in findings.rejected]
    (scratch / _KINDS).write_text(json.dumps([*kept, rejected]))
    return reader.floats.white


def list_spool(source: "Source", scratch: Path) -> listing.Listing:
    """The samples in the spool of a source."""
    findings = Findings(source.options.images_alone)
    image, kinds, floats, *kept, rejected = json.loads((scratch / _KINDS).read_text())
    for name, value in zip(_KEPT_FINDINGS, kept, strict=True):
        setattr(findings, name, value)
    findings.classes = {name: tuple(names) for name, names in findings.classes.items()}
    findings.category_ids = {
        name: tuple(ids) for name, ids in findings.category_ids.items()
    }
    findings.rejected = [listing.Rejection(**entry) for entry in rejected]
    with (scratch / _ROWS).open("rb") as lines:
        samples = _list(source, findings, kinds, map(json.loads, lines))
    return replace(samples, image=image, floats=FloatRange(**floats))


def list_rows(source: "Source") -> listing.Listing:
    """The samples of a source whose rows hold references."""
    findings = Findings(source.options.images_alone)
    findings.kinds |= source.options.kinds
    reader = _RowReader(source, findings)
    entries = reader.entries(source.rows(findings))
    with naming(source.originals):
        samples = _list(source, findings, reader.kinds, entries)
    return replace(samples, image=reader.image)


def read_spool(scratch: Path, address: str, white: int, mode: str) -> bytes | Array:
    """The image, mask or array at an address in a spool.

    Args:
        scratch: The folder of the spool.
        address: As the listing has it.
        white: What is white in images of floats, see `FloatRange.white`.
        mode: Of the set; "" while it is not known.

    Raises:
        DecodeError: it could not be converted when it was spooled, or holds floats that do not tell what is white.
    """
    offset, size = map(int, address.split(":"))
    blob = read_at(scratch / _BLOBS, offset, size)
    if blob.startswith(REFUSED):
        raise DecodeError(blob.removeprefix(REFUSED).decode())
    if blob.startswith(_FLOATS):
        return _floats(_array_of_npy(blob.removeprefix(_FLOATS)), white, mode)
    if blob.startswith(_NPY):
        return _array_of_npy(blob)
    return blob


def _floats(image: Array, white: int, mode: str) -> bytes | Array:
    """An image of floats as the packer takes it, see `read_spool`."""
    if mode in ("", "RGB") and white == EIGHT_BITS:
        return image.astype(np.uint8)
    if white:
        return image
    if mode == "RGB":
        raise unknown_range(image)
    if image.shape[2:] == (1,) and image.dtype == np.float32:  # as Pillow has it
        return tiff_of(Image.fromarray(image.squeeze(2)), b"")
    return image


def _array_of_npy(blob: bytes) -> Array:
    array: Array = np.load(io.BytesIO(blob), allow_pickle=False)
    return array


class _RowReader:
    """Checks the rows of a source, and finds the kind of each field.

    Args:
        blobs: Gets the images, masks and arrays that the rows hold.

    Attributes:
        kinds: Of the fields, known after the first row.
        remarks: On PIL images, as of `Kind.remarks`.
        floats: The range of the images that are floats and may be levels.
    """

    def __init__(
        self, source: "Source", findings: Findings, blobs: BinaryIO | None = None
    ) -> None:
        self._source = source
        self._told = findings
        self._blobs = blobs
        self._number = -1  # of the row
        self._offset = 0
        self.image = "image"
        self._first_of = ""  # the list whose first picture is the image
        self._lists = set[str]()  # of pictures, which are empty in the first row
        self.kinds: FieldKinds = {}
        self._by_key = {key: kind for kind in all_kinds().values() for key in kind.keys}
        self.remarks: Counter[str] = Counter()
        self.floats = FloatRange()

    def entries(self, rows: Iterable["Row"]) -> Iterator[list[Any]]:
        """For each row the name, size and address of its image, the size of all that lies beside it in the source,
        then the value of each field.

        Where nothing is spooled, rows come from one place in the source's code, so only the first is checked.
        """
        started = self._started(iter(rows))
        for self._number, row in enumerate(started):
            if self._number == 0 or self._source.spools:
                self._check(row)
            yield self._entry(row)
        if self._number < 0:
            notes = [
                f"{rejection.source!r} {rejection.reason}"
                for rejection in self._told.rejected[:1]
            ]
            notes += self._told.all_notes()
            advice = advice_on_images(self._told.others) or self._source.advice
            raise SourceError(
                f"{self._source.title}: holds no sample; found: {'; '.join(notes) or 'nothing'}. {advice}"
            )

    def _started(self, rows: Iterator["Row"]) -> Iterator["Row"]:
        """The rows, once the first ones have told which empty lists of the first are lists of pictures."""
        held = list(islice(rows, 1))
        empty = self._empty_lists(held[0]) if held else set()
        for row in islice(rows, _ROWS_AHEAD if empty else 0):
            held.append(row)
            if isinstance(row, Mapping):
                told = {name for name in empty if PICTURES_KIND.claims(row.get(name))}
                self._lists |= told
                empty -= told
            if not empty:
                break
        return chain(held, rows)

    def _empty_lists(self, row: Any) -> set[str]:
        """The entries of a row that are empty lists, or None, of whose kind neither their names nor the source tell."""
        if not isinstance(row, Mapping):
            return set()
        return {
            name
            for name, value in row.items()
            if (value is None or isinstance(value, list | tuple))
            and not value
            and name not in (*_RESERVED, *self._by_key, *self._told.kinds)
        }

    def _entry(self, row: "Row") -> list[Any]:
        stored = {
            field: self._stored_list(row[field])
            for field, (kind, _) in self.kinds.items()
            if kind == PicturesKind.name
        }
        image = self._image_of(row, stored)
        name = row.get(listing.NAME)
        if name is None:
            name = image.name or f"{self._number:08d}."
        values = list[Any]()
        beside = 0
        for field, (kind, _) in self.kinds.items():
            if field in stored:
                beside += sum(picture.size for picture in stored[field])
                values.append([picture.address for picture in stored[field]])
            elif all_kinds()[kind].stays_in_shard:
                file = self._stored(row[field], kind)
                beside += file.size
                values.append(file.address)
            else:
                values.append(
                    row[field]
                    if self._told.picked
                    else all_kinds()[kind].pick(field, row)
                )
        if self._first_of:
            beside -= image.size
        return [str(name), image.size, image.address, beside, *values]

    def _image_of(self, row: "Row", lists: Mapping[str, Sequence[Ref]]) -> Ref:
        """The image of a sample.

        Args:
            lists: Its lists of pictures.
        """
        if self._first_of:
            pictures = lists[self._first_of]
            return pictures[0] if pictures else Ref("", 0, listing.NO_IMAGE)
        return self._stored(row[self.image], "image")

    def line(self, entry: Sequence[Any]) -> bytes:
        """JSON of an entry."""
        try:
            return (
                json.dumps(entry, ensure_ascii=False, default=_plain).encode() + b"\n"
            )
        except (TypeError, ValueError) as error:
            raise self._error(
                f"has a value that cannot be stored ({error})",
                "Give numbers, texts, arrays, or lists and dicts of these",
            ) from None

    def _check(self, row: Any) -> None:
        """Raises SourceError if this is not a dict with an image, its labels are invalid, or it has other fields than
        the rows before."""
        if self._number == 0 and isinstance(row, Mapping):
            self._refuse_strangers(row)
            self._find_image(row)
        has_image = isinstance(row, Mapping) and (self._first_of or self.image) in row
        if not has_image:
            raise self._no_image(row)
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

    def _no_image(self, row: Any) -> SourceError:
        fault = f"is a {type(row).__name__}"
        advice = 'Give a dict such as {"image": image, "label": label}'
        if isinstance(row, Mapping):
            fault = f"has only {sorted(map(str, row))}"
            advice += ', and {"images": []} where there is no picture'
            empty = sorted(map(str, self._empty_lists(row)))
            if empty:
                advice += f"; if {empty[0]!r} is a list of pictures, pictures=[{empty[0]!r}] tells it"
        return self._error(fault, advice)

    def _refuse_strangers(self, row: "Row") -> None:
        """Raises SourceError if the user names pictures that samples do not have."""
        for name, kind in self._told.kinds.items():
            if kind in _OF_PICTURES and name not in row:
                names = some_of(sorted(map(str, row)), 8)
                raise self._error(
                    f"has no {name!r}, which is named as a picture; its entries are {names}",
                    "Correct the name",
                )

    def _find_image(self, row: "Row") -> None:
        """Finds the sample's image: the entry "image", or the first that is a picture, or the first of a list."""
        if "image" in row:
            return
        for name, value in row.items():
            told_kind = self._told.kinds.get(name)
            is_named = name in _RESERVED or name in self._by_key
            has_list = _PICTURE.with_others(name, row) == PicturesKind.name
            is_list = has_list or name in self._lists
            if told_kind in _OF_PICTURES or (not told_kind and not is_named):
                kind = PICTURES_KIND if is_list else _PICTURE
                is_told = bool(told_kind) or name in self._lists
                if not (is_told or kind.claims(value)):
                    continue
                if is_list:
                    self._first_of = name
                else:
                    self.image = name
                return

    def _error(self, what: str, advice: str) -> SourceError:
        return SourceError(
            f"{self._source.title}: sample {self._number} {what}. {advice}"
        )

    def _kinds_of(self, row: "Row") -> FieldKinds:
        """The kind of each field of a row: given by the source, by its key, or the first that claims its value."""
        kinds: FieldKinds = {}
        companions: set[str] = set()
        images_alone = self._source.options.images_alone
        for name, value in row.items():
            is_left_out = images_alone and name not in listing.COLUMNS
            if is_left_out or name in (*_RESERVED, self.image):
                continue
            named_kind = self._named_kind(name)
            if isinstance(value, Ref):
                kinds[name] = named_kind.name if named_kind else "array", value.detail
                continue
            alone = named_kind or self._claiming_kind(name, value)
            kind = all_kinds()[alone.with_others(name, row)]
            kinds[name] = kind.name, kind.detail(value)
            companions.update(kind.companions(name))
        return {name: kind for name, kind in kinds.items() if name not in companions}

    def _named_kind(self, name: str) -> Kind | None:
        """The kind of a field that its source gives, or its key; None where only its values tell."""
        if name in self._told.kinds:
            return all_kinds()[self._told.kinds[name]]
        return self._by_key.get(name)

    def _claiming_kind(self, name: str, value: Any) -> Kind:
        """The first kind that claims a value. An empty list tells nothing, and is one of pictures where others are."""
        is_list = self.kinds.get(name, _NO_KIND)[0] == PicturesKind.name
        if (is_list or name in self._lists) and not value:
            return PICTURES_KIND
        return next(kind for kind in all_kinds().values() if kind.claims(value))

    def _stored_list(self, values: Sequence[Any] | None) -> list[Ref]:
        """The references to the pictures of a list; None is an empty one."""
        return [self._stored(value, PictureKind.name) for value in values or ()]

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
        self._refuse_no_picture(value, kind)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, Image.Image):
            if (file := file_of(value)) is not None:
                return file
            if kind == "image":
                return self._blob_of_picture(value)
            if kind in ("mask", PictureKind.name):
                return blob_of_mask(value)
        array = self._array_of(value, kind)
        if kind == "image" and not self._source.options.as_stored:
            array = channels_last(array)
            if array.dtype.kind == "f":
                return self._blob_of_floats(array)
        return npy_bytes(array)

    def _array_of(self, value: Any, kind: str) -> Array:
        """Raises SourceError if a value is no array of numbers."""
        try:
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise ValueError(_about_objects(array))
        except (
            ValueError,
            TypeError,
            OverflowError,
        ) as error:  # such as lists within lists, 65 deep
            what = str(error)
            if "inhomogeneous" in what:  # NumPy's word for rows of different lengths
                what = "its rows differ in length"
            article = "an" if kind[0] in "aeiou" else "a"
            raise self._error(
                f"has {article} {kind} that is not an array ({what})", "Give numbers"
            ) from None
        return array

    def _blob_of_floats(self, image: Array) -> bytes:
        """An image whose values may be levels, which is known when all of them are."""
        self.floats = self.floats.including(image)
        return _FLOATS + npy_bytes(image)

    def _refuse_no_picture(self, value: Any, kind: str) -> None:
        """Raises SourceError if the value is None, or a list of pictures in place of an image."""
        is_list = isinstance(value, list | tuple)
        if kind == "image" and is_list and (not value or PICTURES_KIND.claims(value)):
            raise self._error(
                "has a list of pictures as its image", "Call the list 'images'"
            )
        if value is None:
            advice = 'Leave it out, or give lists of pictures, {"images": []} where there is none'
            raise self._error(f"has None for its {kind}", advice)

    def _blob_of_picture(self, picture: Image.Image) -> bytes:
        """A PIL image, converted as a file of the same values is; or the reason why it cannot be."""
        conversion = self._source.options.conversion
        try:
            refuse_lost_meaning(picture, conversion)
            if conversion.changes_values:  # which the packer does with each file
                return file_with(picture)
            raster = raster_of_image(picture)
            values = raster.values
            are_floats = values is not None and values.dtype.kind == "f"
            if are_floats and not self._source.options.as_stored:
                return self._blob_of_floats(np.asarray(values))
            if self._source.options.follows:
                return blob_of_raster(raster)
            image = converted(raster, conversion)
            profile = b""
            if isinstance(image, Image.Image):
                image, profile = in_color_space(image, raster.profile, conversion.icc)
        except (DecodeError, OSError) as error:
            return REFUSED + str(error).encode()
        except Exception as error:  # Pillow's parsers may raise anything, also of Exif
            return REFUSED + f"cannot be decoded: {reason_of(error)}".encode()
        self.remarks.update(raster.remarks)
        if isinstance(image, Image.Image) and not is_srgb(profile):
            file = io.BytesIO()
            image.save(
                file, "TIFF", icc_profile=profile
            )  # an array has no place for it
            return file.getvalue()
        return npy_bytes(np.asarray(image))


def _about_objects(array: Array) -> str:
    """Why an array holds Python objects, for messages."""
    if any(value is None for value in array.flat):
        return "a value is missing: None, or null in a file"
    return "Python objects"


def _list(
    source: "Source",
    findings: Findings,
    kinds: FieldKinds,
    entries: Iterable[Sequence[Any]],
) -> listing.Listing:
    """The listing of a source.

    Args:
        kinds: Complete once the first of the entries is there.
    """
    columns = _columns_of(entries)
    images = columns.images
    values = dict(zip(kinds, columns.values, strict=True))
    names = images.column(listing.NAME)
    splits = None
    if source.options.own_splits:
        splits, used = _splits(source, findings, names, kinds, values)
        values.pop(used, None)
    drawn_on = values.pop(listing.DRAWN_ON) if findings.draws else []
    if source.options.images_alone:
        values = {}
    parsed = _parse_fields(Origin(source.title, names), findings, kinds, values)
    if images.column(listing.WHERE).equals(names):
        images = images.drop_columns([listing.WHERE])
    schema = listing.listing_schema(
        parsed.fields, listing.WHERE in images.column_names, bool(drawn_on)
    )
    sizes = [array_of(sides, pa.int32()) for sides in zip(*drawn_on, strict=True)]
    if listing.BESIDE in schema.names:
        sizes.append(array_of(columns.sizes_beside, pa.int64()))
    return listing.Listing(
        pa.table([*images.columns, *sizes, *parsed.columns], schema=schema),
        parsed.fields,
        parsed.classes,
        tuple(sorted(findings.rejected, key=lambda rejection: rejection.source)),
        findings.all_notes(),
        splits,
    )


class _Columns(NamedTuple):
    """All entries of a listing, by columns.

    Attributes:
        images: Names, sizes and addresses.
        sizes_beside: Bytes of what lies beside each image.
        values: Of each field.
    """

    images: pa.Table
    sizes_beside: list[int]
    values: list[list[Any]]


def _columns_of(entries: Iterable[Sequence[Any]]) -> _Columns:
    """The columns of entries, as `_RowReader.entries` gives them."""
    schema = listing.listing_schema((), where=True)
    chunks = list[pa.Table]()
    sizes_beside = list[int]()
    values = list[list[Any]]()
    rest = iter(entries)
    while chunk := list(islice(rest, _CHUNK_ROWS)):
        columns = [list(column) for column in zip(*chunk, strict=True)]
        arrays = map(array_of, columns[:3], schema.types)
        chunks.append(pa.table(list(arrays), schema=schema))
        sizes_beside += columns[3]
        if not values:
            values = [[] for _ in columns[4:]]
        for column, more in zip(values, columns[4:], strict=True):
            column += more
    return _Columns(pa.concat_tables(chunks), sizes_beside, values)


class _ParsedFields(NamedTuple):
    """The fields of a listing, their columns, and the names of the set's classes."""

    fields: tuple[Field, ...]
    columns: list[Any]
    classes: ClassNames


def _parse_fields(
    where: Origin,
    findings: Findings,
    kinds: FieldKinds,
    values: Mapping[str, list[Any]],
) -> _ParsedFields:
    """The fields that these values are, by name; `findings` gets notes on their classes."""
    fields = list[Field]()
    columns = list[Any]()
    classes: ClassNames = None
    for name, column in values.items():
        kind, detail = kinds[name]
        names = findings.classes.get(name)
        field, parsed = all_kinds()[kind].parse(where, name, column, names, detail)
        if all_kinds()[kind].names_set_classes:
            classes = field.classes
            field = replace(field, classes=None)
        field = replace(
            field,
            category_ids=findings.category_ids.get(name),
            instances_of=findings.instances_of.get(name),
        )
        fields.append(findings.fields.get(name, field))
        columns += parsed
    findings.notes += _notes_on_alike([classes, *(field.classes for field in fields)])
    return _ParsedFields(tuple(fields), columns, classes)


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
    return list(dict.fromkeys(notes))


def _as_read(name: str) -> str:
    """A name as it looks: composed letters and those of parts are one, and so are blanks of any kind."""
    return " ".join(unicodedata.normalize("NFKC", name).split())


def _splits(
    source: "Source",
    findings: Findings,
    names: pa.ChunkedArray,
    kinds: FieldKinds,
    of_rows: Mapping[str, Sequence[Any]],
) -> tuple[listing.SourceSplits | None, str]:
    """The splits of the samples, and the field that names them, if one does."""
    for name, values in of_rows.items():
        asked = name == listing.SPLIT and listing.SPLIT in getattr(
            source.options, "columns", ()
        )
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
