"""The table as a bar chart: images/s of each loader, warm and cold, and what decoding alone makes."""

import json
import sys
from pathlib import Path
from typing import Any

from timing.contenders import CONTENDERS

OWN = "#12a594"
OTHER = "#9aa0a6"
COLD = 0.55
# The colours of text and lines: on a white page, and on a dark one.
INK = {False: "#24292f", True: "#e6edf3"}


def plot(
    rows: list[dict[str, Any]],
    ceiling: dict[str, Any] | None,
    title: str,
    path: Path,
    dark: bool = False,
) -> None:
    """Writes a PNG with a transparent background: bars, the fastest on top, with the range of their rounds.

    dark: for a dark page. The line shows what a library makes that decodes whole images and does nothing else; a loader
    that decodes only what a crop shows may pass it.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ink = INK[dark]
    ordered = sorted(rows, key=lambda row: row["images_per_s"])
    kinds = [("", "warm page cache")]
    if any(row["cold_images_per_s"] for row in rows):
        kinds.append(("cold_", "cold page cache"))
    figure, axes = pyplot.subplots(
        figsize=(9, 1.6 + 0.42 * len(rows)), layout="constrained"
    )
    # The line of the ceiling, too: its words, far beyond the axes, would leave no room for these.
    highest = max(row["images_per_s_max"] for row in rows)
    if ceiling:
        highest = max(highest, ceiling["images_per_s"])
    for number, (prefix, label) in enumerate(kinds):
        bars = _Bars(ordered, prefix, number, len(kinds))
        bars.draw(axes, label, ink)
        bars.write_rates(axes, ink, 0.012 * highest)
    if ceiling:
        _draw_ceiling(axes, ceiling, ink)
    _style_axes(axes, ordered, ink)
    axes.set_xlim(0, highest * 1.13)
    figure.suptitle(title, size=11, color=ink, wrap=True)
    if len(kinds) > 1:
        figure.legend(
            loc="outside lower center",
            ncols=2,
            frameon=False,
            labelcolor=ink,
            fontsize=10,
        )
    figure.savefig(path, dpi=130, transparent=True)
    pyplot.close(figure)


class _Bars:
    """The bars of the loaders that have figures of one kind.

    Args:
        ordered: The rows of the table, from the lowest bar to the highest.
        prefix: Of the names of these figures.
        number: Of the kind.
        kinds: How many there are.
    """

    def __init__(
        self, ordered: list[dict[str, Any]], prefix: str, number: int, kinds: int
    ) -> None:
        self._is_first = number == 0
        self._height = 0.72 / kinds
        self._name = f"{prefix}images_per_s"
        self._rows = [row for row in ordered if row[self._name] is not None]
        middle = (kinds - 1) * self._height / 2 - number * self._height
        self._places = [ordered.index(row) + middle for row in self._rows]

    def draw(self, axes: Any, label: str, ink: str) -> None:
        """Draws the bars, with the range of their rounds."""
        rates = [row[self._name] for row in self._rows]
        below = [row[self._name] - row[f"{self._name}_min"] for row in self._rows]
        above = [row[f"{self._name}_max"] - row[self._name] for row in self._rows]
        loaders = [row["name"].split("-")[0] for row in self._rows]
        axes.barh(
            self._places,
            rates,
            self._height,
            color=[OWN if loader == "gpuload" else OTHER for loader in loaders],
            alpha=1 if self._is_first else COLD,
            label=label,
        )
        axes.errorbar(
            rates,
            self._places,
            xerr=[below, above],
            fmt="none",
            ecolor=ink,
            elinewidth=1,
            capsize=2.5,
        )

    def write_rates(self, axes: Any, ink: str, gap: float) -> None:
        """Writes the images/s beside each bar."""
        for place, row in zip(self._places, self._rows, strict=True):
            stands_out = row["name"] == "gpuload" and self._is_first
            axes.text(
                row[f"{self._name}_max"] + gap,
                place,
                f"{row[self._name]:,.0f}",
                va="center",
                color=OWN if stands_out else ink,
                weight="bold" if stands_out else "normal",
                size=13 if stands_out else 10,
            )


def _draw_ceiling(axes: Any, ceiling: dict[str, Any], ink: str) -> None:
    """Draws the line behind the bars, named above them, where it hides nothing."""
    rate = ceiling["images_per_s"]
    axes.axvline(rate, color=ink, linestyle=(0, (4, 3)), linewidth=1.2, zorder=0)
    axes.annotate(
        f"{ceiling['what']}, nothing else: {rate:,.0f}",
        (rate, 1),
        (0, 4),
        ("data", "axes fraction"),
        "offset points",
        ha="center",
        va="bottom",
        color=ink,
        size=10,
    )


def _style_axes(axes: Any, ordered: list[dict[str, Any]], ink: str) -> None:
    """Names the loaders, and leaves out what says nothing."""
    names = [CONTENDERS[row["name"]].what for row in ordered]
    axes.set_yticks(range(len(ordered)), names, size=11, color=ink)
    for tick, row in zip(axes.get_yticklabels(), ordered, strict=True):
        if row["name"] == "gpuload":
            tick.set(weight="bold", color=OWN, size=13)
    axes.set_xlabel("images/s; lines: lowest and highest round", color=ink, size=10)
    axes.tick_params(axis="x", colors=ink)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(ink)


def main() -> int:
    """python benchmarks/timing/plot.py RECORD.json PNG [dark]: the plot of a record, drawn again."""
    record = json.loads(Path(sys.argv[1]).read_text())
    path = Path(sys.argv[2])
    plot(
        record["loaders"],
        record["ceiling"],
        record["setting"],
        path,
        "dark" in sys.argv[3:],
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
