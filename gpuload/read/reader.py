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
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpuload.disk.dataset import Dataset
from gpuload.disk.tar import BLOCK_BYTES
from gpuload.errors import ShardError
from gpuload.fields.field import Field
from gpuload.order.epoch import EpochOrder
from gpuload.types import I64, U8

_PAGE_BYTES = 4096
_TOUCH_BYTES = 4 << 20  # between two looks at whether to stop


class MemberViews(Sequence[U8]):
    """The stored bytes of N members (uint8), each a view that is made when it is asked for: DALI asks for all images,
    the CPU's decoder for hardly any, and a view costs as much as a tenth of decoding a small image.

    shards: their bytes. places, starts, stops: int64 (N,), in which of these one is, and where in it.
    """

    def __init__(self, shards: Sequence[U8], places: I64, starts: I64, stops: I64) -> None:
        self._shards, self._places, self._starts, self._stops = shards, places, starts, stops

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> U8: ...

    @overload
    def __getitem__(self, index: slice) -> "MemberViews": ...

    def __getitem__(self, index: int | slice) -> "U8 | MemberViews":
        if isinstance(index, slice):
            return MemberViews(self._shards, self._places[index], self._starts[index], self._stops[index])
        shard: U8 = self._shards[self._places[index]]
        return shard[self._starts[index] : self._stops[index]]

    def __iter__(self) -> Iterator[U8]:
        shards, ends = self._shards, zip(self._starts.tolist(), self._stops.tolist(), strict=True)
        for place, (start, stop) in zip(self._places.tolist(), ends, strict=True):
            yield shards[place][start:stop]


@dataclass(frozen=True)
class EncodedBatch:
    """N samples as they are stored.

    samples: int64 (N,), their numbers in stored order. images: the bytes of each: encoded, or where the set holds
    pixels as they are, those of (height, width, 3). spans: int64 (N, 2), where in memory these bytes begin, and how
    many they are. raw: bool (N,), which are pixels. widths, heights: int32 (N,), of the decoded images.
    columns: other columns of the index that were asked for, each of N rows: NumPy arrays for numbers, pyarrow's for all
    else. members: for other fields that stay in the shard, N views (uint8) of their bytes.
    """

    samples: I64
    images: Sequence[U8]
    spans: I64
    raw: npt.NDArray[np.bool_]
    widths: npt.NDArray[np.int32]
    heights: npt.NDArray[np.int32]
    columns: dict[str, Any]
    members: dict[str, list[U8]]

    def __len__(self) -> int:
        return len(self.samples)

    def select(self, rows: slice) -> "EncodedBatch":
        """Some of the samples; nothing is copied."""
        return EncodedBatch(
            self.samples[rows],
            self.images[rows],
            self.spans[rows],
            self.raw[rows],
            self.widths[rows],
            self.heights[rows],
            {name: column[rows] for name, column in self.columns.items()},
            {name: views[rows] for name, views in self.members.items()},
        )


class Reader:
    """Reads samples of a data set by number.

    columns: names of index columns to deliver with each batch, such as "label" or "key". members: names of fields
        beside the image, of kinds that stay in the shard, whose bytes to deliver.
    """

    def __init__(self, dataset: Dataset, columns: Sequence[str] = (), members: Sequence[str] = ()) -> None:
        self._dataset = dataset
        self._columns, self._members = tuple(columns), tuple(members)
        self._window = _Window(dataset, (), {})
        self._entered: tuple[EpochOrder, int, int] | None = None
        self._ahead = _ReadAhead()
        weakref.finalize(self, self._ahead.stop)  # the thread must not outlive a reader that nobody closed

    def read(self, order: EpochOrder, start: int, stop: int) -> EncodedBatch:
        """The samples at positions start..stop-1 of an order. Positions of one order are read going forward.

        Raises:
            ShardError: a shard vanished, was cut short or does not match the index.
        """
        first, last = order.window_at(start), order.window_at(max(start, stop - 1))
        if self._entered != (order, first, last):
            self._enter(int(shard) for window in range(first, last + 2) for shard in order.window_shards(window))
            self._entered = (order, first, last)
        samples = self._dataset.stored_samples(order[start:stop])
        return self._window.read(samples, self._columns, self._members)

    def close(self) -> None:
        """Stops the reading thread and lets go of the shards; views handed out stay valid."""
        self._ahead.stop()
        self._entered = None
        self._window = _Window(self._dataset, (), {})

    def _enter(self, shards: Iterable[int]) -> None:
        """Maps these shards, reads them ahead in this order, and lets go of all others."""
        numbers = list(dict.fromkeys(shards))
        new = [number for number in numbers if number not in self._window.shards]
        self._window = _Window(self._dataset, numbers, self._window.shards)
        self._ahead.want({number: self._window.shards[number].data for number in new}, kept=self._window.shards)


class _Window:
    """Some shards in memory, with their rows of the index side by side: a batch is one gather a column.

    A gather for each shard of a batch took three times as long (64 samples from 8 shards, 2026-11).
    """

    def __init__(self, dataset: Dataset, numbers: Iterable[int], mapped: Mapping[int, "_MappedShard"]) -> None:
        self.shards = {
            number: mapped[number] if number in mapped else _MappedShard(dataset, number) for number in sorted(numbers)
        }
        shards = list(self.shards.values())
        self._data = [shard.data for shard in shards]
        self._addresses = np.array([data.ctypes.data for data in self._data], np.int64)
        self._first_samples = dataset.first_samples[list(self.shards)]
        self._first_rows = np.cumsum([0] + [shard.rows.num_rows for shard in shards])
        self._rows = pa.Table.from_batches([shard.rows for shard in shards], dataset.schema)
        self._fields = dataset.fields
        self._raw = dataset.require_field("image").kind == "raw"
        self._values: dict[str, Any] = {}

    def read(self, samples: I64, columns: Sequence[str], members: Sequence[str]) -> EncodedBatch:
        """Samples of these shards."""
        places = np.searchsorted(self._first_samples, samples, side="right") - 1
        rows = samples - self._first_samples[places] + self._first_rows[places]
        image = self._fields["image"]
        begins = self._addresses[places] + self._column(image.offset_column, rows)
        return EncodedBatch(
            samples,
            self._views("image", places, rows),
            np.stack([begins, self._column(image.bytes_column, rows)], axis=1, dtype=np.int64),
            np.full(len(samples), self._raw),
            self._column("width", rows),
            self._column("height", rows),
            {name: self._column(name, rows) for name in columns},
            {name: list(self._views(name, places, rows)) for name in members},
        )

    def _views(self, name: str, places: I64, rows: I64) -> MemberViews:
        field = self._fields[name]
        starts = self._column(field.offset_column, rows)
        return MemberViews(self._data, places, starts, starts + self._column(field.bytes_column, rows))

    def _column(self, name: str, rows: I64) -> Any:
        if name not in self._values:
            column = self._rows.column(name)
            if pa.types.is_primitive(column.type):
                self._values[name] = column.to_numpy()
            else:  # in one piece: to take rows out of several costs as much as the window has, for every batch
                whole = column.combine_chunks()
                self._values[name] = whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
        values = self._values[name]
        return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))


class _MappedShard:
    """One shard in memory: its bytes, and its rows of the index."""

    def __init__(self, dataset: Dataset, number: int) -> None:
        self.path = dataset.shard_paths[number]
        self.rows = dataset.rows(number)
        try:
            with self.path.open("rb") as file:
                self.data: U8 = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        except (OSError, ValueError) as error:
            raise ShardError(f"{self.path}: cannot be read ({error}). Copy it again") from None
        self._check(dataset.require_field("image"))

    def _check(self, image: Field) -> None:
        """Compares the index with the shard where that is cheap: its end, and three headers."""
        offsets = self.rows.column(image.offset_column).to_numpy()
        sizes = self.rows.column(image.bytes_column).to_numpy()
        end = int((offsets + sizes).max(initial=0))
        if end > len(self.data):
            raise ShardError(
                f"{self.path}: is {len(self.data):,} bytes, but the index places an image at byte {end:,}. "
                "It was cut short or replaced: copy it again, or index the folder anew"
            )
        if image.kind == "raw":
            pixels = self.rows.column("height").to_numpy().astype(np.int64) * self.rows.column("width").to_numpy()
            if (sizes != 3 * pixels).any():
                row = int((sizes != 3 * pixels).argmax())
                raise ShardError(
                    f"{self.path}: its index says that the pixels of {self.rows.column('key')[row].as_py()!r} are "
                    f"{sizes[row]:,} bytes, but height x width x 3 are {3 * pixels[row]:,}. Index the folder anew"
                )
        for row in {0, len(offsets) // 2, len(offsets) - 1} if len(offsets) else ():
            # Bytes 124..135 of the header before the data hold the size in octal (POSIX ustar). Between that and pixels
            # is a .npy header, which ends in a newline (NumPy's format description).
            header = self.data[max(0, int(offsets[row]) - BLOCK_BYTES) : int(offsets[row])].tobytes()
            is_there = (
                header.endswith(b"\n")
                if image.kind == "raw"
                else header[124:136].strip(b"\0 0") == (b"%o" % sizes[row]).strip(b"0")
            )
            if not is_there:
                raise ShardError(
                    f"{self.path}: its index does not match it (sample {self.rows.column('key')[row].as_py()!r} is "
                    "not at its place). Shard and index are not of one run: copy both again, or index the folder anew"
                )


class _ReadAhead:
    """A thread that touches the pages of shards in the order in which they were asked for."""

    def __init__(self) -> None:
        self._untouched: dict[int, U8] = {}
        self._stopping = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def want(self, new: dict[int, U8], kept: Container[int]) -> None:
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
