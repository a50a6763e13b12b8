"""The rows of the index that a reader needs, of a set at a URL fetched before they are needed.

Rows are small beside their shards, but each request takes as long as the server takes to answer. So those of a window
come together, and those of the next one while it is read from.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from gpuload.disk.dataset import Dataset
from gpuload.store.waiter import Waiter

if TYPE_CHECKING:
    from gpuload.store.parts import Parts  # asyncio

_LEAST_AHEAD = 8  # shards: of windows of one or two, the next alone would come late


class RowsAhead:
    """Fetches the rows of a data set's shards for one reader; nothing where they are all here. Not used by several
    threads at a time, but for `interrupt`."""

    def __init__(self, dataset: Dataset) -> None:
        self._parts: Parts | None = dataset.index_parts
        self._waiter = Waiter()

    @property
    def waited_s(self) -> float:
        """Seconds that `need` has waited so far."""
        return self._waiter.waited_s

    def begin(self) -> None:
        """A loop begins: `need` waits again."""
        self._waiter.begin()

    def interrupt(self) -> None:
        """Nobody wants the rows any more: `need` raises, in whichever thread, until `begin`."""
        self._waiter.interrupt()

    def ready(self, number: int) -> bool:
        """Whether the rows of a shard are here."""
        return self._parts is None or self._parts.has(number)

    def check(self) -> None:
        """Raises FormatError where the file that holds the rows was truncated."""
        if self._parts is not None:
            self._parts.file.check()

    def need(self, numbers: Sequence[int], upcoming: Iterable[int] = ()) -> None:
        """Waits for the rows of these shards, and begins to fetch those that come after them.

        upcoming: shards in the order in which they will be needed, these and others.

        Raises:
            RemoteError: they cannot be read. FormatError: they are not those of the manifest.
        """
        if self._parts is None:
            return
        from gpuload.store.background import background

        if not all(map(self._parts.has, numbers)):
            self._waiter.wait(self._parts.get(numbers), self._parts.where)
        after = (number for number in map(int, upcoming) if number not in numbers)
        ahead = list(islice(after, max(len(numbers), _LEAST_AHEAD)))
        if not all(map(self._parts.has, ahead)):
            background().start(self._parts.get(ahead))
