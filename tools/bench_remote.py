"""Measures loading from URLs against what it could be at best, each pair in one run on one machine.

    python tools/bench_remote.py FOLDER
    python tools/bench_remote.py FOLDER --only warm,first --json figures.json
    python tools/bench_remote.py FOLDER --only peers --python mosaic=/opt/peers/bin/python litdata=/opt/peers/bin/python

Makes sets of synthetic images in FOLDER (2.1 GB, kept for the next run), serves them by HTTP and as S3 from a process
of its own, and prints a table:

- peers: gpuload, MosaicML Streaming and LitData read the same JPEGs, each from its own format, from the same S3 server,
  and make the same crops: an epoch with an empty cache, one from the cache, the first batch of a new process, and a new
  process that resumes in the middle of an epoch. Those that are not installed are left out; --python names the
  interpreter of those that have their own.
- warm: an epoch from a warm cache against one from the local folder.
- limited: an epoch over a network of 1.2 times what training consumes, with shards of which a window takes 2 s of that
  network: how many batches training waited for after the first 5 s, and when.
- first: the first batch of a set of one million samples, cold, with 10 ms of latency.

Ratios are of medians of --runs that alternate. All processes end with this one. Exit code 0, also where a target is
missed: the table says so.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.remote.loaders import LOADERS
from tools.remote.peers import Peers
from tools.remote.processes import measure, served, stats
from tools.remote.sets import make_images, make_million

IMAGES, PER_SHARD = 2000, 50
PARTS = ("peers", "warm", "limited", "first")
_FIRST_WINDOW_S, _STARTED_S = 2.0, 5.0  # of the network; after which a batch that is waited for counts


class Bench:
    """folder: for the sets, which are kept. network: of the peers, bytes a second. pythons: see `Peers`."""

    def __init__(self, folder: Path, runs: int, network: float, pythons: Mapping[str, str]) -> None:
        self.folder, self.runs, self.network, self.pythons = folder, runs, network, pythons
        self.scratch = folder / "scratch"

    def new(self) -> str:
        """An empty cache."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        return str(self.scratch / "cache")

    def images(self) -> Path:
        return make_images(self.folder / "images", IMAGES, PER_SHARD)

    def peers(self) -> dict[str, Any]:
        return Peers(self.folder, self.scratch, self.pythons, self.network).run(self.runs)

    def warm(self) -> dict[str, Any]:
        images, cache = self.images(), self.new()
        local, remote = [], []
        with served(images) as url:
            measure("epoch", data=url, cache=cache, batch_size=64, size=224, epoch=0)
            for number in range(self.runs):
                same = {"cache": cache, "batch_size": 64, "size": 224, "epoch": number}
                local.append(measure("epoch", data=str(images), **same))
                remote.append(measure("epoch", data=url, **same))
        medians = [statistics.median(r["seconds"] for r in runs) for runs in (local, remote)]
        processor = [statistics.median(r["cpu_s"] for r in runs) for runs in (local, remote)]
        return {
            "images_per_s_local": local[0]["images"] / medians[0],
            "ratio": medians[0] / medians[1],
            "cpu_ratio": processor[0] / processor[1],
            "runs": {"local": [r["seconds"] for r in local], "warm cache": [r["seconds"] for r in remote]},
            "target": 0.98,
        }

    def limited(self, step_s: float = 0.5, batch_size: int = 32) -> dict[str, Any]:
        images = self.images()
        sizes = [path.stat().st_size for path in images.glob("*.tar")]
        consumed = sum(sizes) / IMAGES * batch_size / step_s
        network, shard = 1.2 * consumed, sum(sizes) / len(sizes)
        window = max(1, round(_FIRST_WINDOW_S * network / shard))
        with served(images, network, 0.01) as url:
            same: dict[str, Any] = {"url": url, "cache": self.new(), "batch_size": batch_size, "size": 64}
            found = measure("limited", window=window, step_s=step_s, started_s=_STARTED_S, **same)
        return {
            "consumed_bytes_per_s": consumed,
            "network": 1.2,
            "shard_bytes": round(shard),
            "window": window,
            "first_window_s": window * shard / network,
            **found,
            "waited_share": found["waited_for"] / max(1, found["batches_later"]),
            "target": 0.01,
        }

    def first(self) -> dict[str, Any]:
        million, local = make_million(self.folder), str(self.images())
        size = (million / "index.arrow").stat().st_size
        with served(million, latency=0.01) as url:
            same = {"url": url, "local": local, "batch_size": 64, "size": 64}
            runs = []
            for _ in range(self.runs):
                before = stats(url).bytes
                runs.append(measure("first_batch", cache=self.new(), **same))
                runs[-1]["bytes"] = stats(url).bytes - before
        medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        return {"latency_s": 0.01, "index_bytes": size, **medians, "target": 3.0}


def table_of(found: dict[str, Any]) -> Table:
    table = Table("what", "found", "target", box=None)
    if one := found.get("peers"):
        for loader in one["loaders"].values():
            for title, text in _of_loader(loader):
                table.add_row(f"{loader['what']}, {title}", text, "")
        for name, why in one["left_out"].items():
            table.add_row(f"left out: {name}", why, "")
    if one := found.get("warm"):
        table.add_row("epoch from a warm cache", f"{one['ratio']:.3f} of a local folder's speed", "0.98")
    if one := found.get("limited"):
        after = f"{one['batches_later']} batches after {one['after_the_first_s']:.0f} s"
        text = f"waited for {one['waited_for']} of {after}"
        table.add_row("network of 1.2 x training", text, "1 %")
    if one := found.get("first"):
        table.add_row("first batch of a million", f"{one['all_s']:.2f} s ({one['open_s']:.2f} s to open)", "3 s")
    return table


def _of_loader(one: dict[str, Any]) -> list[tuple[str, str]]:
    mb = {name: f"{one[name] / 1e6:,.0f} MB" for name in ("bytes", "resume_bytes", "resume_network_bytes")}
    return [
        ("epoch, empty cache", f"{one['cold_images_per_s']:,.0f} images/s, {mb['bytes']}"),
        ("epoch from the cache", f"{one['warm_images_per_s']:,.0f} images/s"),
        ("first batch, empty cache", f"{one['first_batch_s']:.2f} s from the start of the process"),
        ("resumes, empty cache", f"{one['resume_cold_s']:.2f} s, {mb['resume_bytes']}"),
        ("resumes over the network", f"{one['resume_network_s']:.2f} s, {mb['resume_network_bytes']}"),
        ("resumes from the cache", f"{one['resume_warm_s']:.2f} s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the sets and caches, on the disk that is to be measured")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--network", type=float, default=150, metavar="MB/S", help="of the peers (%(default)s)")
    parser.add_argument("--python", nargs="+", default=[], metavar="LOADER=PATH", help="run a peer with this Python")
    parser.add_argument("--json", type=Path, help="file for the figures; parts that are not measured now stay in it")
    args = parser.parse_args()
    parts = args.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only {min(unknown)}: expected some of {','.join(PARTS)}")
    if args.runs < 1:
        parser.error(f"--runs {args.runs}: expected at least 1")
    bench = Bench(args.folder.absolute(), args.runs, args.network * 1e6, _interpreters(parser, args.python))
    made = {"date": time.strftime("%Y-%m"), "cores": os.cpu_count(), "machine": platform.machine(), "runs": args.runs}
    found: dict[str, Any] = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    try:
        for part in PARTS:
            if part in parts:
                load, begun = os.getloadavg()[0], time.monotonic()
                one = getattr(bench, part)()
                found[part] = {"made": {**made, "load": load, "took_s": time.monotonic() - begun}, **one}
                print(part, json.dumps(found[part]), file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(bench.scratch, ignore_errors=True)
    Console().print(table_of({part: found[part] for part in PARTS if part in parts}))
    if args.json:
        args.json.write_text(json.dumps({part: found[part] for part in PARTS if part in found}, indent=1) + "\n")
    return 0


def _interpreters(parser: argparse.ArgumentParser, pairs: list[str]) -> dict[str, str]:
    """--python as {loader: path}."""
    found = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or name not in LOADERS:
            parser.error(f"--python {pair}: expected LOADER=PATH, with one of {', '.join(LOADERS)}")
        if not os.access(path, os.X_OK):
            parser.error(f"--python {pair}: cannot be run. Give the path of a Python")
        found[name] = path
    return found


if __name__ == "__main__":
    raise SystemExit(main())
