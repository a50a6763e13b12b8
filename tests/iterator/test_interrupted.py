"""Ctrl-C at any moment, and `close` and loops in the loader's own threads: nothing waits for ever, nothing is left."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders import drain, load

import gpuload
from gpuload import Augment, GpuloadError
from gpuload.decode.runner import Runner
from gpuload.machine import apart
from gpuload.machine.apart import uninterrupted
from gpuload.transforms import Function

LONG_S = 60  # what waits for ever takes longer


def in_time(work: Callable[[], Any]) -> None:
    """Does some work in another thread, and fails if it does not end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG_S)
    assert not thread.is_alive(), "it waits for ever"
    if errors:
        raise errors[0]


@pytest.fixture(autouse=True)
def usual_ctrl_c() -> Iterator[None]:
    """Whatever a test before has left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


def threads_of_loaders() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("gpuload-") and name != "gpuload-download"]


def wait_for_threads(names: list[str]) -> None:
    """Until only these are left: a thread whose work is done may not have ended yet, or not have begun to run."""
    while threads_of_loaders() != names:
        time.sleep(0.001)


def test_neither_a_loop_nor_close_takes_a_lock_of_pythons(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal within such a call leaves the lock taken, and the next call waits for ever."""
    taken: list[str] = []

    def note(name: str, function: Callable[..., Any], *given: Any, **more: Any) -> Any:
        if threading.get_ident() == threading.main_thread().ident:
            taken.append(name)
        return function(*given, **more)

    for kind, name in (
        (threading.Event, "set"),
        (threading.Event, "wait"),
        (threading.Condition, "notify_all"),
        (threading.Condition, "wait"),
        (threading.Thread, "start"),
        (threading.Thread, "join"),
        (threading.Barrier, "wait"),
    ):
        original = getattr(kind, name)

        def noting(*given: Any, _original: Any = original, _name: str = name, **more: Any) -> Any:
            return note(_name, _original, *given, **more)

        monkeypatch.setattr(kind, name, noting)
    loader = load(packed)
    for _ in range(2):
        next(iter(loader))
        drain([loader])
    loader.close()
    assert taken == []


def test_work_goes_on_when_its_waiting_is_interrupted() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(LONG_S)
        ended.set()

    def interrupt() -> None:
        begun.wait(LONG_S)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(LONG_S)


def test_work_apart_gives_its_result_its_error_and_the_callers_context() -> None:
    def fail() -> None:
        raise gpuload.ShardError("gone")

    with np.errstate(divide="raise"):
        assert uninterrupted(lambda: np.geterr()["divide"]) == "raise"
    with pytest.raises(gpuload.ShardError, match="gone"):
        uninterrupted(fail)
    threads = uninterrupted(lambda: uninterrupted(threading.get_ident)), threading.get_ident()
    assert threads[0] != threads[1]


def test_work_is_done_where_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(apart.threading.Thread, "start", refuse)
    assert uninterrupted(lambda: 7) == 7


def test_an_interrupted_close_goes_on_and_can_be_waited_for(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threads_of_loaders()
    loader = load(packed)
    next(iter(loader))
    close, begun, may_end = Runner.close, threading.Event(), threading.Event()

    def close_slowly(runner: Runner) -> None:
        begun.set()
        may_end.wait(LONG_S)
        close(runner)

    def interrupt() -> None:
        begun.wait(LONG_S)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Runner, "close", close_slowly)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        loader.close()
    assert threads_of_loaders() != before
    may_end.set()
    loader.close()
    in_time(partial(wait_for_threads, before))
    with pytest.raises(GpuloadError, match="this DaliIterator is closed; construct a new one"):
        next(iter(loader))


def call(image: np.ndarray, rng: Any, work: Callable[[], None]) -> np.ndarray:
    work()
    return image


def loader_with(packed: Path, work: Callable[[], None]) -> gpuload.DaliIterator:
    """A loader in whose threads some work is done for each image."""
    function = Function(lambda image, rng: call(image, rng, work))
    return load(packed, augment=Augment(12, dtype="uint8", transforms=[function]))


def test_close_in_ones_own_function_ends_the_loop(packed: Path) -> None:
    before = threads_of_loaders()
    loaders: list[gpuload.DaliIterator] = []
    loader = loader_with(packed, lambda: loaders[0].close())
    loaders.append(loader)
    with pytest.raises(GpuloadError, match="this (loop was ended by a later one|DaliIterator is closed)"):
        in_time(partial(drain, [loader]))
    in_time(loader.close)
    in_time(partial(wait_for_threads, before))


def test_a_loop_in_ones_own_function_is_refused(packed: Path) -> None:
    loaders: list[gpuload.DaliIterator] = []
    loader = loader_with(packed, lambda: next(iter(loaders[0])))
    loaders.append(loader)
    message = "this loop runs in a function of its own DaliIterator, and would wait for itself"
    with pytest.raises(gpuload.FunctionError, match=message):
        in_time(partial(drain, [loader]))
    in_time(loader.close)


def test_another_loader_may_be_used_and_closed_in_a_function(packed: Path) -> None:
    def look() -> None:
        with load(packed) as other:
            next(iter(other))

    with loader_with(packed, look) as loader:
        in_time(lambda: drain([loader], steps=1))
