"""Turns a slice of the order into encoded bytes, and reads ahead.

Shards are memory-mapped and never copied: an image is a view of the page cache, which all ranks on a machine share.
While one window is used, a thread touches the pages of the next one shard by shard, so that the disk sees sequential
reads and the decoder finds its bytes in memory.
"""

import weakref
from collections.abc import Iterable, Sequence

from gpuload.disk.dataset import Dataset
from gpuload.order.epoch import EpochOrder
from gpuload.read.batch import EncodedBatch
from gpuload.read.read_ahead import ReadAhead
from gpuload.read.shards import Window


class Reader:
    """Reads samples of a data set by number. Shards of the next window are mapped where the store has them already.

    columns: names of index columns to deliver with each batch, such as "label" or "key". members: names of fields
        beside the image, of kinds that stay in the shard, whose bytes to deliver.
    """

    def __init__(self, dataset: Dataset, columns: Sequence[str] = (), members: Sequence[str] = ()) -> None:
        self._dataset = dataset
        self._columns, self._members = tuple(columns), tuple(members)
        self._store = dataset.open_store()
        self._window = Window(dataset, (), {}, self._store)
        self._entered: tuple[EpochOrder, int, int] | None = None
        self._ahead = ReadAhead()
        weakref.finalize(self, self._ahead.stop)  # the thread must not outlive a reader that nobody closed

    def begin(self) -> None:
        """A loop begins."""
        self._store.begin()

    def interrupt(self) -> None:
        """Nobody wants what is read any more: `read` raises where it waits for a download, until `begin`."""
        self._store.interrupt()

    def read(self, order: EpochOrder, start: int, stop: int) -> EncodedBatch:
        """The samples at positions start..stop-1 of an order. Positions of one order are read in ascending sequence.

        Raises:
            ShardError: a shard is missing, is truncated or does not match the index.
        """
        first, last = order.window_at(start), order.window_at(max(start, stop - 1))
        if self._entered != (order, first, last):
            self._store.plan(order.upcoming(first))
            ahead = filter(self._store.ready, _shards_of(order, last + 1, last + 2))
            self._enter([*_shards_of(order, first, last + 1), *ahead])
            self._entered = (order, first, last)
        samples = self._dataset.stored_samples(order[start:stop])
        return self._window.read(samples, self._columns, self._members)

    def close(self) -> None:
        """Stops the reading thread and releases the shards; views handed out stay valid."""
        self._ahead.stop()
        self._store.close()
        self._entered = None
        self._window = Window(self._dataset, (), {}, self._store)

    def _enter(self, shards: Iterable[int]) -> None:
        """Maps these shards, reads them ahead in this order, and releases all others."""
        numbers = list(dict.fromkeys(shards))
        new = [number for number in numbers if number not in self._window.shards]
        self._window = Window(self._dataset, numbers, self._window.shards, self._store)
        self._ahead.want({number: self._window.shards[number].data for number in new}, kept=self._window.shards)


def _shards_of(order: EpochOrder, first: int, stop: int) -> list[int]:
    """The shards of these windows."""
    return [int(shard) for window in range(first, stop) for shard in order.window_shards(window)]
