"""The samples of a source as the packer plans them.

A listing holds names and numbers only, so that a million samples are planned, shuffled and cut into shards without
reading one image.
"""

from dataclasses import dataclass

import pyarrow as pa

from gpuload.errors import some_of as some_of
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of
from gpuload.sources.splits import SourceSplits

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
        lies in the source), `where` (text, its address) unless that is the name, then for each field its
        `value_columns`, or for a mask or an array one column of its name with the address.
    fields: what a sample has besides its image.
    classes: name of each class by its number; None if unknown.
    rejected: images that were left out while listing.
    notes: sentences for the user about what the source holds or skips.
    splits: the split of each sample, if the source has splits; else the packer draws them.
    """

    samples: pa.Table
    fields: tuple[Field, ...] = ()
    classes: tuple[str, ...] | None = None
    rejected: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()
    splits: SourceSplits | None = None

    def __len__(self) -> int:
        return int(self.samples.num_rows)


def addresses(samples: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """The addresses by which a source reads the images of these samples."""
    return samples.column(WHERE if WHERE in samples.schema.names else NAME)


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
