"""The random numbers of a sample's function."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class _NoSeed(ISeedSequence):
    """In place of entropy, which would cost 50 µs and is not used; without it `Generator.spawn` raises, whose children
    would not be those of the sample."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


class _Thread(threading.local):
    """Each thread's bit generator: setting its state takes 2 µs, making one 50 (2 cores, 2026-11)."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(_NoSeed())  # type: ignore[arg-type]
        self.state: Any = self.bits.state


_THREAD = _Thread()


def generator_of(key: Sequence[int]) -> np.random.Generator:
    """Philox4x64-10 with this key, two 64-bit words, from its first number. Valid until the next call in this thread.

    J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    state = _THREAD.state
    state["state"]["key"][:] = key
    state["state"]["counter"][:] = 0
    state["buffer_pos"], state["has_uint32"], state["uinteger"] = 4, 0, 0
    _THREAD.bits.state = state
    return np.random.Generator(_THREAD.bits)
