"""Interrupts loops at random moments: python interrupted.py folder decoder times seed.

Prints how many of them were interrupted. A process of its own, since Ctrl-C may come at any moment; it ends itself where
something waits for ever.
"""

import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from loaders import drain, load

import gpuload


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


def main(folder: Any, decoder: str, times: int, seed: int) -> None:
    faulthandler.dump_traceback_later(800, exit=True)
    drawn = random.Random(seed)
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
        loader.set_epoch(0)
        assert drain([loader]) == expected

    def whole_life() -> None:
        with load(gpuload.Dataset(folder, verify="sha256"), **options) as other:
            list(other)

    for _ in range(times // 3):
        interrupted += interrupt(whole_life, drawn.uniform(0, 2 * epoch_s))
    interrupt(loader.close, 0)
    loader.close()
    print(interrupted, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
