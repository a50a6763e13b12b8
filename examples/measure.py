"""Helpers of the examples: packing a set once, memory of this process, the page cache, times, and the machine."""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import made_up
from torch import nn

import gpuload
from gpuload.cli import REJECTED
from gpuload.cli import main as gpuload_command

_PACKAGES = (
    "gpuload",
    "torch",
    "nvidia-dali-cuda130",
    "nvidia-dali-cuda120",
    "simplejpeg",
    "numba",
    "pillow",
    "numpy",
)


Run = Callable[[argparse.Namespace, Path], object]


def run_on(
    run: Run, args: argparse.Namespace, given: Path | None, form: str, name: str
) -> int:
    """Runs an example on the set that is given, or on a generated one of this form. Returns the exit code."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            run(args, given or made_up.make(form, Path(scratch) / name))
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def pack(source: Path, shards: Path, *options: str) -> None:
    """Packs a set, shuffled, unless the shards exist."""
    if (shards / "train" / "manifest.json").exists():
        print(f"Reusing {shards}; delete it to pack again")
        return
    command = ["pack", str(source), str(shards), *options, "--resume"]
    print("$ python -m gpuload", *command)
    if (code := gpuload_command(command)) not in (0, REJECTED):
        raise SystemExit(code)


def make_net(
    outputs: int, layers: Sequence[tuple[int, int, int]], pool: int, norm: bool = False
) -> nn.Module:
    """A small net. layers: width, kernel and stride of each convolution. pool: side of what the last layer gets."""
    parts: list[nn.Module] = []
    channels = 3
    for width, kernel, stride in layers:
        parts.append(nn.Conv2d(channels, width, kernel, stride, kernel // 2))
        parts += [nn.GroupNorm(8, width), nn.ReLU()] if norm else [nn.ReLU()]
        channels = width
    last = nn.Linear(channels * pool**2, outputs)
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(pool), nn.Flatten(), last)


class Memory(NamedTuple):
    """Bytes of this process in memory now, from /proc/self/status (proc(5)).

    own: anonymous pages. mapped: pages of mapped files, such as packed shards; they belong to the kernel's page cache,
    which reclaims them when memory is short.
    """

    own: int
    mapped: int


def memory() -> Memory:
    """The memory of this process now. Takes 30 µs."""
    with open("/proc/self/status") as status:
        kilobytes = {
            line.partition(":")[0]: line.split()[1]
            for line in status
            if line.startswith("Rss")
        }
    return Memory(1024 * int(kilobytes["RssAnon"]), 1024 * int(kilobytes["RssFile"]))


def mapped_bytes(folder: Path) -> int:
    """Bytes of the files below a folder that are resident in this process's memory maps. Takes some ms."""
    inside = False
    kilobytes = 0
    start = str(folder.resolve()) + "/"
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if line[0] in "0123456789abcdef":  # the first line of a mapping
                inside = line.partition("/")[2] != "" and (
                    "/" + line.partition("/")[2]
                ).startswith(start)
            elif inside and line.startswith("Rss:"):
                kilobytes += int(line.split()[1])
    return 1024 * kilobytes


class PeakMemory:
    """The maximum that `look` has found, above the value at the start."""

    def __init__(self) -> None:
        self.start = self.most = memory()

    def look(self) -> Memory:
        """Measures now; returns the excess over the start."""
        now = memory()
        self.most = Memory(
            max(now.own, self.most.own), max(now.mapped, self.most.mapped)
        )
        return Memory(now.own - self.start.own, now.mapped - self.start.mapped)

    @property
    def excess(self) -> Memory:
        return Memory(
            self.most.own - self.start.own, self.most.mapped - self.start.mapped
        )


def evict(folder: Path) -> None:
    """Asks the kernel to evict the files below a folder from the page cache, so that they are read from the disk again.

    Needs no root. Pages that a process has mapped stay, so call it before a loader is opened.
    """
    for path in files_below(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())  # pages not yet written would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_through(folder: Path) -> None:
    """Reads every file below a folder into the page cache."""
    for path in files_below(folder):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in files_below(folder))


def machine() -> dict[str, Any]:
    """The facts about the machine that are needed to judge a figure."""
    with open("/proc/cpuinfo") as file:
        names = [
            line.partition(":")[2].strip()
            for line in file
            if line.startswith("model name")
        ]
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": os.getloadavg()[
            0
        ],  # more than the number of cores: other programs were using the machine
        "python": platform.python_version(),
        "packages": versions,
    }


def save_record(path: Path | None, **figures: Any) -> None:
    """Writes the figures and the machine as JSON, if a path is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": machine(), **figures}, indent=1) + "\n")
        print(f"Figures in {path}")


def cpu_seconds() -> float:
    """User and system time of all threads of this process."""
    times = os.times()
    return times.user + times.system


def spread(seconds: Iterable[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    ascending = sorted(seconds)
    return {"median": median(ascending), "min": ascending[0], "max": ascending[-1]}


def in_bytes(count: float) -> str:
    """A count of bytes for people: 812 MB, 4.0 GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def in_seconds(seconds: float) -> str:
    """A time for people, with as many digits as matter: 0.0004 s, 0.38 s, 21.1 s."""
    return (
        f"{seconds:.4f} s"
        if seconds < 0.01
        else f"{seconds:.3f} s"
        if seconds < 1
        else f"{seconds:.1f} s"
    )
