"""Measures loading from URLs against what it could be at best, each pair in one run on one machine.

    python tools/bench_remote.py FOLDER
    python tools/bench_remote.py FOLDER --only download,first --json figures.json

Makes sets of synthetic images in FOLDER (1.2 GB, kept for the next run), serves them by HTTP from a process of its own,
and prints a table:

- download: shards through the loader's store, checked by SHA-256, against obstore alone fetching the same ranges,
  writing them to the same disk and syncing them; as fast as the loopback goes, and over a network of --network MB/s.
- warm: an epoch from a warm cache against one from the local folder.
- limited: an epoch over a network of 1.2 times what training consumes: how many batches training waited for.
- first: the first batch of a set of one million samples, cold, with 10 ms of latency.
- ranks: four processes with one cache: how often each shard was downloaded.

Ratios are of medians of --runs that alternate. Exit code 0, also where a target is missed: the table says so.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
SHARD_BYTES, SHARDS = 128 << 20, 4
IMAGES, PER_SHARD = 2000, 50
MILLION_SHARDS, MILLION_EACH = 1000, 1000
PARTS = ("download", "warm", "limited", "first", "ranks")


@contextmanager
def served(folder: Path, rate: float = 0, latency: float = 0) -> Iterator[str]:
    """The URL of a folder."""
    command = ["-m", "tools.remote.server", str(folder), "--rate", str(rate), "--latency", str(latency)]
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


def start(kind: str, **options: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tools.remote.child", kind, json.dumps(options)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


def child(kind: str, **options: Any) -> dict[str, float]:
    return finish(start(kind, **options))


def finish(process: "subprocess.Popen[str]") -> dict[str, float]:
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit("a measurement failed, see above")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def make_shards(folder: Path) -> Path:
    """Files of random bytes."""
    out = folder / "shards"
    if not out.exists():
        out.mkdir(parents=True)
        rng = np.random.default_rng(0)
        for number in range(SHARDS):
            (out / f"{number}.tar").write_bytes(rng.bytes(SHARD_BYTES))
    return out


def jpegs(count: int, width: int, height: int, noise: int) -> list[bytes]:
    """Smooth images with some noise, which decides their size."""
    rng, made = np.random.default_rng(1), []
    for _ in range(count):
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.int16)
        pixels = np.clip(pixels + rng.integers(-noise, noise + 1, pixels.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        made.append(file.getvalue())
    return made


def make_images(folder: Path) -> Path:
    """A packed set of 500×375 JPEGs."""
    out = folder / "images"
    if not (out / "train" / "manifest.json").exists():
        source = folder / "source"
        for number, data in enumerate(jpegs(50, 500, 375, 18) * (IMAGES // 50)):
            path = source / f"class{number % 10}" / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        command = [sys.executable, "-m", "gpuload", "pack", str(source), str(out), "--maxcount", str(PER_SHARD)]
        subprocess.run([*command, "--overwrite"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(source)
    return out / "train"


def make_million(folder: Path) -> Path:
    """An index of one million samples in 1,000 shards, of which only those of the first window exist: 10 MB each."""
    from gpuload.disk import IndexWriter, Manifest, ShardInfo
    from gpuload.disk.tar import member_span, ustar_header
    from gpuload.fields.field import IMAGE, LABEL
    from gpuload.fields.registry import index_schema
    from gpuload.order.epoch import EpochOrder

    out = folder / "million"
    if (out / "manifest.json").exists():
        return out
    out.mkdir(parents=True)
    (image,) = jpegs(1, 160, 120, 18)
    span = member_span(len(image)) + member_span(1)
    sizes = np.full(MILLION_SHARDS, MILLION_EACH)
    needed = set(EpochOrder(sizes, seed=0, epoch=0, window=8).window_shards(0).tolist())
    infos, offsets = [], np.arange(MILLION_EACH, dtype=np.int64) * span + 512
    with IndexWriter(out / "index.arrow", (IMAGE, LABEL)) as index:
        for shard in range(MILLION_SHARDS):
            numbers = np.arange(MILLION_EACH) + shard * MILLION_EACH
            columns = {
                "key": pa.array(np.char.mod("%09d", numbers)).cast(pa.large_string()),
                "source": pa.array(np.char.mod("%09d.jpg", numbers)).cast(pa.large_string()),
                "width": np.full(MILLION_EACH, 160, np.int32),
                "height": np.full(MILLION_EACH, 120, np.int32),
                "image_offset": offsets,
                "image_bytes": np.full(MILLION_EACH, len(image)),
                "label_offset": offsets + member_span(len(image)),
                "label_bytes": np.full(MILLION_EACH, 1),
                "label": numbers % 10,
            }
            index.append(pa.record_batch([columns[n] for n in index_schema((IMAGE, LABEL)).names], index.schema))
            name, size, digest = f"shard-{shard:06d}.tar", MILLION_EACH * span + 1024, f"{shard:064x}"
            if shard in needed:
                data = io.BytesIO()
                for number in numbers.tolist():
                    for suffix, content in (("jpg", image), ("cls", b"%d" % (number % 10))):
                        data.write(ustar_header(f"{number:09d}.{suffix}", len(content)))
                        data.write(content + bytes(member_span(len(content)) - 512 - len(content)))
                data.write(bytes(1024))
                (out / name).write_bytes(data.getvalue())
                digest = hashlib.sha256(data.getvalue()).hexdigest()
                assert len(data.getvalue()) == size
            infos.append(ShardInfo(name, MILLION_EACH, size, digest))
    manifest = Manifest(tuple(infos), (IMAGE, LABEL), tuple(map(str, range(10))), 160, 120, len(image))
    manifest.write(out)
    return out


class Bench:
    def __init__(self, folder: Path, runs: int, network: float) -> None:
        self.folder, self.runs, self.network = folder, runs, network
        self.scratch = folder / "scratch"

    def new(self) -> str:
        shutil.rmtree(self.scratch, ignore_errors=True)
        return str(self.scratch / "cache")

    def download(self) -> dict[str, Any]:
        shards = make_shards(self.folder)
        files = sorted(shards.iterdir())
        names, sizes = [file.name for file in files], [file.stat().st_size for file in files]
        digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        found: dict[str, Any] = {"bytes": sum(sizes)}
        for title, rate in (("loopback", 0.0), ("network", self.network)):
            kinds: dict[str, list[dict[str, float]]] = {"discards": [], "alone": [], "store": []}
            with served(shards, rate) as url:
                for _ in range(self.runs):
                    same = {"url": url, "names": names, "sizes": sizes}
                    kinds["alone"].append(child("obstore_alone", folder=self.new(), **same))
                    kinds["store"].append(child("loader_store", folder=self.new(), digests=digests, **same))
                    if not rate:
                        kinds["discards"].append(child("obstore_alone", folder=self.new(), writes=False, **same))
            median = {kind: statistics.median(r["seconds"] for r in runs) for kind, runs in kinds.items() if runs}
            found[title] = {
                "limit_bytes_per_s": rate or None,
                "obstore_bytes_per_s": sum(sizes) / median["alone"],
                "store_bytes_per_s": sum(sizes) / median["store"],
                "ratio": median["alone"] / median["store"],
                "cpu_s": {k: statistics.median(r["cpu_s"] for r in runs) for k, runs in kinds.items() if runs},
                "runs": {kind: [round(r["seconds"], 3) for r in runs] for kind, runs in kinds.items()},
            }
            if "discards" in median:
                found[title]["ratio_to_discarding"] = median["discards"] / median["store"]
        return {**found, "target": 0.9}

    def warm(self) -> dict[str, Any]:
        images, cache = make_images(self.folder), self.new()
        local, remote = [], []
        with served(images) as url:
            child("epoch", data=url, cache=cache, batch_size=64, size=224, epoch=0)
            for number in range(self.runs):
                same = {"cache": cache, "batch_size": 64, "size": 224, "epoch": number}
                local.append(child("epoch", data=str(images), **same))
                remote.append(child("epoch", data=url, **same))
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
        images = make_images(self.folder)
        consumed = sum(path.stat().st_size for path in images.glob("*.tar")) / IMAGES * batch_size / step_s
        with served(images, 1.2 * consumed, 0.01) as url:
            found = child(
                "limited", url=url, cache=self.new(), batch_size=batch_size, size=64, step_s=step_s, warm_s=5.0
            )
        share = found["waited_for"] / max(1, found["batches_later"])
        return {"consumed_bytes_per_s": consumed, "network": 1.2, **found, "waited_share": share, "target": 0.01}

    def first(self) -> dict[str, Any]:
        million, local = make_million(self.folder), str(make_images(self.folder))
        size = (million / "index.arrow").stat().st_size
        with served(million, latency=0.01) as url:
            same = {"url": url, "local": local, "batch_size": 64, "size": 64}
            runs = [child("first_batch", cache=self.new(), **same) for _ in range(self.runs)]
        medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        return {"latency_s": 0.01, "index_bytes": size, **medians, "target": 3.0}

    def ranks(self) -> dict[str, Any]:
        images, cache = make_images(self.folder), self.new()
        with served(images) as url:
            processes = [
                start(
                    "epoch", data=url, cache=cache, batch_size=16, size=64, epoch=0, rank=rank, world_size=4,
                    num_threads=1,
                )
                for rank in range(4)
            ]  # fmt: skip
            for process in processes:
                finish(process)
            with urllib.request.urlopen(f"{url}/.sent") as answer:
                sent = json.loads(answer.read())
        sizes = {f"/{path.name}": path.stat().st_size for path in images.glob("*.tar")}
        times = {path: sent.get(path, 0) / size for path, size in sizes.items()}
        return {"shards": len(sizes), "least": min(times.values()), "most": max(times.values()), "target": 1.0}


def table_of(found: dict[str, Any]) -> Table:
    table = Table("what", "found", "target", box=None)
    if one := found.get("download"):
        for title in ("loopback", "network"):
            at = one[title]
            rates = f"{at['store_bytes_per_s'] / 1e6:,.0f} MB/s, obstore alone {at['obstore_bytes_per_s'] / 1e6:,.0f}"
            table.add_row(f"download, {title}", f"{at['ratio']:.2f} ({rates})", "0.90")
    if one := found.get("warm"):
        table.add_row("epoch from a warm cache", f"{one['ratio']:.3f} of a local folder's speed", "0.98")
    if one := found.get("limited"):
        text = f"waited for {one['waited_for']} of {one['batches_later']} batches after 5 s"
        table.add_row("network of 1.2 x training", text, "1 %")
    if one := found.get("first"):
        table.add_row("first batch of a million", f"{one['all_s']:.2f} s ({one['open_s']:.2f} s to open)", "3 s")
    if one := found.get("ranks"):
        table.add_row("4 ranks: downloads of a shard", f"{one['least']:.2f} to {one['most']:.2f}", "1")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the sets and caches, on the disk that is to be measured")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--network", type=float, default=150, help="MB/s of the slower download (%(default)s)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    parts = args.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only {min(unknown)}: expected some of {','.join(PARTS)}")
    bench, load = Bench(args.folder.absolute(), args.runs, args.network * 1e6), os.getloadavg()
    made = {"date": time.strftime("%Y-%m"), "cores": os.cpu_count(), "machine": platform.machine(), "load": load}
    found: dict[str, Any] = {"made": {**made, "runs": args.runs}}
    for part in PARTS:
        if part in parts:
            found[part] = getattr(bench, part)()
            print(part, json.dumps(found[part]), file=sys.stderr, flush=True)
    shutil.rmtree(bench.scratch, ignore_errors=True)
    Console().print(table_of(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
