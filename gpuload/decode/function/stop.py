"""Stops what a decoder of functions has started where the decoder, or the interpreter, ends."""

import os
import weakref
from collections.abc import Callable


class Stop:
    """Set once its owner is garbage collected, or the interpreter ends: then threads take no further samples.

    end: called at that moment, such as to end processes; not in a forked child, which has none of them.
    """

    def __init__(self, owner: object, end: Callable[[], None]) -> None:
        self.is_set = False
        weakref.finalize(owner, _stop, weakref.ref(self), end, os.getpid())


def _stop(stop: "weakref.ref[Stop]", end: Callable[[], None], process: int) -> None:
    if os.getpid() != process:
        return
    if (found := stop()) is not None:
        found.is_set = True
    end()
