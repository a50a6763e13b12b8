"""The table, and the facts about data and machine that are needed to judge it."""

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import gpuload
from timing.ceiling import Ceiling
from timing.contenders import CONTENDERS
from timing.course import STILL_CACHED, Result
from timing.process import Round
from timing.work import Work

_WIDE = 180  # of a table, in characters
PACKAGES = (
    "torch",
    "nvidia-dali-cuda130",
    "nvidia-dali-cuda120",
    "simplejpeg",
    "numba",
    "pillow",
    "numpy",
)


def describe(work: Work, named: Path) -> list[str]:
    """A line each about the data set, the machine and the versions."""
    dataset = gpuload.Dataset(work.folder)
    image_bytes = pixels = 0
    for shard in range(len(dataset.shard_paths)):
        rows = dataset.rows(shard)
        image_bytes += int(rows.column("image_bytes").to_numpy().sum())
        pixels += int(
            (
                rows.column("width").to_numpy().astype(int)
                * rows.column("height").to_numpy()
            ).sum()
        )
    mean_bytes = image_bytes / len(dataset)
    mean_pixels = pixels / len(dataset)
    shards = len(dataset.shard_paths)
    noun = "raw images" if work.raw else "images"
    return [
        f"{named}: {len(dataset):,} {noun} in {shards} shard{'s' * (shards > 1)}; on average "
        f"{mean_bytes / 1000:.1f} KB and {mean_pixels / 1e6:.3f} megapixels",
        *describe_machine(),
    ]


def describe_machine() -> list[str]:
    """A line each about the machine and the versions."""
    return [
        f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}{_gpu_name()}",
        f"gpuload {gpuload.__version__}, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version}" for name, version in _versions()),
    ]


def describe_ceiling(
    ceiling: Ceiling, disk_bytes_per_s: float, cached: float
) -> dict[str, Any]:
    """The ceiling as it goes into the record. cached: the share of the files that was in the page cache when read."""
    return {
        "what": ceiling.what,
        "images_per_s": ceiling.images_per_s,
        "disk_bytes_per_s": disk_bytes_per_s,
        "disk_cached_share": cached,
    }


def summarise(
    results: dict[str, Result], ceiling: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """A row per contender: medians over its rounds. Ratios to the first contender are taken round by round."""
    base = next(iter(results.values())).warm
    rows = []
    for name, outcome in results.items():
        rates = [turn.rate for turn in outcome.warm]
        ratios = [
            turn.rate / other.rate
            for turn, other in zip(outcome.warm, base, strict=True)
        ]
        rows.append(
            {
                "name": name,
                "images_per_s": median(rates),
                "images_per_s_min": min(rates),
                "images_per_s_max": max(rates),
                "ratio": median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
                "share_of_ceiling": median(rates) / ceiling["images_per_s"]
                if ceiling
                else None,
                "cpu_s_per_1000": median(
                    1000 * turn.cpu_s / turn.images for turn in outcome.warm
                ),
                "cores": median(turn.cpu_s / turn.elapsed_s for turn in outcome.warm),
                "memory_bytes": outcome.memory_bytes,
                "first_batch_s": outcome.first.first_batch_s if outcome.first else None,
                "resume_s": outcome.examined.resume_s if outcome.examined else None,
                "resumes": outcome.examined.resumes if outcome.examined else None,
                "resumed_after_images": outcome.examined.middle * outcome.first.shape[0]
                if outcome.examined and outcome.first
                else None,
                **_cold(outcome.cold, outcome.cached_share),
                "versions": outcome.versions,
                "delivers": outcome.examined._asdict() if outcome.examined else None,
                "rounds": [asdict(turn) for turn in outcome.warm],
                "cold_rounds": [asdict(turn) for turn in outcome.cold],
            }
        )
    return rows


def _cold(rounds: list[Round], cached_share: float) -> dict[str, Any]:
    rates = [turn.rate for turn in rounds]
    return {
        "cold_images_per_s": median(rates) if rates else None,
        "cold_images_per_s_min": min(rates, default=None),
        "cold_images_per_s_max": max(rates, default=None),
        "cold_cached_share": cached_share,
    }


def _cells(row: dict[str, Any], first: str) -> dict[str, str]:
    """The cells of a loader, by the heads of their columns. first: the loader that others are compared with."""
    cpu_s = row["cpu_s_per_1000"]
    still_cached = row["cold_cached_share"] > STILL_CACHED
    reads_again = row["resumes"] == "reads again"
    return {
        "images/s": f"{row['images_per_s']:,.0f}",
        "min–max": f"{row['images_per_s_min']:,.0f}–{row['images_per_s_max']:,.0f}",
        f"times {first}": f"{row['ratio']:.2f}",
        "times decoding alone": _show(row["share_of_ceiling"], "{:.2f}"),
        "cold": _show(row["cold_images_per_s"], "{:,.0f}")
        + ("*" if still_cached else ""),
        "cold min–max": _range(
            row["cold_images_per_s_min"], row["cold_images_per_s_max"]
        ),
        "CPU s per 1,000": f"{cpu_s:.2f}" if cpu_s > 0.1 else f"{cpu_s:.4f}",
        "cores": f"{row['cores']:.2f}",
        "memory": f"{row['memory_bytes'] / 1e6:,.0f} MB",
        "first batch": _show(row["first_batch_s"], "{:.2f} s"),
        "resume": _show(row["resume_s"], "{:.2f} s") + ("†" if reads_again else ""),
    }


def make_table(rows: list[dict[str, Any]], title: str) -> Table:
    """The table, without columns that have no figure for any loader."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("loader")
    cells_of_rows = [_cells(row, rows[0]["name"]) for row in rows]
    columns = {
        head: [cells[head] for cells in cells_of_rows] for head in cells_of_rows[0]
    }
    shown = {head: cells for head, cells in columns.items() if any(cells)}
    for head in shown:
        table.add_column(head, justify="right")
    for number, row in enumerate(rows):
        table.add_row(
            CONTENDERS[row["name"]].what, *(cells[number] for cells in shown.values())
        )
    return table


def print_report(
    rows: list[dict[str, Any]],
    title: str,
    lines: list[str],
    ceiling: dict[str, Any] | None,
) -> None:
    # A table that is wrapped at 80 columns cannot be read.
    console = Console(width=_WIDE, soft_wrap=True)
    for line in lines:
        console.print(line, highlight=False)
    console.print(make_table(rows, title))
    if ceiling:
        cached = (
            f", of which {ceiling['disk_cached_share']:.0%} came from the cache"
            * (ceiling["disk_cached_share"] > STILL_CACHED)
        )
        console.print(
            f"Decoding alone: {ceiling['images_per_s']:,.0f} images/s ({ceiling['what']}); a loader that decodes only "
            f"what a crop shows may be above it. Disk read at {ceiling['disk_bytes_per_s'] / 1e9:.2f} GB/s{cached}",
            highlight=False,
        )
    if any(row["resumes"] == "reads again" for row in rows):
        console.print(
            "† has no state to resume from: the time to read up to there again",
            highlight=False,
        )
    if any(row["cold_cached_share"] > STILL_CACHED for row in rows):
        console.print(
            "* not cold: the page cache kept some of the data", highlight=False
        )


def _show(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _range(low: float | None, high: float | None) -> str:
    return "" if low is None else f"{low:,.0f}–{high:,.0f}"


def _versions() -> list[tuple[str, str]]:
    parts = []
    for name in PACKAGES:
        try:
            parts.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return parts


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as file:
        names = [
            line.partition(":")[2].strip()
            for line in file
            if line.startswith("model name")
        ]
    return names[0] if names else platform.machine()


def _gpu_name() -> str:
    import torch

    return (
        f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    )
