"""A batch before decoding: stored samples, and instructions for the decoder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuload.augment import View
from gpuload.draws import BATCH_DRAWS, uniform
from gpuload.fields.rows import Batched, take
from gpuload.types import F64, I32, I64, U8, U64, Bools, HeightWidth


@dataclass(frozen=True)
class EncodedBatch(Batched):
    """N samples as they are stored.

    samples: int64 (N,), sample indices in stored order.
    images: uint8, the bytes of each image: the encoded file, or the pixels (height, width, 3) of a raw image.
    spans: int64 (N, 2), memory address and size of these bytes.
    raw: bool (N,), whether the image is stored as pixels.
    widths, heights: int32 (N,), of the decoded images in pixels.
    columns: further columns of the index, by name, with N rows each: a NumPy array for numbers; for bytes, int64 (N,
        2), the memory address and size of each; otherwise a pyarrow array.
    members: by name, for further fields that stay in the shard, the bytes of each sample's member: N views, uint8.
    """

    samples: I64
    images: Sequence[U8]
    spans: I64
    raw: Bools
    widths: I32
    heights: I32
    columns: dict[str, Any]
    members: dict[str, list[U8]]

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def sizes(self) -> I64:
        """int64 (N, 2): height and width of each image."""
        return np.stack([self.heights, self.widths], axis=1).astype(np.int64)

    @property
    def bytes(self) -> int:
        """The size of all images as they are stored."""
        return int(self.spans[:, 1].sum())

    def size(self, row: int) -> HeightWidth:
        """The size of one of the images."""
        return int(self.heights[row]), int(self.widths[row])


@dataclass(frozen=True)
class Batch(Batched):
    """The input of a decoder: N samples and what to make of them.

    masks: for each mask field, N encoded masks. views: one for each image made from a sample.
    sources: int64 (N,), the data set of each sample. keys: uint64 (N,), of their random numbers.
    stop: position in the stream where this global batch ends. read_s: seconds that reading took. download_s: the part
    of these spent waiting for downloads. image_bytes: of all its images as they are stored.
    placeholders: the rows with black images in place of undecodable ones. bucket: its number; None without buckets.
    prepared: fields computed during reading, by name: arrays or lists of N, or a dict of these.
    """

    encoded: EncodedBatch
    masks: tuple[Sequence[U8], ...]
    views: tuple[View, ...]
    sources: I64
    keys: U64
    stop: int = 0
    read_s: float = 0.0
    download_s: float = 0.0
    image_bytes: int = 0
    placeholders: frozenset[int] = frozenset()
    bucket: int | None = None
    prepared: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.encoded)

    def take(self, rows: I64) -> "Batch":
        """The samples at these rows with all their draws, in this order; a row may come several times."""
        taken = take(self, rows)
        return replace(taken, placeholders=frozenset(), image_bytes=taken.encoded.bytes)

    def draws(self, number: int) -> F64:
        """A random number in [0, 1) for each sample: a pure function of seed, epoch, sample and `number`."""
        return uniform(self.keys, BATCH_DRAWS.counters(self.encoded.samples, number))


class MemberViews(Sequence[U8]):
    """The stored bytes of N members: uint8 arrays, created on access.

    DALI accesses all images, the CPU decoder hardly any, and creating a view takes a tenth of the time of decoding a
    small image.

    shards: the bytes of some shards. shard_of: int64 (N,), index into `shards` for each member. starts, stops: int64
    (N,), the member's bytes in its shard.
    """

    def __init__(
        self, shards: Sequence[U8], shard_of: I64, starts: I64, stops: I64
    ) -> None:
        self._shards, self._shard_of, self._starts, self._stops = (
            shards,
            shard_of,
            starts,
            stops,
        )

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
        shards, ends = (
            self._shards,
            zip(self._starts.tolist(), self._stops.tolist(), strict=True),
        )
        for shard, (start, stop) in zip(self._shard_of.tolist(), ends, strict=True):
            yield shards[shard][start:stop]
