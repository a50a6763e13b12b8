"""The table as a bar chart: images/s of each loader, warm and cold, and the ceiling."""

from pathlib import Path
from typing import Any

from benchmark.contenders import CONTENDERS


def plot(rows: list[dict[str, Any]], ceiling: dict[str, Any] | None, title: str, path: Path) -> None:
    """Writes a PNG: bars, the fastest on top, with the minimum and maximum of their rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ordered = sorted(rows, key=lambda row: row["images_per_s"])
    kinds = [("", "warm page cache")]
    if any(row["cold_images_per_s"] for row in rows):
        kinds.append(("cold_", "cold page cache"))
    figure, axes = pyplot.subplots(figsize=(10, 1.5 + 0.5 * len(rows)), layout="constrained")
    height = 0.8 / len(kinds)
    for number, (prefix, label) in enumerate(kinds):
        own = [row for row in ordered if row[f"{prefix}images_per_s"] is not None]
        places = [ordered.index(row) + (len(kinds) - 1) * height / 2 - number * height for row in own]
        values = [row[f"{prefix}images_per_s"] for row in own]
        errors = [
            [row[f"{prefix}images_per_s"] - row[f"{prefix}images_per_s_min"] for row in own],
            [row[f"{prefix}images_per_s_max"] - row[f"{prefix}images_per_s"] for row in own],
        ]
        bars = axes.barh(places, values, height, xerr=errors, label=label, color=f"C{number}", ecolor="0.4")
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the line of the ceiling may cross the label
        axes.bar_label(bars, labels=[f"{value:,.0f}" for value in values], padding=12, fontsize=8, bbox=behind)
    if ceiling:
        axes.axvline(ceiling["images_per_s"], color="0.3", linestyle="--", label=f"ceiling: {ceiling['what']}")
    axes.set_yticks(range(len(ordered)), [CONTENDERS[row["name"]].what for row in ordered])
    axes.set_xlabel("images/s")
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    axes.set_title(title, fontsize=9)
    axes.legend(loc="lower right", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
