"""The table, and what one must know to judge it."""

import importlib.metadata
import os
import platform
from dataclasses import asdict
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import gpuload
from benchmark.contenders import CONTENDERS
from benchmark.process import First, Round
from benchmark.work import Work

PACKAGES = ("torch", "nvidia-dali-cuda130", "nvidia-dali-cuda120", "pillow", "numpy")


def describe(work: Work) -> list[str]:
    """The data set, the machine, the versions: a line each."""
    dataset = gpuload.Dataset(work.folder)
    image_bytes = pixels = 0
    for shard in range(len(dataset.shard_paths)):
        rows = dataset.rows(shard)
        image_bytes += int(rows.column("image_bytes").to_numpy().sum())
        pixels += int((rows.column("width").to_numpy().astype(int) * rows.column("height").to_numpy()).sum())
    mean_bytes, mean_pixels = image_bytes / len(dataset), pixels / len(dataset)
    return [
        f"{work.folder}: {len(dataset):,} images in {len(dataset.shard_paths)} shards; on average "
        f"{mean_bytes / 1000:.1f} KB and {mean_pixels / 1e6:.3f} megapixels",
        f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}{_gpu_name()}",
        f"Python {platform.python_version()}, " + ", ".join(f"{name} {version}" for name, version in _versions()),
    ]


def summarise(firsts: dict[str, First], rounds: dict[str, list[Round]]) -> list[dict[str, Any]]:
    """A row a contender: medians over its rounds; the ratio is taken round by round, against the first contender's."""
    base = next(iter(rounds.values()))
    rows = []
    for name, own in rounds.items():
        rates = [turn.rate for turn in own]
        ratios = [turn.rate / other.rate for turn, other in zip(own, base, strict=True)]
        rows.append(
            {
                "name": name,
                "images_per_s": median(rates),
                "images_per_s_min": min(rates),
                "images_per_s_max": max(rates),
                "ratio": median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
                "cpu_s_per_1000": median(1000 * turn.cpu_s / turn.images for turn in own),
                "cores": median(turn.cpu_s / turn.elapsed_s for turn in own),
                "memory_bytes": max(turn.memory_bytes for turn in own),
                "first_batch_s": firsts[name].first_batch_s,
                "rounds": [asdict(turn) for turn in own],
            }
        )
    return rows


def make_table(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("loader")
    for head in (
        "images/s",
        "min–max",
        f"times {rows[0]['name']}",
        "CPU s per 1,000",
        "cores",
        "memory",
        "first batch",
    ):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(
            CONTENDERS[row["name"]].what,
            f"{row['images_per_s']:,.0f}",
            f"{row['images_per_s_min']:,.0f}–{row['images_per_s_max']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['cpu_s_per_1000']:.2f}" if row["cpu_s_per_1000"] > 0.1 else f"{row['cpu_s_per_1000']:.4f}",
            f"{row['cores']:.2f}",
            f"{row['memory_bytes'] / 1e6:,.0f} MB",
            f"{row['first_batch_s']:.2f} s",
        )
    return table


def print_report(rows: list[dict[str, Any]], title: str, lines: list[str]) -> None:
    # A table that is piped into a file must not be folded at 80 columns.
    console = Console(soft_wrap=True) if Console().is_terminal else Console(width=140, soft_wrap=True)
    for line in lines:
        console.print(line, highlight=False)
    console.print(make_table(rows, title))


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in PACKAGES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpu_name() -> str:
    import torch

    return f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
