"""How processes with a loader end, and go on: python processes.py end_and_go_on folder decoder checkpoint, or
interrupt_loops folder decoder.
"""

import faulthandler
import gc
import json
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loaders import drain, load

import gpuload
import gpuload.decode.native.decoder

WAIT_S = 800  # before a child that hangs is ended


class Child:
    """A function in a forked child, whose output is read here."""

    def __init__(self, work: Callable[..., None], *args: Any) -> None:
        self._read, write = os.pipe()
        self.process = os.fork()
        self.output = ""
        if self.process == 0:
            for stream in (1, 2):
                os.dup2(write, stream)
            signal.alarm(WAIT_S)
            work(*args)
            sys.exit(0)
        os.close(write)

    def read_until(self, text: str) -> None:
        while text not in self.output and self._read_some():
            pass

    def end(self) -> tuple[int, str]:
        """Its exit code (of a signal, negative) and its output."""
        while self._read_some():
            pass
        os.close(self._read)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1]), self.output

    def _read_some(self) -> bool:
        select.select([self._read], [], [])
        some = os.read(self._read, 65536).decode()
        self.output += some
        return some != ""


def begin(folder: str, decoder: str) -> Any:
    loader = load(gpuload.Dataset(Path(folder), verify="sha256"), decoder=decoder, prefetch=8)
    batches = iter(loader)
    next(batches)
    return loader, batches


def close(loader: Any, batches: Any) -> None:
    loader.close()


def leave(loader: Any, batches: Any) -> None:
    sys.exit(0)


def iterate_in_a_thread(loader: Any, batches: Any) -> None:
    threading.Thread(target=lambda: [list(loader) for _ in range(1000)], daemon=True).start()
    time.sleep(0.01)


kept: list[Any] = []  # what is neither closed nor garbage before the interpreter ends


def forget(*loader: Any) -> None:
    kept.append(loader)


def end(folder: str, decoder: str, how: Callable[..., None]) -> None:
    how(*begin(folder, decoder))


def train(folder: str, decoder: str, checkpoint: Path, steps: int = 0) -> None:
    """Two epochs; SIGTERM, which comes after some steps, saves the state and ends the process in the middle of its loop."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    loader = load(Path(folder), decoder=decoder)
    start = {"samples": [], "state": loader.state_dict()}
    seen = json.loads(checkpoint.read_text()) if checkpoint.exists() else start
    loader.load_state_dict(seen["state"])
    while seen["state"]["epoch"] < 2:
        for index, _, _ in loader:
            seen["samples"] += index.tolist()
            steps -= 1
            if steps == 0:
                print("step", flush=True)
                while not asked:
                    time.sleep(0.001)
                checkpoint.write_text(json.dumps({**seen, "state": loader.state_dict()}))
                sys.exit(15)
        seen["state"] = loader.state_dict()
    print(seen["samples"], flush=True)


def refused(take: Callable[[], object]) -> bool:
    try:
        take()
    except gpuload.GpuloadError as error:
        return "inherited over fork" in str(error) and "Construct it in the child" in str(error)
    return False


def inherit(folder: str, decoder: str, loader: Any, batches: Any, number: int) -> None:
    """The threads of this loader are the parent's, so that a child must not wait for them."""
    assert len(loader) == 12 and loader.state_dict()["samples"] > 0
    assert all(map(refused, (lambda: list(loader), lambda: iter(loader), lambda: next(batches))))
    loader.set_epoch(3)
    loader.close()
    loader.close()
    assert refused(lambda: list(loader))
    if number == 0:  # one that is constructed here works
        with load(Path(folder), decoder=decoder) as own:
            assert len(list(own)) == 12
    if number % 2:  # the end of the interpreter waits for no thread, either
        os._exit(0)


def fork_again_and_again(folder: str, decoder: str) -> None:
    gc.disable()  # so that what is dropped is still there at the fork, and goes in the child
    begin(folder, decoder)
    ended = [Child(gc.collect).end()]
    gc.enable()
    loader, batches = begin(folder, decoder)
    for number in range(12):  # what the parent's threads do at the moment of a fork differs from one to the next
        if next(batches, None) is None:
            batches = iter(loader)
            next(batches)
        ended.append(Child(inherit, folder, decoder, loader, batches, number).end())
    assert len(list(loader)) == 12  # the parent's is as it was
    assert ended == [(0, "")] * 13, ended


def end_and_go_on(folder: str, decoder: str, checkpoint: str) -> None:
    """Prints what became of each, as JSON. They are forked from this process, which has imported everything, since
    imports take most of the time of a process of its own."""
    ways = [close, leave, forget]
    if decoder == "native":  # DALI's own shutdown aborts while another thread is in a pipeline
        ways.append(iterate_in_a_thread)
    forked = Child(fork_again_and_again, folder, decoder).end()
    ends = {how.__name__: Child(end, folder, decoder, how).end() for how in ways}

    codes = []
    for steps in (3, 9):
        run = Child(train, folder, decoder, Path(checkpoint), steps)
        run.read_until("step")
        os.kill(run.process, signal.SIGTERM)
        codes.append(run.end()[0])
    code, output = Child(train, folder, decoder, Path(checkpoint)).end()
    print(json.dumps({"forked": forked, "ends": ends, "killed": [*codes, code], "samples": output}))


def interrupt(work: Callable[[], Any], after_s: float) -> bool:
    """Calls it, and sends SIGINT some time after that; whether that came before its end."""
    sent, ended = threading.Event(), False

    def send() -> None:
        time.sleep(after_s)
        os.kill(os.getpid(), signal.SIGINT)
        sent.set()

    try:
        threading.Thread(target=send, daemon=True).start()
        work()
        ended = True
        sent.wait()
        time.sleep(0.05)  # where it was not raised in a destructor, which swallows it
    except KeyboardInterrupt:
        sent.wait()
    return not ended


def interrupt_loops(folder: Any, decoder: str) -> None:
    """At random moments. Prints how many of them were interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(WAIT_S, exit=True)  # where something waits for ever
    drawn, times = random.Random(0), 14
    options: dict[str, Any] = {"decoder": decoder, "num_threads": 2, "shuffle": gpuload.Shuffle(window=3)}
    loader = load(folder, **options)
    expected = drain([loader])
    seconds = []
    for _ in range(4):  # the shortest: one that something else held up would let most signals come too late
        begun = time.monotonic()
        drain([loader])
        seconds.append(time.monotonic() - begun)
    epoch_s = min(seconds)
    interrupted = 0
    for _ in range(times):
        loader.set_epoch(0)
        interrupted += interrupt(lambda: list(loader), drawn.uniform(0, 1.1 * epoch_s))
        state = loader.state_dict()
        if state["epoch"] == 1:  # the loop ended before the signal came
            loader.set_epoch(0)
        assert drain([loader]) == expected[state["samples"] :]

    def whole_life() -> None:
        with load(gpuload.Dataset(folder, verify="sha256"), **options) as other:
            list(other)

    for _ in range(times // 3):
        interrupted += interrupt(whole_life, drawn.uniform(0, 2 * epoch_s))
    interrupt(loader.close, 0)
    loader.close()
    print(interrupted, flush=True)


if __name__ == "__main__":
    {"end_and_go_on": end_and_go_on, "interrupt_loops": interrupt_loops}[sys.argv[1]](*sys.argv[2:])
