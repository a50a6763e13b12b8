"""Turns a slice of the order into encoded bytes, and reads ahead.

Shards are memory-mapped and never copied: an image is a view of the page cache, which all ranks on a machine share.
During one window, a thread touches the pages of the next one shard by shard, so the disk gets sequential reads and the
decoder finds its bytes in memory.
"""

import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.errors import ShardError
from gpuload.order.epoch import EpochOrder
from gpuload.read import mapped_file
from gpuload.read.batch import Batch
from gpuload.read.shards import MappedShard, Window
from gpuload.store.network import Waiter, background
from gpuload.types import I64

# Seconds between checks whether the shards in use have changed: 2 µs each, 30 µs for the 16 of two windows.
_LOOK_S = 1.0

_PAGE_BYTES = 4096
_TOUCH_BYTES = 4 << 20  # touched between two checks whether to stop


class ReadAhead:
    """Touches the pages of memory-mapped shards in the order in which the shards were requested.

    It holds no lock meanwhile (NumPy releases the GIL). Touching takes 10 ms a GiB if the pages are in memory; cold,
    shard after shard, it is twice as fast as reading the same pages in shuffled order (local NVMe, 2026-11).

    Args:
        verify: Also compare each shard's SHA-256 with the manifest, once for each content; `check` waits for it.
    """

    def __init__(self, verify: bool = False) -> None:
        self._verify = verify
        # Number and modification time of verified shards.
        self._verified: set[tuple[int, int]] = set()
        # No lock is shared with the thread: Ctrl-C between acquiring a lock and entering its `with` would leave it
        # locked, and a forked child would inherit it.
        self._jobs: dict[MappedShard, _Job] = {}
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._busy = _Stopwatch()

    @property
    def busy_s(self) -> float:
        """The thread's reading time so far, in seconds."""
        return self._busy.seconds

    def forget_errors(self) -> None:
        """Makes the next request of a failed shard retry it."""
        self._jobs = {
            shard: job for shard, job in self._jobs.items() if job.error is None
        }

    def want(self, shards: Iterable[MappedShard]) -> None:
        """Reads these shards in this order, after those requested before; cancels all others."""
        jobs = {shard: self._job(shard) for shard in shards}
        for shard in self._jobs.keys() - jobs.keys():
            self._jobs[shard].wanted = False
        self._jobs = jobs

    def check(self, shards: Iterable[MappedShard]) -> None:
        """Raises the thread's errors for these shards; with `verify`, waits until it has checked them.

        Raises:
            ShardError: the SHA-256 of a shard differs from the manifest's.
        """
        for shard in shards:
            job = self._job(shard)
            if self._verify:
                with job.running:
                    pass
            if job.error is not None:
                del self._jobs[shard]  # the next call tries again
                raise job.error

    def check_once(self, shard: MappedShard) -> None:
        """The same for a shard of which only some samples are read, without reading ahead.

        Raises:
            ShardError: as `check`.
        """
        version = shard.number, shard.changed_ns
        if self._verify and version not in self._verified:
            shard.check_digest()
            self._verified.add(version)

    def stop(self) -> None:
        """Ends the thread; `want` starts a new one."""
        thread = self._thread
        self._thread = None
        # A forked child has no such thread.
        if thread is not None and os.getpid() == self._process:
            for job in self._jobs.values():
                job.wanted = False
            self._queue.put(None)
            self._jobs = {}
            self._queue = SimpleQueue()
            # The garbage collector may call this in any thread; Ctrl-C may have prevented the start.
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join()

    def _job(self, shard: MappedShard) -> "_Job":
        """The job of a shard, which is requested now if it was not before."""
        if (requested := self._jobs.get(shard)) is not None:
            return requested
        job = _Job(
            shard,
            self._verify and (shard.number, shard.changed_ns) not in self._verified,
        )
        self._queue.put(job)
        if self._thread is None:
            self._thread = threading.Thread(
                target=_run,
                args=(self._queue, self._verified, self._busy),
                name="gpuload-read-ahead",
                daemon=True,
            )
            self._thread.start()
        self._jobs[shard] = (
            job  # not before it is queued: nothing would run it after Ctrl-C
        )
        return job


class _Job:
    """A shard to read.

    Attributes:
        wanted: Set it to False to cancel.
        running: A lock, held until the shard has been read.
    """

    def __init__(self, shard: MappedShard, verify: bool) -> None:
        self.shard = shard
        self.verify = verify
        self.wanted = True
        self.error: BaseException | None = None
        self.running = threading.Lock()
        self.running.acquire()

    def run(self, verified: set[tuple[int, int]]) -> None:
        try:
            if self.verify:
                if self.shard.check_digest(lambda: not self.wanted):
                    verified.add((self.shard.number, self.shard.changed_ns))
                return
            data = self.shard.data
            for start in range(0, len(data), _TOUCH_BYTES):
                if not self.wanted:
                    break
                data[start : start + _TOUCH_BYTES : _PAGE_BYTES].max()
        except BaseException as error:  # raised in the reading thread
            self.error = error
        finally:
            self.running.release()


class _Stopwatch:
    """Seconds, summed by one thread and read by others."""

    seconds = 0.0


def _run(
    queue: "SimpleQueue[_Job | None]", verified: set[tuple[int, int]], busy: _Stopwatch
) -> None:
    while (job := queue.get()) is not None:
        begun = time.perf_counter()
        job.run(verified)
        busy.seconds += time.perf_counter() - begun
        del job  # a waiting thread must not keep a shard mapped


_LEAST_AHEAD = (
    8  # shards: with windows of one or two, fetching only the next window would be late
)


class Reader:
    """Reads samples of a data set by number. Shards of the next window are mapped if the store already has them.

    Args:
        dataset: Whose samples are read.
        columns: Names of index columns to return with each batch, such as "label" or "key".
        members: Names of fields besides pictures, of kinds that stay in the shard, whose bytes to return.
        verify: With "sha256", no sample is returned before the SHA-256 of its shard has been compared with the
            manifest's; with None, this applies only to shards at URLs; with "downloads", only to those that this
            process downloads.
        pictures: Names of picture fields to return besides the image.

    Attributes:
        ahead: The thread that reads ahead.
    """

    def __init__(
        self,
        dataset: Dataset,
        columns: Sequence[str] = (),
        members: Sequence[str] = (),
        verify: str | None = None,
        pictures: Sequence[str] = (),
    ) -> None:
        self._dataset = dataset
        # What a window is asked for.
        self._wanted = tuple(columns), tuple(members), tuple(pictures)
        # Owners of the faults of the index and of the mapped shards. The latter changes in the loop after a failed one,
        # so that every shard is mapped again.
        self._index_owner = object()
        self._owner = object()
        self._has_failed = False
        self._faults = mapped_file.count()
        self._lost: str | None = None  # why the index cannot be read any more
        self._fault: str | None = None  # why a shard could not be read in this loop
        mapped_file.install()
        index = dataset.index
        if index.parts is None:
            slot = mapped_file.protect(
                index.path, index.bytes.address, index.bytes.size, self._index_owner
            )
            weakref.finalize(self, mapped_file.release, slot).atexit = False
        self._store = dataset.open_store(verify == "downloads")
        # Rows of the index that are not local, and waits for them.
        self._parts = index.parts
        self._waiter = Waiter()
        self._window = Window(dataset, (), {}, self._owner, self._store)
        self._entered: tuple[EpochOrder, int, int, object] | None = None
        self._needed: list[
            int
        ] = []  # shards of the current windows, without those of the next one
        self._looked = 0.0
        # Otherwise the store verifies.
        self.ahead = ReadAhead(verify == "sha256" and dataset.cache is None)
        # The thread must not outlive a reader that was not closed.
        weakref.finalize(self, self.ahead.stop)

    @property
    def download_s(self) -> float:
        """Seconds that reading has waited for downloads of shards and of their rows of the index."""
        return self._store.waited_s + self._waiter.waited_s

    def begin(self) -> bool:
        """Starts a loop. Returns whether the samples of an earlier one may be used: False after one that failed."""
        mapped_file.install()  # in case another handler replaced it since the last loop
        self._store.begin()
        self._waiter.begin()
        self.ahead.forget_errors()
        failed = self._has_failed
        self._has_failed = False
        self._fault = None
        if failed:
            self._owner = object()
        return not failed

    def interrupt(self) -> None:
        """Cancels a `read` that waits for a download; further calls raise until `begin`."""
        self._store.interrupt()
        self._waiter.interrupt()

    def read(self, order: EpochOrder, start: int, stop: int) -> Batch:
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
        first = order.window_at(start)
        last = order.window_at(max(start, stop - 1))
        if (
            self._entered is not None
            and self._entered[0] is order
            and self._entered[1] <= first
        ):
            first = max(first, self._entered[2] + 1)
        shards = _shards_of(order, first, last + 1)
        return all(
            number in self._window.shards or self._is_ready(number) for number in shards
        )

    def gather(self, samples: I64) -> Batch:
        """Samples of the current windows."""
        return self._window.read(self._dataset.stored_samples(samples), *self._wanted)

    def enter(self, order: EpochOrder, first: int, last: int) -> None:
        """Maps these windows of an order for `gather`, and the next one if it is local, unless they are mapped.

        Raises:
            ShardError: as `read`.
        """
        place = (order, first, last, self._owner)
        with self._explained():
            if self._entered != place:
                upcoming = order.upcoming(first)
                needed = _shards_of(order, first, last + 1)
                self._store.plan(upcoming, len(needed))
                self._fetch_rows(needed, upcoming)
                following = filter(self._is_ready, order.following(last).tolist())
                self._enter(list(dict.fromkeys([*needed, *following])))
                self._entered = place
                self._needed = needed
            elif time.monotonic() - self._looked > _LOOK_S:
                self._look(self._window)
            self.ahead.check([self._window.shards[number] for number in self._needed])

    def _is_ready(self, number: int) -> bool:
        return self._store.ready(number) and (
            self._parts is None or self._parts.has(number)
        )

    def _fetch_rows(self, numbers: Sequence[int], upcoming: Iterable[int] = ()) -> None:
        """Waits for the rows of these shards, if they are not all local, and starts to fetch the following ones: they
        are small compared with their shards, but each request takes the server's latency.

        Args:
            upcoming: Shards in the order of need, including these.

        Raises:
            RemoteError: they cannot be read. FormatError: they do not match the manifest.
        """
        if self._parts is None:
            return
        if not all(map(self._parts.has, numbers)):
            self._waiter.wait(self._parts.get(numbers), self._parts.where)
        after = (number for number in map(int, upcoming) if number not in numbers)
        ahead = list(islice(after, max(len(numbers), _LEAST_AHEAD)))
        if not all(map(self._parts.has, ahead)):
            background().start(self._parts.get(ahead))

    def copy(self, samples: I64) -> list[Batch]:
        """Copies of samples of any shards, one by one.

        Shards that are not mapped are mapped one after the other and released again.

        Raises:
            ShardError: as `read`.
        """
        stored = self._dataset.stored_samples(samples)
        shards = self._dataset.shards_of(stored)
        copies: dict[int, Batch] = {}
        missing = [
            number
            for number in dict.fromkeys(shards.tolist())
            if number not in self._window.shards
        ]
        if missing:
            self._store.plan(missing)
            self._fetch_rows(missing)
            self._entered = None  # so that it plans again
        with self._explained():
            self._copy(
                self._window, stored, np.flatnonzero(~np.isin(shards, missing)), copies
            )
            for number in missing:
                window = Window(self._dataset, [number], {}, self._owner, self._store)
                self.ahead.check_once(window.shards[number])
                self._copy(window, stored, np.flatnonzero(shards == number), copies)
        return [copies[row] for row in range(len(samples))]

    def _copy(
        self, window: Window, stored: I64, rows: I64, copies: dict[int, Batch]
    ) -> None:
        """Copies the samples at these rows from a window into `copies`, by row."""
        if len(rows):
            copies.update(
                zip(
                    rows.tolist(),
                    window.copy(stored[rows], *self._wanted),
                    strict=True,
                )
            )
            self.check()  # before the shards and their faults may be released
            self._look(window)

    def check(self, look: bool = False) -> None:
        """Call this before returning samples: 0.3 µs.

        Args:
            look: Also check whether the shards in use changed since they were mapped.

        Raises:
            ShardError: a mapped shard or the index could not be read, so zeros may have replaced its bytes; or one was
                truncated or overwritten.
        """
        if (count := mapped_file.count()) != self._faults:
            if (fault := mapped_file.find_fault(self._index_owner)) is not None:
                self._lost = f"{_describe(*fault)}, and open the data set again"
            if (fault := mapped_file.find_fault(self._owner)) is not None:
                self._has_failed = True
                self._fault = _describe(*fault)
            self._faults = count
        # Of the thread that reads ahead, which may have met it first, and of the one that hands batches out.
        if (lasting := self._lost or self._fault) is not None:
            raise ShardError(lasting)
        if look:
            with self._explained():
                self._look(self._window)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Notes that a shard looks damaged; if a file could not be read, that is the error: zeros replace its bytes."""
        try:
            yield
        except ShardError:
            self._has_failed = True
            self.check()
            raise

    def close(self) -> None:
        """Stops the reading thread and releases the shards; views already returned stay valid."""
        self.ahead.stop()
        self._store.close()
        self._entered = None
        self._window = Window(self._dataset, (), {}, self._owner, self._store)

    def _enter(self, numbers: Sequence[int]) -> None:
        """Maps these shards, reads them ahead in this order, and releases all others."""
        self._look(self._window)  # the last check of released shards
        shards = self._window.shards
        kept = {
            number: shards[number]
            for number in numbers
            if number in shards and shards[number].owner is self._owner
        }
        # The others are released before new ones are opened, so that the cache need not hold both.
        del shards
        self._entered = None
        self._window = Window(self._dataset, kept, kept, self._owner, self._store)
        self.ahead.want(kept.values())
        window = Window(self._dataset, numbers, kept, self._owner, self._store)
        self.ahead.want([window.shards[number] for number in numbers])
        self._window = window

    def _look(self, window: Window) -> None:
        """Checks whether shards, or the rows of a set at a URL, changed since they were mapped."""
        self._looked = time.monotonic()
        self._dataset.check_index()
        for shard in window.shards.values():
            if shard.owner is self._owner:
                shard.check_unchanged()


def _shards_of(order: EpochOrder, first: int, stop: int) -> list[int]:
    """The distinct shards of these windows."""
    return list(
        dict.fromkeys(
            int(shard)
            for window in range(first, stop)
            for shard in order.window_shards(window)
        )
    )


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
