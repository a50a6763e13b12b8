"""How a loader orders, draws and mixes its samples, as its user says it."""

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from gpuload import checks
from gpuload.checks import COUNT, POSITIVE, checked, settings, shown
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError
from gpuload.store.url import LOCATION
from gpuload.types import F64, U8, HeightWidth

MOST_DRAWS = (1 << 31) - 1  # in a pass: see `gpuload.order.sampling`
_DRAWS = checks.optional(checks.whole(1, MOST_DRAWS))


def digest(content: bytes) -> str:
    """16 hexadecimal digits that change with the content."""
    return hashlib.sha256(content).hexdigest()[:16]


@settings
class Shuffle:
    """How the samples of a pass are mixed: `DaliIterator(shuffle=Shuffle(window=16))`.

    Args:
        window: Shards whose samples are mixed with one another at a time. More shards mix better and take more memory.
        lanes: For several nodes that read a set at a URL. The shards are divided among this many lanes, each mixed in
            windows of its own, and each batch of all ranks takes equally many samples of every lane. Where the number
            of ranks divides `lanes`, which divides the samples of a step over all ranks, each rank reads its own lanes
            alone; a rank's samples of a short last batch may then be up to lanes / world_size more than another's. The
            order does not depend on the ranks. Not for mixtures and not with `sampling`.

    Raises:
        ArgumentError: a value that is not a whole number of at least 1.
    """

    window: Annotated[int, COUNT] = 8
    lanes: Annotated[int, COUNT] = 1


class _Drawn:
    """What `Balance` and `Weights` have in common."""

    replacement: bool
    num_samples: int | None

    def __post_init__(self) -> None:
        if not self.replacement and self.num_samples is None:
            raise ArgumentError(
                f"{type(self).__name__}(replacement=False): draws each sample once at most, and so needs num_samples, "
                "the number of samples in a pass"
            )


@settings
class Balance(_Drawn):
    """Draws each class equally often: `DaliIterator(sampling=Balance("label"))`. A pass has as many samples of each
    class, or one more.

    Args:
        field: The name of a field of classes.
        replacement: Whether a sample may come several times in a pass, as with torch's `WeightedRandomSampler`. False
            needs num_samples.
        num_samples: Samples in a pass over all ranks; by default as many as the data has.

    A sample that comes again in a pass has other crops. Order and counts do not depend on ranks and batch size, and
    mid-epoch resume is exact. A pass costs O(samples) once, and 4 bytes of memory for each sample.

    Raises:
        ArgumentError: a value out of its range; replacement=False without num_samples.
    """

    field: Annotated[
        str, checks.text("the name of a field of classes, such as 'label'")
    ]
    replacement: Annotated[bool, checks.FLAG] = True
    num_samples: Annotated[int | None, _DRAWS] = None


def _as_weights(value: Any) -> Any:
    """The name of a field, or an array, which is looked at with the data."""
    is_array = isinstance(value, list | tuple) or (
        hasattr(value, "__array__") and not isinstance(value, np.generic)
    )
    if isinstance(value, type) or not (is_array or (isinstance(value, str) and value)):
        raise TypeError
    return value


@settings
class Weights(_Drawn):
    """Draws samples in proportion to weights: `DaliIterator(sampling=Weights("weight"))`. A sample of which 2.3 are
    expected in a pass comes 2 or 3 times.

    Args:
        weights: The name of a field of numbers, or an array (len(data),), for a mixture of all its samples, one data
            set after another.
        replacement: As for `Balance`.
        num_samples: As for `Balance`.

    A pass takes 16 bytes of memory for each sample.

    Raises:
        ArgumentError: a value out of its range; replacement=False without num_samples.
    """

    weights: Annotated[
        Any,
        checks.Rule(
            "the name of a field of numbers, or one number for each sample", _as_weights
        ),
    ]
    replacement: Annotated[bool, checks.FLAG] = True
    num_samples: Annotated[int | None, _DRAWS] = None

    # Arrays have no truth value.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


@settings
class Repeated:
    """Shows each sample several times in a row, with other crops, on other ranks: `DaliIterator(sampling=Repeated(3))`.

    Args:
        times: How often, on as many ranks where there are as many, as DeiT's and torchvision's `RASampler` does.

    An epoch still has as many samples as the data, so that it holds a part of them, and the next epochs the others:
    with 3, each comes thrice in three epochs. Order and crops do not depend on ranks and batch size, and mid-epoch
    resume is exact. Not for mixtures, buckets, lanes and drop_last="even".

    Raises:
        ArgumentError: a value that is not in 2..64.
    """

    times: Annotated[int, checks.whole(2, 64)] = 3

    num_samples = None  # in an epoch: as many as the data has


AnySampling = Balance | Weights | Repeated


MOST_BUCKETS = 256  # the number of a sample's bucket takes one byte
STEP = 64
MAX_ASPECT = 2.0

_SIZES = checks.several(
    checks.several(checks.SIDE, "", count=2),
    "(height, width) pairs in pixels, such as [(1024, 1024), (832, 1216)]",
)
_AREA = checks.optional(
    checks.whole(1, 65_535**2, "pixels, a whole number such as 1024 * 1024")
)
_ASPECT = checks.optional(
    checks.number(1, 65_535, "the longer side over the shorter one, a number from 1")
)


def _as_pixels(value: Any) -> npt.NDArray[Any]:
    pixels = checks.as_numbers(value)
    if pixels.dtype == bool or pixels.min(initial=1) < 1:
        raise TypeError
    return pixels


_PIXELS = checks.Rule("pixels, whole numbers (n,) from 1", _as_pixels)


@settings
class Buckets:
    """Output sizes of which each sample gets the nearest, for `Augment(size=Buckets(…), crop="cover")`.

    Args:
        sizes: (height, width) of each bucket in pixels, which numbers them; 256 at most. Without them, buckets are made
            of the other arguments.
        area: The largest number of pixels, such as 1024 * 1024. It makes a bucket for each shorter side that is a
            multiple of `step`, with the longest other side that is one, too; the buckets are numbered from the
            narrowest to the widest.
        step: Divides all sides; 64 by default.
        max_aspect: Of the longer side to the shorter one, at most; 2 by default.

    Raises:
        ArgumentError: neither sizes nor area, or both; a size that is there twice; more than 256; no size fits.
    """

    sizes: Annotated[Sequence[HeightWidth] | None, checks.optional(_SIZES)] = None
    area: Annotated[int | None, _AREA] = None
    step: Annotated[int | None, checks.optional(checks.SIDE)] = None
    max_aspect: Annotated[float | None, _ASPECT] = None

    def __post_init__(self) -> None:
        if (self.sizes is None) == (self.area is None) or (
            self.sizes and (self.step or self.max_aspect)
        ):
            raise ArgumentError(
                f"{shown(self)}: expected sizes alone, or area, with step and max_aspect if needed"
            )
        sizes = self.sizes if self.area is None else self._make_sizes(self.area)
        if not 0 < len(set(sizes or ())) == len(sizes or ()) <= MOST_BUCKETS:
            raise ArgumentError(
                f"{shown(self)}: expected 1 to {MOST_BUCKETS} sizes, each once. Use other sizes, or another step or "
                "max_aspect"
            )
        object.__setattr__(self, "sizes", sizes)

    def _make_sizes(self, area: int) -> tuple[HeightWidth, ...]:
        step = self.step or STEP
        max_aspect = self.max_aspect or MAX_ASPECT
        sizes: set[HeightWidth] = set()
        for short in range(step, math.isqrt(area) + 1, step):
            long = area // short // step * step
            if short <= long <= min(short * max_aspect, 65_535):
                sizes.add((short, long))
                sizes.add((long, short))
        return tuple(sorted(sizes, key=lambda size: (size[1] / size[0], size)))

    def __len__(self) -> int:
        return len(self.all_sizes)

    @property
    def all_sizes(self) -> tuple[HeightWidth, ...]:
        """(height, width) of each bucket, by its number."""
        return tuple(self.sizes or ())

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with the sizes or their numbers."""
        return digest(repr(self.all_sizes).encode())

    @checked("Buckets.numbers", widths=_PIXELS, heights=_PIXELS)
    def numbers(self, widths: npt.ArrayLike, heights: npt.ArrayLike) -> U8:
        """uint8 (N,): the bucket of images of these widths and heights, in pixels, from 1.

        It is the one whose width / height is nearest in ratio, so in the difference of logarithms; an image exactly
        between two gets the narrower one. Of buckets of the same shape it is the one whose area is nearest in ratio;
        exactly between two, the smaller one.

        Raises:
            ArgumentError: widths and heights are not as many.
        """
        image_widths = np.asarray(widths, np.float64)
        image_heights = np.asarray(heights, np.float64)
        if image_widths.shape != image_heights.shape:
            raise ArgumentError(
                f"Buckets.numbers(widths, heights): {len(image_widths):,} and {len(image_heights):,}, expected as many"
            )
        areas = image_widths * image_heights
        aspects = sorted({width / height for height, width in self.all_sizes})
        image_aspects = image_widths / image_heights
        nearest = np.searchsorted(_middles(aspects), image_aspects, side="left")
        numbers = np.empty(areas.shape, np.uint8)
        for place, aspect in enumerate(aspects):
            rows = nearest == place
            numbers[rows] = self._nearest_in_area(aspect, areas[rows])
        return numbers

    def _nearest_in_area(self, aspect: float, areas: F64) -> U8:
        """uint8 (N,): of the buckets of a shape, those whose areas are nearest in ratio."""
        same_shape = sorted(
            (height * width, bucket)
            for bucket, (height, width) in enumerate(self.all_sizes)
            if width / height == aspect
        )
        bucket_areas = [area for area, _ in same_shape]
        buckets = np.array([bucket for _, bucket in same_shape], np.uint8)
        numbers: U8 = buckets[
            np.searchsorted(_middles(bucket_areas), areas, side="left")
        ]
        return numbers


def _middles(values: Sequence[float]) -> F64:
    """Geometric means of neighbours, of ascending values. Multiplication, division and square roots are rounded in the
    same way on every machine, logarithms are not."""
    ascending = np.array(values, np.float64)
    middles: F64 = np.sqrt(ascending[:-1] * ascending[1:])
    return middles


Batches = Literal["shuffled", "stratified"]
ScheduleUnit = Literal["epoch", "step", "sample"]
Between = Literal["constant", "linear"]
DropLast = bool | Literal["exact", "even"]


@dataclass(frozen=True)
class MixtureSchedule:
    """How the weights of a mixture change: `mix([("shards/a", {0: 0.9, 30: 0.5}), ("shards/b", 0.1)])`.

    Attributes:
        points: Ascending whole numbers of units, the first of them 0.
        weights: By point, one of each data set, of which not all are 0; the last ones hold without end.
        by: What points count.
        between: "constant": a point's weights hold until the next one. "linear": they change towards those of the next.
    """

    points: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    by: ScheduleUnit
    between: Between

    def shares_at(self, point: float) -> tuple[float, ...]:
        """The shares of the data sets at a point, which may lie between two units."""
        piece = bisect_right(self.points, point) - 1
        weights = np.array(self.weights[piece], np.float64)
        if self.between == "linear" and piece + 1 < len(self.points):
            begin = self.points[piece]
            end = self.points[piece + 1]
            progress = (point - begin) / (end - begin)
            weights += (np.array(self.weights[piece + 1]) - weights) * progress
        shares: list[float] = (weights / weights.sum()).tolist()
        return tuple(shares)


@dataclass(frozen=True)
class Mixture:
    """Data sets and their shares (which sum to 1), for `DaliIterator(data=…)`. Made by `mix`.

    Each data set is read pass after pass in its own order; which of them the next sample comes from depends on (seed,
    position), or with stratified batches on the position alone. An epoch is as long as all of them together, and
    continues where the last one stopped.

    Attributes:
        datasets: In the order in which `mix` got them.
        shares: Of samples, by data set; they sum to 1.
        batches: "shuffled" draws the data set of each sample; "stratified" gives every batch the same share of each.
        schedule: How the shares change, where `shares` are those of the beginning; None where they do not.
    """

    datasets: tuple[Dataset, ...]
    shares: tuple[float, ...]
    batches: Batches = "shuffled"
    schedule: MixtureSchedule | None = None

    def __len__(self) -> int:
        """Samples in an epoch: those of all data sets together."""
        return sum(map(len, self.datasets))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class by its number, the same in all of them."""
        return self.datasets[0].classes

    @property
    def num_classes(self) -> int | None:
        """As `Dataset.num_classes`: the largest of the data sets'."""
        counts = [dataset.num_classes for dataset in self.datasets]
        return max((count for count in counts if count is not None), default=None)

    @property
    def fingerprint(self) -> str:
        """Changes when one of the data sets, their sequence, a share, `batches` or the schedule changes."""
        content: list[Any] = [
            [dataset.fingerprint for dataset in self.datasets],
            self.shares,
        ]
        # Sets that were mixed before there was a choice keep their fingerprints.
        if self.batches != "shuffled":
            content.append(self.batches)
        if self.schedule is not None:
            content.append(list(astuple(self.schedule)))
        return digest(json.dumps(content).encode())

    @checked("Mixture.shares_at", point=checks.number(0, 1e15, "a point from 0"))
    def shares_at(self, point: float) -> tuple[float, ...]:
        """The shares of the data sets at a point of their schedule, in its unit.

        Args:
            point: An epoch, a step or a number of samples, as `mix(by=…)`; it may lie between two of them.

        Raises:
            ArgumentError: It is no number from 0.
        """
        return self.shares if self.schedule is None else self.schedule.shares_at(point)

    @property
    def folder(self) -> str:
        """The folders, for messages."""
        return " + ".join(str(dataset.folder) for dataset in self.datasets)


_WEIGHT = checks.number(POSITIVE, checks.LARGEST, "")
_POINT_WEIGHT = checks.number(0, checks.LARGEST, "")
_MOST_POINTS = 10_000
_POINT = checks.whole(0, 10**15)


def _as_weight(value: Any) -> dict[int, float] | float:
    """A weight, or those by the points of a schedule, in their sequence."""
    if not isinstance(value, Mapping):
        return _WEIGHT.read(value)
    weights = {
        _POINT.read(point): _POINT_WEIGHT.read(weight)
        for point, weight in value.items()
    }
    if 0 not in weights or len(weights) > _MOST_POINTS or not any(weights.values()):
        raise ValueError
    return dict(sorted(weights.items()))


def _as_parts(value: Any) -> tuple[tuple[Any, dict[int, float] | float], ...]:
    pairs = list(map(checks.as_items, checks.as_items(value)))
    if not pairs:
        raise ValueError
    return tuple(
        (
            data if isinstance(data, Dataset) else LOCATION.read(data),
            _as_weight(weight),
        )
        for data, weight in pairs
    )


Weight = float | Mapping[int, float]


@checked(
    "mix",
    parts=checks.Rule(
        'pairs of a data set and a weight above 0 and up to 1e6, such as [("shards/a", 0.7), ("shards/b", 0.3)], or of '
        "a data set and weights from 0 by the points where they begin, such as {0: 0.7, 10: 0.5}, at most 10,000 and "
        "one of them 0",
        _as_parts,
    ),
    batches=checks.choice(*get_args(Batches)),
    by=checks.choice(*get_args(ScheduleUnit)),
    between=checks.choice(*get_args(Between)),
)
def mix(
    parts: Sequence[tuple[str | Path | Dataset, Weight]],
    *,
    batches: Batches = "shuffled",
    by: ScheduleUnit = "epoch",
    between: Between = "constant",
) -> Mixture:
    """Mixes data sets by weights: `mix([("shards/a", 0.7), ("shards/b", 0.3)])`.

    Weights that change are dicts: `mix([("shards/a", {0: 0.9, 30: 0.5}), ("shards/b", 0.1)])`. A weight of 0 means that
    no sample of the data set comes until the next point.

    Args:
        parts: Data sets, as packed folders, URLs or `Dataset`s, each with its weight; the weights are divided by their
            sum.
        batches: "shuffled", each position of a batch draws its data set at random; of any 4,096 samples that start at a
            multiple of 4,096, each data set gives exactly its share, rounded to whole samples. "stratified", each batch
            holds the shares: exactly where those of all data sets are whole numbers of a batch of all ranks together,
            else rounded up or down (of n data sets, off by less than n - 1). The same holds for a rank's part of it.
        by: What the points of weights that change count, from the beginning of the run: "epoch"; "step", a batch of all
            ranks; "sample", of all ranks. With steps, and with epochs where `steps_per_epoch` is given, a run resumes
            only with as many samples in a unit.
        between: "constant", weights hold until the next point; "linear", they change towards those of the next point,
            in steps of 4,096 samples.

    Raises:
        ArgumentError: no data sets, a weight that is not above 0, weights that are all 0 at a point, or data sets whose
            classes differ.
    """
    datasets = tuple(
        part if isinstance(part, Dataset) else Dataset(part) for part, _ in parts
    )
    for dataset in datasets[1:]:
        if dataset.classes != datasets[0].classes:
            raise ArgumentError(
                f"mix: {dataset.folder} has other classes than {datasets[0].folder} ({dataset.classes} and "
                f"{datasets[0].classes}), so their labels mean different things. Pack them with the same class folders"
            )
    weights = [weight for _, weight in parts]
    fixed = [weight for weight in weights if not isinstance(weight, Mapping)]
    if len(fixed) == len(weights):
        shares = tuple(weight / sum(fixed) for weight in fixed)
        return Mixture(datasets, shares, batches)
    schedule = _make_schedule(weights, by, between)
    return Mixture(datasets, schedule.shares_at(0), batches, schedule)


def _make_schedule(
    weights: Sequence[Weight], by: ScheduleUnit, between: Between
) -> MixtureSchedule:
    """The schedule of all data sets, at every point that one of them has."""
    by_point = [
        weight if isinstance(weight, Mapping) else {0: weight} for weight in weights
    ]
    points = tuple(sorted(set().union(*by_point)))
    of_points = tuple(
        tuple(_weight_at(weights, point, between) for weights in by_point)
        for point in points
    )
    for point, of_point in zip(points, of_points, strict=True):
        if not any(of_point):
            raise ArgumentError(
                f"mix: at {by} {point:,} all weights are 0, expected one above it. Raise one of them"
            )
    return MixtureSchedule(points, of_points, by, between)


def _weight_at(own: Mapping[int, float], point: int, between: Between) -> float:
    """The weight of one data set at a point of another's.

    Args:
        own: In the sequence of its points.
    """
    starts = list(own)
    place = bisect_right(starts, point) - 1
    begin = starts[place]
    if between == "constant" or place + 1 == len(starts):
        return own[begin]
    end = starts[place + 1]
    progress = (point - begin) / (end - begin)
    change = own[end] - own[begin]
    return own[begin] + change * progress
