"""Compares loaders that read from S3: gpuload, MosaicML Streaming and LitData, in turns, on one machine.

    python benchmarks/bench_remote.py FOLDER
    python benchmarks/bench_remote.py FOLDER --json figures.json
    python benchmarks/bench_remote.py FOLDER --python mosaic=/opt/peers/bin/python litdata=/opt/peers/bin/python

Makes a set of synthetic JPEGs in FOLDER (kept for the next run), in the format of each loader, serves them as S3 from a
process of its own, and prints a table. All make the same crops: an epoch with an empty cache, one from the cache, the
first batch of a new process, and a new process that resumes in the middle of an epoch. Loaders that are not installed
are left out; --python names the interpreter of those that have their own.

Figures are medians of --runs that alternate. All processes end with this one. Exit code 0.
"""

import json
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from timing.command_line import add_pythons, add_record, interpreters, make_parser

from benchmarks.remote.loaders import LOADERS
from benchmarks.remote.peers import Peers


def table_of(found: dict[str, Any]) -> Table:
    table = Table("what", "found", box=None)
    for loader in found["loaders"].values():
        for title, text in _of_loader(loader):
            table.add_row(f"{loader['what']}, {title}", text)
    for name, why in found["left_out"].items():
        table.add_row(f"left out: {name}", why)
    return table


def _of_loader(one: dict[str, Any]) -> list[tuple[str, str]]:
    mb = {
        name: f"{one[name] / 1e6:,.0f} MB"
        for name in ("bytes", "resume_bytes", "resume_network_bytes")
    }
    return [
        (
            "epoch, empty cache",
            f"{one['cold_images_per_s']:,.0f} images/s, {mb['bytes']}",
        ),
        ("epoch from the cache", f"{one['warm_images_per_s']:,.0f} images/s"),
        (
            "first batch, empty cache",
            f"{one['first_batch_s']:.2f} s from the start of the process",
        ),
        ("resumes, empty cache", f"{one['resume_cold_s']:.2f} s, {mb['resume_bytes']}"),
        (
            "resumes over the network",
            f"{one['resume_network_s']:.2f} s, {mb['resume_network_bytes']}",
        ),
        ("resumes from the cache", f"{one['resume_warm_s']:.2f} s"),
    ]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument(
        "folder",
        type=Path,
        help="for the sets and caches, on the disk that is to be measured",
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--network",
        type=float,
        default=150,
        metavar="MB/S",
        help="of the slower one (%(default)s)",
    )
    add_pythons(parser)
    add_record(parser, "the figures")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error(f"--runs {args.runs}: expected at least 1")
    folder = args.folder.absolute()
    scratch = args.folder.absolute() / "scratch"
    peers = Peers(
        folder, scratch, interpreters(parser, args.python, LOADERS), args.network * 1e6
    )
    served = {
        "date": time.strftime("%Y-%m"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "runs": args.runs,
    }
    load = os.getloadavg()[0]
    begun = time.monotonic()
    try:
        figures = peers.run(args.runs)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    Console().print(table_of(figures))
    if args.json:
        record = {
            "peers": {
                "made": {**served, "load": load, "took_s": time.monotonic() - begun},
                **figures,
            }
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
