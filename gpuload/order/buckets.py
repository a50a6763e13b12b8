"""Buckets: their output sizes, the bucket of each sample, and global batches of one bucket each."""

import hashlib
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpuload.checks import SIDE, Rule, as_numbers, checked, number, optional, settings, several, whole
from gpuload.counted import counted
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError
from gpuload.order.sampling import Sampling
from gpuload.order.stream import Epochs, Stream
from gpuload.types import F64, I64, U8, Bools, HeightWidth

MOST = 256  # buckets: the number of a sample's bucket takes one byte
STEP, MAX_ASPECT = 64, 2.0

_SIZES = several(several(SIDE, "", count=2), "(height, width) pairs in pixels, such as [(1024, 1024), (832, 1216)]")
_AREA = optional(whole(1, 65_535**2, "pixels, a whole number such as 1024 * 1024"))
_ASPECT = optional(number(1, 65_535, "the longer side over the shorter one, a number from 1"))

# Samples that are put into the queues at a time: a pass, if that is between these.
_LEAST_PLANNED, _PLANNED = 1 << 10, 1 << 14

# A sample in a queue. position: in the stream of all samples, before they are divided. source: number of the data set.
# epoch, place: the pass over it, and the position in that. repeat: how often it came before in this pass.
MEMBER = np.dtype(
    [
        ("position", np.int64),
        ("epoch", np.int64),
        ("place", np.int64),
        ("sample", np.int64),
        ("source", np.int32),
        ("repeat", np.int32),
    ]
)
Members = npt.NDArray[np.void]  # of MEMBER


def _as_pixels(value: Any) -> npt.NDArray[Any]:
    found = as_numbers(value)
    if found.dtype == bool or found.min(initial=1) < 1:
        raise TypeError
    return found


_PIXELS = Rule("pixels, whole numbers (n,) from 1", _as_pixels)


@settings
class Buckets:
    """Output sizes of which each sample gets the nearest, for `Augment(size=Buckets(…), crop="cover")`.

    sizes: (height, width) of each bucket in pixels, which numbers them; 256 at most. Or they are made of the others:
    area: the largest number of pixels, such as 1024 * 1024. A bucket for each shorter side that is a multiple of
        `step`, with the longest other side that is one, too; the buckets are numbered from the narrowest to the widest.
    step: divides all sides; 64 by default. max_aspect: of the longer side to the shorter one, at most; 2 by default.

    Raises:
        ArgumentError: neither sizes nor area, or both; a size that is there twice; more than 256; no size fits.
    """

    sizes: Annotated[Sequence[HeightWidth] | None, optional(_SIZES)] = None
    area: Annotated[int | None, _AREA] = None
    step: Annotated[int | None, optional(SIDE)] = None
    max_aspect: Annotated[float | None, _ASPECT] = None

    def __post_init__(self) -> None:
        if (self.sizes is None) == (self.area is None):
            found = "neither" if self.area is None else "both"
            raise ArgumentError(f"Buckets(sizes, area): expected one of them, found {found}. Give sizes, or an area")
        if self.area is None:
            for name in ("step", "max_aspect"):
                if getattr(self, name) is not None:
                    raise ArgumentError(f"Buckets({name}={getattr(self, name)}): is for area=, and sizes are given")
        else:
            object.__setattr__(self, "sizes", self._make_sizes(self.area))
        sizes = self.all_sizes
        if twice := [size for size in sizes if sizes.count(size) > 1]:
            raise ArgumentError(f"Buckets(sizes): {twice[0]} is there twice. Leave one of them out")
        if len(sizes) > MOST:
            raise ArgumentError(f"Buckets: {counted(len(sizes), 'size')}, expected at most {MOST}. Use a larger step")

    def _make_sizes(self, area: int) -> tuple[HeightWidth, ...]:
        step, most = self.step or STEP, self.max_aspect or MAX_ASPECT
        sides = [(short, area // short // step * step) for short in range(step, math.isqrt(area) + 1, step)]
        fitting = [(short, long) for short, long in sides if short <= long <= min(short * most, 65_535)]
        found = [size for short, long in fitting for size in ((short, long), (long, short))]
        if not found:
            raise ArgumentError(
                f"Buckets(area={area}, step={step}, max_aspect={most:g}): no size fits. Use a smaller step or a larger "
                "max_aspect"
            )
        return tuple(sorted(dict.fromkeys(found), key=lambda size: (size[1] / size[0], size)))

    def __len__(self) -> int:
        return len(self.all_sizes)

    @property
    def all_sizes(self) -> tuple[HeightWidth, ...]:
        """(height, width) of each bucket, by its number."""
        assert self.sizes is not None
        return tuple((height, width) for height, width in self.sizes)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the sizes or their numbers."""
        return hashlib.sha256(repr(self.all_sizes).encode()).hexdigest()[:16]

    @checked("Buckets.numbers", widths=_PIXELS, heights=_PIXELS)
    def numbers(self, widths: npt.ArrayLike, heights: npt.ArrayLike) -> U8:
        """uint8 (N,): the bucket of images of these widths and heights, in pixels, from 1.

        It is the one whose width / height is nearest in ratio, so in the difference of logarithms; an image exactly
        between two gets the narrower one. Of buckets of the same shape it is the one whose area is nearest in ratio;
        exactly between two, the smaller one.

        Raises:
            ArgumentError: widths and heights are not as many.
        """
        wide, high = np.asarray(widths, np.float64), np.asarray(heights, np.float64)
        shapes: dict[float, list[int]] = {}
        if wide.shape != high.shape:
            raise ArgumentError(f"Buckets.numbers(widths, heights): {len(wide):,} and {len(high):,}, expected as many")
        sizes = self.all_sizes
        for bucket, (height, width) in enumerate(sizes):
            shapes.setdefault(width / height, []).append(bucket)
        aspects = sorted(shapes)
        shape = np.searchsorted(_middles(aspects), wide / high, side="left")
        found = np.empty(wide.shape, np.uint8)
        for place, aspect in enumerate(aspects):
            rows = shape == place
            same = sorted(shapes[aspect], key=lambda bucket: sizes[bucket])
            areas = [float(math.prod(sizes[bucket])) for bucket in same]
            found[rows] = np.array(same, np.uint8)[np.searchsorted(_middles(areas), (wide * high)[rows], side="left")]
        return found


def _middles(values: Sequence[float]) -> F64:
    """Geometric means of neighbours, of ascending values. Multiplication, division and square roots are rounded in the
    same way on every machine, logarithms are not."""
    ascending = np.array(values, np.float64)
    middles: F64 = np.sqrt(ascending[:-1] * ascending[1:])
    return middles


def number_samples(dataset: Dataset, buckets: Buckets) -> U8:
    """uint8 (len,): the bucket of each sample of a data set, by the width and height in the index.

    Costs O(samples) once, and one byte for each.

    Raises:
        ShardError: the index holds a width or height below 1. ArgumentError: the samples are tiles.
    """
    if dataset.tiling is not None:
        raise ArgumentError("Buckets: are for whole images, and tiles have one size. Use Augment(size)")
    heights, widths = dataset.image_sizes(dataset.stored_samples(np.arange(len(dataset))), "buckets").T
    return buckets.numbers(widths, heights)


class BucketBatch(NamedTuple):
    """A global batch: the positions start..stop-1 of the order by buckets, and the samples there."""

    start: int
    stop: int
    bucket: int
    members: Members


@dataclass(frozen=True, eq=False)
class BucketPlan:
    """Which bucket each sample is in, and how epochs end.

    sizes: (height, width) of each bucket. numbers: for each data set uint8 (len,), the bucket of each sample.
    counts: int64 (buckets,), samples of each in an epoch where all of them come in it, and what is left is handed out
    at its end as smaller batches; None: what is left in the queues comes in the next epoch.
    totals: int64 (buckets,), samples of each in a pass, where these are carried over and a pass has each sample of one
    data set once; else None. identity: what the order depends on, beside the size of a global batch.
    """

    sizes: tuple[HeightWidth, ...]
    numbers: tuple[U8, ...]
    counts: I64 | None = None
    totals: I64 | None = None
    identity: str = ""

    def epochs(self, epochs: Epochs) -> Epochs:
        """The epochs of the same loader without buckets, with them."""
        if self.counts is None:
            return replace(epochs, samples=epochs.batches * epochs.batch_size, drop_last=True)
        rests = (self.counts % epochs.batch_size).tolist()
        whole = [epochs.batch_size] * int((self.counts // epochs.batch_size).sum())
        return replace(epochs, ends=tuple(accumulate(whole + [rests[bucket] for bucket in by_rest(rests)])))


class BucketedStream:
    """The global batch at any position of the order by buckets.

    stream: of all samples. epochs: the loader's, as `BucketPlan.epochs` gives them.

    Going on costs O(samples). Going anywhere else begins a few passes before, if `plan.totals` are known; else at the
    start of the epoch, or where samples stay in the queues, of the stream.
    """

    def __init__(self, stream: Stream, plan: BucketPlan, epochs: Epochs) -> None:
        self.stream, self._size, self._own_part = stream, epochs.batch_size, epochs.part
        self._numbers, self._counts, self._totals = plan.numbers, plan.counts, plan.totals
        self._buckets = len(plan.sizes)
        self._epoch = None if plan.counts is None else int(plan.counts.sum())
        self._portion = min(_PLANNED, max(_LEAST_PLANNED, sum(map(len, plan.numbers))))
        self._restart(0)

    def batch_at(self, position: int) -> BucketBatch:
        """The global batch that holds this position of the order by buckets. Those before it are forgotten."""
        begin = 0 if self._epoch is None else position // self._epoch * self._epoch
        planned = self._ahead[0].start if self._ahead else self._planned
        if self._totals is not None:
            # So many passes before the position, each bucket has at least a batch: none after it holds an older sample.
            back = 1 + self._size // int(self._totals[self._totals > 0].min())
            samples = int(self._totals.sum())
            first = max(position // samples - back, 0)
            if position < planned or first * samples > self._next:
                self._seek(first, self._totals)
        elif position < planned or begin > planned:
            self._restart(begin)
        while True:
            while self._ahead and self._ahead[0].stop <= position:
                self._ahead.popleft()
            if self._ahead:
                return self._ahead[0]
            self._plan()

    def waiting(self) -> Members:
        """This rank's samples of the batch asked for last, of those after it and of the queues, as far as planned."""
        found = [batch.members[self._own(len(batch.members))] for batch in self._ahead]
        for bucket, queue in enumerate(self._queues):
            found.append(queue[self._own(self._size_of_next(bucket))])
        return np.concatenate(found)

    def _own(self, size: int) -> slice:
        return slice(*self._own_part(0, size)[:2]) if size else slice(0)

    def _size_of_next(self, bucket: int) -> int:
        if self._counts is None:
            return self._size
        return int(min(self._size, self._counts[bucket] - self._made[bucket] * self._size))

    def _restart(self, position: int) -> None:
        """Begins at this position, where all queues are empty."""
        self._next = self._planned = position  # in the stream, and in the order by buckets
        self._queues = [np.empty(0, MEMBER) for _ in range(self._buckets)]
        self._made = np.zeros(self._buckets, np.int64)  # whole batches of each bucket in this epoch
        self._ahead: deque[BucketBatch] = deque()

    def _seek(self, epoch: int, totals: I64) -> None:
        """Begins at the start of a pass. What waits in the queues there is unknown but for its number: zeros stand for
        it."""
        seen = epoch * totals
        self._restart(int((seen // self._size).sum()) * self._size)
        self._next = epoch * int(totals.sum())
        self._queues = [np.zeros(count, MEMBER) for count in (seen % self._size).tolist()]

    def _plan(self) -> None:
        """Puts the next samples of the stream into the queues."""
        begin, end = self._next, self._next + self._portion
        if self._epoch is not None:
            end = min(end, (begin // self._epoch + 1) * self._epoch)
        members, buckets = self._read(begin, end)
        sizes = np.bincount(buckets, minlength=self._buckets).tolist()
        by_bucket = members[np.argsort(buckets, kind="stable")]
        whole: list[tuple[int, int, Members]] = []
        for bucket, (size, stop) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
            if size:
                queue = np.concatenate([self._queues[bucket], by_bucket[stop - size : stop]])
                made = len(queue) // self._size
                for first in range(0, made * self._size, self._size):
                    batch = queue[first : first + self._size]
                    whole.append((int(batch["position"][-1]), bucket, batch))
                self._queues[bucket] = queue[made * self._size :].copy()
                self._made[bucket] += made
        for _, bucket, batch in sorted(whole, key=lambda entry: entry[0]):
            self._emit(bucket, batch)
        self._next = end
        if self._epoch is not None and end % self._epoch == 0:
            for bucket in by_rest([len(queue) for queue in self._queues]):
                self._emit(bucket, self._queues[bucket])
                self._queues[bucket] = np.empty(0, MEMBER)
            self._made[:] = 0

    def _emit(self, bucket: int, members: Members) -> None:
        self._ahead.append(BucketBatch(self._planned, self._planned + len(members), bucket, members))
        self._planned += len(members)

    def _read(self, begin: int, end: int) -> tuple[Members, U8]:
        """The samples at positions begin..end-1 of the stream, and their buckets."""
        members, buckets = np.zeros(end - begin, MEMBER), np.empty(end - begin, np.uint8)
        members["position"] = np.arange(begin, end)
        for part in self.stream.slices(begin, end):
            samples = part.order[part.start : part.stop]
            repeats = part.order.repeats(part.start, part.stop)
            members["source"][part.rows], members["epoch"][part.rows] = part.source, part.epoch
            members["place"][part.rows] = np.arange(part.start, part.stop)
            members["sample"][part.rows] = samples
            members["repeat"][part.rows] = 0 if repeats is None else repeats
            buckets[part.rows] = self._numbers[part.source][samples]
        return members, buckets


def by_rest(rests: list[int]) -> list[int]:
    """The buckets that have something left at the end of an epoch, in the order in which it is handed out: the largest
    first, so that a rank without samples in one batch has none in those after it."""
    return sorted((bucket for bucket, rest in enumerate(rests) if rest), key=lambda bucket: (-rests[bucket], bucket))


def before(members: Members, epoch: int, place: int) -> Bools:
    """bool (n,): whether members of one data set come before a place of a pass over it."""
    found: Bools = (members["epoch"] < epoch) | ((members["epoch"] == epoch) & (members["place"] < place))
    return found


def plan_buckets(
    buckets: Buckets | None,
    datasets: tuple[Dataset, ...],
    samplings: tuple[Sampling, ...] | None,
    *,
    is_whole: bool,
    lanes: int = 1,
) -> BucketPlan | None:
    """The plan of a loader; None without buckets. Costs O(samples).

    is_whole: each sample comes in its own epoch, what is left in the buckets as smaller batches at its end.

    Raises:
        ArgumentError: epochs would not be equally long, or there are lanes.
        ShardError: the size of a sample is not in the index.
    """
    if buckets is None:
        return None
    if lanes != 1:
        raise ArgumentError(
            f"Buckets, Shuffle(lanes={lanes}): a batch of one size holds samples of any lanes, so that every node "
            "would download every shard. Use lanes=1"
        )
    if is_whole and (len(datasets) > 1 or samplings is not None):
        what = "a mixture" if len(datasets) > 1 else "sampling="
        raise ArgumentError(
            f"Buckets, drop_last=False: with {what} each epoch has other samples in a bucket, so their "
            "number of batches would differ. Use drop_last=True, or steps_per_epoch; what is left comes in the next "
            "epoch"
        )
    numbers = tuple(number_samples(dataset, buckets) for dataset in datasets)
    totals: I64 | None = None
    if len(datasets) == 1 and samplings is None:
        totals = np.bincount(numbers[0], minlength=len(buckets))
    identity = f"{buckets.fingerprint}-{'whole' if is_whole else 'carried'}"
    counts, carried = (totals, None) if is_whole else (None, totals)
    return BucketPlan(buckets.all_sizes, numbers, counts, carried, identity)
