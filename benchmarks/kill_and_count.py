"""Kills training runs of each loader at random steps, resumes them, and counts the samples that came.

    python benchmarks/kill_and_count.py
    python benchmarks/kill_and_count.py --loaders gpuload torchdata --rounds 3
    python benchmarks/kill_and_count.py --loaders gpuload --rounds 22 --json kills.json
    python benchmarks/kill_and_count.py --python streaming=/opt/streaming/bin/python grain=/opt/grain/bin/python

A run is two epochs of 504 small JPEGs, shuffled, in steps of 12 samples over 1, 2 or 3 ranks: processes that take their
batches in step, joined by torch.distributed (gloo), each with two workers or threads. After every second step each rank
saves the state of its loader, as the loader's own documentation does (`counting/loaders` has a module for each).
At a random moment all ranks and workers get SIGKILL. New processes, as many or another number, load what was saved last
and go on to the end of the second epoch. Counted are the samples of the steps before that state, and those of the
resumed run:

- lost: samples that an epoch did not bring; doubled: those that it brought again; of the kill with the most;
- order kept: each step had the samples that it has in a run that nobody kills;
- next batch: seconds from opening the loader in a new process, after its imports, to the first batch; the median of
  kills that were resumed on as many ranks.

A round is one kill of each loader for each pair of numbers of ranks (--pairs), in turns. A loader without a state
begins its epoch again. One that is not installed is left out with a message; --python names the interpreter of those
that have their own environment.

Exit codes: 0; 1 if gpuload lost or doubled a sample, or changed the order; 2 if no loader could run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from counting.report import HEADS, is_exact, rows
from counting.table import NAMES
from rich import box
from rich.console import Console
from rich.table import Table
from timing.command_line import add_pythons, add_record, interpreters, make_parser
from timing.process import environment
from timing.report import describe_machine

PAIRS = ("2:2", "2:3", "3:2", "1:1", "3:3", "1:2", "2:1", "1:3", "3:1")
_WIDE = 240  # of the table, in characters


class Counted:
    """The process of one loader, and its trials."""

    def __init__(self, name: str, python: str, folder: Path, seed: int) -> None:
        self.name = name
        self.trials: list[dict[str, Any]] = []
        self.failed = ""
        self._notes = (folder / f"{name}.txt").open("w")
        command = [python, "-m", "counting.trials", name, str(folder / name), str(seed)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._notes,
            text=True,
            env=environment(),
        )
        self.facts = self._answer()

    def run(self, pair: str) -> None:
        """One kill; nothing after a failure."""
        if self.failed:
            return
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps([int(ranks) for ranks in pair.split(":")]) + "\n"
        )
        self._process.stdin.flush()
        trial = self._answer()
        if not self.failed:
            self.trials.append(trial)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._notes.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            last = Path(self._notes.name).read_text().strip().splitlines()[-1:]
            self.failed = "".join(last) or "its process ended"
            return {}
        found: dict[str, Any] = json.loads(line)
        self.failed = found.pop("failed", "")
        return found


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    pythons = interpreters(parser, args.python, NAMES)
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: expected at least 1")
    for pair in args.pairs:
        if pair not in PAIRS:
            parser.error(
                f"--pairs {pair}: expected two numbers of ranks from 1 to 3, such as 2:3"
            )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        loaders = []
        for name in args.loaders:
            _show(f"preparing {name}")
            loaders.append(
                Counted(
                    name, pythons.get(name, sys.executable), Path(folder), args.seed
                )
            )
            stack.callback(loaders[-1].close)
        run_rounds(loaders, args.rounds, args.pairs, args.json)
    for loader in loaders:
        if loader.failed:
            print(f"left out: {loader.name}: {loader.failed}", file=sys.stderr)
    counted = [loader for loader in loaders if loader.trials]
    if not counted:
        return 2
    Console(width=_WIDE, soft_wrap=True).print(
        make_table([record_of(loader) for loader in counted])
    )
    own = [
        trial
        for loader in counted
        if loader.name == "gpuload"
        for trial in loader.trials
    ]
    return int(not all(is_exact(trial) for trial in own))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--loaders",
        nargs="+",
        choices=NAMES,
        default=NAMES,
        metavar="NAME",
        help=", ".join(NAMES),
    )
    parser.add_argument(
        "--pairs",
        nargs="+",
        default=PAIRS,
        metavar="A:B",
        help="ranks before and after (1 to 3)",
    )
    parser.add_argument(
        "--rounds", type=int, default=1, help="kills of each loader for each pair"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the moments of the kills"
    )
    add_pythons(parser)
    add_record(parser, "all trials")
    return parser


def run_rounds(
    loaders: Sequence[Counted], rounds: int, pairs: Sequence[str], file: Path | None
) -> None:
    """One kill of each loader after the other. file: replaced after each pair."""
    for number in range(rounds):
        for pair in pairs:
            before, after = pair.split(":")
            for loader in loaders:
                _show(
                    f"round {number + 1} of {rounds}, {before} ranks, resumed on {after}: {loader.name}"
                )
                loader.run(pair)
            if file:
                write(file, loaders)
    _show("")


def record_of(loader: Counted) -> dict[str, Any]:
    return {
        "loader": loader.name,
        **loader.facts,
        "failed": loader.failed,
        "trials": loader.trials,
    }


def write(path: Path, loaders: Sequence[Counted]) -> None:
    """Replaces the file with what has been counted so far."""
    temporary = path.with_name(path.name + ".tmp")
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "loaders": [record_of(loader) for loader in loaders],
    }
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(path)


def make_table(records: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for head in HEADS:
        table.add_column(head, no_wrap=True)
    for row in rows(records):
        table.add_row(*row)
    return table


def _show(progress: str) -> None:
    """A line that the next call overwrites, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r{progress:<60}\r", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
