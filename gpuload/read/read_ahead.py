"""Reads shards and their rows ahead of use; a thread also verifies checksums on request."""

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING

from gpuload.disk.dataset import Dataset
from gpuload.read.shards import MappedShard
from gpuload.store.network import Waiter

if TYPE_CHECKING:
    from gpuload.store.transfer import Parts  # asyncio

_PAGE_BYTES = 4096
_TOUCH_BYTES = 4 << 20  # touched between two checks whether to stop


class ReadAhead:
    """Touches the pages of memory-mapped shards in the order in which the shards were requested.

    It holds no lock meanwhile (NumPy releases the GIL). Touching takes 10 ms a GiB if the pages are in memory; cold,
    shard after shard, it is twice as fast as reading the same pages in shuffled order (local NVMe, 2026-11).

    verify: also compare each shard's SHA-256 with the manifest, once for each content; `check` waits for it.
    """

    def __init__(self, verify: bool = False) -> None:
        self._verify = verify
        self._verified: set[tuple[int, int]] = set()  # number and modification time of verified shards
        # No lock is shared with the thread: Ctrl-C between acquiring a lock and entering its `with` would leave it
        # locked, and a forked child would inherit it.
        self._jobs: dict[int, _Job] = {}
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
        self._jobs = {number: job for number, job in self._jobs.items() if job.error is None}

    def want(self, shards: Mapping[int, MappedShard], order: Iterable[int]) -> None:
        """Reads the shards with these numbers in this order, after those requested before; cancels all others."""
        jobs = {}
        for number in order:
            known = self._jobs.get(number)
            if known is None or known.shard is not shards[number]:
                known = self._submit(shards[number])
            jobs[number] = known
        for number, job in self._jobs.items():
            if jobs.get(number) is not job:
                job.wanted = False
        self._jobs = jobs

    def check(self, shards: Mapping[int, MappedShard], numbers: Iterable[int]) -> None:
        """Raises the thread's errors for these shards; with `verify`, waits until it has checked them.

        Raises:
            ShardError: the SHA-256 of a shard differs from the manifest's.
        """
        for number in numbers:
            job = self._jobs.get(number)
            if job is None or job.shard is not shards[number]:
                job = self._jobs[number] = self._submit(shards[number])
            if self._verify:
                with job.running:
                    pass
            if job.error is not None:
                del self._jobs[number]  # the next call tries again
                raise job.error

    def check_once(self, shard: MappedShard) -> None:
        """The same for a shard of which only some samples are read, without reading ahead.

        Raises:
            ShardError: as `check`.
        """
        known = shard.number, shard.changed_ns
        if self._verify and known not in self._verified:
            shard.check_digest()
            self._verified.add(known)

    def stop(self) -> None:
        """Ends the thread; `want` starts a new one."""
        thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._process:  # a forked child has no such thread
            for job in self._jobs.values():
                job.wanted = False
            self._queue.put(None)
            self._jobs, self._queue = {}, SimpleQueue()
            # The garbage collector may call this in any thread; Ctrl-C may have prevented the start.
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join()

    def _submit(self, shard: MappedShard) -> "_Job":
        job = _Job(shard, self._verify and (shard.number, shard.changed_ns) not in self._verified)
        self._queue.put(job)
        if self._thread is None:
            self._thread = threading.Thread(
                target=_run, args=(self._queue, self._verified, self._busy), name="gpuload-read-ahead", daemon=True
            )
            self._thread.start()
        return job


class _Job:
    """A shard to read. running: a lock, held until the shard has been read. wanted: set it to False to cancel."""

    def __init__(self, shard: MappedShard, verify: bool) -> None:
        self.shard, self.verify, self.wanted = shard, verify, True
        self.error: BaseException | None = None
        self.running = threading.Lock()
        self.running.acquire()

    def run(self, verified: set[tuple[int, int]]) -> None:
        try:
            if self.verify:
                if self.shard.check_digest(self):
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


def _run(queue: "SimpleQueue[_Job | None]", verified: set[tuple[int, int]], busy: _Stopwatch) -> None:
    while (job := queue.get()) is not None:
        begun = time.perf_counter()
        job.run(verified)
        busy.seconds += time.perf_counter() - begun
        del job  # a waiting thread must not keep a shard mapped


_LEAST_AHEAD = 8  # shards: with windows of one or two, fetching only the next window would be late


class RowsAhead(Waiter):
    """Fetches the rows of a data set's shards for one reader, if they are not all local. Not thread-safe, except for
    `interrupt`.

    Rows are small compared with their shards, but each request takes the server's latency. So the rows of a window are
    fetched together, and those of the next one during the current one.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self._parts: Parts | None = dataset.index.parts

    def ready(self, number: int) -> bool:
        """Whether the rows of a shard are local."""
        return self._parts is None or self._parts.has(number)

    def need(self, numbers: Sequence[int], upcoming: Iterable[int] = ()) -> None:
        """Waits for the rows of these shards, and starts to fetch the following ones.

        upcoming: shards in the order of need, including these.

        Raises:
            RemoteError: they cannot be read. FormatError: they do not match the manifest.
        """
        if self._parts is None:
            return
        from gpuload.store.network import background

        if not all(map(self._parts.has, numbers)):
            self.wait(self._parts.get(numbers), self._parts.where)
        after = (number for number in map(int, upcoming) if number not in numbers)
        ahead = list(islice(after, max(len(numbers), _LEAST_AHEAD)))
        if not all(map(self._parts.has, ahead)):
            background().start(self._parts.get(ahead))
