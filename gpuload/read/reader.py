"""Turns a slice of the order into encoded bytes, and reads ahead.

Shards are memory-mapped and never copied: an image is a view of the page cache, which all ranks on a machine share.
During one window, a thread touches the pages of the next one shard by shard, so the disk gets sequential reads and the
decoder finds its bytes in memory.
"""

import logging
import os
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.errors import ShardError
from gpuload.order.epoch import EpochOrder
from gpuload.read import mapped_file
from gpuload.read.batch import EncodedBatch
from gpuload.read.read_ahead import ReadAhead, RowsAhead
from gpuload.read.shards import Window
from gpuload.types import I64

_LOG = logging.getLogger(__name__)

# Seconds between checks whether the shards in use have changed: 2 µs each, 30 µs for the 16 of two windows.
_LOOK_S = 1.0


class Reader:
    """Reads samples of a data set by number. Shards of the next window are mapped if the store already has them.

    columns: names of index columns to return with each batch, such as "label" or "key". members: names of fields
        besides the image, of kinds that stay in the shard, whose bytes to return. verify: with "sha256", no sample is
        returned before the SHA-256 of its shard has been compared with the manifest's; with None, this applies only to
        shards at URLs; with "downloads", only to those that this process downloads. beside: shards that a store in
        memory may hold besides those of two windows.

    ahead: the thread that reads ahead.
    """

    def __init__(
        self,
        dataset: Dataset,
        columns: Sequence[str] = (),
        members: Sequence[str] = (),
        verify: str | None = None,
        beside: int = 0,
    ) -> None:
        self._dataset = dataset
        self._columns, self._members = tuple(columns), tuple(members)
        # Owners of the faults of the index and of the mapped shards. The latter changes in the loop after a failed one,
        # so that every shard is mapped again.
        self._index_owner, self._owner = object(), object()
        self._has_failed = False
        self._faults = mapped_file.count()
        self._lost: str | None = None
        if verify and dataset.manifest.index_sha256 is None:
            _LOG.warning(
                "%s: its shards are verified, its index cannot be, since manifest.json has no SHA-256 of it. "
                "`python -m gpuload verify` compares both with each other",
                dataset.folder,
            )
        mapped_file.install()
        index = dataset.index
        if index.parts is None:
            slot = mapped_file.protect(index.path, index.bytes.address, index.bytes.size, self._index_owner)
            weakref.finalize(self, mapped_file.release, slot).atexit = False
        self._store, self._rows, self._beside = dataset.open_store(verify == "downloads"), RowsAhead(dataset), beside
        self._window = Window(dataset, (), {}, self._owner, self._store)
        self._entered: tuple[EpochOrder, int, int, object] | None = None
        self._needed: list[int] = []  # shards of the current windows, without those of the next one
        self._looked = 0.0
        self.ahead = ReadAhead(verify == "sha256" and dataset.cache is None)  # otherwise the store verifies
        weakref.finalize(self, self.ahead.stop)  # the thread must not outlive a reader that was not closed

    @property
    def download_s(self) -> float:
        """Seconds that reading has waited for downloads of shards and of their rows of the index."""
        return self._store.waited_s + self._rows.waited_s

    def begin(self) -> None:
        """Starts a loop; results of an earlier one become obsolete."""
        mapped_file.install()  # in case another handler replaced it since the last loop
        self._store.begin()
        self._rows.begin()
        self.ahead.forget_errors()
        if self._has_failed:
            self._owner, self._has_failed = object(), False

    def interrupt(self) -> None:
        """Cancels a `read` that waits for a download; further calls raise until `begin`."""
        self._store.interrupt()
        self._rows.interrupt()

    def read(self, order: EpochOrder, start: int, stop: int) -> EncodedBatch:
        """The samples at positions start..stop-1 of an order. Positions of an order must be read in ascending order.

        Raises:
            ShardError: a shard is missing, truncated, changed, or does not match the index.
        """
        if self._lost is not None:
            raise ShardError(self._lost)
        self.enter(order, order.window_at(start), order.window_at(max(start, stop - 1)))
        return self.gather(order[start:stop])

    def is_here(self, order: EpochOrder, start: int, stop: int) -> bool:
        """Whether `read` would not wait for a download."""
        first, last = order.window_at(start), order.window_at(max(start, stop - 1))
        if self._entered is not None and self._entered[0] is order and self._entered[1] <= first:
            first = max(first, self._entered[2] + 1)
        shards = _shards_of(order, first, last + 1)
        return all(number in self._window.shards or self._is_ready(number) for number in shards)

    def gather(self, samples: I64) -> EncodedBatch:
        """Samples of the current windows."""
        return self._window.read(self._dataset.stored_samples(samples), self._columns, self._members)

    def enter(self, order: EpochOrder, first: int, last: int) -> None:
        """Maps these windows of an order for `gather`, and the next one if it is local, unless they are mapped.

        Raises:
            ShardError: as `read`.
        """
        place = (order, first, last, self._owner)
        try:
            if self._entered != place:
                upcoming, needed = order.upcoming(first), _shards_of(order, first, last + 1)
                windows = 2 * len(_shards_of(order, first, first + 1))
                self._store.plan(upcoming, len(needed), max(len(needed), windows + self._beside))
                self._rows.need(needed, upcoming)
                following = filter(self._is_ready, order.following(last).tolist())
                self._enter(list(dict.fromkeys([*needed, *following])), place[-1])
                self._entered, self._needed = place, needed
            elif time.monotonic() - self._looked > _LOOK_S:
                self._look(self._window)
            self.ahead.check(self._window.shards, self._needed)
        except ShardError:
            self._explain()
            raise

    def _is_ready(self, number: int) -> bool:
        return self._store.ready(number) and self._rows.ready(number)

    def copy(self, samples: I64) -> list[EncodedBatch]:
        """Copies of samples of any shards, one by one.

        Shards that are not mapped are mapped one after the other and released again.

        Raises:
            ShardError: as `read`.
        """
        stored = self._dataset.stored_samples(samples)
        shards = self._dataset.shards_of(stored)
        copies: dict[int, EncodedBatch] = {}
        missing = [number for number in dict.fromkeys(shards.tolist()) if number not in self._window.shards]
        if missing:
            self._store.plan(missing)
            self._rows.need(missing)
            self._entered = None  # so that it plans again
        try:
            self._copy(self._window, stored, np.flatnonzero(~np.isin(shards, missing)), copies)
            for number in missing:
                window = Window(self._dataset, [number], {}, self._owner, self._store)
                self.ahead.check_once(window.shards[number])
                self._copy(window, stored, np.flatnonzero(shards == number), copies)
        except ShardError:
            self._explain()
            raise
        return [copies[row] for row in range(len(samples))]

    def _copy(self, window: Window, stored: I64, rows: I64, copies: dict[int, EncodedBatch]) -> None:
        """Copies the samples at these rows from a window into `copies`, by row."""
        if len(rows):
            copies.update(zip(rows.tolist(), window.copy(stored[rows], self._columns, self._members), strict=True))
            self.check()  # before the shards and their faults may be released
            self._look(window)

    @property
    def owner(self) -> object:
        """Changes after a failed loop, whose data must not be used."""
        return self._owner

    def check(self, look: bool = False) -> None:
        """Call this before returning samples: 0.3 µs.

        look: also check whether the shards in use changed since they were mapped.

        Raises:
            ShardError: a mapped shard or the index could not be read, so zeros may have replaced its bytes; or one was
                truncated or overwritten.
        """
        if (count := mapped_file.count()) != self._faults:
            self._faults = count
            if (fault := mapped_file.take_fault(self._index_owner)) is not None:
                self._lost = f"{_describe(*fault)}, and open the data set again"
                raise ShardError(self._lost)
            if (fault := mapped_file.take_fault(self._owner)) is not None:
                self._has_failed = True
                raise ShardError(_describe(*fault))
        if look:
            try:
                self._look(self._window)
            except ShardError:
                self._has_failed = True
                raise

    def _explain(self) -> None:
        """Called when a shard looks damaged.

        Raises:
            FormatError: a file could not be read, so the damage may be zeros in place of its bytes.
        """
        self._has_failed = True
        self.check()

    def close(self) -> None:
        """Stops the reading thread and releases the shards; views already returned stay valid."""
        self.ahead.stop()
        self._store.close()
        self._entered = None
        self._window = Window(self._dataset, (), {}, self._owner, self._store)

    def _enter(self, numbers: Sequence[int], owner: object) -> None:
        """Maps these shards, reads them ahead in this order, and releases all others."""
        self._look(self._window)  # the last check of released shards
        shards = self._window.shards
        known = {number: shards[number] for number in numbers if number in shards and shards[number].owner is owner}
        # The others are released before new ones are opened, so memory need not hold both.
        del shards
        self._entered, self._window = None, Window(self._dataset, known, known, owner, self._store)
        self.ahead.want(known, known)
        window = Window(self._dataset, numbers, known, owner, self._store)
        self.ahead.want(window.shards, numbers)
        self._window = window

    def _look(self, window: Window) -> None:
        """Checks whether shards, or the rows of a set at a URL, changed since they were mapped."""
        self._looked = time.monotonic()
        self._dataset.index.check_unchanged()
        for shard in window.shards.values():
            if shard.owner is self._owner:
                shard.check_unchanged()


def _shards_of(order: EpochOrder, first: int, stop: int) -> list[int]:
    """The distinct shards of these windows."""
    return list(dict.fromkeys(int(shard) for window in range(first, stop) for shard in order.window_shards(window)))


def _describe(path: Path, at: int) -> str:
    """A one-line message on why a file could not be read at some byte."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(at)
            file.read(1)
    except OSError as error:
        return f"{path}: cannot be read at byte {at:,} ({error.strerror}). Check the disk, or copy it again"
    if size <= at:
        return f"{path}: was truncated to {size:,} bytes while it was being read. Copy it again"
    return f"{path}: could not be read at byte {at:,}, but can now. Check the disk or network file system, and resume"
