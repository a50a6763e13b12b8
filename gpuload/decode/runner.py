"""Runs the stages of a decoder; the only owner of threads, depth, cancellation and timing.

    batches ─► first stage ─► … ─► last stage ─► consumer, in the same order
               each stage begins batches in order in its own thread, and may share a batch among several threads

Up to `prefetch` batches are in flight or finished besides the one requested. On a GPU, all stages launch on one stream
of the runner. The consumer's stream waits for a batch there; no thread does.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.decode.interface import BatchDecodeError, Decoded, Fault
from gpuload.decode.threads import Task, Threads, compute_threads
from gpuload.monitor.metrics import annotate
from gpuload.read.batch import Batch
from gpuload.types import I64

if TYPE_CHECKING:  # not needed if torch computes nothing
    from gpuload.decode.device import Device

Work = Callable[[], None]


class Job:
    """A batch on its way through the stages.

    batch: the batch to decode. decoded: its pixels so far. rows: int64, for a part: its rows in the whole batch.
    parts: batches that a stage split off this one, for later stages.
    taken: int64 (1,), how many rows its shares have taken; compiled code reads it, and `abandon` moves it past the end.
    held: objects that must outlive the work launched on the device so far. state: a stage's own, until its `end`.
    """

    def __init__(self, batch: Batch, rows: I64 | None = None) -> None:
        self.batch, self.rows = batch, rows
        self.decoded = Decoded((), (), 0.0)
        self.parts: tuple[Job, ...] = ()
        self.held: list[Any] = []
        self.state: Any = None
        self.is_abandoned = False
        self.taken: I64 = np.zeros(1, np.int64)
        self._share: Task[None] | None = None
        self._started, self._ended = math.inf, -math.inf
        self._work_s: list[float] = []
        self.ready: Any = None

    def share(self, work: Work, pool: Threads, count: int, name: str) -> None:
        """Submits the work to `count` threads of a pool."""
        self._share = pool.submit(partial(self._do_share, work, name), count)

    def _do_share(self, work: Work, name: str) -> None:
        begun = time.perf_counter()
        self._started = min(self._started, begun)
        with annotate(name):
            work()
        self._work_s.append(self.stamp() - begun)

    def stamp(self) -> float:
        """Extends the batch's decoding time to now, by `time.perf_counter`, and returns now."""
        self._ended = now = time.perf_counter()
        self._started = min(self._started, now)
        return now

    def settle(self) -> None:
        """Waits for its shares, and re-raises what one of them raised."""
        if self._share is not None:
            self._share.result()

    def abandon(self) -> None:
        """Cancels the batch: its shares may end early."""
        self.is_abandoned = True
        self.taken[0] = 1 << 62
        for part in self.parts:
            part.abandon()

    def wait(self) -> None:
        """Waits for its shares, and ignores their errors."""
        if self._share is not None:
            self._share.wait()

    @property
    def is_done(self) -> bool:
        return self._share is None or self._share.is_done

    def take(self, read_wait_s: float, ready: int) -> tuple[Batch, Decoded]:
        """The batch and its pixels, which only the caller holds from now on."""
        decoded, self.decoded, self.parts = self.decoded, Decoded((), (), 0.0), ()
        return self.batch, decoded._replace(
            seconds=self._ended - self._started,
            work_s=decoded.work_s + sum(self._work_s),
            read_wait_s=read_wait_s,
            queue_depth=decoded.queue_depth + ready,
        )

    def in_whole(self, faults: Mapping[int, Fault]) -> dict[int, Fault]:
        """Faults of this part by rows of the whole batch."""
        return dict(faults) if self.rows is None else {int(self.rows[row]): fault for row, fault in faults.items()}

    def broken(self) -> dict[int, Fault]:
        """Faults known so far, by rows of this batch."""
        found = dict(self.decoded.broken)
        for part in self.parts:
            found |= part.in_whole(part.broken())
        return found

    def faults_of(self, batch: Batch, faults: Mapping[int, Fault]) -> dict[int, Fault] | None:
        """Faults of that batch by rows of this one; None if it is not a part of this one."""
        if self.batch is batch:
            return dict(faults)
        for part in self.parts:
            if (found := part.faults_of(batch, faults)) is not None:
                return part.in_whole(found)
        return None


class Stage:
    """One step of decoding, which takes batches one after the other.

    name: of its threads, after "gpuload-". threads: how many call what `begin` returns.
    """

    name = ""
    threads = 0

    def begin(self, job: Job) -> Work | None:
        """Begins a batch, in the stage's own thread.

        Returns a function that each of the stage's `threads` calls once, in parallel; None if the batch is complete.
        """
        raise NotImplementedError

    def end(self, job: Job) -> None:
        """Completes a batch after all these calls have returned, in the thread of the next stage or of the consumer."""

    def restart(self) -> None:
        """Forgets the batches begun before, on which no thread is at work any more."""

    def close(self) -> None:
        """Frees the stage's resources."""


class OnPart(Stage):
    """A stage for one part of each batch. number: of the part."""

    def __init__(self, number: int, stage: Stage) -> None:
        self.name, self.threads = stage.name, stage.threads
        self._number, self._stage = number, stage
        self.restart, self.close = stage.restart, stage.close  # type: ignore[method-assign]

    def begin(self, job: Job) -> Work | None:
        part = job.parts[self._number]
        work = self._stage.begin(part)
        job.held += part.held
        return work

    def end(self, job: Job) -> None:
        self._stage.end(job.parts[self._number])


class Runner:
    """Decodes batches in order, up to `prefetch` of them ahead of the one requested.

    device: where stages launch their work; None for none.
    """

    def __init__(self, stages: Sequence[Stage], prefetch: int, device: "Device | None" = None) -> None:
        self.stages, self.prefetch = tuple(stages), prefetch
        self._device = device
        self._ahead: deque[list[Task[Job | None]]] = deque()  # of the current call: of each batch a task for each stage
        # Beginning a batch is some 0.3 ms of Python, which the training loop does not spend.
        self._threads = [Threads(1, f"gpuload-{stage.name}{'-start' * bool(stage.threads)}") for stage in self.stages]
        self._pools = [
            compute_threads(stage.threads, f"gpuload-{stage.name}") if stage.threads else None for stage in self.stages
        ]

    def decode(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        """Each batch with its pixels.

        Only one call is active at a time; a new call ends the one before. A stage that can go on reports samples that
        do not decode in `Decoded.broken`.

        Raises:
            BatchDecodeError: a stage cannot go on: samples of the next batch, or of a later one, do not decode. A new
                call may follow.
        """
        self._abandon()
        for stage in self.stages:
            stage.restart()
        ahead = self._ahead
        try:
            while True:
                asked, ready = time.perf_counter(), self._count_ready()
                while len(ahead) <= self.prefetch:
                    tasks: list[Task[Job | None]] = []
                    ahead.append(tasks)  # first: if starting is interrupted, `_abandon` ends the tasks
                    for number, thread in enumerate(self._threads):
                        tasks.append(thread.submit(partial(self._begin, number, batches, tasks[-1] if tasks else None)))
                if ahead is not self._ahead:  # another thread ended this call, and may not have seen the last of these
                    self._end(ahead)
                    return
                tasks = ahead[0]
                tasks[0].wait()
                read_wait_s = time.perf_counter() - asked
                job = tasks[-1].result()
                if job is None or job.is_abandoned:  # closed meanwhile
                    return
                self._settle(len(self.stages) - 1, job)
                if self._device is not None:
                    self._device.hand_over(job.decoded, job.ready)
                ahead.popleft()  # not before: if waiting is interrupted, `_abandon` ends it
                made = [job.take(read_wait_s, ready)]
                del tasks, job  # a waiting caller must not keep a batch alive
                yield made.pop()
        except BatchDecodeError as error:
            raise self._of_whole(error) from error

    def close(self) -> None:
        """Cancels the batches in flight and ends the threads; batches already returned stay valid."""
        self._abandon()
        for threads in (*self._threads, *filter(None, self._pools)):
            threads.close()
        for stage in self.stages:
            stage.close()
        if self._device is not None:
            self._device.close()

    def _begin(self, number: int, batches: Iterator[Batch], before: "Task[Job | None] | None") -> Job | None:
        """Begins the next batch, or the one that the stage before has begun, in the thread of stage `number`."""
        if before is None:
            with annotate("read"):
                batch = next(batches, None)
            job = None if batch is None else Job(batch)
        else:
            job = before.result()
        if job is None or job.is_abandoned:
            return job
        if number:
            self._settle(number - 1, job)
        if self._device is None:
            work = self.stages[number].begin(job)
        else:
            with self._device.stream():
                work = self.stages[number].begin(job)
                if number == len(self.stages) - 1:
                    job.ready, job.held = self._device.leave(job.held), []
        pool = self._pools[number]
        if work is None or pool is None:
            job.stamp()
        else:
            job.share(work, pool, self.stages[number].threads, self.stages[number].name)
        return job

    def _settle(self, number: int, job: Job) -> None:
        job.settle()
        self.stages[number].end(job)

    def _abandon(self) -> None:
        """Cancels all batches in flight, and waits until no thread works on them."""
        ahead, self._ahead = self._ahead, deque()  # `close` may be called by another thread
        self._end(ahead)

    def _end(self, ahead: deque[list[Task[Job | None]]]) -> None:
        tasks = [task for tasks in list(ahead) for task in tasks]
        for task in tasks:
            task.cancelled = True
        for task in tasks:
            if task.value is not None:
                task.value.abandon()
        for task in tasks:
            task.wait()
            if task.value is not None:
                task.value.abandon()  # begun meanwhile; the task of its next stage waits for its shares
        for task in tasks:
            if task.value is not None:
                task.value.wait()
                task.value = None  # whoever keeps the generator of an earlier call keeps none of its batches

    def _count_ready(self) -> int:
        ready = 0
        for tasks in self._ahead:
            job = tasks[-1].value
            if job is None or not job.is_done:
                break
            ready += 1
        return ready

    def _of_whole(self, error: BatchDecodeError) -> BatchDecodeError:
        """A part's error as the error of its whole batch."""
        for number, tasks in enumerate(self._ahead):
            job = tasks[0].value
            if job is None or (faults := job.faults_of(error.batch, error.faults)) is None:
                continue
            # The other parts of the next batch are decoded: their faults are reported with these.
            return BatchDecodeError(job.batch, {**job.broken(), **faults} if number == 0 else faults)
        return error
