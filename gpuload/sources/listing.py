"""What a source of images is to the packer: a list of its samples, and the bytes of each.

The list holds names and numbers only, so that a million samples are planned, shuffled and cut into shards without
reading one image. Workers then read the samples they are told, in processes of their own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from gpuload.errors import SourceError
from gpuload.errors import some_of as some_of
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.sources.splits import SourceSplits
from gpuload.types import Array

NAME = "name"
BYTES = "bytes"
WHERE = "where"


@dataclass(frozen=True)
class Rejection:
    """One image that was left out: its name in the source, and why.

    asked: whether the user asked for it (a copy, a gray or small image), so it is not a fault.
    """

    source: str
    reason: str
    asked: bool = False


@dataclass(frozen=True)
class Listing:
    """All samples of a source, in an order that depends on nothing but the source.

    samples: a row a sample: `name` (text; becomes the index column `source`), `bytes` (int64, size of the image as it
        lies in the source), perhaps `where` (text, anything that helps the source to find it), then for each field its
        `value_columns`, or for a mask or an array one column of its name that says where to find it.
    fields: what a sample has besides its image.
    classes: name of each class by its number; None where nobody said.
    rejected: what was found to be no sample while listing.
    notes: sentences for the user about what was found or passed over.
    splits: the split of each sample, where the source has splits of its own; else the packer draws them.
    """

    samples: pa.Table
    fields: tuple[Field, ...] = ()
    classes: tuple[str, ...] | None = None
    rejected: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()
    splits: SourceSplits | None = None

    def __post_init__(self) -> None:
        wanted = listing_schema(self.fields)
        if self.samples.schema not in (wanted, listing_schema(self.fields, where=True)):
            raise SourceError(
                f"a listing of fields {[field.name for field in self.fields]} must have the columns {wanted.names} "
                f"with their types; found {self.samples.schema.names}. Build it with listing_schema(fields)"
            )

    def __len__(self) -> int:
        return int(self.samples.num_rows)


class Source(ABC):
    """Where images come from. It is sent to worker processes, so it must be picklable and hold no open files.

    own_splits: whether a listing tells the splits that the source itself has; else these are ignored.
    images_alone: whether only the images are listed, without fields.
    as_stored: whether arrays of images are given as they are, of any dtype and number of channels; else as uint8.
    needs_process: whether `prepare` is called in a process of its own, since a damaged file may end that: it calls C
        libraries that trust what they read.
    """

    own_splits: bool = True
    images_alone: bool = False
    as_stored: bool = False
    needs_process: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """What messages call it."""
        return type(self).__name__

    @property
    def identity(self) -> str:
        """What says, in a text, which images these are: a run is resumed only with the same."""
        given = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in sorted(given.items()))})"

    def leave_out(self, folder: Path) -> None:  # noqa: B027 -- most read no folder in which it could lie
        """Called before `list_samples` with a folder to skip: the output folder."""

    def prepare(self, scratch: Path) -> None:  # noqa: B027 -- most need not
        """Called once before `list_samples`, in the packer's process or in one of its own (`needs_process`).

        scratch: a folder that is there until the set is packed; a source whose samples can only be had one after the
            other puts them there.
        """

    @abstractmethod
    def list_samples(self) -> Listing:
        """Every sample: names and numbers, no pixels.

        Raises:
            SourceError: there is nothing, or what is there contradicts itself.
        """

    def expect(self, addresses: Sequence[str]) -> None:  # noqa: B027
        """Called in a worker with all that it will `read`, in order: names, or what the listing has as `where`."""

    def wait(self, address: str) -> None:  # noqa: B027
        """Called before each `read`, whose time is limited: what takes long for no fault of the image is done here."""

    @abstractmethod
    def read(self, row: int, name: str, where: str = "") -> bytes | Array:
        """The image in this row of the listing: encoded, or an array as `packing.pixels` takes it.

        Raises:
            OSError: it cannot be read any more; the packer leaves it out with that reason.
            DecodeError: the same, with the reason as its message.
        """

    def read_field(self, field: Field, row: int, where: str) -> bytes | Array:
        """The mask or array in this row; `where` is the value in the listing's column of that name.

        Raises:
            OSError, DecodeError: as `read`.
        """
        return self.read(row, field.name, where)


def listing_schema(fields: tuple[Field, ...], where: bool = False) -> pa.Schema:
    """The columns of `Listing.samples` for these fields."""
    columns = [pa.field(NAME, pa.large_string()), pa.field(BYTES, pa.int64())]
    if where:
        columns.append(pa.field(WHERE, pa.large_string()))
    for field in fields:
        if kind_of(field).stays_in_shard:
            columns.append(pa.field(field.name, pa.large_string()))
        else:
            columns += [pa.field(name, kind) for name, kind in kind_of(field).columns(field).items()]
    return pa.schema(columns)
