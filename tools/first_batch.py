"""Measures how long a training run waits for its first batch.

    python tools/first_batch.py shards/train

Starts one process for each of --runs. It imports torch and gpuload, and then times opening the data, constructing the
loader and decoding the first batch. Prints each run and the median. The first run on a machine takes some 20 s longer,
since numba compiles the CPU decoder.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path


def first_batch(folder: Path, batch_size: int, size: int) -> dict[str, float]:
    """The times in seconds. To be called once per process."""
    import torch

    import gpuload

    begun = time.perf_counter()
    data = gpuload.Dataset(folder)
    opened = time.perf_counter()
    with gpuload.DaliIterator(data, batch_size, augment=gpuload.Augment(size)) as loader:
        constructed = time.perf_counter()
        images, _ = next(iter(loader))
        if loader.device != "cpu":
            torch.cuda.synchronize()
        ended = time.perf_counter()
    if len(images) != min(batch_size, len(data)):
        raise SystemExit(f"the first batch has {len(images)} images, expected {min(batch_size, len(data))}")
    return {
        "samples": len(data),
        "open_s": opened - begun,
        "construct_s": constructed - opened,
        "first_batch_s": ended - constructed,
        "all_s": ended - begun,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a packed folder")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels")
    parser.add_argument("--json", type=Path, help="also write the figures to it")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.once:
        print(json.dumps(first_batch(args.folder, args.batch_size, args.size)))
        return 0
    options = ["--batch-size", str(args.batch_size), "--size", str(args.size)]
    runs = []
    for _ in range(args.runs):
        command = [sys.executable, __file__, str(args.folder), *options, "--once"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return done.returncode
        runs.append(json.loads(done.stdout))
        whole, *parts = (runs[-1][name] for name in ("all_s", "open_s", "construct_s", "first_batch_s"))
        print(
            "{:.2f} s: {:.2f} s to open, {:.2f} s to construct the loader, {:.2f} s to the batch".format(whole, *parts)
        )
    median = statistics.median(run["all_s"] for run in runs)
    print(f"{runs[0]['samples']:,} samples: first batch after {median:.2f} s, the median of {len(runs)}")
    if args.json:
        from benchmark.report import describe_machine  # not at the top: the timed processes would import it, too

        record = {"machine": describe_machine(), "runs": runs, "median_s": median}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
