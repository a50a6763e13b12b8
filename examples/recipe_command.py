"""The command that the recipes of several pictures share: it makes or takes files, packs them, and trains."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path


def run_recipe(
    argv: list[str] | None,
    description: str | None,
    make_files: Callable[[Path], object],
    pack: Callable[[Path, Path], object],
    train: Callable[[Path, int], object],
    epochs: int,
) -> int:
    """Packs the folder that the command line names, or files that are made, beside it, and trains on them.

    Args:
        argv: The words of the command line; None: of this process.
        description: What `--help` says.
        make_files: Writes sample files into a folder.
        pack: Packs a folder into shards.
        train: Trains on shards for a number of epochs.
        epochs: Where the command line names no number.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", help="default: sample files that are made"
    )
    parser.add_argument("--epochs", type=int, default=epochs)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch) / "files"
        if args.folder is None:
            make_files(folder)
        shards = folder.with_name(folder.name + "-packed")
        pack(folder, shards)
        train(shards, args.epochs)
    return 0
