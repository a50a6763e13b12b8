"""The order by buckets: global batches of one bucket each, or of as many tokens as a budget has."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.order.budget import BatchSizes, Left
from gpuload.order.stream import Epochs, Position, Stream
from gpuload.types import I64, U8, Bools, HeightWidth

# A sample in a queue. position: in the stream of all samples, before they are divided. source: number of the data set.
# epoch, place: the pass over it, and the position in that. repeat: how often it came before in this pass.
MEMBER = np.dtype(
    [
        (name, np.int64)
        for name in ("position", "epoch", "place", "sample", "source", "repeat")
    ]
)
Members = npt.NDArray[np.void]  # of MEMBER

# Samples that are put into the queues at a time: a pass, if that is between these.
_LEAST_PLANNED = 1 << 10
_MOST_PLANNED = 1 << 14


class BucketBatch(NamedTuple):
    """A global batch: the positions start..stop-1 of the order by buckets, and the samples there.

    Attributes:
        start: Its first position in the order by buckets.
        stop: Behind its last position.
        bucket: Its number.
        members: (stop - start,), of `MEMBER`.
    """

    start: int
    stop: int
    bucket: int
    members: Members


@dataclass(frozen=True, eq=False)
class BucketPlan:
    """Which bucket each sample is in, and how epochs end.

    Attributes:
        sizes: (height, width) of each bucket.
        numbers: For each data set uint8 (len,), the bucket of each sample.
        totals: int64 (buckets,), samples of each in a pass that has each sample of one data set once; else None.
        is_whole: Each sample comes in its own epoch, and what is left is handed out at its end as smaller batches; else
            it stays in the queues and comes in the next epoch.
        by_tokens: Sizes of batches by a budget; images then have their own sizes, and `sizes` is empty.
    """

    sizes: tuple[HeightWidth, ...]
    numbers: tuple[U8, ...]
    totals: I64 | None = None
    is_whole: bool = False
    by_tokens: BatchSizes | None = None

    def epochs(self, epochs: Epochs) -> Epochs:
        """The epochs of the same loader without buckets, with them."""
        if not self.is_whole:
            return replace(
                epochs, samples=epochs.batches * epochs.batch_size, drop_last=True
            )
        assert self.totals is not None
        rests = (self.totals % epochs.batch_size).tolist()
        whole_batches = int((self.totals // epochs.batch_size).sum())
        sizes = [epochs.batch_size] * whole_batches
        sizes += [rests[bucket] for bucket in _by_rest(rests)]
        return replace(epochs, ends=tuple(accumulate(sizes)))

    @property
    def batch_sizes(self) -> I64:
        """int64: of a budget, samples in a whole batch of each bucket that has any, over all ranks."""
        assert self.by_tokens is not None
        assert self.totals is not None
        return self.by_tokens.of_buckets[self.totals > 0]


class BucketedStream:
    """The global batch at any position of the order by buckets.

    Going on costs O(samples). Going anywhere else begins at the start of the epoch; where samples stay in the queues, a
    few passes before, or if `plan.totals` are unknown, at the start of the stream.

    Args:
        stream: Of all samples.
        plan: How samples are divided into buckets.
        epochs: The loader's, as `BucketPlan.epochs` gives them.
    """

    def __init__(self, stream: Stream, plan: BucketPlan, epochs: Epochs) -> None:
        self.stream = stream
        self._own_part = epochs.part
        self._numbers = plan.numbers
        self._totals = plan.totals
        self._left: tuple[tuple[Left, ...], ...] = ()
        if plan.by_tokens is not None:
            self._sizes = plan.by_tokens.of_buckets
            self._left = plan.by_tokens.left
        else:
            self._sizes = np.full(len(plan.sizes), epochs.batch_size)
            if plan.totals is not None:
                self._left = _one_of_each(plan.totals, epochs.batch_size)
        self._buckets = len(self._sizes)
        self._own_left = self._find_own_left()
        self._pass = 0 if plan.totals is None else int(plan.totals.sum())
        self._epoch = self._pass if plan.is_whole else 0  # 0: queues are never emptied
        self._portion = min(
            _MOST_PLANNED, max(_LEAST_PLANNED, sum(map(len, plan.numbers)))
        )
        self._seek(0)

    def batch_at(self, position: int) -> BucketBatch:
        """The global batch that holds this position of the order by buckets. Those before it are forgotten."""
        planned = self._ahead[0].start if self._ahead else self._planned
        first = self._first_pass(position)
        if position < planned or first * self._pass > self._next:
            self._seek(first)
        while True:
            while self._ahead and self._ahead[0].stop <= position:
                self._ahead.popleft()
            if self._ahead:
                return self._ahead[0]
            self._plan()

    def _first_pass(self, position: int) -> int:
        """The last pass from which the batches at a position are known; 0 where passes differ."""
        if self._epoch:
            return position // self._epoch
        if self._totals is None:
            return 0
        # So many passes before the position, each bucket has at least a batch: none after it holds an older sample.
        present = self._totals > 0
        back = 1 + int((self._sizes[present] // self._totals[present]).max())
        return max(position // self._pass - back, 0)

    def waiting(self) -> Members:
        """This rank's samples of the batch asked for last, of those after it and of the queues, as far as planned."""
        parts = [batch.members[self._own(len(batch.members))] for batch in self._ahead]
        for bucket, queue in enumerate(self._queues):
            if self._is_whole_next(bucket):
                parts.append(queue[self._own(int(self._sizes[bucket]))])
            else:
                parts += [queue[rows] for rows in self._own_left[bucket]]
        return np.concatenate(parts)

    def _own(self, size: int) -> slice:
        """This rank's samples of a batch of a size."""
        if size == 0:
            return slice(0)
        part = self._own_part(0, size)
        return slice(part.first, part.last)

    def _is_whole_next(self, bucket: int) -> bool:
        """Whether the next batch of a bucket is a whole one, and not of what is left at the end of an epoch."""
        if not self._epoch or self._totals is None:
            return True
        begun = (self._whole_batches[bucket] + 1) * self._sizes[bucket]
        return bool(begun <= self._totals[bucket])

    def _find_own_left(self) -> list[list[slice]]:
        """For each bucket, this rank's samples among those left at the end of an epoch."""
        own_left: list[list[slice]] = [[] for _ in range(self._buckets)]
        for batch in self._left:
            own_rows = self._own(sum(stop - first for _, first, stop in batch))
            before = 0
            for bucket, first, stop in batch:
                begin = max(own_rows.start or 0, before)
                end = min(own_rows.stop, before + stop - first)
                if begin < end:
                    rows = slice(first + begin - before, first + end - before)
                    own_left[bucket].append(rows)
                before += stop - first
        return own_left

    def _seek(self, first: int) -> None:
        """Begins at the start of a pass. What waits in the queues there is unknown but for its number: zeros stand for
        it."""
        seen = np.zeros(self._buckets, np.int64)
        if self._totals is not None:
            seen = first * self._totals
        # Queues are empty where an epoch begins, if it empties them.
        in_queues = seen * 0 if self._epoch else seen % self._sizes
        self._next = first * self._pass  # in the stream
        self._planned = int((seen - in_queues).sum())  # in the order by buckets
        self._queues = [np.zeros(count, MEMBER) for count in in_queues.tolist()]
        # Whole batches of each bucket in this epoch.
        self._whole_batches = np.zeros(self._buckets, np.int64)
        self._ahead: deque[BucketBatch] = deque()

    def _plan(self) -> None:
        """Puts the next samples of the stream into the queues."""
        begin = self._next
        end = begin + self._portion
        if self._epoch:
            end = min(end, (begin // self._epoch + 1) * self._epoch)
        members, buckets = self._read(begin, end)
        by_bucket = members[np.argsort(buckets, kind="stable")]
        bucket_ends = np.cumsum(np.bincount(buckets, minlength=self._buckets))
        batches: list[tuple[int, Members]] = []
        for bucket, new in enumerate(np.split(by_bucket, bucket_ends[:-1])):
            if len(new):
                batches += [(bucket, batch) for batch in self._enqueue(bucket, new)]
        batches.sort(key=lambda entry: int(entry[1]["position"][-1]))
        for bucket, batch in batches:
            self._emit(bucket, batch)
        self._next = end
        if self._epoch and end % self._epoch == 0:
            self._end_epoch(end)

    def _enqueue(self, bucket: int, members: Members) -> list[Members]:
        """Puts samples into a queue, and takes whole batches out of it."""
        queue = np.concatenate([self._queues[bucket], members])
        batch_size = int(self._sizes[bucket])
        whole_batches = len(queue) // batch_size
        taken = whole_batches * batch_size
        self._queues[bucket] = queue[taken:].copy()
        self._whole_batches[bucket] += whole_batches
        return [
            queue[first : first + batch_size] for first in range(0, taken, batch_size)
        ]

    def _end_epoch(self, position: int) -> None:
        """Hands out what is left in the queues, and empties them.

        Args:
            position: Where the epoch ends.
        """
        for left in self._left:
            parts = [self._queues[bucket][first:stop] for bucket, first, stop in left]
            self._emit(left[0][0], np.concatenate(parts))
        self._queues = [np.empty(0, MEMBER) for _ in self._queues]
        self._whole_batches[:] = 0
        self._planned = position  # behind samples that are left out

    def _emit(self, bucket: int, members: Members) -> None:
        self._ahead.append(
            BucketBatch(self._planned, self._planned + len(members), bucket, members)
        )
        self._planned += len(members)

    def _read(self, begin: int, end: int) -> tuple[Members, U8]:
        """The samples at positions begin..end-1 of the stream, and their buckets."""
        members = np.zeros(end - begin, MEMBER)
        buckets = np.empty(end - begin, np.uint8)
        members["position"] = np.arange(begin, end)
        for run in self.stream.slices(begin, end):
            samples = run.order[run.start : run.stop]
            repeats = run.order.repeats(run.start, run.stop)
            members["source"][run.rows] = run.source
            members["epoch"][run.rows] = run.epoch
            members["place"][run.rows] = np.arange(run.start, run.stop)
            members["sample"][run.rows] = samples
            members["repeat"][run.rows] = 0 if repeats is None else repeats
            buckets[run.rows] = self._numbers[run.source][samples]
        return members, buckets


def _by_rest(rests: list[int]) -> list[int]:
    """The buckets that have something left at the end of an epoch, in the order in which it is handed out: the largest
    first, so that a rank without samples in one batch has none in those after it."""
    return sorted(
        (bucket for bucket, rest in enumerate(rests) if rest),
        key=lambda bucket: (-rests[bucket], bucket),
    )


def _one_of_each(totals: I64, batch_size: int) -> tuple[tuple[Left, ...], ...]:
    """The batches at the end of an epoch where each is of one bucket."""
    rests = (totals % batch_size).tolist()
    return tuple(((bucket, 0, rests[bucket]),) for bucket in _by_rest(rests))


@dataclass(frozen=True, kw_only=True)
class TokenEpochs(Epochs):
    """Epochs whose batches differ in size, in a sequence that depends on the order of the epoch.

    Attributes:
        plan: With a budget.
        make_stream: Makes the stream of the order.
        batch_size: That of the largest batch.
    """

    plan: BucketPlan
    make_stream: Callable[[], Stream]

    @cached_property
    def batches(self) -> int:
        """As of `Epochs`: in each epoch the same, since each bucket then has the same samples."""
        assert self.plan.by_tokens is not None and self.plan.totals is not None
        of_buckets = self.plan.totals // self.plan.by_tokens.of_buckets
        return int(of_buckets.sum()) + len(self.plan.by_tokens.left)

    @cached_property
    def handed_out(self) -> int:
        """As of `Epochs`."""
        assert self.plan.by_tokens is not None and self.plan.totals is not None
        sizes = self.plan.by_tokens.of_buckets
        in_whole_batches = int((self.plan.totals // sizes * sizes).sum())
        left = [part for batch in self.plan.by_tokens.left for part in batch]
        return in_whole_batches + sum(stop - first for _, first, stop in left)

    def is_last(self, position: Position) -> bool:
        """As of `Epochs`."""
        return position.samples >= self.handed_out

    def _batch_bounds(self, position: Position) -> Iterator[tuple[int, int]]:
        """As of `Epochs`: from the order itself, planned as far as it is asked for."""
        bucketed = BucketedStream(self.make_stream(), self.plan, self)
        start = position.samples
        while start < self.handed_out:
            batch = bucketed.batch_at(position.begin + start)
            stop = batch.stop - position.begin
            yield start, stop
            start = stop


def before(members: Members, epoch: int, place: int) -> Bools:
    """bool (n,): whether members of one data set come before a place of a pass over it."""
    in_earlier_pass = members["epoch"] < epoch
    in_this_pass = members["epoch"] == epoch
    is_before: Bools = in_earlier_pass | (in_this_pass & (members["place"] < place))
    return is_before
