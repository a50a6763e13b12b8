"""How far a loader is in its stream, which changes in the step in which a batch is handed out."""

from collections.abc import Generator, Iterator
from typing import Any

from gpuload.order.stream import Position


class LoopProgress:
    """The positions of a loader in its stream.

    Attributes:
        last: Before and after the last batch handed out, or None.
        next: Where the next loop starts.
        handed_out: After the last batch of this one.
        is_loaded: Whether the next loop starts at a position that was loaded.
    """

    def __init__(self) -> None:
        self.last: tuple[Position, Position] | None = None
        self.start_at(Position(0, 0, 0), is_loaded=False)

    def start_at(self, position: Position, is_loaded: bool) -> None:
        """Makes the next loop start there."""
        self.next = self.handed_out = position
        self.is_loaded = is_loaded


class Loop(Iterator[Any]):
    """The batches of one loop.

    A signal comes before a batch is handed out or after it, and `progress` tells which: Python looks for signals when a
    function is called or a loop goes round, and neither happens between the end of a batch and its handing out.

    Args:
        batches: Gives each with the position after it.
        progress: Learns of each batch when it is handed out.
    """

    def __init__(
        self,
        batches: Generator[tuple[Any, Position], None, None],
        progress: LoopProgress,
    ) -> None:
        self._batches = batches
        self._progress = progress

    def __next__(self) -> Any:
        progress = self._progress
        for fields, position in self._batches:
            progress.last = progress.handed_out, position
            progress.handed_out = position
            return fields
        raise StopIteration

    def close(self) -> None:
        """Leaves the loop."""
        self._batches.close()
