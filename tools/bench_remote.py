"""Measures loading from URLs against what it could be at best, each pair in one run on one machine.

    python tools/bench_remote.py FOLDER
    python tools/bench_remote.py FOLDER --only download,first --json figures.json
    python tools/bench_remote.py FOLDER --only peers --python mosaic=/opt/peers/bin/python litdata=/opt/peers/bin/python

Makes sets of synthetic images in FOLDER (2.1 GB, kept for the next run), serves them by HTTP and as S3 from a process
of its own, and prints a table:

- peers: gpuload, MosaicML Streaming and LitData read the same JPEGs, each from its own format, from the same S3 server,
  and make the same crops: an epoch with an empty cache, one from the cache, the first batch of a new process, and a new
  process that resumes in the middle of an epoch. Those that are not installed are left out; --python names the
  interpreter of those that have their own. The plot is written beside the record (.png).
- download: shards through the loader's store, checked by SHA-256, against obstore alone fetching the same ranges,
  writing them to the same disk and syncing them; as fast as the loopback goes, and over networks of --network MB/s.
- warm: an epoch from a warm cache against one from the local folder.
- limited: an epoch over a network of 1.2 times what training consumes, with shards of which a window takes 2 s of that
  network: how many batches training waited for after the first 5 s, and when.
- first: the first batch of a set of one million samples, cold, with 10 ms of latency.
- ranks: four processes with one cache: how often each shard was downloaded.

Ratios are of medians of --runs that alternate. All processes end with this one. Exit code 0, also where a target is
missed: the table says so.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.remote.loaders import LOADERS
from tools.remote.peers import Peers
from tools.remote.processes import finish, measure, served, start, stats
from tools.remote.sets import make_images, make_million, make_shards
from tools.remote.table import table_of

IMAGES, PER_SHARD = 2000, 50
PARTS = ("peers", "download", "warm", "limited", "first", "ranks")
_FIRST_WINDOW_S, _STARTED_S = 2.0, 5.0  # of the network; after which a batch that is waited for counts


class Bench:
    """folder: for the sets, which are kept. networks: of what bytes a second; the first is also that of the peers.
    pythons: see `Peers`."""

    def __init__(self, folder: Path, runs: int, networks: Sequence[float], pythons: Mapping[str, str]) -> None:
        self.folder, self.runs, self.networks, self.pythons = folder, runs, networks, pythons
        self.scratch = folder / "scratch"

    def new(self) -> str:
        """An empty cache."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        return str(self.scratch / "cache")

    def images(self) -> Path:
        return make_images(self.folder / "images", IMAGES, PER_SHARD)

    def peers(self) -> dict[str, Any]:
        return Peers(self.folder, self.scratch, self.pythons, self.networks[0]).run(self.runs)

    def download(self) -> dict[str, Any]:
        shards = make_shards(self.folder)
        files = sorted(shards.iterdir())
        names, sizes = [file.name for file in files], [file.stat().st_size for file in files]
        digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        found = []
        for rate in (0.0, *self.networks):
            kinds: dict[str, list[dict[str, float]]] = {"discards": [], "alone": [], "store": []}
            with served(shards, rate) as url:

                def one(of: list[dict[str, float]], kind: str, **options: Any) -> None:
                    same, before = {"url": url, "names": names, "sizes": sizes}, stats(url).cpu_s
                    took = measure(kind, folder=self.new(), **same, **options)
                    of.append({**took, "server_cpu_s": stats(url).cpu_s - before})

                for _ in range(self.runs):
                    one(kinds["alone"], "obstore_alone")
                    one(kinds["store"], "loader_store", digests=digests)
                    if not rate:
                        one(kinds["discards"], "obstore_alone", writes=False)
            medians = {
                kind: {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}
                for kind, runs in kinds.items()
                if runs
            }
            seconds = {kind: one["seconds"] for kind, one in medians.items()}
            at = {
                "limit_bytes_per_s": rate or None,
                "obstore_bytes_per_s": sum(sizes) / seconds["alone"],
                "store_bytes_per_s": sum(sizes) / seconds["store"],
                "ratio": seconds["alone"] / seconds["store"],
                "cpu_s": {kind: one["cpu_s"] for kind, one in medians.items()},
                "server_cpu_s": {kind: one["server_cpu_s"] for kind, one in medians.items()},
                "runs": {kind: [round(r["seconds"], 3) for r in runs] for kind, runs in kinds.items()},
            }
            if "discards" in seconds:
                at["ratio_to_discarding"] = seconds["discards"] / seconds["store"]
            found.append(at)
        return {"bytes": sum(sizes), "networks": found, "target": 0.9}

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

    def ranks(self) -> dict[str, Any]:
        images, cache = self.images(), self.new()
        same: dict[str, Any] = {"cache": cache, "batch_size": 16, "size": 64, "epoch": 0, "num_threads": 1}
        with served(images) as url:
            processes = [start("epoch", data=url, rank=rank, world_size=4, **same) for rank in range(4)]
            for process in processes:
                finish(process)
            sent = stats(url).sent
        sizes = {f"/{path.name}": path.stat().st_size for path in images.glob("*.tar")}
        times = {path: sent.get(path, 0) / size for path, size in sizes.items()}
        return {"shards": len(sizes), "least": min(times.values()), "most": max(times.values()), "target": 1.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the sets and caches, on the disk that is to be measured")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--network", type=float, nargs="+", default=[150, 800], metavar="MB/S",
        help="of the networks beside the loopback (%(default)s); the first is that of the peers",
    )  # fmt: skip
    parser.add_argument("--python", nargs="+", default=[], metavar="LOADER=PATH", help="run a peer with this Python")
    parser.add_argument("--json", type=Path, help="file for the figures; parts that are not measured now stay in it")
    args = parser.parse_args()
    parts = args.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only {min(unknown)}: expected some of {','.join(PARTS)}")
    if args.runs < 1:
        parser.error(f"--runs {args.runs}: expected at least 1")
    bench = Bench(
        args.folder.absolute(), args.runs, [one * 1e6 for one in args.network], _interpreters(parser, args.python)
    )
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
    if args.json and "peers" in parts:
        from tools.remote.plot import plot

        plot(found["peers"], args.json.with_suffix(".png"))
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
