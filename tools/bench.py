"""Measures loaders against each other on your machine and your images.

    python tools/bench.py shards/train
    python tools/bench.py shards/train --loaders torch gpuload --size 128 --threads 8 --json figures.json
    python tools/bench.py shards/train --read-only

Every loader runs in a process of its own and makes the same batches of the same stored images: random resized crop,
horizontal flip, normalised float32. They take turns, so that whatever else the machine does falls on all of them;
figures are medians over the rounds. The page cache is warm. CPU seconds count all processes and threads of a loader.

Exit codes: 0, or 2 for a folder or an argument that cannot be used, or where no loader could run.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))  # pillow_loader

from benchmark.contenders import CONTENDERS, why_not
from benchmark.process import ContenderError, ContenderProcess, Round
from benchmark.report import describe, print_report, summarise
from benchmark.work import Work

import gpuload

# Contents that differ by chance differ by less: mean and deviation of one batch of random crops.
_SAME_CONTENT = 0.5
_BATCHES = 16  # in a round, at least


def measure(names: list[str], work: Work, rounds: int) -> tuple[dict, dict]:
    """First batches and rounds of each contender that works; says which do not, and why."""
    contestants = {}
    for name in names:
        try:
            contestants[name] = ContenderProcess(name, work)
        except ContenderError as error:
            print(f"left out: {error}", file=sys.stderr)
    results: dict[str, list[Round]] = {name: [] for name in contestants}
    try:
        for number in range(rounds if contestants else 0):
            order = list(results)
            for name in order[number % len(order) :] + order[: number % len(order)]:
                show(f"round {number + 1} of {rounds}: {name}")
                results[name].append(contestants[name].round())
    finally:
        show("")
        for contestant in contestants.values():
            contestant.close()
    return {name: contestant.first for name, contestant in contestants.items()}, results


def show(progress: str) -> None:
    """One line that the next call overwrites; nothing where nobody watches."""
    if sys.stderr.isatty():
        print(f"\r{progress:<40}\r", end="", file=sys.stderr, flush=True)


def choose(asked: list[str] | None, read_only: bool) -> list[str]:
    """The contenders that can run here; says which of those asked for cannot, and why."""
    names = asked or [name for name, contender in CONTENDERS.items() if contender.reads_only == read_only]
    chosen = []
    for name in names:
        reason = why_not(CONTENDERS[name])
        if reason is None:
            chosen.append(name)
        elif asked or CONTENDERS[name].device == "cpu":
            print(f"left out: {name}: {reason}", file=sys.stderr)
    return chosen


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a packed split, such as shards/train")
    parser.add_argument("--loaders", nargs="+", choices=list(CONTENDERS), metavar="NAME", help=", ".join(CONTENDERS))
    parser.add_argument("--read-only", action="store_true", help="reading alone, without decoding")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, help="of one loader in one round (2048; with --read-only 200000)")
    parser.add_argument("--threads", type=int, default=2, help="workers or decoding threads of each loader")
    parser.add_argument("--size", type=int, default=224, help="side of the crops in pixels")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to it")
    args = parser.parse_args(argv)
    if args.images is None:
        args.images = max(200_000 if args.read_only else 2048, _BATCHES * args.batch_size)
    for name in ("rounds", "images", "threads", "size", "batch_size"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: expected at least 1")
    if args.images < _BATCHES * args.batch_size:
        parser.error(
            f"--images {args.images}: expected at least {_BATCHES} batches ({_BATCHES * args.batch_size:,} images), "
            "or what lies ready in the loaders' queues would count too much"
        )
    work = Work(args.folder, args.batch_size, args.size, args.threads, args.images)
    try:
        lines = describe(work)
        if len(gpuload.Dataset(work.folder)) < work.batch_size:
            parser.error(f"--batch-size {work.batch_size}: is larger than {work.folder}; use a smaller one")
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2

    for shard in gpuload.Dataset(work.folder).shard_paths:  # warms the page cache
        with shard.open("rb") as file:
            while file.read(1 << 24):
                pass
    names = choose(args.loaders, args.read_only)
    firsts, rounds = measure(names, work, args.rounds) if names else ({}, {})
    if not rounds:
        print("no loader could run; the lines above say why", file=sys.stderr)
        return 2
    first, *others = firsts.values()
    for name, other in zip(list(firsts)[1:], others, strict=True):
        if abs(other.mean - first.mean) > _SAME_CONTENT or abs(other.std - first.std) > _SAME_CONTENT:
            print(
                f"{name}: its images are others (mean {other.mean:.2f}, deviation {other.std:.2f}) than the first "
                f"loader's ({first.mean:.2f}, {first.std:.2f})",
                file=sys.stderr,
            )
            return 2

    kind = "encoded samples" if args.read_only else f"{args.size}×{args.size} float32"
    title = (
        f"{args.threads} threads or workers, batches of {args.batch_size}, {kind}, "
        f"{args.rounds} rounds of {args.images:,} images"
    )
    rows = summarise(firsts, rounds)
    print_report(rows, title, lines)
    if args.json:
        args.json.write_text(json.dumps({"machine": lines, "setting": title, "loaders": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
