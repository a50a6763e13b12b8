"""Python's garbage collector, while there is nothing for it to find."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """For imports, which make objects by the hundred thousand and no garbage.

    Once torch is imported, the collector looks through all of its objects again and again meanwhile: 0.5 of the 1.7
    seconds that a new process waits for its first batch (tools/first_batch.py, 2 cores, 2026-11).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
