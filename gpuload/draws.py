"""Random numbers that are a pure function of a key and a counter.

Order, crops and the packer's shuffle draw from here, never from a generator with a state: whichever process asks, and
whatever was drawn before, (seed, epoch, sample, draw) gives the same number. It does not depend on NumPy's generators,
whose streams may change between versions (NEP 19).

The function is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with
the constants of Vigna's splitmix64.c): the k-th output is a 64-bit finaliser of `key + k * GAMMA`, so that any k can be
had at once. Unsigned 64-bit arithmetic wraps alike everywhere.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gpuload.types import U64

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_WORD = 0xFFFFFFFFFFFFFFFF


@lru_cache(maxsize=4096)  # the same few for every batch of an epoch; each word costs 5 µs
def make_key(*words: int) -> int:
    """One 64-bit key out of integers, each of which changes it: (1, 0), (0, 1) and (0, 1, 0) give unrelated keys."""
    key = len(words)
    for word in words:
        key = int(random_bits(key, np.array([word & _WORD], np.uint64))[0])
    return key


def random_bits(key: int | U64, counters: npt.NDArray[np.integer]) -> U64:
    """uint64, in the shape of `counters`: 64 random bits for each. key: one for all, or one for each."""
    bits = np.asarray(key, np.uint64) + (counters.astype(np.uint64) + np.uint64(1)) * _GAMMA
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    result: U64 = bits ^ (bits >> np.uint64(31))
    return result


def uniform(key: int | U64, counters: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """float64 in [0, 1), in the shape of `counters`: multiples of 2**-53."""
    result: npt.NDArray[np.float64] = (random_bits(key, counters) >> np.uint64(11)) * 2.0**-53
    return result


def permutation(key: int, count: int) -> npt.NDArray[np.int64]:
    """int64 (count,): the numbers 0..count-1, each order as likely as any other, by sorting random bits."""
    return np.argsort(random_bits(key, np.arange(count, dtype=np.uint64)), kind="stable")
