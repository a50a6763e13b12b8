"""The endless sequence of samples, of which epochs are slices, and its division into batches among ranks."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gpuload.disk.dataset import Dataset
from gpuload.draws import MIXTURE, make_key
from gpuload.order.arguments import DropLast, Mixture
from gpuload.order.epoch import ALL, EpochOrder, Share
from gpuload.order.sampling import Sampling
from gpuload.order.turns import make_turns
from gpuload.types import I64


class Position(NamedTuple):
    """How far all ranks together are.

    Attributes:
        epoch: Number of the epoch, from 0.
        begin: Position in the stream where this epoch began.
        samples: How many samples of it were handed out since, over all ranks.
    """

    epoch: int
    begin: int
    samples: int


class PassSlice(NamedTuple):
    """Consecutive samples of one pass over one data set, in a batch.

    Attributes:
        source: Number of the data set.
        seed: With the epoch, what decides their order and crops.
        epoch: Counts passes.
        order: `order[start:stop]` are the samples.
        start: The first position in `order`.
        stop: The position after the last.
        rows: int64, their rows in the batch.
    """

    source: int
    seed: int
    epoch: int
    order: EpochOrder
    start: int
    stop: int
    rows: I64


def source_seed(seed: int, source: int, sources: int) -> int:
    """The seed of the order of a data set, by its number among so many."""
    return seed if sources == 1 else make_key(seed, MIXTURE, source)


class Stream:
    """The samples at positions start..stop-1, for any start and stop.

    Args:
        data: A data set, or a mixture.
        samplings: Of each data set; None: each sample comes once in a pass.
        seed: Of the order.
        window: Shards whose samples are mixed with one another at a time.
        shuffle: False gives stored order.
        lanes: Of one data set, see `gpuload.order.epoch`.
        unit_samples: Samples in a unit of a mixture's schedule.
    """

    def __init__(
        self,
        data: Dataset | Mixture,
        samplings: tuple[Sampling, ...] | None = None,
        *,
        seed: int,
        window: int,
        shuffle: bool,
        lanes: int = 1,
        unit_samples: int = 1,
    ) -> None:
        datasets: tuple[Dataset, ...]
        if isinstance(data, Mixture):
            datasets = data.datasets
            self._turns = make_turns(data, seed, unit_samples)
        else:
            datasets = (data,)
        self._datasets = datasets
        self._samplings = samplings
        self._seed = seed
        self._window = window
        self._shuffle = shuffle
        self._lanes = lanes
        self._lengths = list(map(len, datasets))
        if samplings is not None:
            self._lengths = [sampling.draws for sampling in samplings]
        # A batch may extend from one pass into the next.
        self.order = lru_cache(maxsize=2 * len(datasets))(self._make_order)

    def slices(self, start: int, stop: int, share: Share = ALL) -> list[PassSlice]:
        """The samples at these positions; at least one slice, which may be empty.

        Args:
            start: The first position of the stream.
            stop: The position after the last.
            share: Only those of its lanes.
        """
        if len(self._datasets) == 1 or start == stop:
            return self._slices_of(0, start, stop, np.arange(stop - start), share)
        sources = self._turns.sources(start, stop)
        drawn = self._turns.drawn(start)
        slices = []
        for source in np.unique(sources).tolist():
            rows = np.flatnonzero(sources == source)
            begin = int(drawn[source])
            slices += self._slices_of(source, begin, begin + len(rows), rows)
        return slices

    def _slices_of(
        self, source: int, start: int, stop: int, rows: I64, share: Share = ALL
    ) -> list[PassSlice]:
        """Samples start..stop-1 of one data set, divided where a pass ends; at least one slice.

        Args:
            source: Number of the data set.
            start: The first sample, counted over all passes.
            stop: The one after the last.
            rows: int64, of these samples in the batch.
            share: Only those of its lanes.
        """
        slices: list[PassSlice] = []
        pass_samples = self._lengths[source]
        row = 0
        while start < stop or not slices:
            epoch = start // pass_samples
            slice_stop = min(stop, (epoch + 1) * pass_samples)
            own_before_pass = share.before(epoch * pass_samples)
            begin = share.before(start) - own_before_pass
            end = share.before(slice_stop) - own_before_pass
            seed, order = self.order(source, epoch)
            if share != ALL:
                order = order.serving(share)
            row_stop = row + end - begin
            slices.append(
                PassSlice(source, seed, epoch, order, begin, end, rows[row:row_stop])
            )
            start = slice_stop
            row = row_stop
        return slices

    def _make_order(self, source: int, epoch: int) -> tuple[int, EpochOrder]:
        """The seed of a data set, and the order of a pass over it; `order` keeps the last ones."""
        seed = source_seed(self._seed, source, len(self._datasets))
        dataset = self._datasets[source]
        if self._samplings is not None:
            return seed, self._samplings[source].order(
                dataset.shard_sizes, seed=seed, epoch=epoch, window=self._window
            )
        options: dict[str, Any] = {
            "window": self._window,
            "shuffle": self._shuffle,
            "lanes": self._lanes,
        }
        return seed, EpochOrder(dataset.shard_sizes, seed=seed, epoch=epoch, **options)


class Part(NamedTuple):
    """A rank's part of a global batch.

    Attributes:
        first: Its first position of the stream.
        last: The position after its last one.
        stop: Where the global batch ends.
        share: The lanes whose samples it takes from there.
    """

    first: int
    last: int
    stop: int
    share: Share = ALL

    @property
    def samples(self) -> int:
        return self.share.before(self.last) - self.share.before(self.first)


@dataclass(frozen=True)
class Epochs:
    """Where epochs begin in the stream, and this rank's parts of them.

    Every rank gets a sample of every global batch. Where a few would be left for the last one, the global batch before
    it gives some up; where that is not possible, a rank repeats one sample (`padding`).

    33 samples, 2 ranks, global batches of 32: 31 and 2, of which the ranks get 16 15 and 1 1.

    Attributes:
        samples: From the beginning of one epoch to that of the next, over all ranks.
        batch_size: Of a global batch.
        drop_last: As of `DaliIterator`. "exact": no sample is repeated, so that a rank's last part may be empty.
            "even": the parts of a batch are equally long; those of the last one extend into the next epoch where its
            samples cannot be divided.
        rank: Number of this process.
        world_size: How many processes divide a global batch.
        share: The rank's lanes; of all lanes, ranks divide each global batch evenly into consecutive parts, of which
            the first ones take the remainder.
        ends: Where the global batches of an epoch end, from its beginning; None: after batch_size samples each, and at
            its end.
        is_virtual: An epoch is a number of batches and not a pass, so that samples too few for a whole batch come in
            the next epoch.
    """

    samples: int
    batch_size: int
    drop_last: DropLast
    rank: int
    world_size: int
    share: Share = ALL
    ends: tuple[int, ...] | None = None
    is_virtual: bool = False

    @property
    def batches(self) -> int:
        """Batches in a whole epoch, the same on every rank."""
        if self.ends is not None:
            return len(self.ends)
        return (
            self.samples // self.batch_size
            if self.drop_last is True
            else -(-self.samples // self.batch_size)
        )

    @property
    def handed_out(self) -> int:
        """The samples of a whole epoch that are in batches, over all ranks."""
        return min(self.samples, self.batches * self.batch_size)

    def start(self, epoch: int) -> Position:
        """The beginning of an epoch."""
        return Position(epoch, epoch * self.samples, 0)

    def following(self, position: Position) -> Position:
        """The beginning of the epoch after the one whose rest begins here."""
        # A virtual epoch that is resumed with other batches can be past its new end, or end with less than a batch.
        rest = max(self.samples - position.samples, 0)
        if self.is_virtual and self.drop_last is True:
            rest -= rest % self.batch_size
        return Position(position.epoch + 1, position.begin + position.samples + rest, 0)

    def parts(self, position: Position) -> Iterator[Part]:
        """This rank's parts of the global batches of the rest of an epoch, without empty ones."""
        return (part for part in self._parts(position) if part.samples)

    def empty_parts(self, position: Position) -> list[Part]:
        """This rank's parts without samples, which are its last ones: with `exact`, so that it keeps step."""
        return (
            [part for part in self._parts(position) if not part.samples]
            if self.drop_last == "exact"
            else []
        )

    def part(self, start: int, stop: int) -> Part:
        """This rank's part of global batch [start, stop). By lanes, those of a short last one may differ by as many
        samples as a rank has lanes."""
        part = self._own_part(start, stop)
        if part.samples or self.drop_last == "exact":
            return part
        if self.share == ALL:
            return Part(stop - 1, stop, stop)
        repeated = self.share.last_before(start)
        return Part(repeated, repeated + 1, stop, self.share)

    def padding(self, start: int, stop: int) -> int:
        """How many samples at the end of this rank's part of global batch [start, stop) another rank has, too, or the
        next epoch: they are handed out only so that this rank keeps step."""
        part = self._own_part(start, stop)
        if self.drop_last == "even":
            return min(max(part.last - stop, 0), part.samples)
        return 0 if self.drop_last == "exact" or part.samples else 1

    def is_last(self, position: Position) -> bool:
        """Whether no batch of its epoch follows."""
        return next(self._batch_bounds(position), None) is None

    def _own_part(self, start: int, stop: int) -> Part:
        if self.share != ALL:
            return Part(start, stop, stop, self.share)
        samples_per_rank, rest = divmod(stop - start, self.world_size)
        if self.drop_last == "even" and rest:
            samples_per_rank += 1
            rest = 0
        first = start + self.rank * samples_per_rank + min(self.rank, rest)
        samples = samples_per_rank + (1 if self.rank < rest else 0)
        return Part(first, first + samples, stop)

    def _parts(self, position: Position) -> Iterator[Part]:
        return (
            self.part(position.begin + start, position.begin + stop)
            for start, stop in self._batch_bounds(position)
        )

    def _batch_bounds(self, position: Position) -> Iterator[tuple[int, int]]:
        """Where the global batches of the rest of an epoch begin and end, from its beginning."""
        if self.ends is not None:
            ends = self.ends[bisect_right(self.ends, position.samples) :]
            yield from pairwise([position.samples, *ends])
            return
        # So many give each rank a sample.
        least = self.world_size if self.share == ALL else self.share.lanes
        smallest_batch = self.batch_size if self.drop_last is True else 1
        start = position.samples
        while self.samples - start >= smallest_batch:
            stop = min(start + self.batch_size, self.samples)
            missing = least - (self.samples - stop)
            if (
                0 < missing < least
                and stop - start - missing >= least
                and self.drop_last in (False, "exact")
            ):
                stop -= missing
            yield start, stop
            start = stop
