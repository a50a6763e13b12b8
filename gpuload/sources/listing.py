"""What a source of images is to the packer: a list of its samples, and the bytes of each.

The list holds names and numbers only, so that a million samples are planned, shuffled and cut into shards without
reading one image. Workers then read the samples they are told, in processes of their own.
"""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from gpuload.disk.fields import COLUMN_TYPES, Field
from gpuload.errors import SourceError

NAME = "name"
BYTES = "bytes"


@dataclass(frozen=True)
class Rejection:
    """One image that was left out: its name in the source, and why."""

    source: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """All samples of a source, in an order that depends on nothing but the source.

    samples: a row a sample: `name` (text, unique; becomes the index column `source`), `bytes` (int64, size of the image
        as it lies in the source), then a column for each field, named after it.
    fields: what a sample has besides its image.
    classes: name of each class by its number; None where nobody said.
    rejected: what was found to be no sample while listing.
    notes: sentences for the user about what was found or passed over.
    """

    samples: pa.Table
    fields: tuple[Field, ...] = ()
    classes: tuple[str, ...] | None = None
    rejected: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        wanted = listing_schema(self.fields)
        if self.samples.schema != wanted:
            raise SourceError(
                f"a listing of fields {[field.name for field in self.fields]} must have the columns {wanted.names} "
                f"with their types; found {self.samples.schema.names}. Build it with listing_schema(fields)"
            )

    def __len__(self) -> int:
        return int(self.samples.num_rows)


class Source(Protocol):
    """Where images come from. It is sent to worker processes, so it must be picklable and hold no open files."""

    def list_samples(self) -> Listing:
        """Every sample: names and numbers, no pixels.

        Raises:
            SourceError: there is nothing, or what is there contradicts itself.
        """
        ...

    def read(self, row: int, name: str) -> bytes:
        """The encoded image in this row of the listing, whose name is given too.

        Raises:
            OSError: it cannot be read any more; the packer leaves it out with that reason.
        """
        ...


def listing_schema(fields: tuple[Field, ...]) -> pa.Schema:
    """The columns of `Listing.samples` for these fields."""
    columns = [pa.field(NAME, pa.large_string()), pa.field(BYTES, pa.int64())]
    return pa.schema(columns + [pa.field(field.name, COLUMN_TYPES[field.kind]) for field in fields])


def some_of(names: list[str], count: int = 3) -> str:
    """The first few of these, quoted, for a message: `'a', 'b', 'c' and 4 more`."""
    shown = ", ".join(map(repr, names[:count]))
    return shown if len(names) <= count else f"{shown} and {len(names) - count:,} more"
