"""Measures how late the shards that are needed first come, since later ones are downloaded at the same time.

    python tools/urgent_shards.py FOLDER
    python tools/urgent_shards.py FOLDER --rate 20 --latency 0.05 --json tools/results/urgent-shards.json

Makes files of random bytes in FOLDER and serves them by HTTP from a process of its own, at --rate MB/s with --latency
seconds before each answer. Shards of several sizes are read through the loader's store in the order of a plan, and
compared with what that network could do at best (1 would be perfect):

- first: the time until the shards of the first window are here, windows being of 1, 2 and 8 shards
- second: the time until those of the second window are here, windows being of 1 shard
- all: the time until all shards are here, so that the network was full
- another plan: the time until the first shard of another plan is here, made while shards of the first plan arrive

Each figure is a median of --runs. Exit code 0.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from gpuload.store.cache import Cache, Wanted
from gpuload.store.cached import CachedStore
from gpuload.store.url import URL

ROOT = Path(__file__).parents[1]
WINDOWS = (1, 2, 8)
SIZES_MB = {1: 24, 8: 16, 128: 4}  # and how many shards


@contextmanager
def served(folder: Path, rate: float, latency: float) -> Iterator[URL]:
    command = ["-m", "tools.remote.server", str(folder), "--rate", str(rate), "--latency", str(latency)]
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield URL(f"http://127.0.0.1:{int(server.stdout.readline())}")
        finally:
            server.kill()


def make(folder: Path, size: int, count: int) -> tuple[list[str], list[Wanted]]:
    folder.mkdir(parents=True, exist_ok=True)
    rng, names, shards = np.random.default_rng(size), [], []
    for number in range(count):
        data, path = rng.bytes(size), folder / f"{size}-{number}.tar"
        if not path.exists():
            path.write_bytes(data)
        names.append(path.name)
        shards.append(Wanted(hashlib.sha256(data).hexdigest(), size))
    return names, shards


class Bench:
    def __init__(self, folder: Path, rate: float, latency: float) -> None:
        self.files, self.cache, self.rate, self.latency = folder / "urgent", folder / "cache", rate, latency

    def once(self, names: Sequence[str], shards: Sequence[Wanted], order: Sequence[int], window: int) -> list[float]:
        """When each shard of an order is here, in seconds, one after the other."""
        shutil.rmtree(self.cache, ignore_errors=True)
        with served(self.files, self.rate, self.latency) as url:
            store = CachedStore(url, Cache(self.cache, 1 << 40), names, shards)
            begun, times = time.perf_counter(), []
            store.plan(order, window)
            for number in order:
                store.open(number)
                times.append(time.perf_counter() - begun)
            store.close()
        return times

    def other(self, names: Sequence[str], shards: Sequence[Wanted]) -> float:
        """How long the first shard of another plan takes, while those of the first arrive."""
        shutil.rmtree(self.cache, ignore_errors=True)
        with served(self.files, self.rate, self.latency) as url:
            store = CachedStore(url, Cache(self.cache, 1 << 40), names, shards)
            store.plan(range(len(names) - 1))
            time.sleep(0.5)
            begun = time.perf_counter()
            store.begin()
            store.plan([len(names) - 1, *range(len(names) - 1)], 1)
            store.open(len(names) - 1)
            took = time.perf_counter() - begun
            store.close()
        return took

    def measure(self, size_mb: int, count: int, runs: int) -> dict[str, float]:
        names, shards = make(self.files, size_mb << 20, count)
        each_s = (size_mb << 20) / self.rate + self.latency
        found = {"shard_bytes": size_mb << 20, "shards": count}
        for window in (one for one in WINDOWS if one <= count):
            times = [self.once(names, shards, range(count), window) for _ in range(runs)]
            took = statistics.median(run[window - 1] for run in times)
            found[f"first {window}"] = took / (window * (each_s - self.latency) + self.latency)
            if window == 1:
                found["second"] = statistics.median(run[1] for run in times) / (2 * each_s - self.latency)
        found["all"] = statistics.median(run[-1] for run in times) / (count * (each_s - self.latency) + self.latency)
        found["another plan"] = statistics.median(self.other(names, shards) for _ in range(runs)) / each_s
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for files and a cache")
    parser.add_argument("--rate", type=float, default=80, help="of the network, in MB/s (%(default)s)")
    parser.add_argument("--latency", type=float, default=0.02, help="of each request, in seconds (%(default)s)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    bench = Bench(args.folder.absolute(), args.rate * 1e6, args.latency)
    made = {"date": time.strftime("%Y-%m"), "cores": os.cpu_count(), "machine": platform.machine()}
    found: dict[str, Any] = {"made": {**made, "runs": args.runs, "rate_mb_s": args.rate, "latency_s": args.latency}}
    names = (*(f"first {window}" for window in WINDOWS), "second", "all", "another plan")
    table = Table("shards", *names, box=None)
    for size_mb, count in SIZES_MB.items():
        one = found[f"{size_mb} MiB"] = bench.measure(size_mb, count, args.runs)
        table.add_row(f"{size_mb} MiB", *(f"{one[name]:.2f}" if name in one else "" for name in names))
    shutil.rmtree(bench.cache, ignore_errors=True)
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
