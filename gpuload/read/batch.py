"""A batch before decoding: stored samples, and instructions for the decoder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuload.augment import View
from gpuload.augment.pictures import Views
from gpuload.draws import BATCH_DRAWS, uniform
from gpuload.errors import ArgumentError
from gpuload.fields.rows import Batched, Ragged, take
from gpuload.types import F64, I32, I64, U8, U64, Bools, HeightWidth


@dataclass(frozen=True)
class StoredPictures(Batched):
    """One picture of each of N samples, as it is stored.

    Attributes:
        contents: uint8, the bytes of each: the encoded file, or the pixels (height, width, channels) of a raw one.
        spans: int64 (N, 2), memory address and size of these bytes.
        raw: bool (N,), whether it is stored as pixels.
        widths: int32 (N,), of the decoded pictures in pixels.
        heights: int32 (N,), of the decoded pictures in pixels.
        points: int64 (N, 2), memory address and size of the seek points; 0, 0 without any.
    """

    contents: Sequence[U8]
    spans: I64
    raw: Bools
    widths: I32
    heights: I32
    points: I64

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def sizes(self) -> I64:
        """int64 (N, 2): height and width of each."""
        return np.stack([self.heights, self.widths], axis=1).astype(np.int64)

    @property
    def bytes(self) -> int:
        """The size of all as they are stored."""
        return int(self.spans[:, 1].sum())

    def size(self, row: int) -> HeightWidth:
        """The size of one of them."""
        return int(self.heights[row]), int(self.widths[row])


@dataclass(frozen=True)
class Batch(Batched):
    """N samples as they are stored, and what to make of them.

    The reader returns it with its stored bytes; views and keys come when it is drawn, the rest when its place among the
    batches is known.

    Attributes:
        samples: int64 (N,), sample indices in stored order.
        pictures: By the name of their field, one of each sample, or any number of each; the first one is the image of
            the samples.
        columns: Further columns of the index, by name, with N rows each: a NumPy array for numbers; for bytes, int64
            (N, 2), the memory address and size of each; otherwise a pyarrow array.
        members: By name, for further fields that stay in the shard, the bytes of each sample's member: N views, uint8.
        sources: int64 (N,), the data set of each sample; 0 until it is drawn.
        keys: uint64 (N,), of their random numbers; 0 until it is drawn.
        views: For each picture, one view for each `Augment`; where samples have several pictures of a name, with a row
            for each. Empty until it is drawn.
        stop: Position in the stream where this global batch ends.
        bucket: Its number; None without buckets.
        fields: Those computed while it was read, by name: arrays or lists of N, or a dict of these.
        placeholders: The rows with black pictures in place of undecodable ones.
        read_s: Seconds that reading took.
        download_s: The part of these spent waiting for downloads.
    """

    samples: I64
    pictures: dict[str, StoredPictures | Ragged[StoredPictures]]
    columns: dict[str, Any]
    members: dict[str, list[U8]]
    sources: I64
    keys: U64
    views: Views = field(default_factory=dict)
    stop: int = 0
    bucket: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    placeholders: frozenset[int] = frozenset()
    read_s: float = 0.0
    download_s: float = 0.0

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def image(self) -> StoredPictures:
        """The first picture of each sample, by whose size crops are drawn."""
        return self.stored(next(iter(self.pictures)))

    @property
    def bytes(self) -> int:
        """The size of all pictures as they are stored."""
        return sum(self.stored(name).bytes for name in self.pictures)

    def stored(self, name: str) -> StoredPictures:
        """The stored pictures of one name: one of each sample, or all of one sample after those of another.

        Args:
            name: Of the field, "image" for the image.
        """
        pictures = self.pictures[name]
        return pictures.content if isinstance(pictures, Ragged) else pictures

    def sizes(self, name: str) -> I64 | Ragged[I64]:
        """int64 (N, 2): height and width of the pictures of a name; of a list, with a row for each picture.

        Args:
            name: Of the field.
        """
        pictures = self.pictures[name]
        if isinstance(pictures, Ragged):
            return Ragged(pictures.counts, pictures.content.sizes)
        return pictures.sizes

    def owners(self, name: str) -> I64 | None:
        """int64: the sample of each picture of a name; None where there is one of each."""
        pictures = self.pictures[name]
        return pictures.samples if isinstance(pictures, Ragged) else None

    @property
    def image_views(self) -> tuple[View, ...]:
        """Those of the image."""
        return self.views_of(next(iter(self.views)))

    def views_of(self, name: str) -> tuple[View, ...]:
        """Those of the pictures of a name, whose rows are those of `stored`."""
        views = self.views[name]
        return views.content if isinstance(views, Ragged) else views

    def take(self, rows: I64) -> "Batch":
        """The samples at these rows with all their draws, in this order; a row may come several times."""
        return replace(take(self, rows), placeholders=frozenset())

    def draws(self, number: int) -> F64:
        """A random number in [0, 1) for each sample.

        Args:
            number: Which number: it is a pure function of seed, epoch, sample and this.
        """
        return uniform(self.keys, BATCH_DRAWS.counters(self.samples, number))


def swapped(batch: Batch, first: str, second: str, rows: I32) -> Batch:
    """The samples, with two of their pictures, or those of two lists, exchanged where `rows` is not 0.

    Args:
        batch: The samples.
        first: Name of one picture or list.
        second: Name of the other, of as many pictures.
        rows: int32 (N,), or as many as the lists have pictures, not 0 where they are exchanged.
    """
    if not rows.any():
        return batch
    is_swapped = rows != 0
    left = batch.stored(first)
    right = batch.stored(second)
    unlike = np.flatnonzero(is_swapped & (left.sizes != right.sizes).any(axis=1))
    if len(unlike):
        owners = batch.owners(first)
        row = unlike[0] if owners is None else owners[unlike[0]]
        raise ArgumentError(
            f"{first!r} and {second!r} change places where images are flipped, and those of sample "
            f"{batch.samples[row]} differ in size. Use flip=0, or pictures of one size"
        )
    exchanged = {
        first: _chosen(is_swapped, right, left),
        second: _chosen(is_swapped, left, right),
    }
    pictures = dict(batch.pictures)
    for name, stored in exchanged.items():
        before = pictures[name]
        pictures[name] = stored
        if isinstance(before, Ragged):
            pictures[name] = Ragged(before.counts, stored)
    return replace(batch, pictures=pictures)


def chosen(batch: Batch, name: str, choice: Callable[[I64], tuple[I64, I64]]) -> Batch:
    """The samples with some of the pictures of a list.

    Args:
        batch: The samples.
        name: Of the list.
        choice: Of the counts (N,), the new ones, and the numbers of the pictures.
    """
    pictures = batch.pictures[name]
    assert isinstance(pictures, Ragged)
    counts, positions = choice(pictures.counts)
    starts = np.repeat(pictures.ends - pictures.counts, counts)
    chosen_pictures = Ragged(counts, take(pictures.content, starts + positions))
    return replace(batch, pictures={**batch.pictures, name: chosen_pictures})


def check_numbers(batch: Batch, name: str, leader: str) -> None:
    """Checks that samples have as many pictures in two lists, which go together by number.

    Args:
        batch: The samples.
        name: Of a list.
        leader: Of the list like which it moves.

    Raises:
        ArgumentError: A sample has more in one of them.
    """
    pictures = batch.pictures[name]
    leaders = batch.pictures[leader]
    assert isinstance(pictures, Ragged)
    assert isinstance(leaders, Ragged)
    unlike = np.flatnonzero(pictures.counts != leaders.counts)
    if len(unlike):
        row = unlike[0]
        raise ArgumentError(
            f"{name!r} moves like {leader!r}, picture by picture, and sample {batch.samples[row]} has "
            f"{pictures.counts[row]} and {leaders.counts[row]} of them. Pack as many of each"
        )


def _chosen(
    chosen: Bools, pictures: StoredPictures, others: StoredPictures
) -> StoredPictures:
    """The pictures at these rows, and the others elsewhere."""
    pairs = zip(chosen.tolist(), pictures.contents, others.contents, strict=True)
    column = chosen[:, None]
    return StoredPictures(
        [picture if is_chosen else other for is_chosen, picture, other in pairs],
        np.where(column, pictures.spans, others.spans),
        np.where(chosen, pictures.raw, others.raw),
        np.where(chosen, pictures.widths, others.widths),
        np.where(chosen, pictures.heights, others.heights),
        np.where(column, pictures.points, others.points),
    )


class MemberViews(Sequence[U8]):
    """The stored bytes of N members: uint8 arrays, created on access.

    DALI accesses all images, the CPU decoder hardly any, and creating a view takes a tenth of the time of decoding a
    small image.

    Args:
        shards: The bytes of some shards.
        shard_of: int64 (N,), index into `shards` for each member.
        starts: int64 (N,), where the bytes of each member begin in its shard.
        stops: int64 (N,), where they end.
    """

    def __init__(
        self, shards: Sequence[U8], shard_of: I64, starts: I64, stops: I64
    ) -> None:
        self._shards = shards
        self._shard_of = shard_of
        self._starts = starts
        self._stops = stops

    def __len__(self) -> int:
        return len(self._shard_of)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.take(index)
        shard: U8 = self._shards[self._shard_of[index]]
        return shard[self._starts[index] : self._stops[index]]

    def take(self, rows: I64 | slice) -> "MemberViews":
        """The members at these rows."""
        return MemberViews(
            self._shards, self._shard_of[rows], self._starts[rows], self._stops[rows]
        )

    def __iter__(self) -> Iterator[U8]:
        shards = self._shards
        ends = zip(self._starts.tolist(), self._stops.tolist(), strict=True)
        for shard, (start, stop) in zip(self._shard_of.tolist(), ends, strict=True):
            yield shards[shard][start:stop]
