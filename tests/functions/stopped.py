"""Stops loops whose functions are called in processes, at random moments: python stopped.py folder how times seed.

how: some of these, with commas: "kill" kills a process, "interrupt" sends SIGINT, "close" closes the loader, "leave" leaves the loop, "exit" ends the
interpreter. Prints how often each came in time. A process of its own, which ends itself where something waits for ever.
"""

import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from loaders import drain, load
from sample_functions import slow_speckle

import gpuload

PROCESSES = 2
KEPT: list[Any] = []  # what is alive when the interpreter ends


def open_loader(folder: str) -> gpuload.DaliIterator:
    augment = gpuload.Augment(
        12, dtype="uint8", transforms=[gpuload.transforms.Function(slow_speckle, processes=PROCESSES)]
    )
    return load(Path(folder), augment=augment)


def stop(loader: gpuload.DaliIterator, how: str, after_s: float) -> bool:
    """Loops over it, and does that some time later; whether it came before the end."""

    def act() -> None:
        time.sleep(after_s)
        if how == "kill":
            for process in multiprocessing.active_children()[:1]:
                process.kill()
        elif how == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        elif how == "close":
            loader.close()

    acting = threading.Thread(target=act, daemon=True)
    try:
        acting.start()
        begun = time.monotonic()
        for _ in loader:
            if how == "leave" and time.monotonic() - begun > after_s:
                return True
        ended = True
        acting.join()
        time.sleep(0.05)
    except (KeyboardInterrupt, gpuload.GpuloadError) as error:
        if how == "kill" and "was killed by SIGKILL" not in str(error):
            raise
        ended = False
        acting.join()
    return not ended


def main(folder: str, how: str, times: int, drawn: random.Random) -> None:
    loader = open_loader(folder)
    begun = time.monotonic()
    expected = drain([loader])
    epoch_s = time.monotonic() - begun
    stopped = 0
    for _ in range(times):
        loader.set_epoch(1)
        loader.set_epoch(0)
        if how == "exit":
            KEPT.append(batches := iter(loader))
            for number, _ in enumerate(batches):
                if number >= drawn.randrange(8):
                    print(1, flush=True)
                    return
        stopped += stop(loader, how, drawn.uniform(0, epoch_s))
        if how == "close":
            loader = open_loader(folder)
        loader.set_epoch(1)  # else an interrupted loop would go on
        loader.set_epoch(0)
        assert drain([loader]) == expected
    assert len(multiprocessing.active_children()) >= PROCESSES  # those of the last loader
    loader.close()
    print(stopped, flush=True)


def say_unless_interrupted(lost: Any) -> None:
    """Of a SIGINT that comes while Python calls a finalizer, it prints a traceback, and the loop goes on."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = say_unless_interrupted
    arguments: Any = sys.argv[1:]
    faulthandler.dump_traceback_later(800, exit=True)
    random_times = random.Random(int(arguments[3]))
    for each in arguments[1].split(","):
        main(arguments[0], each, int(arguments[2]), random_times)
