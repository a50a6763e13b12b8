"""`python -m gpuload verify DIR`: reads a packed folder again and lists its faults."""

import argparse

from gpuload.commands.exit_codes import DONE, FAULTY
from gpuload.counted import counted
from gpuload.packing.progress import progress_bar
from gpuload.packing.verify import verify


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    check = commands.add_parser(
        "verify",
        help="read a packed folder again and list its faults",
        description="Reads everything again: sizes, SHA-256, index against tar, and every image.",
        epilog="Exit codes: 0 all is well; 1 faults, one a line on stdout; 2 not a packed folder.",
    )
    check.set_defaults(run=_verify)
    check.add_argument("folder", metavar="DIR", help="a packed folder or its URL, or one that holds several")
    check.add_argument("--workers", type=int, metavar="N", help="processes (default: one for each core)")


def _verify(args: argparse.Namespace) -> int:
    with progress_bar("verifying", "shards") as bar:
        faults = verify(args.folder, args.workers, lambda n, of: bar(n, of, 0))
    for fault in faults:
        print(fault)
    print(f"{args.folder}: {counted(len(faults), 'fault')}" if faults else f"{args.folder}: all is well")
    return FAULTY if faults else DONE
