"""Random numbers that are a pure function of a key and a counter, and the table of who uses which.

Order, crops and the packer's shuffle draw from here, never from a generator with a state: whichever process asks, and
whatever was drawn before, (seed, epoch, sample, draw number) gives the same number. It does not depend on NumPy's
generators, whose streams may change between versions (NEP 19).

The function is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with
the constants of Vigna's splitmix64.c): the k-th output is a 64-bit finaliser of `key + k * GAMMA`, so that any of them
is available without those before it. Unsigned 64-bit arithmetic wraps in the same way on every machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gpuload.errors import ArgumentError
from gpuload.types import F64, I64, U64

# draws(k): float64 (N,) in [0, 1), random number k of each of N samples.
Draws = Callable[[int], F64]

# What a key is for: one word of it, so that no two purposes share random numbers. The values are part of the disk
# format (see gpuload.disk.manifest): a new purpose gets a new value, and none is ever changed.
#
#   key                                          what is drawn                                    by
#   (seed, epoch, SHARDS)                        order of the shards of a pass                    order/epoch.py
#   (seed, epoch, SAMPLES, window)               order of the samples of a window                 order/epoch.py
#   (seed, SHARDS)                               which shards are in which lane                   order/epoch.py
#   (seed, epoch, SHARDS, lane)                  order of the shards of a lane                    order/epoch.py
#   (seed, epoch, SAMPLES, lane, window)         order of the samples of a window of a lane       order/epoch.py
#   (seed, MIXTURE, data set)                    the seed of one data set of a mixture            order/stream.py
#   (seed, MIXTURE, -1, block)                   which data set each position draws from          order/turns.py
#   (seed, epoch, AUGMENT), the first view       crop and flips: CROP_DRAWS of each sample        augment/augment.py
#   (seed, epoch, AUGMENT, view), the others     the same
#   (seed, epoch, TRANSFORM, view, transform)    TRANSFORM_DRAWS of each sample                   augment/augment.py
#   (seed, epoch, BATCH)                         BATCH_DRAWS of each sample                       read/batches.py
#   (seed, epoch, DRAWN, 0)                      offset of each group in systematic sampling      order/sampling.py
#   (seed, epoch, DRAWN, 0, groups)              which groups are drawn once more                 order/sampling.py
#   (seed, epoch, DRAWN, 1, window)              order of the drawn samples of a window           order/sampling.py
#   (seed, epoch, DRAWN, 2)                      which samples are drawn without replacement      order/sampling.py
#   (another key, REPEAT), hashed with r         the same draws for the r-th repeat of a sample   draws.each_key
#   bits number SHARE under the key with BATCH   which decoder of two decodes each sample         decode/share.py
#   (seed, epoch, FUNCTION, view)                the key of each sample's generator: bits 2i, 2i+1 augment/augment.py
#   bits number CAPTION under the key with BATCH, then those of the field's name: caption       fields/captions.py
#   (seed, SHUFFLE)                              stored order                                     packing/plan.py
#   (seed, SPLIT), and a key made of that        which samples of each class go into a split      packing/plan.py
#   (seed, MEASURE, split)                       images measured for mean and std                 packing/plan.py
#
# In a mixture, `seed` and `epoch` of a pass are those of the data set.
(
    SHARDS,
    SAMPLES,
    AUGMENT,
    MIXTURE,
    TRANSFORM,
    BATCH,
    DRAWN,
    REPEAT,
    SHARE,
    FUNCTION,
    CAPTION,
) = range(11)
SHUFFLE = 1
SPLIT = 2
MEASURE = 3


@dataclass(frozen=True)
class DrawRange:
    """Draw numbers first..first+count-1, of each sample and under one key, and who may use them."""

    owner: str
    first: int
    count: int

    def number(self, number: int) -> int:
        """The number of a draw among those of all owners.

        Args:
            number: The same among those of this owner, from 0.

        Raises:
            ArgumentError: it is not below `count`; it would be another owner's.
        """
        if not 0 <= number < self.count:
            raise ArgumentError(
                f"{self.owner}: asks for draw number {number}, expected 0..{self.count - 1}. Use fewer random numbers"
            )
        return self.first + number

    def part(self, owner: str, first: int, count: int) -> "DrawRange":
        """Own numbers first..first+count-1 of this range, for another owner.

        Raises:
            ArgumentError: they are not all in this range.
        """
        if first < 0 or first + count > self.count:
            raise ArgumentError(
                f"{owner}: needs draw numbers up to {first + count - 1}, expected 0..{self.count - 1} of {self.owner}. "
                "Use fewer of them"
            )
        return DrawRange(owner, self.first + first, count)

    def of(self, draws: Draws) -> Draws:
        """The same random numbers for the owner, who counts from 0 and gets no others."""
        return lambda number: draws(self.number(number))

    def counters(self, samples: I64, number: int) -> I64:
        """The counters of one draw for samples, int64 (N,).

        Args:
            samples: int64 (N,), their numbers in the data set; each owns `count` counters.
            number: Of the draw among those of this owner, from 0.
        """
        return samples * self.count + self.number(number)


# The draw numbers that each sample owns under a key. Like the keys, these are never changed.
CROP_DRAWS = DrawRange("a crop", 0, 64)  # which one is for what: Augment.draw
TRANSFORM_DRAWS = DrawRange("Augment(transforms): a transform", 0, 1 << 12)
BATCH_DRAWS = DrawRange("a batch", 0, 1 << 14)

# The first half of BATCH_DRAWS: those of the i-th batch transform begin at 256 i. Nothing uses the other half any more.
BATCH_TRANSFORM_DRAWS = BATCH_DRAWS.part("batch_transforms", 0, 1 << 13)
EACH_BATCH_TRANSFORM = 256

# Of the 256 of a RandomMixer, number 0 chooses; those of the i-th transform in it begin at 1 + 8 i.
CHOICE_DRAWS = DrawRange("RandomMixer", 0, EACH_BATCH_TRANSFORM)
EACH_CHOICE = 8

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_WORD = 0xFFFFFFFFFFFFFFFF


@lru_cache(
    maxsize=1024
)  # the same few for every batch of an epoch; each word costs 5 µs
def make_key(*words: int) -> int:
    """One 64-bit key out of integers, each of which changes it: (1, 0), (0, 1) and (0, 1, 0) give unrelated keys."""
    key = len(words)
    for word in words:
        key = int(random_bits(key, np.array([word & _WORD], np.uint64))[0])
    return key


def each_key(key: int, repeats: I64 | None) -> int | U64:
    """The key of each of N samples: the pass's where a sample comes first in a pass, others where it comes again.

    Args:
        key: Of the pass.
        repeats: int64 (N,), how often each came before; None: never. Without this, a sample that is drawn ten times in
            a pass would be cropped and flipped ten times in the same way.
    """
    if repeats is None or not repeats.any():
        return key
    return np.where(
        repeats == 0, np.uint64(key), random_bits(make_key(key, REPEAT), repeats)
    )


def random_bits(key: int | U64, counters: npt.NDArray[np.integer]) -> U64:
    """64 random bits for each counter, uint64.

    Args:
        key: One for all, or one for each counter.
        counters: Whole numbers of any shape, which the result has, too.
    """
    bits = (
        np.asarray(key, np.uint64)
        + (counters.astype(np.uint64) + np.uint64(1)) * _GAMMA
    )
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))


def uniform(key: int | U64, counters: npt.NDArray[np.integer]) -> F64:
    """A random number in [0, 1) for each counter, float64: multiples of 2**-53.

    Args:
        key: One for all, or one for each counter.
        counters: Whole numbers of any shape, which the result has, too.
    """
    return (random_bits(key, counters) >> np.uint64(11)) * 2.0**-53


def between(drawn: F64, low: float | F64, high: float | F64) -> F64:
    """Uniform numbers in low..high, of those in 0..1."""
    return np.asarray(low + drawn * (high - low))


def choose(drawn: F64, count: int, shares: Sequence[float] | None = None) -> I64:
    """int64: one of 0..count-1 for each number in [0, 1), as often as their shares say.

    Args:
        drawn: Uniform numbers, of any shape.
        count: Of what is chosen from.
        shares: One for each, of any sum above 0; None: equal ones.
    """
    ends = np.cumsum(np.ones(count) if shares is None else shares)
    # The last share ends at 1 whatever the rounding, and a draw is less.
    chosen: I64 = np.searchsorted(ends[:-1] / ends[-1], drawn, side="right")
    return chosen


def permutation(key: int, count: int) -> I64:
    """int64 (count,): the numbers 0..count-1 in random order, every order equally likely, by sorting random bits."""
    return np.argsort(
        random_bits(key, np.arange(count, dtype=np.uint64)), kind="stable"
    )
