"""The table as a bar chart: images/s of each loader, warm and cold, and what decoding alone makes."""

import json
import sys
from pathlib import Path
from typing import Any

from benchmark.contenders import CONTENDERS

OWN, OTHER, COLD = "#12a594", "#9aa0a6", 0.55
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
    height = 0.72 / len(kinds)
    # The line of the ceiling, too: its words, far beyond the axes, would leave no room for these.
    most = max(
        [row["images_per_s_max"] for row in rows]
        + ([ceiling["images_per_s"]] if ceiling else [])
    )
    for number, (prefix, label) in enumerate(kinds):
        own = [row for row in ordered if row[f"{prefix}images_per_s"] is not None]
        places = [
            ordered.index(row) + (len(kinds) - 1) * height / 2 - number * height
            for row in own
        ]
        values = [row[f"{prefix}images_per_s"] for row in own]
        errors = [
            [
                row[f"{prefix}images_per_s"] - row[f"{prefix}images_per_s_min"]
                for row in own
            ],
            [
                row[f"{prefix}images_per_s_max"] - row[f"{prefix}images_per_s"]
                for row in own
            ],
        ]
        colors = [
            OWN if row["name"].split("-")[0] == "gpuload" else OTHER for row in own
        ]
        axes.barh(
            places,
            values,
            height,
            color=colors,
            alpha=COLD if number else 1,
            label=label,
        )
        axes.errorbar(
            values,
            places,
            xerr=errors,
            fmt="none",
            ecolor=ink,
            elinewidth=1,
            capsize=2.5,
        )
        for place, row in zip(places, own, strict=True):
            stands_out = row["name"] == "gpuload" and not number
            axes.text(
                row[f"{prefix}images_per_s_max"] + 0.012 * most,
                place,
                f"{row[f'{prefix}images_per_s']:,.0f}",
                va="center",
                color=OWN if stands_out else ink,
                weight="bold" if stands_out else "normal",
                size=13 if stands_out else 10,
            )
    if ceiling:
        # Behind the bars, named above them, where it hides nothing.
        axes.axvline(
            ceiling["images_per_s"],
            color=ink,
            linestyle=(0, (4, 3)),
            linewidth=1.2,
            zorder=0,
        )
        what = f"{ceiling['what']}, nothing else: {ceiling['images_per_s']:,.0f}"
        axes.annotate(
            what, (ceiling["images_per_s"], 1), (0, 4), ("data", "axes fraction"), "offset points",
            ha="center", va="bottom", color=ink, size=10,
        )  # fmt: skip
    axes.set_yticks(
        range(len(ordered)),
        [CONTENDERS[row["name"]].what for row in ordered],
        size=11,
        color=ink,
    )
    for tick, row in zip(axes.get_yticklabels(), ordered, strict=True):
        if row["name"] == "gpuload":
            tick.set(weight="bold", color=OWN, size=13)
    axes.set_xlabel("images/s; lines: lowest and highest round", color=ink, size=10)
    axes.tick_params(axis="x", colors=ink)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, most * 1.13)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(ink)
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


def main() -> int:
    """python tools/benchmark/plot.py RECORD.json PNG [dark]: the plot of a record, drawn again."""
    record, path = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
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
