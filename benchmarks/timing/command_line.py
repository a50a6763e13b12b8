"""What the command lines of benchmarks have in common."""

import argparse
from collections.abc import Container
from pathlib import Path


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """A parser without arguments.

    Args:
        about: The docstring of the script, which is shown as it stands.
    """
    return argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_pythons(parser: argparse.ArgumentParser) -> None:
    """Adds --python, which `interpreters` reads."""
    parser.add_argument(
        "--python",
        nargs="+",
        default=[],
        metavar="LOADER=PATH",
        help="run a loader with this Python",
    )


def add_record(parser: argparse.ArgumentParser, content: str) -> None:
    """Adds --json, the file of a record.

    Args:
        content: What is written to it, such as "all figures".
    """
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help=f"write {content} to it"
    )


def interpreters(
    parser: argparse.ArgumentParser, pairs: list[str], names: Container[str]
) -> dict[str, str]:
    """--python as {loader: path}.

    Args:
        parser: Reports a pair that is none.
        pairs: The values of the option.
        names: Of all loaders.
    """
    paths = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or name not in names:
            parser.error(
                f"--python {pair}: expected LOADER=PATH, such as ffcv=/opt/ffcv/bin/python"
            )
        paths[name] = path
    return paths
