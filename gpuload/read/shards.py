"""Memory-mapped shards: one, and a window of them with their rows of the index side by side."""

import mmap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gpuload.counted import counted
from gpuload.disk.dataset import Dataset
from gpuload.disk.tar import BLOCK_BYTES
from gpuload.errors import ShardError
from gpuload.fields.field import Field
from gpuload.read.batch import EncodedBatch
from gpuload.read.index_check import checked_rows
from gpuload.read.members import MemberViews
from gpuload.store.interface import Store
from gpuload.types import I64, U8


class MappedShard:
    """One shard: its bytes, memory-mapped, and its rows of the index, checked against each other.

    store: gives the file.

    Raises:
        ShardError: it cannot be read, or does not match the index.
    """

    def __init__(self, dataset: Dataset, number: int, store: Store) -> None:
        self.path = dataset.shard_paths[number]
        self.rows = checked_rows(dataset, number)
        try:
            self._lease = store.open(number)
            with self._lease.path.open("rb") as file:
                self.data: U8 = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        except (OSError, ValueError) as error:
            raise ShardError(f"{self.path}: cannot be read ({error}). Copy it again") from None
        expected = dataset.manifest.shards[number].bytes
        if len(self.data) < expected:
            raise ShardError(
                f"{self.path}: is {counted(len(self.data), 'byte')}, manifest.json says {expected:,}. It was "
                "truncated or "
                "replaced: copy it again, or index the folder again"
            )
        self._check_headers(dataset.require_field("image"))

    def _check_headers(self, image: Field) -> None:
        """Looks for the headers of three images where the index says that they are."""
        offsets = self.rows.column(image.offset_column).to_numpy()
        sizes = self.rows.column(image.bytes_column).to_numpy()
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
                    "not where the index says). The shard and the index come from different runs: copy both again, or "
                    "index the folder again"
                )


class Window:
    """Some shards of a data set in memory, with their rows of the index side by side: a batch is one gather a column.

    A gather for each shard of a batch took three times as long (64 samples from 8 shards, 2026-11).

    numbers: of the shards. mapped: shards that are mapped already, by number; they are used again. store: gives the
        others.
    """

    def __init__(
        self, dataset: Dataset, numbers: Iterable[int], mapped: Mapping[int, MappedShard], store: Store
    ) -> None:
        self.shards = {
            number: mapped[number] if number in mapped else MappedShard(dataset, number, store)
            for number in sorted(numbers)
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
        """Samples of these shards, by their indices in stored order."""
        shard_of = np.searchsorted(self._first_samples, samples, side="right") - 1
        rows = samples - self._first_samples[shard_of] + self._first_rows[shard_of]
        image = self._fields["image"]
        begins = self._addresses[shard_of] + self._column(image.offset_column, rows)
        return EncodedBatch(
            samples,
            self._views("image", shard_of, rows),
            np.stack([begins, self._column(image.bytes_column, rows)], axis=1, dtype=np.int64),
            np.full(len(samples), self._raw),
            self._column("width", rows),
            self._column("height", rows),
            {name: self._column(name, rows) for name in columns},
            {name: list(self._views(name, shard_of, rows)) for name in members},
        )

    def _views(self, name: str, shard_of: I64, rows: I64) -> MemberViews:
        field = self._fields[name]
        starts = self._column(field.offset_column, rows)
        return MemberViews(self._data, shard_of, starts, starts + self._column(field.bytes_column, rows))

    def _column(self, name: str, rows: I64) -> Any:
        if name not in self._values:
            column = self._rows.column(name)
            if pa.types.is_primitive(column.type):
                self._values[name] = column.to_numpy()
            else:  # in one piece: taking rows out of several would cost O(window) for every batch
                whole = column.combine_chunks()
                self._values[name] = whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
        values = self._values[name]
        return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))
