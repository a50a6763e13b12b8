"""Measures opening, ordering and resuming on a simulated data set of 100 million samples.

    python tools/scale.py FOLDER                                    # writes 7.4 GB there, once
    python tools/scale.py FOLDER --samples 1000000 --shards 100     # 74 MB

Makes FOLDER/scale-<samples>-<shards>: a real index, and shards that are sparse files, which take no space. It stays
there for the next run; delete it when you are done. Checks the free space first. Prints time and memory of each step,
each measured in a separate process, and the targets. The time that the order takes for a batch is compared with
--decode-ms, the milliseconds to decode one image on one core (1.05 for 110 KB at 500×375).

Exit codes: 0 all targets met; 1 a target missed; 2 wrong arguments, or too little space.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

import gpuload
from gpuload.counted import counted
from gpuload.disk import IndexWriter, Manifest, ShardInfo
from gpuload.disk.tar import member_span
from gpuload.fields.field import IMAGE, LABEL
from gpuload.fields.registry import index_schema
from gpuload.order.epoch import EpochOrder

IMAGE_BYTES, BATCH, CORES = 110_000, 256, 2
SAMPLE_BYTES, SHARD_BYTES = 74, 2000  # of index and manifest, rounded up


def make(folder: Path, samples: int, shards: int) -> None:
    """Writes shards of zeros, which take no space, and an index of 110 kB images in them."""
    folder.mkdir(parents=True)
    each = samples // shards
    span = member_span(IMAGE_BYTES) + member_span(3)
    offsets = np.arange(each, dtype=np.int64) * span + 512
    infos = []
    with IndexWriter(folder / "index.arrow", (IMAGE, LABEL)) as index:
        for shard in range(shards):
            name, numbers = f"shard-{shard:06d}.tar", np.arange(each) + shard * each
            columns = {
                "key": pa.array(np.char.mod("%09d", numbers)).cast(pa.large_string()),
                "source": pa.nulls(each, pa.large_string()),
                "width": np.full(each, 500, np.int32),
                "height": np.full(each, 375, np.int32),
                "image_offset": offsets,
                "image_bytes": np.full(each, IMAGE_BYTES),
                "label_offset": offsets + member_span(IMAGE_BYTES),
                "label_bytes": np.full(each, 3),
                "label": numbers * 7919 % 1000,
            }
            index.append(pa.record_batch([columns[n] for n in index_schema((IMAGE, LABEL)).names], index.schema))
            with (folder / name).open("wb") as file:
                file.truncate(each * span + 1024)
            infos.append(ShardInfo(name, each, each * span + 1024, f"{shard:064x}"))
    Manifest(tuple(infos), (IMAGE, LABEL), tuple(map(str, range(1000))), 500, 375, IMAGE_BYTES).write(folder)


def free_bytes(folder: Path) -> int:
    """Free space on the file system of a folder, which need not exist yet."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def memory_mib() -> float:
    """Peak memory of this process. Not ru_maxrss, which starts with that of the parent process."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def step_open(folder: Path) -> dict[str, float]:
    """Seconds to open the set, and the memory it takes beyond the interpreter and its libraries."""
    before, start = memory_mib(), time.perf_counter()
    dataset = gpuload.Dataset(folder)
    dataset.rows(len(dataset.shard_paths) - 1)
    return {"seconds": time.perf_counter() - start, "mib": memory_mib() - before}


def walk(dataset: gpuload.Dataset, epoch: int, start: int, batches: int) -> float:
    """Seconds to compute the order of some batches, including the window of the first."""
    begin = time.perf_counter()
    order = EpochOrder(dataset.shard_sizes, seed=0, epoch=epoch, window=8)
    for number in range(batches):
        assert len(order[start + number * BATCH : start + (number + 1) * BATCH]) == BATCH
    return time.perf_counter() - begin


def step_order(folder: Path) -> dict[str, float]:
    """Seconds per batch over whole windows; memory after part of the first epoch, and after part of 20 epochs."""
    dataset = gpuload.Dataset(folder)
    batches = max(1, min(len(dataset) // BATCH, 4 * int(dataset.shard_sizes[:8].sum()) // BATCH))
    seconds = [walk(dataset, 0, 0, batches) / batches]
    first = memory_mib()
    seconds += [walk(dataset, epoch, 0, batches) / batches for epoch in range(1, 20)]
    return {"seconds": statistics.median(seconds), "first_mib": first, "last_mib": memory_mib()}


def step_resume(folder: Path) -> dict[str, float]:
    """Seconds to the first batch of an epoch, and to one in the middle of it."""
    dataset = gpuload.Dataset(folder)
    middle = len(dataset) // 2
    fresh, resumed = [], []
    for epoch in range(15):
        fresh.append(walk(dataset, epoch, 0, 1))
        resumed.append(walk(dataset, epoch, middle, 1))
    return {"fresh": statistics.median(fresh), "resumed": statistics.median(resumed)}


STEPS = {"open": step_open, "order": step_order, "resume": step_resume}


def plot(record: dict[str, Any], decode_s: float, path: Path) -> None:
    """The times and their targets, as a chart beside the record; nothing without matplotlib."""
    from gpuload.commands.charts import bars

    resume = record["resume"]
    rows = [
        ("opening the set", [1000 * record["open"]["seconds"]]),
        (f"order of a batch of {BATCH}", [1000 * record["order"]["seconds"]]),
        ("first batch in the middle of an epoch", [1000 * resume["resumed"]]),
    ]
    limits = [1000, 10 * decode_s, 1200 * resume["fresh"]]
    title = f"{record['samples']:,} samples in {counted(record['shards'], 'shard')}"
    bars(rows, title, "milliseconds; marks: at most", path, limits=limits, form="{:,.3g} ms")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="on a disk, where 74 MB are free for each million of samples")
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--decode-ms", type=float, default=1.05)
    parser.add_argument("--json", type=Path, help="also write the figures to it, and a .png beside it")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.step:
        print(json.dumps(STEPS[args.step](args.folder)))
        return 0
    if args.shards < 1 or args.samples < args.shards * BATCH:
        parser.error(f"--samples {args.samples}: expected at least {BATCH} samples per shard")
    folder = args.folder / f"scale-{args.samples}-{args.shards}"
    if not (folder / "manifest.json").exists():
        need, free = args.samples * SAMPLE_BYTES + args.shards * SHARD_BYTES, free_bytes(folder)
        if free < need:
            parser.error(
                f"{folder}: the index of {args.samples:,} samples takes {decimal(need)}, and {decimal(free)} are free "
                "there. Give another folder, or fewer --samples"
            )
        print(f"making {folder}, of {decimal(need)}, which is kept for the next run")
        make(folder, args.samples, args.shards)

    found = {}
    for step in STEPS:
        command = [sys.executable, __file__, str(folder), "--step", step]
        found[step] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    decode_s = BATCH * args.decode_ms / 1000 / CORES
    share = found["order"]["seconds"] / decode_s
    grown = found["order"]["last_mib"] - found["order"]["first_mib"]
    rows = [
        ("open", f"{found['open']['seconds']:.3f} s", "under 1 s", found["open"]["seconds"] < 1),
        ("memory to open", f"{found['open']['mib']:.0f} MiB", "under 300 MiB", found["open"]["mib"] < 300),
        (
            f"order of a batch of {BATCH}",
            f"{found['order']['seconds'] * 1e3:.3f} ms, {share:.2%} of its decoding",
            "under 1 %",
            share < 0.01,
        ),
        ("memory after 20 epochs", f"{grown:+.1f} MiB after the first", "no growth", grown < 5),
        (
            "first batch of an epoch, of its middle",
            f"{found['resume']['fresh'] * 1e3:.1f} ms, {found['resume']['resumed'] * 1e3:.1f} ms",
            "no dearer than a fresh start",
            found["resume"]["resumed"] < 1.2 * found["resume"]["fresh"],
        ),
    ]
    table = Table(title=f"{args.samples:,} samples in {counted(args.shards, 'shard')}", title_justify="left")
    for name in ("what", "measured", "target", "met"):
        table.add_column(name)
    for name, measured, target, met in rows:
        table.add_row(name, measured, target, "yes" if met else "no")
    Console().print(table)
    if args.json:
        record = {"samples": args.samples, "shards": args.shards, **found}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
        plot(record, decode_s, args.json.with_suffix(".png"))
    return 0 if all(met for *_, met in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
