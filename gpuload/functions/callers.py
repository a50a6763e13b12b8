"""Who calls functions: this process, in the threads that ask."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gpuload.functions.interface import Entries, Sample, SampleFunction
from gpuload.functions.result import call
from gpuload.types import Array


class Caller(Protocol):
    """Calls functions, in several threads at a time.

    threads: that may call at a time and be of use.
    """

    threads: int

    def call(self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool) -> Mapping[str, Array]:
        """The image and all entries of a sample after a function, given by its number.

        The arrays of the result are valid until the next call in this thread.

        Raises:
            WrongResultError: it returned what cannot be used. CallFailedError: how its process ended.
            Exception: whatever it raises.
        """

    def close(self) -> None:
        """Ends what was started; calls that are under way, and later ones, may fail."""


class InThreads:
    """Calls functions in the calling threads."""

    def __init__(self, functions: Sequence[SampleFunction], entries: Entries, threads: int) -> None:
        self._functions, self._entries, self.threads = functions, entries, threads

    def call(self, number: int, key: tuple[int, int], sample: Sample, keeps_size: bool) -> Mapping[str, Array]:
        """As `Caller`."""
        return call(self._functions[number], sample, key, self._entries, keeps_size)

    def close(self) -> None:
        """Nothing was started."""
