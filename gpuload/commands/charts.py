"""A bar chart beside a record of measurements, where matplotlib is installed."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from statistics import median

_FIRST, _OTHER, _INK = "#12a594", "#9aa0a6", "#24292f"


def bars(
    rows: Sequence[tuple[str, Sequence[float]]],
    title: str,
    unit: str,
    path: Path,
    *,
    highlight: str = "",
    limits: Sequence[float] = (),
    form: str = "{:,.0f}",
) -> bool:
    """Writes a PNG: a bar for each row, of the median of its values, with a line from the lowest to the highest.

    rows: label and values, from top to bottom. highlight: the label that stands out. limits: a mark for each row, such
    as a target, on a logarithmic scale. Returns False, and writes nothing, without matplotlib or without rows.
    """
    if importlib.util.find_spec("matplotlib") is None or not rows:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.3 + 0.42 * len(rows)), layout="constrained")
    places = list(range(len(rows)))[::-1]
    middles = [median(values) for _, values in rows]
    colors = [_FIRST if label == highlight else _OTHER for label, _ in rows]
    errors = [
        [middle - min(values) for middle, (_, values) in zip(middles, rows, strict=True)],
        [max(values) - middle for middle, (_, values) in zip(middles, rows, strict=True)],
    ]
    axes.barh(places, middles, 0.66, color=colors)
    axes.errorbar(middles, places, xerr=errors, fmt="none", ecolor=_INK, elinewidth=1, capsize=2.5)
    if limits:
        axes.set_xscale("log")
        axes.plot(limits, places, "|", color="#c03030", markersize=20, markeredgewidth=2.5)
    ends = [max(max(values), limit) for (_, values), limit in zip(rows, limits or [0.0] * len(rows), strict=True)]
    for place, middle, end in zip(places, middles, ends, strict=True):
        axes.annotate(form.format(middle), (end, place), (7, 0), textcoords="offset points", va="center", size=10)
    axes.set_yticks(places, [label for label, _ in rows], size=10)
    axes.set_xlabel(unit, size=10)
    if limits:
        axes.set_xlim(min(middles) / 3, max(ends) * 6)
    else:
        axes.set_xlim(0, max(ends) * 1.16)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle(title, size=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True
