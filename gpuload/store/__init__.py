"""Where packed sets lie, and the shards of a set as local files.

Decoders memory-map shards, so every store hands out local files: those of a folder, or downloads in a cache.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpuload.machine.untrusted import open_regular


@dataclass(frozen=True)
class Lease:
    """A local file with the bytes of a shard, which stays in place while this object or its `holder` exists.

    Attributes:
        path: Of the file.
        holder: The open file, where other processes may delete or replace it. A mapping of the file does without:
            batches that are still viewed keep no shard from being evicted, and no descriptor open.
    """

    path: Path
    holder: Any = None

    def open(self, buffering: int = -1) -> BinaryIO:
        """Opens the very file that the store has found and checked, even if its path is gone.

        Args:
            buffering: As of `open`.

        Raises:
            OSError: it cannot be opened.
        """
        return open_regular(
            self.path if self.holder is None else self.holder.path, buffering
        )


class Store:
    """The shards of one data set, for one reader. Not used by several threads at a time, but for `interrupt`.

    waited_s: seconds that `open` has waited so far.
    """

    waited_s = 0.0

    def begin(self) -> None:
        """Starts a loop: `open` waits again."""

    def interrupt(self) -> None:
        """Cancels a blocked `open`, in whichever thread; further calls raise until `begin`."""

    def plan(self, numbers: Iterable[int], now: int = 0) -> None:
        """Replaces the plan of the shards that will be needed from now on.

        Args:
            numbers: Of the shards, in this order.
            now: How many of them, each counted once, are opened next.
        """

    def ready(self, number: int) -> bool:
        """Whether `open` would return at once."""
        return True

    def open(self, number: int) -> Lease:
        """The shard, once it is here.

        Raises:
            ShardError: it cannot be had, or is not the one of the manifest.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Stops background work; leases stay valid, and `plan` starts it again."""


class FolderStore(Store):
    """The shards of a local folder: nothing waits.

    Args:
        paths: Of the shards, by their numbers.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def open(self, number: int) -> Lease:
        return Lease(self._paths[number])
