"""Samples that a program hands over."""

from collections.abc import Iterator
from typing import Any

from gpuload.sources.columns import samples_of
from gpuload.sources.files import Told
from gpuload.sources.rows import Row, RowSource


class IterableSource(RowSource):
    """Any Python iterable of dicts, or what `samples_of` makes one of; workers get its spool, never the iterable."""

    spools = True
    takes_paths = True

    def __init__(self, samples: Any) -> None:
        self._samples = samples

    def rows(self, told: Told) -> Iterator[Row]:
        yield from samples_of(self._samples, told)

    @property
    def title(self) -> str:
        return "samples"

    @property
    def identity(self) -> str:
        return "samples of a Python program"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_samples": ()}
