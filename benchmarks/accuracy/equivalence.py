"""Whether two loaders' models are equally good: paired differences and two one-sided tests."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARGIN = 0.005
_LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """The accuracies of a loader on a set, and their differences from those of the reference, seed by seed.

    Args:
        runs: How many seeds both have.
        accuracy: Mean, in 0..1.
        accuracy_error: Half of its 95 % interval; NaN of a single run.
        difference: Mean of the paired differences; 0 for the reference itself.
        difference_error: Half of its 90 % interval, which the two one-sided tests of 5 % each compare with the margin.
    """

    runs: int
    accuracy: float
    accuracy_error: float
    difference: float
    difference_error: float

    @property
    def is_equivalent(self) -> bool:
        """Whether the 90 % interval of the difference lies within the margin, by the two one-sided tests."""
        return abs(self.difference) + self.difference_error < MARGIN


def compare(
    rows: Iterable[dict[str, Any]], reference: str, key: str = "accuracy"
) -> dict[tuple[str, str], Comparison]:
    """A comparison for each (set, loader), of the seeds that the reference has, too."""
    accuracies: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in rows:
        accuracies[row["set"], row["loader"]][row["seed"]] = row[key]
    comparisons = {}
    for (name, loader), by_seed in accuracies.items():
        reference_by_seed = accuracies.get((name, reference), {})
        seeds = sorted(set(by_seed) & set(reference_by_seed))
        if not seeds:
            continue
        values = np.array([by_seed[seed] for seed in seeds])
        differences = values - [reference_by_seed[seed] for seed in seeds]
        comparisons[name, loader] = Comparison(
            len(seeds),
            float(values.mean()),
            _error(values, 1 - _LEVEL),
            float(differences.mean()),
            _error(differences, 1 - 2 * _LEVEL),
        )
    return comparisons


def table_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The heads and the rows of a table, in the order in which sets and loaders first come among the runs."""
    reference = rows[0]["loader"] if rows else ""
    table = [["set", "loader", "seeds", "accuracy", "difference", "equally good"]]
    comparisons = compare(rows, reference)
    sets = list(dict.fromkeys(name for name, _ in comparisons))
    for name, loader in sorted(comparisons, key=lambda pair: sets.index(pair[0])):
        figures = comparisons[name, loader]
        accuracy = f"{figures.accuracy:.1%} ± {figures.accuracy_error:.1%}"
        difference = ""
        verdict = ""
        if loader != reference:
            difference = f"{figures.difference:+.2%} ± {figures.difference_error:.2%}"
            verdict = "yes" if figures.is_equivalent else "not shown"
        table.append([name, loader, str(figures.runs), accuracy, difference, verdict])
    return table


def _error(values: NDArray[np.float64], confidence: float) -> float:
    """Half of the interval of the mean, by Student's t."""
    if len(values) < 2:
        return float("nan")
    from scipy import stats  # a second, which those who read figures need not wait

    quantile = stats.t.ppf((1 + confidence) / 2, len(values) - 1)
    return float(quantile * stats.sem(values))
