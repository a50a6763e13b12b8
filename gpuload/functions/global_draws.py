"""The global generators of NumPy, Python and torch, which functions should not draw from, and which some do.

All threads share them, so that in threads their numbers depend on which thread comes first: that is noticed, and told.
A process calls one function at a time, so there they are seeded for each sample; else all processes would begin with
the state of the fork server, and draw the same numbers.
"""

import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

_WORD = (1 << 32) - 1


def seed_global(key: Sequence[int]) -> None:
    """Seeds them by the key of a sample's generator, torch's where torch has been imported: 8 µs (2 cores, 2026-11)."""
    seed = key[0] ^ (key[1] >> 1)
    random.seed(seed)
    np.random.seed(seed & _WORD)  # noqa: NPY002 - the one that such functions use
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)  # manual_seed, which looks for GPUs, takes 290 µs


class Watch:
    """What is drawn from them while it is open, by any thread.

    drawn: whose generators, once it is closed.
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
    found: dict[str, Any] = {"random": random.getstate(), "np.random": (numpys[1].tobytes(), numpys[2])}
    if (torch := sys.modules.get("torch")) is not None:
        found["torch"] = torch.get_rng_state().numpy().tobytes()
    return found
