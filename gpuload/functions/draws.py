"""The random numbers of a sample's function, and those of the global generators of NumPy, Python and torch.

Functions should not draw from the global generators, but some do. Threads share them, so a function's numbers depend on
which thread draws first; gpuload detects such draws and warns. A worker process calls one function at a time and seeds
them for each sample: otherwise all workers would inherit the fork server's state and draw the same numbers.
"""

import random
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class _NoSeed(ISeedSequence):
    """Replaces entropy, which would take 50 µs and is not used. Without entropy, `Generator.spawn` raises, whose
    children would not depend on the sample."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


class _Thread(threading.local):
    """Each thread's bit generator: setting its state takes 2 µs, making a new one 50 (2 cores, 2026-11)."""

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


_WORD = (1 << 32) - 1


def seed_global(key: Sequence[int]) -> None:
    """Seeds the global generators from a sample's key; torch's only if torch is imported. 8 µs (2 cores, 2026-11)."""
    seed = key[0] ^ (key[1] >> 1)
    random.seed(seed)
    np.random.seed(seed & _WORD)  # noqa: NPY002 - the one that such functions use
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)  # manual_seed, which looks for GPUs, takes 290 µs


class Watch:
    """A context that detects draws from the global generators by any thread.

    drawn: after the context, the libraries whose generators were used.
    """

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def __enter__(self) -> "Watch":
        self._before = _states()
        return self

    def __exit__(self, *_: object) -> None:
        after = _states()
        self.drawn = [name for name, state in self._before.items() if state != after[name]]


def _states() -> dict[str, Any]:
    numpys: Any = np.random.get_state(legacy=True)  # noqa: NPY002 - as above
    states: dict[str, Any] = {"random": random.getstate(), "np.random": (numpys[1].tobytes(), numpys[2])}
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states
