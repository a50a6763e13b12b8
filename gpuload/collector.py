"""Pauses Python's garbage collector while there is nothing for it to find."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Turns the collector off during imports, which create hundreds of thousands of objects and no garbage.

    Otherwise the collector scans all of torch's objects again and again during the imports that follow torch's: 0.5 of
    the 1.7 seconds that a new process waits for its first batch (tools/first_batch.py, 2 cores, 2026-11).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
