"""The interface of a kind of field: one object that defines everything about it, from the source to the batch.

To add a kind, add a subclass of `Kind`, and an entry in `gpuload.fields.registry`. `BoxesKind` is an example of a kind
that moves with its image, `TargetKind` of one whose values are in the index. The contract test
(tests/fields/test_every_kind.py) runs for every registered kind.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from PIL import Image

from gpuload.checks import shown, text
from gpuload.errors import SourceError
from gpuload.fields.arrow_arrays import array_of, dtype_of
from gpuload.fields.cells import read_cells
from gpuload.fields.field import Field
from gpuload.fields.motion import Placement
from gpuload.fields.rows import (
    BoundField,
    DatasetView,
    PixelField,
    flat,
    lengths_of,
    numbers_of,
    rows_of_numbers,
)
from gpuload.machine.untrusted import parse_json
from gpuload.pictures import name_of
from gpuload.types import I64, ClassNames, WidthHeight

T = TypeVar("T")

NAME = text("the name of a packed field")  # the rule for `FieldSpec.name`
LARGEST = (
    1e30  # of a coordinate or an area: however far it is zoomed, it is still a float32
)
FAULTS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
)  # of a value that is not of a kind


ImageSize = Callable[[bytes], WidthHeight]
Columns = list[pa.Array]  # columns of a listing, in the order of `Kind.columns`
Parsed = tuple[Field, Columns]


class StoredMember(NamedTuple):
    """A field's value as it is stored.

    Attributes:
        content: Bytes of the tar member.
        header: The number of bytes before the first element of an array, else 0.
        values: The values of the index columns in `Kind.columns`.
        scale: Of a mask, as of `formats.masks.ClassNumbers`; else "".
        extension: Of the tar member, where it differs between samples, as of pictures; "" for the field's.
        is_over_white: Of a picture, whether its transparency was laid over white.
    """

    content: bytes
    header: int
    values: Mapping[str, Any]
    scale: str = ""
    extension: str = ""
    is_over_white: bool = False


class Origin(NamedTuple):
    """Where the values of a field come from, for messages; as a text it is the title.

    Attributes:
        title: Of the source.
        names: Of its samples, if they are files.
    """

    title: str
    names: Sequence[str] = ()

    def __str__(self) -> str:
        return self.title

    def sample(self, row: int) -> str:
        """ "sample 3 ('cats/3.jpg')", or "sample 3" without a name."""
        name = str(self.names[row]) if row < len(self.names) else ""
        is_number = name.rstrip(".").isdecimal() and name.endswith(".")
        return (
            f"sample {row}"
            if not name or is_number
            else f"sample {row} ({shown(name)})"
        )


class BadRows(NamedTuple):
    """Rows of an index with the same fault.

    Attributes:
        rows: int64 (n,), their numbers.
        found: What the index says of one of them, for the message.
    """

    rows: I64
    found: Callable[[int], str]


class FieldSpec:
    """Base class of the specs by which users request fields, such as `Boxes("boxes", format="xywh")`.

    name: of the packed field. kind: name of the kind that the spec belongs to. other_kinds: further ones that take it.
    """

    name: str
    kind: ClassVar[str]
    other_kinds: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Kind:
    """One kind of field. Instances have no state; the registry holds one of each kind.

    name: its name in manifests.
    role: its name in `--column ROLE=NAME`, if that differs.
    specs: the spec classes with which users request it; the first of several is the plainest.
    bound: what takes its values from batches, by a spec. plain: the same for a field that is requested by its name;
        None: as by the first of `specs` with its defaults.
    stays_in_shard: whether the index holds only the location of the value, because the value itself is too large.
    listed_as: of such a kind, the type of the column of a listing that tells a source where to find the value.
    keys: keys of a sample (a dict) whose values are of this kind, whatever their type.
    usual_names: names of table columns, in lower case, that are taken to be of this kind.
    in_tables: whether tables may have a column of this kind.
    members: extensions of its tar members in shards packed by other tools.
    json_names: of the values of its columns in the member's JSON object; () if the JSON is the value of one column.
    companion_suffixes: of the names of further columns, which are keys of a sample, too.
    entry_bytes: about how many bytes an entry, or a point of it, takes in a value that is stored as a list.
    names_set_classes: whether its class numbers use the class names of the whole data set instead of the field's own.
    lies_beneath: whether it is drawn before the fields that are drawn on top.
    """

    name: ClassVar[str]
    role: ClassVar[str] = ""
    specs: ClassVar[tuple[type[FieldSpec], ...]] = ()
    bound: ClassVar[type[BoundField]]
    plain: ClassVar[type[BoundField] | None] = None
    stays_in_shard: ClassVar[bool] = False
    listed_as: ClassVar[pa.DataType] = pa.large_string()
    keys: ClassVar[tuple[str, ...]] = ()
    usual_names: ClassVar[tuple[str, ...]] = ()
    in_tables: ClassVar[bool] = False
    members: ClassVar[tuple[str, ...]] = ()
    json_names: ClassVar[tuple[str, ...]] = ()
    companion_suffixes: ClassVar[tuple[str, ...]] = ()
    entry_bytes: ClassVar[int] = 0
    names_set_classes: ClassVar[bool] = False
    lies_beneath: ClassVar[bool] = False

    # On disk

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        """Names and types of the field's index columns, apart from the offset and size of its member."""
        return {}

    def field_fault(self, field: Field) -> str:
        """What is impossible about a field's description in the manifest, such as a size of 0; "" if nothing is."""
        return ""

    def class_column(self, field: Field) -> str | None:
        """The index column with class numbers, as integers or lists of integers; None for a kind without classes."""
        return None

    def class_names(self, field: Field, set_classes: ClassNames) -> ClassNames:
        """Names of the field's class numbers.

        Args:
            field: A field of this kind.
            set_classes: The class names of the data set; None where it has none.
        """
        return set_classes if self.names_set_classes else field.classes

    def hub_feature(
        self, field: Field, classes: ClassNames, dimensions: Set[int]
    ) -> dict[str, Any]:
        """The type of its tar member in Hugging Face's `datasets`, as dataset cards write it.

        Args:
            field: A field of this kind.
            classes: Names of its class numbers, each once, or None.
            dimensions: The numbers of dimensions that its arrays have, if it holds arrays.
        """
        text_type = "json" if self.json_names else "string"
        features = []
        for name, column in self.columns(field).items():
            names = classes if name == self.class_column(field) else None
            features.append(_hub_feature(column, names, text_type))
        if not self.json_names:
            return features[0]
        entries = zip(self.json_names, features, strict=True)
        return {"struct": [{"name": name, **feature} for name, feature in entries]}

    # In a source

    def claims(self, value: Any) -> bool:
        """Whether a sample's value is of this kind, if its key does not tell. Kinds are asked in registry order."""
        return False

    def detail(self, value: Any) -> str:
        """A property that all values of a field share and `parse` needs, such as a dtype."""
        return ""

    def pick(self, name: str, sample: Mapping[str, Any]) -> Any:
        """The value for `parse` from a sample (a dict): by default the entry of this name."""
        return sample[name]

    def companions(self, name: str) -> tuple[str, ...]:
        """Further keys of a sample that belong to the value under this name."""
        return tuple(f"{name}_{suffix}" for suffix in self.companion_suffixes)

    def with_others(self, name: str, sample: Mapping[str, Any]) -> str:
        """The name of the kind of the value under this name, where the sample's other entries tell more of it."""
        return self.name

    def parse_cell(self, cell: Any) -> Any:
        """The value for `parse` from a table's cell, which is text or a value from JSON or Parquet.

        Raises:
            ValueError: the cell is not of this kind; the message says why.
        """
        return cell

    def parse_column(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """The values for `parse` from a table, by row: the cells of all columns that the user gave for the field.

        Raises:
            ValueError: a cell is not of this kind; the message says why.
        """
        return read_cells(rows, self.parse_cells)

    def parse_cells(self, cells: Sequence[Any]) -> Any:
        """The value for `parse` from one row of `parse_column`, usually of one cell."""
        if len(cells) > 1:
            raise ValueError(
                f"a field of kind {self.name!r} takes one column, {len(cells)} are given"
            )
        return self.parse_cell(cells[0])

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        """The field and its columns of a listing, from one value per sample.

        For a kind that stays in the shard, the values are texts that tell its source where to find the actual values;
        one column with the field's name holds them.

        Args:
            where: The source, subject of all messages.
            name: Of the field.
            values: One for each sample.
            classes: Names by number, if the source knows them.
            detail: What the source says of all values, see the attribute `detail`. Not of images, for which every
                listing has columns.

        Raises:
            SourceError: a value is not of this kind; the message names the sample.
        """
        raise NotImplementedError

    # In the packer

    def move(
        self, field: Field, value: Mapping[str, Any], placement: Placement
    ) -> Mapping[str, Any]:
        """A sample's columns, moved with its image.

        Raises:
            DecodeError: as `store`.
        """
        return value

    def store(self, field: Field, value: Any, placement: Placement) -> StoredMember:
        """A sample's value as it is stored, moved with its image.

        Args:
            field: A field of this kind.
            value: For a kind that stays in the shard, the bytes or array that the source gave; else a dict of the
                listing's columns.
            placement: Where the image lies in the stored one.

        Raises:
            DecodeError: it cannot be stored; the message is the reason alone.
        """
        moved = self.move(field, value, placement)
        return StoredMember(self.dump(field, moved), 0, moved)

    def remarks(
        self, field: Field, value: Mapping[str, Any], placement: Placement
    ) -> Counter[str]:
        """Notes for the user about a sample's value: counts by a sentence with "{}" for the sum over all samples.

        Args:
            field: A field of this kind.
            value: As of `store`, of a sample.
            placement: Where the image lies in the stored one.
        """
        return Counter()

    def estimate_bytes(self, field: Field, samples: pa.Table) -> I64:
        """int64 (N,): about how many bytes the members of a listing's N samples take; exact where that is cheap."""
        import pyarrow.compute as pc  # takes 30 ms, which workers are spared

        names = [] if self.stays_in_shard else list(self.columns(field))
        flat_ones = [
            samples.column(name)
            for name in names
            if not pa.types.is_nested(samples.column(name).type)
        ]
        sizes = np.full(len(samples), 0 if flat_ones or self.entry_bytes else 512)
        for column in flat_ones:
            sizes = sizes + numbers_of(pc.binary_length(column.cast(pa.large_string())))
        if self.entry_bytes:
            counts = numbers_of(pc.list_value_length(samples.column(field.name)))
            sizes = sizes + counts * self.entry_bytes * max(field.size, 1) + 30
        return sizes

    # Into a shard, and back

    def dump(self, field: Field, values: Mapping[str, Any]) -> bytes:
        """The content of a tar member, from the values of the index columns; by default it is JSON."""
        columns = [
            _shortest(values[name], type_)
            for name, type_ in self.columns(field).items()
        ]
        return json.dumps(
            dict(zip(self.json_names, columns, strict=True))
            if self.json_names
            else columns[0]
        ).encode()

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        """The inverse of `dump`.

        Raises:
            ValueError, KeyError, TypeError: the content is not of this kind.
        """
        if not (names := list(self.columns(field))):
            return {}
        document: Any = parse_json(content)
        values = [document[name] for name in self.json_names] or [document]
        return dict(zip(names, values, strict=True))

    def guess(self, member: str, content: Callable[[], bytes]) -> Field | None:
        """The field of a tar member in shards packed by other tools; None if the member is not of this kind.

        Args:
            member: Extension of the tar member.
            content: Reads its data.
        """
        return (
            Field(self.role or self.name, self.name, member)
            if member in self.members
            else None
        )

    def find_fault(
        self,
        field: Field,
        row: Mapping[str, Any],
        content: bytes,
        header: int,
        image_size: ImageSize,
    ) -> str:
        """The fault of a stored value, as a sentence about the field; "" if it is sound.

        By default it is the first difference between index columns and member, in value or type.

        Args:
            field: A field of this kind.
            row: The sample's row of the index.
            content: The bytes of its tar member.
            header: Where in it the value begins, according to the index.
            image_size: Decodes an image completely and returns its size; raises DecodeError.
        """
        stored = self.load(field, content)
        for name, kind in self.columns(field).items():
            if not array_of([stored[name]], kind).equals(array_of([row[name]], kind)):
                return f"is {str(stored[name])[:60]!r}, the index says {str(row[name])[:60]!r}"
        return ""

    # For a person

    def look(
        self, field: Field, row: Mapping[str, Any], read: Callable[[], bytes]
    ) -> dict[str, Any]:
        """A stored value as numbers, text, NumPy arrays in pixels of the stored image, or a picture, by name.

        Args:
            field: A field of this kind.
            row: The sample's row of the index.
            read: Reads the member's data, without its header.

        Raises:
            Exception: it is damaged; of many kinds, by Pillow. The message is the reason alone.
        """
        return {field.name: row[field.name]}

    def look_at_batch(
        self, field: Field, spec: Any, value: Any, row: int
    ) -> dict[str, Any]:
        """What `look` gives of a sample, from a batch, in pixels of its image; only of kinds that are drawn.

        Args:
            field: A field of this kind.
            spec: The spec by which the field was requested.
            value: Its part of the batch, for one view, as NumPy arrays.
            row: The number of the sample in the batch.
        """
        return {}

    def draw(
        self, field: Field, picture: Image.Image, found: Mapping[str, Any]
    ) -> Image.Image:
        """The picture with the value drawn on it.

        Args:
            field: A field of this kind.
            picture: RGB; it may be drawn on in place.
            found: What `look` gives.
        """
        return picture

    def texts(
        self, field: Field, found: Mapping[str, Any], classes: ClassNames
    ) -> dict[str, str]:
        """What `look` gives, each in one line.

        Args:
            field: A field of this kind.
            found: What `look` gives.
            classes: As `class_names` gives them.
        """
        texts = {
            name: _plain(found[name])
            for name in (field.name, *self.companions(field.name))
        }
        if column := self.class_column(field):
            numbers = np.atleast_1d(np.array(found[column], np.int64)).tolist()
            texts[column] = ", ".join(
                f"{name_of(number, classes)} ({number})" for number in numbers
            )
        return texts

    def caption(self, field: Field, spec: Any, value: Any, classes: ClassNames) -> str:
        """The caption of a sample's value in a batch, under its picture; "" for none."""
        return ""

    # In the loader

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        """Rows of a shard's index whose values cannot be right, whatever the shard holds; vectorised over the rows.

        Nulls, and members that lie outside of the shard, have been refused before. By default: lists of one field that
        differ in length, coordinates beyond `LARGEST`, and negative whole numbers.
        """
        lists = {
            name: rows.column(name)
            for name, kind in self.columns(field).items()
            if pa.types.is_list(kind)
        }
        first = [lengths_of(column) for column in lists.values()][:1]
        for name, column in lists.items():
            counts = lengths_of(column)
            numbers = flat(column)
            is_float = numbers.dtype.kind == "f"
            yield BadRows(
                np.flatnonzero(counts != first[0]),
                _differing(field.name, first[0], name, counts),
            )
            wrong = ~(np.abs(numbers) <= LARGEST) if is_float else numbers < 0
            yield BadRows(
                rows_of_numbers(column)[wrong], _beyond(name, column, is_float)
            )

    def bad_classes(
        self, field: Field, rows: pa.RecordBatch, set_classes: ClassNames
    ) -> Iterator[BadRows]:
        """Rows of a shard's index with a number that is none of the field's classes; otherwise as `bad_rows`.

        Args:
            field: A field of this kind.
            rows: Of the index.
            set_classes: The class names of the data set; None where it has none.
        """
        name = self.class_column(field)
        if name is None:
            return
        column = rows.column(name)
        names = self.class_names(field, set_classes)
        numbers = flat(column)
        wrong = numbers < 0
        expected = "numbers from 0"
        if names is not None:
            wrong = wrong | (numbers >= len(names))
            expected = f"classes from 0 to {len(names) - 1}"
        is_list = pa.types.is_list(column.type)
        rows_of_classes = rows_of_numbers(column) if is_list else np.arange(len(column))
        yield BadRows(
            rows_of_classes[wrong],
            lambda row: (
                f"its {name!r} as {str(column[row].as_py())[:80]}, expected {expected}"
            ),
        )

    def meaning(self, field: Field, set_classes: ClassNames) -> dict[str, object]:
        """Properties that must be equal in all data sets of a mixture, by the words that messages use."""
        return {
            "kind": field.kind,
            "size": field.size,
            "dtype": field.dtype,
            "classes": self.class_names(field, set_classes),
        }

    def bind(
        self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]
    ) -> BoundField | PixelField:
        """The bound field, which takes values from batches.

        Args:
            spec: One of `specs`, or None for the default form.
            field: As it is packed in the first of the data sets.
            datasets: Those of the loader, which all have the field.

        Raises:
            ArgumentError: the spec does not fit what was packed.
        """
        if spec is None and self.plain is not None:
            return self.plain(field, tuple(self.columns(field)), None, datasets)
        spec = spec or self.specs[0](field.name)  # type: ignore[call-arg]  # all take a name
        return self.bound(field, tuple(self.columns(field)), spec, datasets)


def _differing(
    first: str, expected: I64, name: str, counts: I64
) -> Callable[[int], str]:
    return lambda row: (
        f"{expected[row]} entries in {first!r} and {counts[row]} in {name!r}"
    )


def _beyond(name: str, column: Any, is_float: bool) -> Callable[[int], str]:
    expected = f"numbers up to {LARGEST:g}" if is_float else "numbers from 0"
    return lambda row: (
        f"its {name!r} as {str(column[row].as_py())[:80]}, expected {expected}"
    )


def _hub_feature(
    column: pa.DataType, classes: ClassNames, text_type: str
) -> dict[str, Any]:
    if pa.types.is_nested(column):
        return {"list": _hub_feature(column.value_type, classes, text_type)}
    if pa.types.is_large_string(column):
        return {"dtype": text_type}
    if classes is not None:
        names = {str(number): name for number, name in enumerate(classes)}
        return {"dtype": {"class_label": {"names": names}}}
    return {"dtype": dtype_of(column).name}


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Image.Image):
        return f"{value.width} × {value.height} pixels"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}: {' '.join(str(value.tolist()).split())}"
    return str(value)


def _shortest(value: Any, kind: pa.DataType) -> Any:
    """A column's value, in which each float32 is the shortest decimal that reads back as it."""
    while pa.types.is_nested(kind):
        kind = kind.value_type
    if kind != pa.float32():
        return value
    return np.array(value, np.float32).astype(str).astype(np.float64).tolist()


def read_each(
    where: Origin,
    name: str,
    values: Sequence[Any],
    read: Callable[[Any], T],
    expected: str,
) -> list[T]:
    """The values of all samples, each read by a function.

    Args:
        where: The source, subject of all messages.
        name: Of the field.
        values: One for each sample.
        read: Gives what is meant, or raises one of `FAULTS`.
        expected: What messages say is expected.

    Raises:
        SourceError: a value is refused; the message names the sample.
    """
    results = []
    for row, value in enumerate(values):
        try:
            # What float32 cannot hold is infinite, and refused.
            with np.errstate(over="ignore"):
                results.append(read(value))
        except FAULTS as error:
            raise SourceError(
                f"{where}: {name!r} of {where.sample(row)} must be {expected}; "
                f"found {shown(value)} ({error}). Correct it"
            ) from None
    return results
