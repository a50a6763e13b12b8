"""The command line: `python -m gpuload pack`, `index`, `fetch`, `verify`, `info`, `report`, `show`, `doctor`, `tune`
and `warm-up`.

    python -m gpuload pack photos shards --val 0.1
    python -m gpuload index 'shards/train-{000..127}.tar'
    python -m gpuload fetch s3://bucket/set/train shards
    python -m gpuload verify shards
    python -m gpuload report shards
    python -m gpuload show shards/train 17
    python -m gpuload doctor shards/train
    python -m gpuload tune shards/train
    python -m gpuload warm-up

Exit codes: 0 success; 1 verify or doctor found faults; 2 nothing was done, one line on stderr says why; 3 packed, but
some images were rejected (rejected.jsonl lists them); 130 stopped by Ctrl-C.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from gpuload import __version__
from gpuload.commands.exit_codes import DONE, FAULTY, REJECTED, STOPPED, WRONG
from gpuload.errors import GpuloadError
from gpuload.store.url import URL, as_location

__all__ = ["DONE", "FAULTY", "REJECTED", "STOPPED", "WRONG", "main"]


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["pack"], ["verify"]):
        from gpuload.packing.run.workers import start_server

        # First of all: the server imports what workers need while this process imports the commands.
        start_server(_preload(argv))
    from gpuload.commands import doctor, fetch, index, info, pack, report, show, tune, verify, warm_up

    parser = argparse.ArgumentParser(prog="gpuload", description="Packs images into shards for training on GPUs.")
    parser.add_argument("--version", action="version", version=f"gpuload {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (pack, index, fetch, verify, info, report, show, doctor, tune, warm_up):
        module.add_command(subparsers)
    args = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except GpuloadError as error:
        print(f"gpuload: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        outcome = (
            "finished shards are kept: continue with --resume" if _is_kept(args) else "no half-written files are left"
        )
        print(f"gpuload: stopped; {outcome}", file=sys.stderr)
        return STOPPED


def _is_kept(args: argparse.Namespace) -> bool:
    """Whether a run that packs was interrupted, and can be continued."""
    given = getattr(args, "out", None) or "."
    if isinstance(where := as_location(given), URL):
        from gpuload.packing.run.remote_output import is_interrupted

        return is_interrupted(where)
    from gpuload.packing.run.output import SCRATCH_NAME

    out = Path(where)
    return any((out.parent / name).exists() for name in (out / SCRATCH_NAME, f".{out.name}{SCRATCH_NAME}"))


def _preload(argv: list[str]) -> tuple[str, ...]:
    """Guesses which further modules workers will import; arguments are parsed later. A wrong guess only costs time."""
    words = " ".join(argv)
    smaller = re.search(r" --en\w*[= ]jpeg( |$)", words) and not re.search(r" --res\w*[= ]pillow( |$)", words)
    return ("gpuload.packing.image.shrink",) if smaller else ()
