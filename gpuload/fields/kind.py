"""What a kind of field is: one object that knows everything about it, from the source to the batch.

A new kind is a file here with a subclass of `Kind`, and an entry in `gpuload.fields.registry`. `boxes.py` is an example
of a kind that follows its image, `targets.py` of one that only lies in the index. The contract test
(tests/fields/test_every_kind.py) runs over all registered kinds.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from gpuload.errors import ArgumentError
from gpuload.fields.field import Field
from gpuload.fields.rows import BoundField, DatasetView, PixelField
from gpuload.types import F32, F64, I64, ClassNames, WidthHeight

Columns = list[pa.Array]  # of a listing, in the order of `Kind.columns`


class Placement(Protocol):
    """Where an image's pixels go when the packer resizes, crops or pads it."""

    @property
    def source(self) -> WidthHeight: ...
    @property
    def canvas(self) -> WidthHeight: ...
    @property
    def changes(self) -> bool: ...

    def move_points(self, points: F32) -> F64:
        """Points (..., 2), x and y in pixels of the source, in pixels of the canvas; they may lie outside of it."""

    def resample(self, image: Image.Image, filter: Image.Resampling) -> Image.Image:
        """An image of the source's size, resized, cropped and padded as the sample's image is."""


class Member(NamedTuple):
    """A field's value as it is stored.

    content: bytes of the tar member. header: how many of them come before the first element of an array.
    values: of the index columns in `Kind.columns`.
    """

    content: bytes
    header: int
    values: Mapping[str, Any]


class BadRows(NamedTuple):
    """Rows of an index, int64 (n,), with the same fault. found: what the index says of one of them."""

    rows: I64
    found: Callable[[int], str]


class FieldSpec:
    """Base of what users ask for, such as `Boxes("boxes", format="xywh")`. Each belongs to one kind, by its name."""

    name: str
    kind: ClassVar[str]

    def _require_at_least(self, argument: str, value: int | None, least: int) -> None:
        if value is not None and value < least:
            raise ArgumentError(f"{describe(self)[:-1]}, {argument}={value!r}): expected at least {least}")


def describe(spec: "str | FieldSpec") -> str:
    """What messages call it: 'caption', Boxes('boxes')."""
    return repr(spec) if isinstance(spec, str) else f"{type(spec).__name__}({spec.name!r})"


class Kind(ABC):
    """One kind of field. Instances hold nothing: there is one of each, in the registry.

    name: what manifests call it.
    role: what `--column ROLE=NAME` calls it, where that is not its name.
    specs: the classes with which users ask for it; the first of several is the plainest.
    stays_in_shard: the index holds where the value lies and not the value itself, which is too large.
    keys: of a sample (a dict): values under these are of this kind, whatever they are.
    usual_names: names of a table's columns that are taken for this kind, in lower case.
    in_tables: tables may have a column of this kind.
    names_set_classes: the names of its class numbers are those of the whole data set, and not the field's own.
    """

    name: ClassVar[str]
    role: ClassVar[str] = ""
    specs: ClassVar[tuple[type[FieldSpec], ...]] = ()
    stays_in_shard: ClassVar[bool] = False
    keys: ClassVar[tuple[str, ...]] = ()
    usual_names: ClassVar[tuple[str, ...]] = ()
    in_tables: ClassVar[bool] = False
    names_set_classes: ClassVar[bool] = False

    # On disk

    @abstractmethod
    def columns(self, field: Field) -> dict[str, pa.DataType]:
        """Index columns of the field, besides offset and size of its member, and their types."""

    def class_column(self, field: Field) -> str | None:
        """The index column that holds class numbers, as integers or lists of them; None of a kind without classes."""
        return None

    def class_names(self, field: Field, set_classes: ClassNames) -> ClassNames:
        """Names of the numbers. set_classes: those of the data set."""
        return set_classes if self.names_set_classes else field.classes

    # In a source

    def claims(self, value: Any) -> bool:
        """Whether a sample's value is of this kind, where its key does not say so. Asked in registry order."""
        return False

    def detail(self, value: Any) -> str:
        """What all values of a field have in common besides their kind, and `parse` needs, such as a dtype."""
        return ""

    def pick(self, name: str, sample: Mapping[str, Any]) -> Any:
        """The value that `parse` takes, out of a sample (a dict): its entry of this name."""
        return sample[name]

    def companions(self, name: str) -> tuple[str, ...]:
        """Other keys of a sample that belong to the value under this name."""
        return ()

    def parse_cell(self, cell: Any) -> Any:
        """The value that `parse` takes, out of a table's cell (text, or what JSON or Parquet had).

        Raises:
            ValueError: it is no such value; the message is why.
        """
        return cell

    def parse_cells(self, cells: Sequence[Any]) -> Any:
        """The value of one sample out of the cells of all columns that the user named for the field; mostly one."""
        if len(cells) > 1:
            raise ValueError(f"{len(cells)} columns are named; a field of kind {self.name!r} takes one")
        return self.parse_cell(cells[0])

    @abstractmethod
    def parse(
        self, where: str, name: str, values: Sequence[Any], classes: ClassNames = None, detail: str = ""
    ) -> tuple[Field, Columns]:
        """The field, and columns of a listing, out of a value a sample.

        where: opens every message. classes: names by number, where the source knows them. detail: as `detail` gave it.

        A kind that stays in the shard gets texts which tell its source where to find the value, and one column of its
        name holds them.

        Raises:
            SourceError: a value is not of this kind; names the sample.
        """

    # In the packer

    @abstractmethod
    def store(self, field: Field, value: Any, placement: Placement) -> Member:
        """A sample's value as it is stored, moved as its image is.

        value: of a kind that stays in the shard what the source gave for it, bytes or an array; else a dict of the
            listing's columns.

        Raises:
            DecodeError: it cannot be stored; the message is why.
        """

    def remarks(self, field: Field, value: Mapping[str, Any], placement: Placement) -> Counter[str]:
        """What users should know of a sample's value: counts by a sentence with "{}" for the sum over all samples."""
        return Counter()

    def estimate_bytes(self, field: Field, samples: pa.Table) -> I64:
        """int64 (N,): about how many bytes the members of N samples of a listing take; exact where that is cheap."""
        return np.full(len(samples), 512)

    # Back from a shard

    @abstractmethod
    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        """Values of the index columns, as `store` gave them, out of a tar member.

        Raises:
            ValueError, KeyError, TypeError: it is no such member.
        """

    def guess(self, member: str, content: Callable[[], bytes]) -> Field | None:
        """The field of a tar member (by its extension) of this kind in shards that others packed; None if it is not.

        content: reads it.
        """
        return None

    def find_fault(
        self,
        field: Field,
        row: Mapping[str, Any],
        content: bytes,
        header: int,
        image_size: Callable[[bytes], WidthHeight],
    ) -> str:
        """What is wrong with a stored value, "" where nothing is; the sentence's subject is the field.

        row: the sample's row of the index. content: of its tar member; header: where the index says its value begins.
        image_size: decodes an image completely and gives its size; raises DecodeError.
        """
        return self._compare(field, row, content)

    def _compare(self, field: Field, row: Mapping[str, Any], content: bytes) -> str:
        """Whether the index columns hold what the member does, by value and type."""
        found = self.load(field, content)
        for name, kind in self.columns(field).items():
            if not pa.array([found[name]], kind).equals(pa.array([row[name]], kind)):
                return f"is {str(found[name])[:60]!r}, the index says {str(row[name])[:60]!r}"
        return ""

    # In the loader

    def bad_rows(self, field: Field, rows: pa.RecordBatch) -> Iterator[BadRows]:
        """Rows of a shard's index whose values cannot be right, whatever the shard holds; vectorised over the rows.

        Nulls, and members that lie outside of the shard, have been refused before.
        """
        return iter(())

    def meaning(self, field: Field, set_classes: ClassNames) -> dict[str, object]:
        """What must be the same in data sets that are mixed, by a word for messages."""
        return {
            "kind": field.kind,
            "size": field.size,
            "dtype": field.dtype,
            "classes": self.class_names(field, set_classes),
        }

    @abstractmethod
    def bind(self, spec: FieldSpec | None, field: Field, datasets: Sequence[DatasetView]) -> BoundField | PixelField:
        """What takes the field out of batches. spec: one of `specs`, or None for the plain form.

        Raises:
            ArgumentError: the spec does not fit what was packed.
        """


def shortest(values: npt.NDArray[np.float32]) -> Any:
    """float32 numbers, in lists of the same shape, each as the shortest decimal that is read back as itself."""
    return [shortest(value) for value in values] if values.ndim else float(str(np.float32(values)))
