"""The rows of the index that a reader needs, of a set at a URL fetched before they are needed.

Rows are small beside their shards, but each request takes as long as the server takes to answer. So those of a window
come together, and those of the next one while it is read from.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future
from itertools import islice
from typing import TYPE_CHECKING

from gpuload.disk.dataset import Dataset
from gpuload.errors import RemoteError

if TYPE_CHECKING:
    from gpuload.store.parts import Parts  # asyncio

_LEAST_AHEAD = 8  # shards: of windows of one or two, the next alone would come late


class RowsAhead:
    """Fetches the rows of a data set's shards for one reader; nothing where they are all here. Not used by several
    threads at a time, but for `interrupt`.

    waited_s: seconds that `need` has waited so far.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._parts: Parts | None = dataset.index_parts
        self._waiting: Future[None] | None = None
        self._interrupted = False
        self.waited_s = 0.0

    def begin(self) -> None:
        """A loop begins: `need` waits again."""
        self._interrupted = False

    def interrupt(self) -> None:
        """Nobody wants the rows any more: `need` raises, in whichever thread, until `begin`."""
        self._interrupted = True
        if (waiting := self._waiting) is not None:
            waiting.cancel()

    def ready(self, number: int) -> bool:
        """Whether the rows of a shard are here."""
        return self._parts is None or self._parts.has(number)

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
            self._wait(self._parts, numbers)
        after = (number for number in map(int, upcoming) if number not in numbers)
        ahead = list(islice(after, max(len(numbers), _LEAST_AHEAD)))
        if not all(map(self._parts.has, ahead)):
            background().start(self._parts.get(ahead))

    def _wait(self, parts: "Parts", numbers: Sequence[int]) -> None:
        from gpuload.store.background import background

        self._waiting, begun = background().start(parts.get(numbers)), time.perf_counter()
        waiting = self._waiting
        try:
            if self._interrupted:
                waiting.cancel()
            waiting.result()
        except CancelledError:
            raise RemoteError(f"{parts.where}: is not waited for any more") from None
        finally:
            waiting.cancel()  # after Ctrl-C
            self._waiting = None
            self.waited_s += time.perf_counter() - begun
