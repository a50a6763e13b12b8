"""One runner for all stages, and its threads: order, errors in their place, ends, and what is held."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import prepared
import pytest
from loaders import load
from made_batches import make_batch

import gpuload
from gpuload import Augment
from gpuload.decode.interface import Decoded
from gpuload.decode.runner import Job, Runner, Stage, Task, Threads
from gpuload.read.batch import Batch


def made(count: int) -> Batch:
    return make_batch(Augment(2), [np.zeros(1, np.uint8)] * count, [(1, 1)] * count)


class Noted(Stage):
    """Adds its name to the notes of a batch, in each of its threads, and in capitals at its end."""

    def __init__(self, name: str, threads: int = 0) -> None:
        self.name, self.threads = name, threads
        self.began_in: set[str] = set()
        self.restarts = 0

    def begin(self, job: Job) -> Any:
        self.began_in.add(threading.current_thread().name)
        if not self.threads:
            self._note(job, self.name)
            return None
        return lambda: self._note(job, self.name)

    def end(self, job: Job) -> None:
        self._note(job, self.name.upper())

    def restart(self) -> None:
        self.restarts += 1

    def _note(self, job: Job, name: str) -> None:
        notes = job.decoded.pictures.get("notes", ())
        job.decoded = replace(job.decoded, pictures={"notes": (*notes, name)})


@pytest.fixture
def stages() -> list[Noted]:
    return [Noted("a"), Noted("b", threads=1), Noted("c")]


def test_each_stage_has_every_batch_in_order_in_its_own_thread(stages: list[Noted]) -> None:
    for prefetch in (1, 2, 7):
        runner, wanted = Runner(stages, prefetch), [made(count) for count in (3, 1, 0, 2, 5)]
        found = list(runner.decode(iter(wanted)))
        assert [decoded.batch for decoded in found] == wanted
        assert [decoded.pictures["notes"] for decoded in found] == [("a", "A", "b", "B", "c", "C")] * 5
        runner.close()
    assert [stage.began_in for stage in stages] == [{"gpuload-a_0"}, {"gpuload-b-start_0"}, {"gpuload-c_0"}]
    assert [stage.restarts for stage in stages] == [3] * 3


@pytest.mark.parametrize("where", ["source", "begin", "share", "end"])
def test_errors_come_after_the_batches_before(stages: list[Noted], where: str) -> None:
    def fail(*_: Any) -> Any:
        raise gpuload.ShardError("gone")

    class Failing(Noted):
        def begin(self, job: Job) -> Any:
            if len(job.batch) == 2 and where in ("begin", "share"):
                return fail() if where == "begin" else fail
            return super().begin(job)

        def end(self, job: Job) -> None:
            super().end(job)
            if len(job.batch) == 2 and where == "end":
                fail()

    def source() -> Iterator[Batch]:
        yield from map(made, (5, 4, 3))
        if where == "source":
            fail()
        yield from map(made, (2, 1))

    stages[1] = Failing("b", threads=1)
    runner, sizes = Runner(stages, 2), []
    with pytest.raises(gpuload.ShardError, match="gone"):
        sizes.extend(len(decoded.batch) for decoded in runner.decode(source()))
    assert sizes == [5, 4, 3]
    assert [len(decoded.batch) for decoded in runner.decode(iter([made(7)]))] == [7]
    runner.close()


def test_a_call_that_is_left_ends_before_the_next_begins(stages: list[Noted]) -> None:
    def source() -> Iterator[Batch]:
        for count in range(9):
            yield made(count)
            time.sleep(0.002)

    runner, former = Runner(stages, 3), source()
    for _ in range(20):
        decoding = runner.decode(given := source())
        assert [len(next(decoding).batch) for _ in range(3)] == [0, 1, 2]
        former.close()  # ValueError, if a thread were still in it
        former = given
    assert [len(decoded.batch) for decoded in runner.decode(iter([made(4)]))] == [4]
    runner.close()


class Endless(Stage):
    """Whose thread works until its batch is abandoned. leave: at the latest then. after: is called with each that was."""

    name, threads = "endless", 1

    def __init__(self, after: Callable[[], Any] = lambda: None) -> None:
        self.entered, self.leave, self._after = threading.Event(), threading.Event(), after

    def begin(self, job: Job) -> Any:
        def work() -> None:
            self.entered.set()
            while not job.is_abandoned and not self.leave.wait(0.01):
                pass
            self._after()

        return work


def test_what_is_begun_while_another_thread_closes_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that the waiting thread submits when those before them have been abandoned already."""
    abandoned, begun = threading.Event(), threading.Event()
    stage = Endless(lambda: (abandoned.set(), begun.wait(250)))
    queue, submitted = Threads.queue, []

    def queue_late(threads: Threads, task: Task[Any]) -> None:
        if threading.current_thread() is asking:
            submitted.append(threads)
            if len(submitted) == 3:  # of the second batch
                abandoned.wait(250)
        queue(threads, task)
        if len(submitted) == 6:
            begun.set()

    runner = Runner([stage, Noted("after")], 2)
    asking = threading.Thread(target=lambda: list(runner.decode(iter([made(1)] * 9))))
    closing = threading.Thread(target=runner.close)
    monkeypatch.setattr(Threads, "queue", queue_late)
    asking.start()
    while len(submitted) < 3 or not stage.entered.wait(0.01):
        time.sleep(0.001)
    closing.start()
    for thread in (closing, asking):
        thread.join(60)
        assert not thread.is_alive(), stage.leave.set()


def test_a_batch_whose_start_ends_while_another_thread_closes_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """After all that had begun were abandoned."""
    stage, closes, wait = Endless(), threading.Event(), Task.wait
    begin = stage.begin

    def begin_late(job: Job) -> Any:
        stage.entered.set()
        closes.wait(60)
        return begin(job)

    def wait_for(task: Task[Any]) -> None:
        if threading.current_thread() is closing:
            closes.set()
        wait(task)

    monkeypatch.setattr(stage, "begin", begin_late)
    monkeypatch.setattr(Task, "wait", wait_for)
    runner = Runner([stage], 1)
    asking = threading.Thread(target=lambda: list(runner.decode(iter([made(1)] * 9))))
    closing = threading.Thread(target=runner.close)
    asking.start()
    assert stage.entered.wait(60)
    closing.start()
    for thread in (closing, asking):
        thread.join(10)
        assert not thread.is_alive(), stage.leave.set()


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_a_batch_is_held_by_the_training_alone(packed: Path, decoder: str) -> None:
    """While it waits for the next one, no stage keeps the one before."""
    with load(packed, 8, decoder=decoder, augment=Augment(8), output="numpy") as loader:
        batches = iter(loader)
        for _ in range(4):
            array, *others = next(batches)
            while isinstance(getattr(array, "base", None), np.ndarray):
                array = array.base
            held = weakref.ref(array)
            del array, others
            gc.collect()
            assert held() is None


def test_nothing_is_held_by_a_job_that_was_handed_over_or_ended() -> None:
    held: list[weakref.ref[Any]] = []

    class Pixels(Stage):
        name = "pixels"

        def begin(self, job: Job) -> None:
            job.decoded = Decoded(job.batch, job.batch, {"image": (np.zeros(9),)})
            (part,) = job.parts = (Job(job.batch, job),)
            part.parts = (Job(job.batch, part),)  # as of two decoders below functions
            part.decoded = part.parts[0].decoded = job.decoded
            held.append(weakref.ref(job.decoded.pictures["image"][0]))

    runner = Runner([Pixels()], 1)
    decoding = runner.decode(iter([made(1), made(2)]))
    next(decoding)
    assert held[0]() is None
    while len(held) < 2:
        time.sleep(0.001)
    next(runner.decode(iter([])), None)  # while the generator of the call before is still there
    assert held[1]() is None
    runner.close()


def alive(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_each_thread_is_initialised_once_and_all_are_waited_for() -> None:
    initialised: list[str] = []
    barrier = threading.Barrier(3)

    def work() -> str:
        barrier.wait(250)  # so that each takes one
        return threading.current_thread().name

    threads = Threads(3, "some", lambda: initialised.append(threading.current_thread().name))
    tasks = [threads.submit(work) for _ in range(3)]
    assert {task.result() for task in tasks} == {"some_0", "some_1", "some_2"} == set(initialised)
    threads.close()
    assert alive("some_") == []


def test_one_thread_works_in_order_errors_reach_who_asks_and_close_waits_for_all() -> None:
    threads, seen = Threads(1, "one"), []
    failed = threads.submit(lambda: 1 // 0)
    for number in range(100):
        threads.submit(lambda number=number: seen.append(number))  # type: ignore[misc]
    with pytest.raises(ZeroDivisionError):
        failed.result()
    threads.close()
    assert seen == list(range(100))
    task = threads.submit(lambda: seen.append(1))  # is cancelled, and not waited for
    assert task.result() is None and len(seen) == 100


def test_what_is_cancelled_before_it_begins_is_not_done() -> None:
    threads, seen, go = Threads(1, "cancelled"), [], threading.Event()
    first = threads.submit(lambda: go.wait(250))
    second, third = (threads.submit(lambda number=number: seen.append(number)) for number in (2, 3))  # type: ignore[misc]
    second.cancelled = True
    go.set()
    for task in (first, second, third):
        task.wait()
    assert (first.value, second.value, seen) == (True, None, [3])
    threads.close()


def test_a_forgotten_one_leaves_neither_threads_nor_what_they_held() -> None:
    payload: Any = np.zeros(1)
    held = weakref.ref(payload)
    threads: Any = Threads(2, "forgotten")
    threads.submit(lambda payload=payload: payload).wait()
    running = alive("forgotten_")
    assert len(running) == 2
    del payload
    gc.collect()
    assert held() is None
    del threads
    gc.collect()
    assert not any(thread.is_alive() for thread in running)


BUSY = """
import os, time
from gpuload.decode.runner import Job, Runner, Stage, Task, Threads
threads, busy = Threads(2, "waiting"), Threads(1, "busy")
busy.submit(lambda: time.sleep(0.3) or print("worked", flush=True))
"""
LATE = """
import builtins
from gpuload.decode.runner import Job, Runner, Stage, Task, Threads

class Last:
    def __init__(self):
        self.threads = Threads(1, "ended")

    def __del__(self):
        print("ended", self.threads.submit(lambda: 1).result())

builtins.kept = Last()  # goes when the threads have been ended
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (BUSY, "worked\n"),
        (BUSY + "os._exit(0) if os.fork() == 0 else os.wait()", "worked\n"),
        (BUSY + "raise SystemExit(0)", "worked\n"),
        (LATE, "ended None\n"),
    ],
)
def test_the_interpreter_ends_with_threads_that_wait_or_work_and_waits_for_no_other(code: str, said: str) -> None:
    done = subprocess.run([*prepared.python(), "-c", code], capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


class Watched(Noted):
    """Notes restarts that come while it is at work."""

    def __init__(self) -> None:
        super().__init__("watched")
        self.is_at_work = False
        self.disturbed = 0

    def begin(self, job: Job) -> Any:
        self.is_at_work = True
        time.sleep(0.0005)
        self.is_at_work = False
        return super().begin(job)

    def restart(self) -> None:
        self.disturbed += self.is_at_work


def interrupted_after(steps: int, call: Callable[[], Any]) -> bool:
    """Calls something and interrupts it after so many bytecodes of `Runner.decode` and what it calls to begin batches,
    as a signal would; False if it takes fewer."""
    left = steps
    interrupted = {Runner.decode.__code__, Runner._submit_next.__code__, Threads.queue.__code__}

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code not in interrupted:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_nothing_is_at_work_when_a_call_begins_after_an_interrupt_anywhere() -> None:
    stage = Watched()
    runner = Runner([stage, Noted("last")], 2)
    step = 0
    is_interrupted = True
    while is_interrupted:
        step += 1
        first = runner.decode(map(made, (4, 3, 2, 1)))
        is_interrupted = interrupted_after(step, lambda first=first: next(first))  # type: ignore[misc]
        assert [len(decoded.batch) for decoded in runner.decode(map(made, (2, 1)))] == [2, 1], step
        assert not stage.disturbed, step
    assert step > 200
    runner.close()
