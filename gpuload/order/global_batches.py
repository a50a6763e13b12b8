"""How an epoch is cut into global batches, and a global batch into the parts of the ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpuload.counted import counted
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError
from gpuload.order.lanes import Share
from gpuload.order.mixture import Mixture
from gpuload.order.position import Position
from gpuload.ranks import Ranks


class Part(NamedTuple):
    """A rank's part of a global batch: positions first..last-1 of the stream; with a share, those in its lanes.

    stop: where the global batch ends.
    """

    first: int
    last: int
    stop: int
    share: Share | None = None

    @property
    def samples(self) -> int:
        if self.share is None:
            return self.last - self.first
        return self.share.before(self.last) - self.share.before(self.first)


def count_batches(samples: int, global_batch_size: int, drop_last: bool) -> int:
    """Batches that every rank gets out of `samples`: 7 samples in batches of 2 are 3 with drop_last, else 4."""
    return samples // global_batch_size if drop_last else -(-samples // global_batch_size)


def rank_part(start: int, stop: int, rank: int, world_size: int) -> tuple[int, int]:
    """The positions of global batch [start, stop) that are `rank`'s: an even, contiguous division.

    The first ranks take the remainder: 5 samples over 3 ranks are [0, 2), [2, 4), [4, 5). Of a short last batch, a rank
    can get no sample.
    """
    share, rest = divmod(stop - start, world_size)
    first = start + rank * share + min(rank, rest)
    return first, first + share + (rank < rest)


@dataclass(frozen=True)
class Epochs:
    """Where epochs begin in the stream, and this rank's parts of them.

    samples: from the beginning of one epoch to that of the next, over all ranks. batch_size: of a global batch.
    share: the rank's lanes; None: its parts are those of `rank_part`.
    """

    samples: int
    batch_size: int
    drop_last: bool
    rank: int
    world_size: int
    share: Share | None = None

    @property
    def batches(self) -> int:
        """Batches in a whole epoch, the same on every rank."""
        return count_batches(self.samples, self.batch_size, self.drop_last)

    def start(self, epoch: int) -> Position:
        """The beginning of an epoch."""
        return Position(epoch, epoch * self.samples, 0)

    def following(self, position: Position) -> Position:
        """The beginning of the next epoch."""
        # A virtual epoch that is resumed with smaller batches can be past its new end.
        return Position(position.epoch + 1, position.begin + max(self.samples, position.samples), 0)

    def parts(self, position: Position) -> Iterator[Part]:
        """This rank's parts of the global batches of the rest of an epoch, without an empty one."""
        return (part for part in self._parts(position, position.samples) if part.samples)

    def empty_part(self, position: Position) -> Part | None:
        """This rank's last part where all samples left go to the ranks before it, so that it keeps step with them."""
        rest = max(0, self.samples - position.samples) % self.batch_size
        return next((part for part in self._parts(position, self.samples - rest) if not part.samples), None)

    def empty_parts(self, position: Position) -> list[Part]:
        """All of this rank's parts without samples; they are its last ones."""
        empty = self.empty_part(position)
        return [] if empty is None else [empty]

    def _parts(self, position: Position, samples: int) -> Iterator[Part]:
        """The parts of an epoch after its first `samples`; the last one may be empty."""
        end = position.begin + self.samples
        for start in range(position.begin + samples, end, self.batch_size):
            stop = min(start + self.batch_size, end)
            if stop - start == self.batch_size or not self.drop_last:
                yield self._part(start, stop)

    def _part(self, start: int, stop: int) -> Part:
        """This rank's part of a global batch. By lanes, those of a short last one may differ by as many samples as a
        rank has lanes."""
        if self.share is not None:
            return Part(start, stop, stop, self.share)
        return Part(*rank_part(start, stop, self.rank, self.world_size), stop)


def find_epochs(
    data: Dataset | Mixture,
    batch_size: int,
    steps_per_epoch: int | None,
    drop_last: bool,
    ranks: Ranks,
    draws: int | None = None,
    share: Share | None = None,
) -> Epochs:
    """The epochs of a loader. batch_size: of one rank. steps_per_epoch: None for passes over the data. draws: samples
    in a pass; None: all of them once. share: the rank's lanes.

    Raises:
        ArgumentError: an epoch would have no batch.
    """
    of_all = batch_size * ranks.world_size
    in_pass = len(data) if draws is None else draws
    samples = in_pass if steps_per_epoch is None else steps_per_epoch * of_all
    epochs = Epochs(samples, of_all, drop_last, ranks.rank, ranks.world_size, share)
    if not epochs.batches:
        times = f" x world_size {ranks.world_size}" if ranks.world_size > 1 else ""
        raise ArgumentError(
            f"batch_size {batch_size}{times}: is larger than {data.folder} ({counted(in_pass, 'sample')}), so an "
            "epoch has no "
            "batch. Use a smaller batch_size, or drop_last=False"
        )
    return epochs
