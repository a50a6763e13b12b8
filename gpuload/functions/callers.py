"""The interface for calling functions, and the caller that runs them in threads of this process."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from gpuload.functions.draws import Watch
from gpuload.functions.interface import Entries, Sample, SampleFunction, call, name_of
from gpuload.types import Array

# The number of first calls of a loader that are watched for global draws, 0.2 ms each (2 cores, 2026-11). The training
# loop is still waiting for its first batch then and draws nothing itself.
_WATCHED = 8
_TOLD: set[str] = set()  # warnings already given: each comes once in a process


class Caller(Protocol):
    """Calls functions from several threads at once.

    threads: the useful number of concurrent calls. notices: warnings for the user.
    """

    threads: int
    notices: deque[str]

    def call(self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool) -> Mapping[str, Array]:
        """The image and all entries of a sample after the function with this number.

        The arrays of the result are valid until the next call in this thread.

        Raises:
            WrongResultError: it returned an invalid result. CallFailedError: its process died.
            Exception: whatever it raises.
        """

    def close(self) -> None:
        """Releases its resources; calls in progress and later ones may fail."""


class InThreads:
    """Calls functions in the caller's thread."""

    def __init__(self, functions: Sequence[SampleFunction], entries: Entries, threads: int) -> None:
        self._functions, self._entries, self.threads = functions, entries, threads
        self.notices: deque[str] = deque()
        self._watched = _WATCHED

    def call(self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool) -> Mapping[str, Array]:
        """As `Caller`."""
        function = self._functions[number]
        if self._watched <= 0:
            return call(function, sample, key, self._entries, keeps_size)
        self._watched -= 1
        with Watch() as watch:
            found = call(function, sample, key, self._entries, keeps_size)
        if watch.drawn:
            told = (
                f"Function(function): {name_of(function)} draws from the global generator of "
                f"{' and '.join(watch.drawn)}, which threads share, so that its results differ from run to run. Draw "
                "from rng, or use Function(processes=...), where that generator is seeded for each sample"
            )
            if told not in _TOLD:
                _TOLD.add(told)
                self.notices.append(told)
        return found

    def close(self) -> None:
        """Nothing was started."""
