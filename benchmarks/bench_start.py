"""Compares how loaders start: the first batch of a new process, the first second, the first eight, and what follows.

    python benchmarks/bench_start.py shards/train
    python benchmarks/bench_start.py shards/train --loaders gpuload torch dali --rounds 5 --json start.json
    python benchmarks/bench_start.py shards/train --python $(bash benchmarks/environments.sh environments ffcv litdata)

Each loader makes random crops of the same images, as in bench.py, in a new process for each measurement: in turns, once
with its data in the page cache (warm), and once after its data was evicted from it (cold: posix_fadvise with
POSIX_FADV_DONTNEED for all of its files, after the process had imported its packages, which come from the page cache in
both). Reported are medians over the rounds:

- first batch: seconds from the start of the process, with Python's start and all imports;
- of the loader: the part of it since the loader was constructed;
- images in 1 s, in 8 s: those that came in the first seconds since the loader was constructed;
- images/s then: of the second half of these seconds. A set that is read whole in less comes from memory by then.

Exit codes: 0; 2 if the folder cannot be used, or no loader could run.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# pillow_loader.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from rich.console import Console
from rich.table import Table
from timing import page_cache
from timing.command_line import add_pythons, add_record, interpreters, make_parser
from timing.contenders import CONTENDERS, why_not
from timing.course import default_cache
from timing.process import ContenderError, ContenderProcess, Start
from timing.report import describe
from timing.work import Work

import gpuload
from gpuload.disk.places import packed_folders

LOADERS = ("gpuload", "dali", "ffcv", "litdata", "torch")
SECONDS = 8.0
STATES = ("warm", "cold")


def figures_of(start: Start, batch_size: int, seconds: float) -> dict[str, float]:
    """The figures of one measurement."""
    since = [came - start.opened for came in start.came]
    half = seconds / 2
    late = [came for came in since if half <= came < seconds]
    return {
        "first_batch_s": start.came[0],
        "loader_s": since[0],
        "images_1_s": batch_size * sum(came < 1 for came in since),
        "images": batch_size * sum(came < seconds for came in since),
        "images_per_s_then": batch_size * len(late) / half,
    }


def medians(measured: Sequence[dict[str, float]]) -> dict[str, float]:
    return {
        name: statistics.median(one[name] for one in measured) for name in measured[0]
    }


class Contest:
    """Measurements of loaders in turns.

    work: what each does. pythons: interpreters of loaders that have their own. seconds: of each measurement.
    """

    def __init__(self, work: Work, pythons: dict[str, str], seconds: float) -> None:
        self._work = work
        self._pythons = pythons
        self._seconds = seconds
        self.measured: dict[str, dict[str, list[dict[str, float]]]] = {}
        self.left_out: dict[str, str] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self.cached_share = 0.0

    def prepare(self, names: Sequence[str]) -> None:
        """Makes the data of each loader, where it does not exist, and leaves out those that cannot."""
        for name in names:
            try:
                with self._start(name) as process:
                    process.prepare()
                    self.versions[name] = process.versions
            except ContenderError as error:
                self._leave_out(name, error)
            else:
                self.measured[name] = {state: [] for state in STATES}

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            for state in STATES:
                names = list(self.measured)
                for place in range(len(names)):
                    self._measure(names[(number + place) % len(names)], state)

    def _measure(self, name: str, state: str) -> None:
        files = page_cache.data_files(CONTENDERS[name].folder(self._work))
        if state == "warm":
            page_cache.warm(files)
        try:
            with self._start(name) as process:
                if state == "cold":
                    page_cache.evict(files)
                    share = page_cache.cached_share(files)
                    self.cached_share = max(self.cached_share, share)
                start = process.first_seconds(self._seconds)
        except ContenderError as error:
            self._leave_out(name, error)
            return
        figures = figures_of(start, self._work.batch_size, self._seconds)
        self.measured[name][state].append(figures)

    def _start(self, name: str) -> ContenderProcess:
        return ContenderProcess(
            name, self._work, self._pythons.get(name, sys.executable)
        )

    def _leave_out(self, name: str, error: ContenderError) -> None:
        reason = str(error).removeprefix(f"{name}: ")
        self.left_out[name] = reason
        self.measured.pop(name, None)
        print(f"left out: {name}: {reason}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    pythons = interpreters(parser, args.python, CONTENDERS)
    if args.rounds < 1 or args.seconds <= 0:
        parser.error("--rounds and --seconds: expected at least 1, and more than 0")
    try:
        args.folder = packed_folders(args.folder)[0]
        work = _work_of(args)
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    contest = Contest(work, pythons, args.seconds)
    can_run = []
    for name in args.loaders:
        reason = why_not(CONTENDERS[name], elsewhere=name in pythons)
        if reason is None:
            can_run.append(name)
        else:
            contest.left_out[name] = reason
            print(f"left out: {name}: {reason}", file=sys.stderr)
    contest.prepare(can_run)
    contest.run(args.rounds)
    if not contest.measured:
        return 2
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe(work, work.folder),
        "seconds": args.seconds,
        "batch_size": work.batch_size,
        "rounds": args.rounds,
        "samples": work.samples,
        "still_cached": round(contest.cached_share, 3),
        "left_out": contest.left_out,
        "loaders": [
            {
                "name": name,
                "versions": contest.versions[name],
                **{state: medians(states[state]) for state in STATES},
                "rounds": states,
            }
            for name, states in contest.measured.items()
        ],
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    Console(width=120, soft_wrap=True).print(table_of(record))
    return 0


def _work_of(args: argparse.Namespace) -> Work:
    dataset = gpuload.Dataset(args.folder)
    return Work(
        args.folder.resolve(),
        args.batch_size,
        args.size,
        args.threads,
        args.batch_size,
        cache=(args.cache or default_cache(args.folder)).resolve(),
        samples=len(dataset),
        largest=(dataset.manifest.width, dataset.manifest.height),
    )


def table_of(record: dict[str, Any]) -> Table:
    table = Table(box=None)
    seconds = record["seconds"]
    heads = (
        "loader",
        "cache",
        "first batch",
        "of the loader",
        "images in 1 s",
        f"in {seconds:g} s",
        "images/s then",
    )
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:2] else "right")
    for loader in record["loaders"]:
        for state in STATES:
            found = loader[state]
            table.add_row(
                CONTENDERS[loader["name"]].what,
                state,
                f"{found['first_batch_s']:.2f} s",
                f"{found['loader_s']:.2f} s",
                f"{found['images_1_s']:,.0f}",
                f"{found['images']:,.0f}",
                f"{found['images_per_s_then']:,.0f}",
            )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, help="a packed set of RGB images")
    parser.add_argument(
        "--loaders",
        nargs="+",
        choices=[name for name, contender in CONTENDERS.items() if contender.jpeg],
        default=LOADERS,
        metavar="NAME",
        help=f"of those of bench.py ({' '.join(LOADERS)})",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of each measurement"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="side of the crops")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="or workers"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="for the peers' formats"
    )
    add_pythons(parser)
    add_record(parser, "all")
    return parser


if __name__ == "__main__":
    sys.exit(main())
