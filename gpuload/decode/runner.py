"""Runs the stages of a decoder; the only owner of threads, depth, cancellation and timing.

    batches ─► first stage ─► … ─► last stage ─► consumer, in the same order
               each stage begins batches in order in its own thread, and may share a batch among several threads

Up to `prefetch` batches are in flight or finished besides the one requested. On a GPU, all stages launch on one stream
of the runner. The consumer's stream waits for a batch there; no thread does.

Tasks are a queue and a lock, both in C. `concurrent.futures` costs 0.15 ms of processor time per task when caches are
cold, as they are after a training step: most of its bookkeeping is Python, and it waits for its own locks (2 cores,
2026-11).
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from gpuload.decode.interface import BatchDecodeError, Decoded, Fault
from gpuload.machine.apart import Flag, uninterrupted
from gpuload.machine.installed import fault_of
from gpuload.monitor import annotate
from gpuload.read.batch import Batch
from gpuload.types import I64

if TYPE_CHECKING:  # not needed if torch computes nothing
    from gpuload.decode.device import Device

T = TypeVar("T")
Work = Callable[[], None]


class Task(Generic[T]):
    """Work in progress in other threads.

    Args:
        work: Called once by each thread that takes part.
        times: Number of calls, and so of threads that may take part.

    Attributes:
        value: The result; None until then, and if the work raised or was cancelled before it began.
    """

    def __init__(self, work: Callable[[], T], times: int = 1) -> None:
        self._work: Callable[[], T] | None = work
        self._begun = list(range(times))  # calls left to begin; taking one is atomic
        self._calls = list(range(times))  # calls left to end
        self._done = threading.Lock()
        self._done.acquire()
        self.value: T | None = None
        self._error: BaseException | None = None
        self.cancelled = False  # set to True to cancel a task that has not begun

    def run(self) -> None:
        """One of the calls. Does nothing after all of them, so that a task may be queued again."""
        try:
            self._begun.pop()
        except IndexError:
            return
        work = self._work
        assert work is not None
        try:
            if not self.cancelled:
                self.value = work()
        except BaseException as error:  # raised in the thread that waits
            self._error = self._error or error
        del work
        if self._calls.pop() == 0:
            self._work = None
            self._done.release()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, with or without an error."""
        return not self._done.locked()

    def wait(self) -> None:
        """Waits until it has ended, with or without an error."""
        with self._done:  # unlike with two calls, Ctrl-C cannot leave it taken
            pass

    def result(self) -> T | None:
        """Waits for the value. Raises the error of the work, once."""
        self.wait()
        error = self._error
        self._error = None
        if error is not None:
            raise error
        return self.value


class _Here(threading.local):
    """What the current thread is.

    Attributes:
        owner: Of the threads that it is one of, or None.
    """

    owner: object = None


_here = _Here()


class Threads:
    """Threads that end when this object is closed or garbage collected, or the interpreter exits.

    Args:
        count: Number of threads.
        name: The beginning of their names.
        initializer: Called first in each thread.
        owner: See `_Here`.
    """

    def __init__(
        self,
        count: int,
        name: str,
        initializer: Callable[[], None] = lambda: None,
        owner: object = None,
    ) -> None:
        self._tasks: _Tasks = SimpleQueue()
        self._closed = Flag()
        uninterrupted(partial(self._start, count, name, initializer, owner))

    def _start(
        self, count: int, name: str, initializer: Callable[[], None], owner: object
    ) -> None:
        threads: list[threading.Thread] = []
        # A signal may come before the first step of a finalizer. This one has none: a queue's method, written in C.
        forgotten = weakref.ref(self, self._tasks.put)
        self._stop = weakref.finalize(
            self, _stop, self._tasks, threads, self._closed, os.getpid()
        )
        for number in range(count):
            arguments = self._tasks, initializer, owner, forgotten
            thread = threading.Thread(
                target=_run, args=arguments, name=f"{name}_{number}", daemon=True
            )
            thread.start()
            threads.append(thread)

    def submit(self, work: Callable[[], T], times: int = 1) -> Task[T]:
        """Queues a task for the next free thread, or for so many. After `close`, or while the interpreter exits, it is
        cancelled."""
        task = Task(work, times)
        for _ in range(times):
            self.queue(task)
        return task

    def queue(self, task: Task[Any]) -> None:
        """As `submit`, one call of a task."""
        self._tasks.put(task)
        if self._closed.is_set:  # by another thread meanwhile
            _cancel(self._tasks)

    def close(self) -> None:
        """Ends the threads once they have run what was submitted."""
        self._stop()


# What is no task ends a thread.
_Tasks = SimpleQueue[Task[Any] | weakref.ref[Threads] | None]


def _run(
    tasks: "_Tasks",
    initializer: Callable[[], None],
    owner: object,
    forgotten: "weakref.ref[Threads]",
) -> None:
    """A thread.

    Args:
        forgotten: Is put among the tasks when these threads are garbage collected.
    """
    _here.owner = owner
    initializer()
    while isinstance(task := tasks.get(), Task):
        task.run()
        del task  # a waiting thread must not keep a batch alive
    if task is forgotten:
        tasks.put(forgotten)  # for the other threads


def _cancel(tasks: "_Tasks") -> None:
    """Ends the tasks that no thread will take: another thread may wait for them."""
    signals = 0  # to end threads, not all taken yet if several threads close at once
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            break
        if isinstance(task, Task):
            task.cancelled = True
            task.run()
        elif task is None:
            signals += 1
    for _ in range(signals):
        tasks.put(None)


def _stop(
    tasks: "_Tasks", threads: list[threading.Thread], closed: Flag, process: int
) -> None:
    if os.getpid() != process:  # a forked child has none of the threads
        return
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        # The garbage collector may call this in any thread.
        if thread.ident != threading.get_ident():
            thread.join()
    closed.is_set = True
    _cancel(tasks)


def compute_threads(count: int, name: str, owner: object = None) -> Threads:
    """Threads that compute, where torch is installed with one torch thread each.

    torch keeps its number of threads per calling thread, but process-wide for MKL and for threads yet to start. So the
    user's number is restored once all of ours have started.
    """
    if fault_of("torch") is not None:
        return Threads(count, name, owner=owner)
    return uninterrupted(
        partial(_start_computing, import_module("torch"), count, name, owner)
    )


def _start_computing(torch: Any, count: int, name: str, owner: object) -> Threads:
    torch_threads = torch.get_num_threads()
    started = threading.Barrier(count + 1)
    try:
        threads = Threads(count, name, partial(_compute_alone, torch, started), owner)
        started.wait()
    except BaseException:  # no more threads
        started.abort()
        raise
    finally:
        torch.set_num_threads(torch_threads)
    return threads


def _compute_alone(torch: Any, started: threading.Barrier) -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread adopts the number when it first uses it, which must happen here
    with suppress(threading.BrokenBarrierError):
        started.wait()


_PAST_THE_END = 1 << 62  # of the rows of a batch


class Job:
    """A batch on its way through the stages.

    Args:
        batch: The batch to decode.
        whole: Of a part: the batch that it belongs to. The part refers to it weakly: a cycle would keep the pixels
            until the garbage collector runs.
        rows: int64, of a part: its rows in that batch; None if it has all of them.

    Attributes:
        decoded: Its pixels so far.
        parts: Batches that a stage split off this one, for later stages.
        held: Objects that must outlive the work launched on the device so far.
        state: A stage's own, until its `end`.
        taken: int64 (P,), how many rows of each of P pictures its shares have taken; compiled code reads it, and
            `abandon` moves it past the end.
    """

    def __init__(
        self, batch: Batch, whole: "Job | None" = None, rows: I64 | None = None
    ) -> None:
        self.batch = batch
        self.rows = rows
        self._whole = None if whole is None else weakref.ref(whole)
        self.decoded = Decoded(batch, batch)
        self.parts: tuple[Job, ...] = ()
        self.held: list[Any] = []
        self.state: Any = None
        self.is_abandoned = False
        self.taken: I64 = np.zeros(1, np.int64)
        self.shares: Task[None] | None = None
        self._work_s: list[float] = []
        self.ready: Any = None

    def do_share(self, work: Work, name: str) -> None:
        """One thread's share of the work."""
        begun = time.perf_counter()
        with annotate(name):
            work()
        self._work_s.append(time.perf_counter() - begun)

    def share_out(self, pictures: int) -> I64:
        """`taken`, for so many pictures."""
        self.taken = np.zeros(pictures, np.int64)
        if self.is_abandoned:  # by another thread meanwhile
            self.taken[:] = _PAST_THE_END
        return self.taken

    def abandon(self) -> None:
        """Cancels the batch: its shares may end early."""
        self.is_abandoned = True
        self.taken[:] = _PAST_THE_END
        for part in self.parts:
            part.abandon()

    def take(self, read_wait_s: float, ready: int) -> Decoded:
        """The batch with its pixels, which only the caller holds from now on."""
        decoded = self.decoded
        decoded.batch = self.batch  # a stage may have passed on the pixels of a part
        decoded.asked = self.batch
        self.parts = ()
        # A thread that began this may not have let go of it yet.
        del self.batch
        del self.decoded
        decoded.work_s += sum(self._work_s)
        decoded.queue_depth += ready
        decoded.read_wait_s = read_wait_s
        return decoded

    def in_whole(self, faults: Mapping[int, Fault]) -> dict[int, Fault]:
        """Faults of this part by rows of the whole batch."""
        if self.rows is None:
            return dict(faults)
        return {int(self.rows[row]): fault for row, fault in faults.items()}

    def error_of(self, faults: Mapping[int, Fault]) -> BatchDecodeError:
        """The error for these faults of its rows; of a part, as faults of the whole batch."""
        parent = None if self._whole is None else self._whole()
        if parent is None:
            return BatchDecodeError(self.batch, faults)
        return parent.error_of(self.in_whole(faults))


class Stage:
    """One step of decoding, which takes batches one after the other.

    Attributes:
        name: Of its threads, after "gpuload-".
        threads: How many call what `begin` returns.
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


class SplitParts(Stage):
    """Splits each batch.

    Args:
        parts_of: Makes the parts.
    """

    name = "read"

    def __init__(self, parts_of: Callable[[Job], tuple[Job, ...]]) -> None:
        self._parts_of = parts_of

    def begin(self, job: Job) -> None:
        """As `Stage.begin`."""
        job.parts = self._parts_of(job)


class OnPart(Stage):
    """A stage for one part of each batch, unless the part has no samples.

    Args:
        number: Of the part, as `divide` orders them.
        stage: Gets that part alone.
    """

    def __init__(self, number: int, stage: Stage) -> None:
        self.name = stage.name
        self.threads = stage.threads
        self._number = number
        self._stage = stage

    def begin(self, job: Job) -> Work | None:
        part = job.parts[self._number]
        work = self._stage.begin(part) if len(part.batch) else None
        job.held += part.held
        return work

    def end(self, job: Job) -> None:
        if len(job.parts[self._number].batch):
            self._stage.end(job.parts[self._number])

    def restart(self) -> None:
        self._stage.restart()

    def close(self) -> None:
        self._stage.close()


def _thread_name(stage: Stage) -> str:
    """Of the thread that begins the stage's batches."""
    name = f"gpuload-{stage.name}"
    return f"{name}-start" if stage.threads else name


class Runner:
    """Decodes batches in order, some of them ahead of the one requested.

    Args:
        stages: What a batch goes through, in this order.
        prefetch: Batches in all stages together, beside the one requested.
        device: Where stages launch their work; None for none.
    """

    def __init__(
        self, stages: Sequence[Stage], prefetch: int, device: "Device | None" = None
    ) -> None:
        self.stages = tuple(stages)
        self.prefetch = prefetch
        self._device = device
        # Of the current call: of each batch a task for each stage.
        self._ahead: deque[list[Task[Job | None]]] = deque()
        # Of earlier calls, whose ends may be waited for.
        self._ended: deque[deque[list[Task[Job | None]]]] = deque()
        # Of the threads, without a reference to this.
        self._owner = object()
        # Beginning a batch is some 0.3 ms of Python, which the training loop does not spend.
        self._threads = [
            Threads(1, _thread_name(stage), owner=self._owner) for stage in self.stages
        ]
        self._pools = [
            compute_threads(stage.threads, f"gpuload-{stage.name}", self._owner)
            if stage.threads
            else None
            for stage in self.stages
        ]

    def is_at_work_here(self) -> bool:
        """Whether the current thread is one of this runner's own, which it cannot wait for."""
        return _here.owner is self._owner

    def decode(self, batches: Iterator[Batch]) -> Iterator[Decoded]:
        """Each batch with its pixels.

        Only one call is active at a time; a new call ends the one before. A stage that can go on reports samples that
        do not decode in `Decoded.faults`.

        Raises:
            BatchDecodeError: a stage cannot go on: samples of the next batch, or of a later one, do not decode. A new
                call may follow.
        """
        self._abandon()
        for stage in self.stages:
            stage.restart()
        ahead = self._ahead
        while True:
            asked = time.perf_counter()
            ready = self._count_ready()
            while len(ahead) <= self.prefetch:
                self._submit_next(batches, ahead)
            # Another thread ended this call, and may not have seen the last of these.
            if ahead is not self._ahead:
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
            handover = [job.take(read_wait_s, ready)]
            del tasks, job  # a waiting caller must not keep a batch alive
            yield handover.pop()

    def close(self) -> None:
        """Cancels the batches in flight and ends the threads; batches already returned stay valid."""
        self._abandon()
        for threads in (*self._threads, *filter(None, self._pools)):
            threads.close()
        for stage in self.stages:
            stage.close()
        if self._device is not None:
            self._device.close()

    def _submit_next(
        self, batches: Iterator[Batch], ahead: deque[list[Task[Job | None]]]
    ) -> None:
        """Submits a task of each stage for the next batch."""
        tasks: list[Task[Job | None]] = []
        # The list, and each task in it, is known to `_abandon` before anything begins, since this may be interrupted at
        # any step.
        ahead.append(tasks)
        for number, thread in enumerate(self._threads):
            before = tasks[-1] if tasks else None
            tasks.append(Task(partial(self._begin, number, batches, before)))
            thread.queue(tasks[-1])

    def _begin(
        self, number: int, batches: Iterator[Batch], before: "Task[Job | None] | None"
    ) -> Job | None:
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
                    job.ready = self._device.leave(job.held)
                    job.held = []
        pool = self._pools[number]
        stage = self.stages[number]
        if work is not None and pool is not None:
            job.shares = pool.submit(
                partial(job.do_share, work, stage.name), stage.threads
            )
        return job

    def _settle(self, number: int, job: Job) -> None:
        if job.shares is not None:
            job.shares.result()
        self.stages[number].end(job)

    def _abandon(self) -> None:
        """Cancels all batches in flight, and waits until no thread works on them. What was interrupted, the next call
        completes."""
        self._ended.append(self._ahead)
        self._ahead = deque()  # `close` may be called by another thread
        for ahead in self._ended.copy():
            self._end(ahead)
            with suppress(ValueError):  # another thread has removed it
                self._ended.remove(ahead)

    def _end(self, ahead: deque[list[Task[Job | None]]]) -> None:
        tasks = [task for tasks in list(ahead) for task in tasks]
        self._cancel_tasks(tasks)
        for stages in list(ahead):
            for thread, task in zip(self._threads, stages, strict=False):
                if not task.is_done:
                    thread.queue(task)  # again, or at last: it ends without beginning
        for task in tasks:
            task.wait()
            if (job := task.value) is not None:
                job.abandon()  # begun meanwhile; the task of its next stage waits for its shares
            del job
        self._forget_batches(tasks)

    # Methods, since a loader may be closed when the modules have gone.

    @staticmethod
    def _cancel_tasks(tasks: Sequence[Task[Job | None]]) -> None:
        """Keeps those from beginning that have not, and lets the batches of the others end early."""
        for task in tasks:
            task.cancelled = True
        for task in tasks:
            if (job := task.value) is not None:
                job.abandon()

    @staticmethod
    def _forget_batches(tasks: Sequence[Task[Job | None]]) -> None:
        """Waits until no thread works on the batches of tasks that are done, and lets go of them: whoever keeps the
        generator of an earlier call keeps none of its batches."""
        for task in tasks:
            if (job := task.value) is not None:
                if job.shares is not None:
                    job.shares.wait()
                task.value = None
            del job

    def _count_ready(self) -> int:
        ready = 0
        for tasks in self._ahead:
            job = tasks[-1].value
            if job is None or (job.shares is not None and not job.shares.is_done):
                break
            ready += 1
        return ready
