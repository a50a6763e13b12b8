"""One module for each loader: how its own documentation saves its state, and loads it again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Per global batch: divisible by 1, 2 and 3 ranks.
GLOBAL_BATCH = 12
WORKERS = 2  # of each rank
SEED = 7
# Samples in a shuffle buffer, where a loader shuffles by one: an eighth of the set.
BUFFER = 64


@dataclass(frozen=True)
class Place:
    """What a rank's loader is opened for. folder: what `prepare` wrote."""

    folder: Path
    rank: int
    world_size: int

    @property
    def batch_size(self) -> int:
        """Of this rank."""
        return GLOBAL_BATCH // self.world_size


class Loader:
    """A loader of one rank. Without a state of its own, as this class is, a resumed run begins its epoch again.

    DISTRIBUTION: the package whose version the record names. MEANS: what saves the state, in a few words.
    """

    DISTRIBUTION = ""
    MEANS = "no state"

    @staticmethod
    def prepare(folder: Path) -> None:
        """Writes the samples in the loader's own format, into an empty folder."""
        raise NotImplementedError

    def __init__(self, place: Place) -> None:
        self.place = place

    def epoch(self, number: int) -> Iterator[list[int]]:
        """The numbers of the samples of each batch of an epoch, or of its rest after `load`."""
        raise NotImplementedError

    def state(self) -> Any:
        """The state after the last batch that `epoch` gave; anything that can be pickled."""
        return None

    def load(self, states: Sequence[Any]) -> None:
        """Takes the states that all ranks of the earlier run saved at one step, in the order of their ranks."""

    def own_or_any(self, states: Sequence[Any]) -> Any:
        """This rank's state, where each rank has its own; with more ranks than states, that of another rank."""
        return states[self.place.rank % len(states)]
