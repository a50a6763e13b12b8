"""Histograms of what images are like, with the same bins for all splits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_BINS = 28
_FEW = 12  # different values that get a bar each
_NICE = (1, 2, 2.5, 5, 10)


def histogram(title: str, unit: str, values: Sequence[npt.NDArray[Any]], names: Sequence[str]) -> dict[str, Any]:
    """Of the values of each split: bins of a round width between the outermost half percents, and two of what is
    beyond; or where there are few different values, a bin for each."""
    joined = np.concatenate([np.asarray(part, np.float64) for part in values])
    joined = joined[np.isfinite(joined)]
    found: dict[str, Any] = {"title": title, "unit": unit, "bins": [], "series": []}
    if not len(joined):
        return found
    different = np.unique(joined[:: max(1, len(joined) // 200_000)])
    if len(different) <= _FEW and np.isin(joined, different).all():
        edges = np.append(different, np.inf)
        labels = [_number(value) for value in different.tolist()]
    else:
        low, high = np.percentile(joined, [0.5, 99.5])
        step = _round_up((high - low) / (_BINS - 2) if high > low else max(abs(high), 1) / _BINS)
        if np.array_equal(joined, np.rint(joined)):  # no bin without a whole number in it
            step = max(1.0, np.ceil(step))
        inner = np.arange(np.floor(low / step), np.ceil(high / step) + 1) * step
        edges = np.concatenate([[-np.inf] if joined.min() < inner[0] else [], inner, [np.inf]])
        labels = [_range(one, other) for one, other in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
        if joined.max() < inner[-1]:
            edges, labels = edges[:-1], labels[:-1]
    found["bins"] = labels
    for name, part in zip(names, values, strict=True):
        part = np.asarray(part, np.float64)
        part = part[np.isfinite(part)]
        places = np.clip(np.searchsorted(edges, part, side="right") - 1, 0, len(labels) - 1)
        counts = np.bincount(places, minlength=len(labels))
        quartiles = np.percentile(part, [0, 50, 100]).tolist() if len(part) else [0, 0, 0]
        found["series"].append(
            {
                "split": name,
                "counts": counts.tolist(),
                "smallest": quartiles[0],
                "median": quartiles[1],
                "largest": quartiles[2],
            }
        )
    return found


def _round_up(width: float) -> float:
    """The next round number: 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(max(width, 1e-9)))
    return float(next(nice * power for nice in _NICE if nice * power >= width * 0.999))


def _range(low: float, high: float) -> str:
    if np.isneginf(low):
        return f"under {_number(high)}"
    if np.isposinf(high):
        return f"{_number(low)} and more"
    return f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"
