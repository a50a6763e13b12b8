"""Turns a slice of the order into encoded bytes, reading ahead in a thread of its own.

Shards are memory-mapped and never copied: an image is a view of the page cache, which ranks on one machine share.
While one window is used, a thread touches the pages of the next one shard by shard, so that the disk sees sequential
reads and the decoder finds its bytes in memory. It holds no lock meanwhile (NumPy releases Python's for the touch).
Touching costs 10 ms a GiB when the pages are there; cold, shard by shard, it is twice as fast as the same pages in
shuffled order (local NVMe, 2026-11).
"""

import mmap
import threading
import weakref
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.dataset import Dataset
from gpuload.disk.tar import BLOCK_BYTES
from gpuload.errors import ShardError
from gpuload.order import EpochOrder

I64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_PAGE_BYTES = 4096
_TOUCH_BYTES = 4 << 20  # between two looks at whether to stop


@dataclass(frozen=True)
class EncodedBatch:
    """N samples as they are stored.

    samples: int64 (N,), their numbers in stored order. images: N views (uint8) of encoded bytes.
    widths, heights: int32 (N,), of the decoded images. columns: other columns of the index that were asked for; NumPy
    arrays (N,) for numbers, lists for text.
    """

    samples: I64
    images: list[Bytes]
    widths: npt.NDArray[np.int32]
    heights: npt.NDArray[np.int32]
    columns: dict[str, Any]

    def __len__(self) -> int:
        return len(self.samples)


class Reader:
    """Reads samples of a data set by number.

    columns: names of index columns to deliver with each batch, such as "label" or "key".
    """

    def __init__(self, dataset: Dataset, columns: Sequence[str] = ()) -> None:
        self._dataset = dataset
        self._columns = tuple(columns)
        self._shards: dict[int, _MappedShard] = {}
        self._ahead = _ReadAhead()
        self._entered: tuple[EpochOrder, int] | None = None
        weakref.finalize(self, self._ahead.stop)  # the thread must not outlive a reader that nobody closed

    def read(self, order: EpochOrder, start: int, stop: int) -> EncodedBatch:
        """The samples at positions start..stop-1 of an order. Positions of one order are read going forward.

        Raises:
            ShardError: a shard vanished, was cut short or does not match the index.
        """
        first, last = order.window_at(start), order.window_at(max(start, stop - 1))
        if self._entered != (order, first):
            self._entered = (order, first)
            self._enter([int(shard) for window in range(first, last + 2) for shard in order.window_shards(window)])
        return self._gather(order[start:stop])

    def _gather(self, samples: I64) -> EncodedBatch:
        first_samples = self._dataset.first_samples
        numbers, places = np.unique(np.searchsorted(first_samples, samples, side="right") - 1, return_inverse=True)
        shards = [self._map(number) for number in numbers.tolist()]
        rows = samples - first_samples[numbers][places]
        offsets, sizes = np.empty((2, len(samples)), np.int64)
        widths, heights = np.empty((2, len(samples)), np.int32)
        columns: dict[str, npt.NDArray[Any]] = {
            name: np.empty(len(samples), self._column_dtype(name)) for name in self._columns
        }
        for place, shard in enumerate(shards):
            here = np.flatnonzero(places == place)
            at = rows[here]
            offsets[here], sizes[here] = shard.offsets[at], shard.sizes[at]
            widths[here], heights[here] = shard.widths[at], shard.heights[at]
            for name, column in columns.items():
                column[here] = shard.column(name, at)
        data = [shard.data for shard in shards]
        spans = zip(places.tolist(), offsets.tolist(), (offsets + sizes).tolist(), strict=True)
        images = [data[place][start:stop] for place, start, stop in spans]
        texts = {name: c.tolist() if c.dtype == object else c for name, c in columns.items()}
        return EncodedBatch(samples, images, widths, heights, texts)

    def close(self) -> None:
        """Stops the reading thread and lets go of the shards; views handed out stay valid."""
        self._ahead.stop()
        self._shards.clear()
        self._entered = None

    def _enter(self, shards: list[int]) -> None:
        """Maps these shards, reads them ahead, and lets go of all others."""
        for number in set(self._shards).difference(shards):
            del self._shards[number]
        new = [number for number in shards if number not in self._shards]
        self._ahead.want({number: self._map(number).data for number in new}, kept=self._shards)

    def _map(self, number: int) -> "_MappedShard":
        if number not in self._shards:
            self._shards[number] = _MappedShard(self._dataset, number)
        return self._shards[number]

    def _column_dtype(self, name: str) -> type:
        return np.int64 if pa.types.is_integer(self._dataset.schema.field(name).type) else object


class _MappedShard:
    """One shard in memory: its bytes, and its rows of the index as arrays."""

    def __init__(self, dataset: Dataset, number: int) -> None:
        self.path = dataset.shard_paths[number]
        rows = dataset.rows(number)
        image = dataset.require_field("image")
        self._rows: pa.RecordBatch = rows
        self.offsets: I64 = rows.column(image.offset_column).to_numpy()
        self.sizes: I64 = rows.column(image.bytes_column).to_numpy()
        self.widths: npt.NDArray[np.int32] = rows.column("width").to_numpy()
        self.heights: npt.NDArray[np.int32] = rows.column("height").to_numpy()
        self.data = self._map()
        self._check()

    def column(self, name: str, rows: I64) -> Any:
        column = self._rows.column(name)
        if pa.types.is_integer(column.type):
            return column.to_numpy()[rows]
        return column.take(pa.array(rows)).to_pylist()

    def _map(self) -> Bytes:
        try:
            with self.path.open("rb") as file:
                return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        except (OSError, ValueError) as error:
            raise ShardError(f"{self.path}: cannot be read ({error}). Copy it again") from None

    def _check(self) -> None:
        """Compares the index with the shard where that is cheap: its end, and three headers."""
        ends = self.offsets + self.sizes
        if len(ends) and int(ends.max()) > len(self.data):
            raise ShardError(
                f"{self.path}: is {len(self.data):,} bytes, but the index places an image at byte {int(ends.max()):,}. "
                "It was cut short or replaced: copy it again, or index the folder anew"
            )
        for row in {0, len(ends) // 2, len(ends) - 1} if len(ends) else ():
            # Bytes 124..135 of the header before the data hold the size in octal (POSIX ustar).
            header = self.data[max(0, int(self.offsets[row]) - BLOCK_BYTES) : int(self.offsets[row])]
            if header[124:136].tobytes().strip(b"\0 0") != (b"%o" % self.sizes[row]).strip(b"0"):
                raise ShardError(
                    f"{self.path}: its index does not match it (sample {self._rows.column('key')[row].as_py()!r} is "
                    "not at its place). Shard and index are not of one run: copy both again, or index the folder anew"
                )


class _ReadAhead:
    """A thread that touches the pages of shards in the order in which they were asked for."""

    def __init__(self) -> None:
        self._untouched: dict[int, Bytes] = {}
        self._stopping = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def want(self, new: dict[int, Bytes], kept: Container[int]) -> None:
        """Reads the new shards after those asked for before; forgets shards that are neither new nor kept."""
        with self._change:
            for number in [n for n in self._untouched if n not in kept]:
                del self._untouched[number]
            self._untouched.update(new)
            self._change.notify()
        if self._thread is None and new:
            self._stopping = False
            self._thread = threading.Thread(target=self._run, name="gpuload-read-ahead", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            with self._change:
                self._untouched.clear()
                self._stopping = True
                self._change.notify()
            if thread is not threading.current_thread():  # the garbage collector may call from anywhere
                thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._untouched or self._stopping)
                if self._stopping:
                    return
                number, view = next(iter(self._untouched.items()))
            for start in range(0, len(view), _TOUCH_BYTES):
                if number not in self._untouched:
                    break
                view[start : start + _TOUCH_BYTES : _PAGE_BYTES].max()
            with self._change:
                self._untouched.pop(number, None)
            del view  # while this thread waits, it must not keep a shard mapped
