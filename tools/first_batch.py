"""Measures how long a training run waits for its first batch.

    python tools/first_batch.py shards/train

Starts one process for each of --runs. It imports torch and gpuload, and then times opening the data, constructing the
loader and decoding the first batch. Prints each run and the median.

    python tools/first_batch.py shards/train --cold

gives each process an empty folder for compiled code, so that it compiles the CPU decoder as the first process on a
machine does, for some 12 s of one core's time each, and measures from the start of the process. The files themselves
come from the page cache. Nothing is left behind.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def first_batch(folder: Path, batch_size: int, size: int, started: float) -> dict[str, float]:
    """Seconds of this process, which was started then by the monotonic clock; to be called once in it."""
    import torch

    import gpuload

    begun = time.perf_counter()
    import_s = time.monotonic() - started
    data = gpuload.Dataset(folder)
    opened = time.perf_counter()
    with gpuload.DaliIterator(data, batch_size, augment=gpuload.Augment(size)) as loader:
        constructed, decoder = time.perf_counter(), loader.decoder
        images, _ = next(iter(loader))
        if loader.device != "cpu":
            torch.cuda.synchronize()
        ended = time.perf_counter()
    if len(images) != min(batch_size, len(data)):
        raise SystemExit(f"the first batch has {len(images)} images, expected {min(batch_size, len(data))}")
    return {
        "samples": len(data),
        "import_s": import_s,
        "open_s": opened - begun,
        "construct_s": constructed - opened,
        "first_batch_s": ended - constructed,
        "all_s": ended - begun,
        "compiled": sys.modules["gpuload.decode.native.compiled"].count_compiled() if decoder == "native" else 0,
    }


def plot(record: dict[str, Any], path: Path) -> None:
    """What the time until the first batch consists of, as a chart beside the record; nothing without matplotlib."""
    from gpuload.commands.charts import bars

    runs = record["runs"]
    whole = "in all" + record.get("cold", False) * ", without imports"
    rows = [
        (whole, [run["all_s"] for run in runs]),
        ("opening the set", [run["open_s"] for run in runs]),
        ("constructing the loader", [run["construct_s"] for run in runs]),
        ("the first batch", [run["first_batch_s"] for run in runs]),
    ]
    title = f"a new process until its first batch, of {runs[0]['samples']:,} samples"
    bars(rows, title, "seconds; lines: lowest and highest run", path, highlight=whole, form="{:.2f} s")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a packed folder")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels")
    parser.add_argument("--json", type=Path, help="also write the figures to it, and a .png beside it")
    parser.add_argument("--cold", action="store_true", help="compile the decoder each time; default: load it")
    parser.add_argument("--once", type=float, metavar="STARTED", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.once is not None:
        print(json.dumps(first_batch(args.folder, args.batch_size, args.size, args.once)))
        return 0
    options = ["--batch-size", str(args.batch_size), "--size", str(args.size)]
    runs = []
    for _ in range(args.runs):
        command = [sys.executable, __file__, str(args.folder), *options, "--once", str(time.monotonic())]
        with tempfile.TemporaryDirectory() as empty:
            environment = {**os.environ, "NUMBA_CACHE_DIR": empty} if args.cold else None
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
        if done.returncode:
            return done.returncode
        run = json.loads(done.stdout)
        runs.append(run)
        imports = "{:.2f} s to import torch and gpuload, ".format(run["import_s"]) if args.cold else ""
        print(
            f"{run['all_s'] + args.cold * run['import_s']:.2f} s: {imports}{run['open_s']:.2f} s to open, "
            f"{run['construct_s']:.2f} s to construct the loader, {run['first_batch_s']:.2f} s to the batch"
        )
    median = statistics.median(run["all_s"] + args.cold * run["import_s"] for run in runs)
    kind = "a cold process" if args.cold else "opening the data"
    print(f"{runs[0]['samples']:,} samples: first batch {median:.2f} s after {kind}, the median of {len(runs)}")
    if args.json:
        from benchmark.report import describe_machine  # not at the top: the timed processes would import it, too

        record = {"machine": describe_machine(), "cold": args.cold, "runs": runs, "median_s": median}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
        plot(record, args.json.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
