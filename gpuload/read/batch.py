"""A batch before decoding: samples as they are stored, and what is to be done to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.augment import View
from gpuload.draws import BATCH_DRAWS, uniform
from gpuload.read.members import MemberViews
from gpuload.types import F64, I32, I64, U8, U64, Bools


@dataclass(frozen=True)
class EncodedBatch:
    """N samples as they are stored.

    samples: int64 (N,), sample indices in stored order.
    images: uint8, the bytes of each image: the encoded file, or for raw images the pixels (height, width, 3).
    spans: int64 (N, 2), memory address and size of these bytes.
    raw: bool (N,), whether the image is stored as pixels.
    widths, heights: int32 (N,), of the decoded images in pixels.
    columns: further columns of the index, by name, N rows each: a NumPy array for numbers, else a pyarrow array.
    members: of further fields that stay in the shard, by name, the bytes of each sample's member: N views, uint8.
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

    def select(self, rows: slice) -> "EncodedBatch":
        """Some of the samples; nothing is copied."""
        return self._choose(rows, lambda values: values[rows])

    def take(self, rows: I64) -> "EncodedBatch":
        """The samples at these rows, in this order; a row may come several times. The stored bytes are not copied."""
        return self._choose(rows, lambda values: take_rows(values, rows))

    def _choose(self, rows: Any, choose: Callable[[Any], Any]) -> "EncodedBatch":
        return EncodedBatch(
            self.samples[rows],
            choose(self.images),
            self.spans[rows],
            self.raw[rows],
            self.widths[rows],
            self.heights[rows],
            {name: choose(column) for name, column in self.columns.items()},
            {name: choose(views) for name, views in self.members.items()},
        )


@dataclass(frozen=True)
class Batch:
    """N samples and what is to be done to them: what a decoder gets.

    masks: for each mask field, N encoded masks. views: one for each image that is made of a sample.
    sources: int64 (N,), the data set of each sample. keys: uint64 (N,), of their random numbers.
    stop: position in the stream where this global batch ends. read_s: seconds that reading took. image_bytes: of all
        images together, as they are stored. download_s: of read_s, how long it waited for shards to be downloaded.
        placeholders: the rows whose images are black ones in place of what does not decode. bucket: its number; None
        without buckets. prepared: fields whose values were made while reading, by name: arrays or lists of N, or a dict
        of these.
    """

    encoded: EncodedBatch
    masks: Sequence[Sequence[U8]]
    views: tuple[View, ...]
    sources: I64
    keys: U64
    stop: int
    read_s: float
    image_bytes: int = 0
    download_s: float = 0.0
    placeholders: frozenset[int] = frozenset()
    bucket: int | None = None
    prepared: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.encoded)

    def take(self, rows: I64) -> "Batch":
        """The samples at these rows with all that was drawn for them, in this order; a row may come several times."""
        encoded = self.encoded.take(rows)
        return Batch(
            encoded,
            tuple(take_rows(masks, rows) for masks in self.masks),
            tuple(view.select(rows) for view in self.views),
            self.sources[rows],
            self.keys[rows],
            self.stop,
            self.read_s,
            int(encoded.spans[:, 1].sum()),
            self.download_s,
            bucket=self.bucket,
            prepared={name: take_rows(values, rows) for name, values in self.prepared.items()},
        )

    def draws(self, number: int) -> F64:
        """A random number in [0, 1) for each sample: a pure function of seed, epoch, sample and `number`."""
        return uniform(self.keys, BATCH_DRAWS.counters(self.encoded.samples, number))


def take_rows(values: Any, rows: I64) -> Any:
    """The values at these rows, of an array of NumPy's or Arrow's, or a list."""
    if isinstance(values, np.ndarray):
        return values[rows]
    if isinstance(values, pa.Array):
        return values.take(pa.array(rows))
    if isinstance(values, MemberViews):
        return values.take(rows)
    if isinstance(values, dict):
        return {name: take_rows(part, rows) for name, part in values.items()}
    return [values[row] for row in rows.tolist()]
