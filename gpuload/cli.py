"""The command line: `python -m gpuload pack`, `index`, `fetch`, `decoded`, `verify`, `info`, `report`, `show`,
`doctor` and `tune`.

    python -m gpuload pack photos shards --val 0.1
    python -m gpuload index 'shards/train-{000..127}.tar'
    python -m gpuload fetch s3://bucket/set/train shards
    python -m gpuload decoded shards/train --size 256
    python -m gpuload verify shards
    python -m gpuload report shards
    python -m gpuload show shards/train 17
    python -m gpuload doctor shards/train
    python -m gpuload tune shards/train

Exit codes: 0 success; 1 verify or doctor found faults; 2 nothing was done (the reason is on stderr); 3 packed, but some
images were rejected (listed in rejected.jsonl); 70 a bug in gpuload, with its traceback; 130 stopped by Ctrl-C.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from gpuload import __version__
from gpuload.commands import BROKEN, DONE, FAULTY, REJECTED, STOPPED, WRONG
from gpuload.errors import ArgumentError, GpuloadError

if TYPE_CHECKING:
    from gpuload.commands.options import Command, Parser

__all__ = ["BROKEN", "DONE", "FAULTY", "REJECTED", "STOPPED", "WRONG", "main"]

# Module and class below gpuload.commands, and the help. Only the command that runs is imported.
COMMANDS = {
    "pack": ("pack.Pack", "pack images into shards"),
    "index": ("sets.IndexShards", "index WebDataset shards from elsewhere"),
    "fetch": ("sets.Fetch", "copy a packed set from a URL into a local folder"),
    "decoded": (
        "copies.DecodedCopies",
        "make, list and remove decoded copies of sets",
    ),
    "verify": ("sets.Verify", "reread a packed folder and list its faults"),
    "info": ("sets.Info", "describe a packed folder"),
    "report": ("sets.WriteReport", "write an HTML page about packed sets"),
    "show": ("sets.Show", "show single samples of a packed set"),
    "doctor": ("sets.Doctor", "check this machine and name the bottleneck"),
    "tune": (
        "tune.Tune",
        "find the fastest settings for a packed folder on this machine",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        from gpuload.commands.terminal import captured_streams

        with captured_streams():
            words = sys.argv[1:] if argv is None else argv
            if words and words[0] in ("pack", "verify"):
                from gpuload.packing.workers import start_server

                # First, so that the server imports the workers' modules while this process imports the command.
                start_server()
            return parse(words).run()
    except KeyboardInterrupt as error:
        return _fail(
            f"stopped; {str(error) or 'no half-written files are left'}", STOPPED
        )
    except BrokenPipeError:  # the reader stopped, as in `| head`
        # What is left in the buffer goes there, not to the closed pipe.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # noqa: TID251 -- Python's own stream
        return DONE
    except GpuloadError as error:
        return _fail(str(error), WRONG)
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return _fail(f"{where}{error.strerror or error}", WRONG)
    except Exception as error:  # a bug, here or in a package that adds to gpuload
        from gpuload.machine.plugins import package_at_fault

        for line in traceback.format_exc().splitlines():
            _fail(line, BROKEN)
        package = package_at_fault(error) or "gpuload"
        advice = f"this is a bug in {package}; please report the lines above"
        return _fail(advice, BROKEN)


def _fail(text: str, code: int) -> int:
    from gpuload.commands.terminal import complain

    complain(f"gpuload: {text}")
    return code


def parse(argv: Sequence[str]) -> "Command":
    """The command, with its options.

    Raises:
        ArgumentError: an option is out of range. SystemExit: unknown command or option, or help.
    """
    from gpuload.checks import nearest
    from gpuload.commands import options

    name = argv[0] if argv else ""
    if name in COMMANDS:
        return options.parse(load(name), f"gpuload {name}", argv[1:])
    if (similar := nearest(name, COMMANDS)) is not None:
        raise ArgumentError(f"{name}: is no command. Did you mean {similar}?")
    parser = options.Parser(
        prog="gpuload", description="Packs images into shards for training on GPUs."
    )
    parser.add_argument("--version", action="version", version=f"gpuload {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command, (_, text) in COMMANDS.items():
        commands.add_parser(command, help=text)
    parser.parse_args(argv)
    raise SystemExit(WRONG)  # an option before the command


def parser_of(name: str) -> "Parser":
    """The parser of a command's arguments."""
    from gpuload.commands.options import parser_for

    return parser_for(load(name), f"gpuload {name}")


def load(name: str) -> "type[Command]":
    """The class of a command."""
    module, _, kind = COMMANDS[name][0].partition(".")
    return getattr(import_module(f"gpuload.commands.{module}"), kind)
