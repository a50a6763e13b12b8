"""What gives a loader the shards of a data set: the interface of stores, and that of a local folder."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Lease:
    """A local file with the bytes of a shard. It stays where it is as long as this object exists, or its `holder`.

    memory: what the bytes lie in where that is no disk; whoever maps the file keeps it as long as the mapping exists,
    so that the store knows how much memory is taken.
    """

    path: Path
    holder: Any = None
    memory: Any = None


class Store(Protocol):
    """The shards of one data set, for one reader. Not used by several threads at a time, but for `interrupt`."""

    @property
    def waited_s(self) -> float:
        """Seconds that `open` has waited so far."""

    def begin(self) -> None:
        """A loop begins: `open` waits again."""

    def interrupt(self) -> None:
        """Nobody wants what is opened any more: `open` raises, in whichever thread, until `begin`."""

    def plan(self, numbers: Iterable[int], now: int = 0, soon: int = 0) -> None:
        """The shards that will be needed, in this order, from now on; those that were planned before are not.

        now: how many of them, each counted once, are opened next. soon: how many a store in memory may hold.
        """

    def ready(self, number: int) -> bool:
        """Whether `open` would return at once."""

    def open(self, number: int) -> Lease:
        """The shard, once it is here.

        Raises:
            ShardError: it cannot be had, or is not the one of the manifest.
        """

    def close(self) -> None:
        """Stops what goes on in the background; leases stay valid, and `plan` begins again."""


class FolderStore:
    """The shards of a local folder, by their paths."""

    waited_s = 0.0

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def begin(self) -> None:
        """Nothing waits."""

    def interrupt(self) -> None:
        """Nothing waits."""

    def plan(self, numbers: Iterable[int], now: int = 0, soon: int = 0) -> None:
        """Nothing is to be prepared."""

    def ready(self, number: int) -> bool:
        return True

    def open(self, number: int) -> Lease:
        return Lease(self._paths[number])

    def close(self) -> None:
        """Nothing goes on."""
