"""Worker processes that may die without ending the packer.

Each worker has its own pipe and one task at a time, so the parent always knows which task a dead worker had, and there
is no shared lock that a killed process could hold. (concurrent.futures abandons all tasks when one worker dies. Pebble
5.2 passes tasks through one locked pipe: a worker killed while it holds the lock blocks all others, and one that dies
before its acknowledgement is read leaves its task waiting for ever.)

Workers are forked from multiprocessing's fork server, a process without threads of ours, which imports their modules
once: a worker starts in 5 ms of processor time, where a new interpreter ("spawn") needs 240 ms to import NumPy, Arrow
and Pillow (2 cores of an AMD EPYC, 2026-11). The server starts before the packer imports the same modules, so neither
waits for the other.
"""

import os
import signal
import struct
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpuload.errors import GpuloadError, SourceError
from gpuload.machine.fork_server import EndedError, Worker, ensure_server, exit_name
from gpuload.sources.source import Source

Task = TypeVar("Task")
Result = TypeVar("Result")
Blamed = TypeVar("Blamed", bound="Blamable")

MOST_DEATHS = 100  # of workers without an image to blame; more suggest a problem of the machine or the caller
NOWHERE = (
    -1
)  # the worker is not processing a sample: it is starting or closing the shard
_FORMATS = (
    "Bmp",
    "Gif",
    "Jpeg",
    "Ppm",
    "Png",
)  # the plugins that Pillow imports when it opens its first image
_PRELOAD = ["gpuload.packing.shard", *(f"PIL.{name}ImagePlugin" for name in _FORMATS)]
_POLL_S = 0.1  # between two calls of `watch`
_POSITION = struct.Struct("<qq")


def start_server() -> None:
    """Starts the process from which workers are forked, unless it is running; it imports their modules in the
    background."""
    ensure_server(_PRELOAD)


class Workers(Generic[Task, Result]):
    """Processes that apply a function to tasks; both must be picklable.

    Leaving the `with` block kills all processes.

    Args:
        count: Of processes, at most.
        function: Takes a task and returns its result.
        need_main: Whether tasks contain objects defined in the main module, which workers must then import.
    """

    def __init__(
        self, count: int, function: Callable[[Task], Result], need_main: bool = True
    ) -> None:
        self._count = count
        self._function = function
        self._need_main = need_main
        self._workers: list[Worker] = []

    def run(
        self,
        tasks: Iterable[Task],
        died: Callable[[Task, int], Task],
        watch: Callable[[list[Task]], None] = lambda tasks: None,
    ) -> Iterator[tuple[Task, Result]]:
        """Runs all tasks, and gives each with its result, in the order in which they arrive.

        Args:
            tasks: In the order in which they begin.
            died: Called with the task of a worker that died and its exit code (negative: the number of the signal);
                returns the task to run instead, or raises.
            watch: Called a few times a second with the tasks in progress.

        Raises:
            Exception: what `function` raised.
        """
        waiting = deque(tasks)
        while waiting or self._busy():
            for worker in self._workers:
                if worker.task is None and waiting:
                    worker.send(waiting.popleft())
            while waiting and len(self._workers) < self._count:
                self._workers.append(self._start())
                self._workers[-1].send(waiting.popleft())
            wait([worker.pipe for worker in self._workers], _POLL_S)
            for worker in [worker for worker in self._workers if worker.pipe.poll()]:
                task = worker.task
                try:
                    result = worker.receive()
                except EndedError:
                    self._workers.remove(worker)
                    code = worker.stop()
                    if task is not None:
                        waiting.appendleft(died(task, code))
                    continue
                yield task, result
            watch(self._busy())

    def _start(self) -> Worker:
        return Worker(
            start_server,
            _prepare_worker,
            self._function,
            name="gpuload-pack",
            need_main=self._need_main,
        )

    def _busy(self) -> list[Task]:
        return [worker.task for worker in self._workers if worker.task is not None]

    def __enter__(self) -> "Workers[Task, Result]":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.stop()
        self._workers.clear()


def _prepare_worker(
    pipe: Connection, function: Callable[[Task], Result]
) -> Callable[[Task], Result]:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Pillow warns about unusual files, and its C libraries write to stderr; the result says all that matters.
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return function


@contextmanager
def noted_position(path: Path) -> Iterator[Callable[[int, int], None]]:
    """Calls note the position in its shard of the sample that a worker is processing, and the bytes read so far.

    They are kept in a file, which survives a process that is killed. A call takes 1 µs.
    """
    with path.open("wb", buffering=0) as file:

        def note(position: int, read_bytes: int) -> None:
            os.pwrite(file.fileno(), _POSITION.pack(position, read_bytes), 0)

        note(NOWHERE, 0)
        yield note


def read_position(path: Path) -> tuple[int, int]:
    """Position in the shard of the sample that the worker is processing, or NOWHERE, and bytes read so far."""
    try:
        position, read_bytes = _POSITION.unpack(path.read_bytes())
    except (OSError, struct.error):
        return NOWHERE, 0
    return position, read_bytes


@dataclass(frozen=True, kw_only=True)
class Blamable:
    """A task on the samples of a shard, one of which may kill the worker.

    Attributes:
        position: The file in which the worker notes where it is.
        time_limit_s: For one sample; SIGALRM kills the process when it is exceeded.
        known_bad: Samples (by position in the shard) that killed a worker, and why.
    """

    position: Path
    time_limit_s: float
    known_bad: Mapping[int, str] = field(default_factory=dict)


class Blame:
    """Finds the sample that killed a worker; called, it gives the job to run instead."""

    def __init__(self) -> None:
        self._killed: set[tuple[Path, int]] = (
            set()
        )  # positions at which a worker received SIGKILL once
        self._unexplained = 0

    def find(self, job: Blamed, code: int) -> Blamed | None:
        """Finds the sample that killed a worker. Returns the job to run instead; None if no sample is to blame.

        Args:
            job: What the worker did.
            code: The worker's exit code. SIGKILL may come from the kernel when memory is short, without a fault of the
                sample, which is therefore tried again.
        """
        position, _ = read_position(job.position)
        job.position.unlink(missing_ok=True)
        if position == NOWHERE:
            return None
        if code == -signal.SIGKILL and (job.position, position) not in self._killed:
            self._killed.add((job.position, position))
            return job
        reason = {
            -signal.SIGALRM: f"took longer than {job.time_limit_s:g} s",
            -signal.SIGKILL: "the decoder was killed (SIGKILL) twice; out of memory?",
        }.get(code, f"the decoder crashed: {exit_name(code)}")
        return replace(job, known_bad={**job.known_bad, position: reason})

    def __call__(self, job: Blamed, code: int) -> Blamed:
        """As `find`, or the same job.

        Raises:
            GpuloadError: more than MOST_DEATHS workers died with no image to blame.
        """
        next_job = self.find(job, code)
        if next_job is not None:
            return next_job
        self._unexplained += 1
        if self._unexplained > MOST_DEATHS:
            raise GpuloadError(
                f"workers died {self._unexplained} times with no image to blame, most recently with {exit_name(code)}. "
                "If memory is short, try fewer --workers. From Python, call pack() under "
                '`if __name__ == "__main__":`'
            )
        return job


def prepare_source(source: Source, scratch: Path) -> Source:
    """The source after `Source.prepare`, in a process that may die where the source calls for one.

    HDF5, LMDB and Parquet are read by C libraries, which a damaged file may crash: LMDB's trusts every page. A crash
    would look like a fault of the packer, and could leave half a run behind.

    Raises:
        SourceError: as `Source.prepare`, or the process died.
    """
    task = source, scratch
    if not source.needs_process:
        return _prepare(task)

    def died(task: tuple[Source, Path], code: int) -> Any:
        raise SourceError(
            f"{source.title}: reading it ended the process that read it "
            f"({exit_name(code)}). It is damaged, or memory ran out: copy or write it again"
        )

    with Workers[tuple[Source, Path], Source](
        1, _prepare, type(source).__module__ == "__main__"
    ) as workers:
        ((_, prepared),) = workers.run([task], died)
    return prepared


def _prepare(task: tuple[Source, Path]) -> Source:
    source, scratch = task
    source.prepare(scratch)
    return source
