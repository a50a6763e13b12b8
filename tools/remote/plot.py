"""The plot of `--only peers`: a panel for each figure, a bar for each loader with the range of its runs.

python tools/remote/plot.py RECORD.json PNG [dark]
"""

import json
import sys
from pathlib import Path
from typing import Any

OWN, OTHER = "#12a594", "#9aa0a6"
_INK = {False: "#24292f", True: "#e6edf3"}
_PANELS = (
    ("cold_images_per_s", "images/s, empty cache", 1, "{:,.0f}"),
    ("warm_images_per_s", "images/s from the cache", 1, "{:,.0f}"),
    ("bytes", "MB downloaded in an epoch", 1e-6, "{:,.0f}"),
    ("first_batch_s", "s to the first batch, empty cache", 1, "{:.2f}"),
    ("resume_cold_s", "s to resume, empty cache", 1, "{:.2f}"),
    ("resume_network_s", "s to resume over {network:.0f} MB/s", 1, "{:.2f}"),
    ("resume_network_bytes", "MB downloaded for that", 1e-6, "{:,.0f}"),
    ("resume_warm_s", "s to resume from the cache", 1, "{:.2f}"),
)


def plot(found: dict[str, Any], path: Path, dark: bool = False) -> None:
    """Writes a PNG with a transparent background. dark: for a dark page."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ink, loaders = _INK[dark], list(found["loaders"].items())[::-1]
    if not loaders:
        return
    figure, grid = pyplot.subplots(2, 4, figsize=(13, 1.9 + 0.62 * len(loaders)), layout="constrained", sharey=True)
    figure.get_layout_engine().set(hspace=0.12)  # type: ignore[union-attr]
    for axes, (name, title, factor, form) in zip(grid.flat, _PANELS, strict=True):
        values = [one[name] * factor for _, one in loaders]
        runs = [[run[name] * factor for run in one["runs"]] for _, one in loaders]
        errors = [
            [value - min(all_) for value, all_ in zip(values, runs, strict=True)],
            [max(all_) - value for value, all_ in zip(values, runs, strict=True)],
        ]
        axes.barh(range(len(loaders)), values, 0.6, color=[OWN if key == "gpuload" else OTHER for key, _ in loaders])
        axes.errorbar(values, range(len(loaders)), xerr=errors, fmt="none", ecolor=ink, elinewidth=1, capsize=2.5)
        most = max(map(max, runs))
        for place, (value, all_) in enumerate(zip(values, runs, strict=True)):
            axes.text(max(all_) + 0.03 * most, place, form.format(value), va="center", color=ink, size=10)
        axes.set_title(title.format(network=found["network_bytes_per_s"] / 1e6), size=10.5, color=ink, loc="left")
        axes.set_yticks(range(len(loaders)), [one["what"] for _, one in loaders], size=10.5, color=ink)
        axes.set_xlim(0, 1.28 * most)
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0)
        axes.spines[:].set_visible(False)
    for axes in grid[:, 0]:
        own = axes.get_yticklabels()[-1]
        own.set(weight="bold", color=OWN)
    setting = (
        f"{found['images']:,} JPEGs in {found['shards']} shards from one S3 server, {found['threads']} threads or "
        f"workers, batches of {found['batch_size']} at {found['size']}×{found['size']}; lines: lowest and highest run"
    )
    figure.supxlabel(setting, size=9.5, color=ink)
    figure.savefig(path, dpi=130, transparent=True)
    pyplot.close(figure)


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[1]).read_text())["peers"], Path(sys.argv[2]), "dark" in sys.argv[3:])
