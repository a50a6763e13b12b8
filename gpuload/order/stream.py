"""The endless sequence of samples, of which epochs are slices; its division into batches among ranks; and the position
of a run in it, plain numbers to save and resume from."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gpuload.checks import shown
from gpuload.disk.dataset import Dataset
from gpuload.draws import MIXTURE, make_key
from gpuload.errors import StateError
from gpuload.order.epoch import EpochOrder, Share
from gpuload.order.mixture import Mixture, ShuffledBlocks, Stratified
from gpuload.order.sampling import Sampling
from gpuload.types import I64

VERSION = 1
_QUOTES = "'\""

_ALL = Share(0, 1, 1)


class Position(NamedTuple):
    """How far all ranks together are.

    begin: position in the stream where this epoch began. samples: how many were handed out since.
    """

    epoch: int
    begin: int
    samples: int


@dataclass(frozen=True)
class RunIdentity:
    """The settings that a position depends on, which must be the same when a run is resumed."""

    data: Dataset | Mixture
    seed: int
    shuffle: bool
    window: int
    sampling: str | None = None  # a fingerprint of the weights or classes that samples are drawn by
    buckets: str | None = None  # what the order by buckets depends on
    bucket_batch: int | None = None  # samples in a global batch, where there are buckets
    lanes: int = 1

    def state_dict(self, position: Position) -> dict[str, Any]:
        """Under 1 kB, and JSON: a checkpoint of any kind can hold it."""
        return {
            "version": VERSION,
            **position._asdict(),
            "seed": self.seed,
            "shuffle": self.shuffle,
            "window": self.window,
            "fingerprint": self.data.fingerprint,
            "dataset_samples": len(self.data),
            **({} if self.sampling is None else {"sampling": self.sampling}),
            **({} if self.buckets is None else {"buckets": self.buckets, "bucket_batch": self.bucket_batch}),
            **({} if self.lanes == 1 else {"lanes": self.lanes}),
        }

    def load(self, state: Mapping[str, Any]) -> Position:
        """The position in a state.

        Raises:
            StateError: the state is of another data set, of a run with another seed, shuffle, window or lanes, or
                damaged.
        """
        if "version" not in state:
            raise StateError(f"state_dict: {_about_foreign(state)}")
        if state["version"] != VERSION:
            raise StateError(
                f"state_dict: is of version {shown(state['version'])}, this gpuload reads {VERSION}. "
                "Was it made by another loader?"
            )
        self._check_same("sampling", state, "sampling=", "it, or they differ", "Balance or Weights")
        whole = "buckets, drop_last and steps_per_epoch"
        self._check_same("buckets", state, "buckets", "them, or they or drop_last differ", whole)
        batch = 0 if self.buckets is None else _count("bucket_batch", state.get("bucket_batch"))
        if batch != (self.bucket_batch or 0):
            raise StateError(
                f"state_dict: was made with global batches of {batch:,} samples (batch_size x world_size), this "
                f"loader's have {self.bucket_batch:,}. With buckets the order depends on that: construct it with "
                f"batch_size={batch:,} / world_size"
            )
        needed = self.state_dict(Position(0, 0, 0))
        if missing := sorted(set(needed) - set(state) - {"lanes"}):
            raise StateError(f"state_dict: has no entry {missing[0]!r}. Was it made by another loader, or edited?")
        if state["fingerprint"] != self.data.fingerprint:
            fingerprint = shown(state["fingerprint"]).strip(_QUOTES)
            raise StateError(
                f"state_dict: is of another data set ({_count('dataset_samples', state['dataset_samples']):,} "
                f"samples, fingerprint {fingerprint}); {self.data.folder} has {len(self.data):,}, fingerprint "
                f"{self.data.fingerprint}. Train on the set it was made with, or start from the beginning"
            )
        for name in ("seed", "shuffle", "window", "lanes"):
            expected, found = getattr(self, name), shown(state.get(name, 1))  # older states have no lanes
            if state.get(name, 1) != expected:
                raise StateError(
                    f"state_dict: was made with {name}={found}, this loader has {name}={expected}. "
                    f"The order would differ: construct it with {name}={found}"
                )
        return Position(*(_count(name, state[name]) for name in Position._fields))

    def _check_same(self, name: str, state: Mapping[str, Any], what: str, differ: str, needed: str) -> None:
        made, has = state.get(name), getattr(self, name)
        if made != has:
            raise StateError(
                f"state_dict: was made {'with' if made else 'without'} {what}, this loader is "
                f"{'with' if has else 'without'} {differ}. The order would differ: construct it with the same {needed}"
            )


def _about_foreign(state: Mapping[str, Any]) -> str:
    """The message for a dict that is not a loader's state."""
    for name, entry in state.items():
        if isinstance(entry, Mapping) and {"version", *Position._fields} <= set(entry):
            return f"is a checkpoint that holds one, not the state itself. Give its entry {shown(name)}"
    entries = f"its entries are {shown(list(state))}" if state else "it is empty"
    return f"is not what state_dict() of a loader returned ({entries}). Was it made by a model or another loader?"


def _count(name: str, value: Any) -> int:
    """A number in a state, also if a checkpoint turned it into a tensor or an array."""
    try:
        found = int(value)
        if found == value and 0 <= found < 2**62:
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise StateError(f"state_dict: has {name}={shown(value)}, expected a whole number from 0. Was it edited?")


class PassSlice(NamedTuple):
    """Consecutive samples of one pass over one data set, in a batch.

    source: number of the data set. seed, epoch: what decides their order and crops; epoch counts passes.
    order[start:stop]: the samples. rows: int64, their rows in the batch.
    """

    source: int
    seed: int
    epoch: int
    order: EpochOrder
    start: int
    stop: int
    rows: I64


class Stream:
    """The samples at positions start..stop-1, for any start and stop.

    interleaving: which data set each position draws from. samplings: of each data set; None: each sample comes once in
    a pass. lanes: of one data set, see `gpuload.order.epoch`.
    """

    def __init__(
        self,
        datasets: tuple[Dataset, ...],
        interleaving: ShuffledBlocks | Stratified,
        samplings: tuple[Sampling, ...] | None = None,
        *,
        seed: int,
        window: int,
        shuffle: bool,
        lanes: int = 1,
    ) -> None:
        self._datasets, self._interleaving, self._samplings, self._seed = datasets, interleaving, samplings, seed
        self._window, self._shuffle, self._lanes = window, shuffle, lanes
        self._lengths = [sampling.draws for sampling in samplings] if samplings else list(map(len, datasets))
        # A batch may extend from one pass into the next.
        self.order = lru_cache(maxsize=2 * len(datasets))(self._make_order)

    def slices(self, start: int, stop: int, share: Share | None = None) -> list[PassSlice]:
        """The samples at these positions; at least one slice, which may be empty. share: only those of its lanes."""
        if len(self._datasets) == 1 or start == stop:
            return self._passes(0, start, stop, np.arange(stop - start), share)
        sources, drawn = self._interleaving.sources(start, stop), self._interleaving.drawn(start)
        slices = []
        for source in np.unique(sources).tolist():
            rows, begin = np.flatnonzero(sources == source), int(drawn[source])
            slices += self._passes(source, begin, begin + len(rows), rows)
        return slices

    def _passes(self, source: int, start: int, stop: int, rows: I64, share: Share | None = None) -> list[PassSlice]:
        """Samples start..stop-1 of one data set, divided where a pass ends; at least one slice."""
        slices: list[PassSlice] = []
        samples, row, before = self._lengths[source], 0, (share or _ALL).before
        while start < stop or not slices:
            epoch, first = divmod(start, samples)
            last = min(first + stop - start, samples)
            seed, order = self.order(source, epoch)
            begin, end = (before(epoch * samples + at) - before(epoch * samples) for at in (first, last))
            served = order if share is None else order.serving(share)
            slices.append(PassSlice(source, seed, epoch, served, begin, end, rows[row : row + end - begin]))
            start, row = start + last - first, row + end - begin
        return slices

    def _make_order(self, source: int, epoch: int) -> tuple[int, EpochOrder]:
        """The seed of a data set, and the order of a pass over it; `order` keeps the last ones."""
        seed = self._seed if len(self._datasets) == 1 else make_key(self._seed, MIXTURE, source)
        dataset = self._datasets[source]
        if self._samplings is not None:
            return seed, self._samplings[source].order(dataset, seed=seed, epoch=epoch, window=self._window)
        sizes, (window, shuffle, lanes) = dataset.shard_sizes, (self._window, self._shuffle, self._lanes)
        return seed, EpochOrder(sizes, seed=seed, epoch=epoch, window=window, shuffle=shuffle, lanes=lanes)


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

    The first ranks take the remainder: 5 samples over 3 ranks are [0, 2), [2, 4), [4, 5). Of fewer samples than ranks,
    the last ranks get none.
    """
    share, rest = divmod(stop - start, world_size)
    first = start + rank * share + min(rank, rest)
    return first, first + share + (rank < rest)


@dataclass(frozen=True)
class Epochs:
    """Where epochs begin in the stream, and this rank's parts of them.

    samples: from the beginning of one epoch to that of the next, over all ranks. batch_size: of a global batch.
    share: the rank's lanes; None: its parts are those of `rank_part`. exact: no sample is repeated, so that a rank's
    last part may be empty. even: the parts of a batch are equally long; those of the last one extend into the next
    epoch where its samples cannot be divided. ends: where the global batches of an epoch end, from its beginning; None:
    after batch_size samples each, and at its end.

    Every rank gets a sample of every global batch. Where a few would be left for the last one, the global batch before
    it gives some up; where that is not possible, a rank repeats one sample (`padding`).

    33 samples, 2 ranks, global batches of 32:  31 and 2, of which the ranks get 16 15 and 1 1.
    """

    samples: int
    batch_size: int
    drop_last: bool
    rank: int
    world_size: int
    share: Share | None = None
    exact: bool = False
    even: bool = False
    ends: tuple[int, ...] | None = None

    @property
    def batches(self) -> int:
        """Batches in a whole epoch, the same on every rank."""
        if self.ends is not None:
            return len(self.ends)
        return count_batches(self.samples, self.batch_size, self.drop_last)

    @property
    def rank_samples(self) -> int:
        """A rank's share of the samples of a whole epoch, rounded up: the same on every rank."""
        return -(-self.handed_out // self.world_size)

    @property
    def handed_out(self) -> int:
        """The samples of a whole epoch that are in batches, over all ranks."""
        return min(self.samples, self.batches * self.batch_size)

    def start(self, epoch: int) -> Position:
        """The beginning of an epoch."""
        return Position(epoch, epoch * self.samples, 0)

    def following(self, position: Position) -> Position:
        """The beginning of the next epoch."""
        # A virtual epoch that is resumed with smaller batches can be past its new end.
        return Position(position.epoch + 1, position.begin + max(self.samples, position.samples), 0)

    def parts(self, position: Position) -> Iterator[Part]:
        """This rank's parts of the global batches of the rest of an epoch, without empty ones."""
        return (part for part in self._parts(position) if part.samples)

    def empty_parts(self, position: Position) -> list[Part]:
        """This rank's parts without samples, which are its last ones: with `exact`, so that it keeps step."""
        return [part for part in self._parts(position) if not part.samples] if self.exact else []

    def part(self, start: int, stop: int) -> Part:
        """This rank's part of global batch [start, stop). By lanes, those of a short last one may differ by as many
        samples as a rank has lanes."""
        own = self._own_part(start, stop)
        if own.samples or self.exact:
            return own
        if self.share is None:
            return Part(stop - 1, stop, stop)
        at = self.share.last_before(start)
        return Part(at, at + 1, stop, self.share)

    def padding(self, start: int, stop: int) -> int:
        """How many samples at the end of this rank's part of global batch [start, stop) another rank has, too, or the
        next epoch: they are handed out only so that this rank keeps step."""
        own = self._own_part(start, stop)
        if self.even:
            return min(max(own.last - stop, 0), own.samples)
        return 0 if self.exact or own.samples else 1

    def is_last(self, position: Position) -> bool:
        """Whether no batch of its epoch follows."""
        return next(self._bounds(position), None) is None

    def _own_part(self, start: int, stop: int) -> Part:
        if self.share is not None:
            return Part(start, stop, stop, self.share)
        if self.even:
            each = -(-(stop - start) // self.world_size)
            first = start + self.rank * each
            return Part(first, first + each, stop)
        return Part(*rank_part(start, stop, self.rank, self.world_size), stop)

    def _parts(self, position: Position) -> Iterator[Part]:
        return (self.part(position.begin + start, position.begin + stop) for start, stop in self._bounds(position))

    def _bounds(self, position: Position) -> Iterator[tuple[int, int]]:
        """Where the global batches of the rest of an epoch begin and end, from its beginning."""
        if self.ends is not None:
            yield from pairwise([position.samples, *self.ends[bisect_right(self.ends, position.samples) :]])
            return
        least = self.world_size if self.share is None else self.share.lanes  # so many give each rank a sample
        start = position.samples
        while self.samples - start >= (self.batch_size if self.drop_last else 1):
            stop = min(start + self.batch_size, self.samples)
            missing = least - (self.samples - stop)
            if 0 < missing < least and stop - start - missing >= least and not (self.drop_last or self.even):
                stop -= missing
            yield start, stop
            start = stop
