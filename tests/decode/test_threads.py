"""Threads that take tasks: order, errors, cancelling, and how they end."""

import gc
import os
import subprocess
import threading
import weakref
from typing import Any

import prepared
import pytest

from gpuload.decode.runner import Threads


def alive(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_results_come_from_threads_of_that_name_each_initialised_once() -> None:
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


def test_one_thread_works_in_order_and_close_waits_for_all() -> None:
    threads, seen = Threads(1, "one"), []
    for number in range(100):
        threads.submit(lambda number=number: seen.append(number))  # type: ignore[misc]
    threads.close()
    assert seen == list(range(100))


def test_an_error_reaches_who_asks_and_the_thread_lives_on() -> None:
    threads = Threads(1, "failing")
    failed = threads.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    failed.wait()
    assert failed.value is None
    assert threads.submit(lambda: 7).result() == 7
    threads.close()


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


def test_what_comes_after_close_is_cancelled_and_not_waited_for() -> None:
    threads, seen = Threads(2, "closed"), []
    threads.close()
    task = threads.submit(lambda: seen.append(1))
    assert not task._done.locked() and task.result() is None and seen == []
    threads.close()


class Payload:
    pass


def test_a_forgotten_one_leaves_neither_threads_nor_what_they_held() -> None:
    payload: Any = Payload()
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


@pytest.mark.parametrize("end", ["", "os._exit(0) if os.fork() == 0 else os.wait()", "raise SystemExit(0)"])
def test_the_interpreter_ends_with_threads_that_wait_or_work(end: str) -> None:
    code = (
        "import os, time\n"
        "from gpuload.decode.runner import Threads\n"
        "threads, busy = Threads(2, 'waiting'), Threads(1, 'busy')\n"
        "busy.submit(lambda: time.sleep(0.3) or print('worked', flush=True))\n"
        f"{end}\n"
    )
    done = subprocess.run([*prepared.python(), "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "worked\n", "")


def test_a_forked_child_does_not_wait_for_threads_it_has_not_got() -> None:
    threads: Any = Threads(2, "parent")
    child = os.fork()
    if child == 0:
        try:
            threads.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert threads.submit(lambda: 5).result() == 5
    threads.close()


AT_EXIT = """
import builtins
from gpuload.decode.runner import Threads

class Last:
    def __init__(self):
        self.threads = Threads(1, "ended")

    def __del__(self):
        task = self.threads.submit(lambda: 1)
        task.wait()
        print("ended", task.value)

builtins.kept = Last()  # goes when the threads have been ended
"""


def test_nobody_waits_for_a_task_that_is_submitted_while_the_interpreter_exits() -> None:
    done = subprocess.run([*prepared.python(), "-c", AT_EXIT], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("ended None\n", "")
