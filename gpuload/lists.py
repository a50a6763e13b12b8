"""Lists whose values lie one after another in one array: where each begins, and which list and place each value has."""

import numpy as np
import numpy.typing as npt

from gpuload.types import I64

Counts = npt.NDArray[np.integer]  # the length of each list


def starts_of(counts: Counts) -> I64:
    """Where each list begins. Lengths 2, 0 and 1 give 0, 2, 2."""
    starts: I64 = np.cumsum(counts) - counts
    return starts


def bounds_of(counts: Counts) -> I64:
    """Where each list begins, and where the last one ends. Lengths 2, 0 and 1 give 0, 2, 2, 3."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def owners_of(counts: Counts) -> I64:
    """The number of the list of each value. Lengths 2, 0 and 1 give 0, 0, 2."""
    return np.repeat(np.arange(len(counts)), counts)


def places_of(counts: Counts) -> I64:
    """The place of each value in its list. Lengths 2, 0 and 1 give 0, 1, 0."""
    return spread(np.zeros(len(counts), np.int64), counts)


def spread(starts: I64, counts: Counts) -> I64:
    """So many numbers in turn from each start. 5 and 2, 8 and 1 give 5, 6, 8."""
    shifts = starts - starts_of(counts)
    return np.repeat(shifts, counts) + np.arange(int(counts.sum()))
