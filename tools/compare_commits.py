"""Compares the throughput of two commits on a packed set: python tools/compare_commits.py 41da87e HEAD shards/train.

Each commit is checked out into a temporary folder and loads the set in a process of its own. The two take turns of a
few seconds, so that whatever else the machine does meets both. Printed are the medians of images/s and of processor
time per image, and the median of the ratios of neighbouring turns, second commit to first; that last one is the figure
to trust on a machine that is shared.

Exit codes: 0 the ratio of images/s is at least --least; 1 it is not; 2 wrong arguments.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# Runs in each checkout, so it uses only what all commits have.
_LOADER = """
import json, sys, time
import gpuload

shards, size, batch_size, dtype, decoder, seconds = sys.argv[1:]
augment = gpuload.Augment(int(size), dtype=dtype)
loader = gpuload.DaliIterator(
    shards, int(batch_size), augment=augment, device="cpu", decoder=decoder, steps_per_epoch=10**6
)
batches = iter(loader)
for _ in range(30):
    next(batches)
print("ready", flush=True)
for _ in sys.stdin:
    images, begun, work = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < float(seconds):
        for _ in range(8):
            next(batches)
        images += 8 * int(batch_size)
    passed, work = time.perf_counter() - begun, time.process_time() - work
    print(json.dumps([images / passed, work / images]), flush=True)
"""


def check_out(commit: str, folder: Path) -> None:
    """Writes the files of a commit into a folder. Raises ValueError where git does not know it."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if archive.returncode:
        raise ValueError(archive.stderr.decode().strip())
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")


def warm_up(folder: Path) -> None:
    """Compiles the CPU decoder of a checkout; otherwise another one would decode until it is compiled."""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "gpuload", "warm-up"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def start(folder: Path, options: list[str]) -> subprocess.Popen[str]:
    """A process that loads with the gpuload in a folder, after its first batches."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _LOADER, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        process.communicate()
        raise ChildProcessError(f"the loader of {folder.name} ended; its error is above")
    return process


def take_turn(process: subprocess.Popen[str]) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def compare(commits: list[str], options: list[str], turns: int) -> dict[str, Any]:
    """Medians of images/s and processor time per image of both, and of the ratios of neighbouring turns."""
    found: list[list[list[float]]] = [[], []]
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, commit in enumerate(commits):
                check_out(commit, Path(folder, str(number)))
                warm_up(Path(folder, str(number)))
                processes.append(start(Path(folder, str(number)), options))
            for turn in range(turns):
                for number in (0, 1) if turn % 2 else (1, 0):
                    found[number].append(take_turn(processes[number]))
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    first, second = found
    return {
        "commits": commits,
        "images_per_s": [round(median(rate for rate, _ in turns_of)) for turns_of in found],
        "cpu_us_per_image": [round(median(cpu for _, cpu in turns_of) * 1e6, 2) for turns_of in found],
        "ratio": round(median(b[0] / a[0] for a, b in zip(first, second, strict=True)), 3),
        "cpu_ratio": round(median(b[1] / a[1] for a, b in zip(first, second, strict=True)), 3),
        "turns": turns,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs=2, metavar="COMMIT", help="the one before, and the one after")
    parser.add_argument("shards", type=Path, help="a packed folder")
    parser.add_argument("--size", type=int, default=224, help="of the crops, in pixels (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=256, help="(%(default)s)")
    parser.add_argument("--dtype", default="float32", help="(%(default)s)")
    parser.add_argument("--decoder", default="native", help="(%(default)s)")
    parser.add_argument("--turns", type=int, default=15, help="of each (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2, help="of a turn (%(default)s)")
    parser.add_argument("--least", type=float, default=0, metavar="RATIO", help="for exit code 0 (none)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the results of each call are added to it")
    args = parser.parse_args(argv)
    if not (args.shards / "manifest.json").is_file():
        parser.error(f"{args.shards}: is not a packed folder, which has a manifest.json")
    options = {name: getattr(args, name) for name in ("size", "batch_size", "dtype", "decoder", "seconds")}
    try:
        found = compare(args.commits, [str(args.shards.resolve()), *map(str, options.values())], args.turns)
    except (ValueError, ChildProcessError) as error:
        parser.error(str(error))
    print(json.dumps(found, indent=1))
    if args.json:
        before = json.loads(args.json.read_text()) if args.json.exists() else []
        args.json.write_text(
            json.dumps([*before, {"set": args.shards.parent.name, **options, **found}], indent=1) + "\n"
        )
    return 0 if found["ratio"] >= args.least else 1


if __name__ == "__main__":
    sys.exit(main())
