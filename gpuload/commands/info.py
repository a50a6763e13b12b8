"""`python -m gpuload info DIR`: what a packed folder holds, and how well a window mixes it."""

import argparse
from typing import TYPE_CHECKING

from gpuload.commands.console import open_console

# The command line loads this file for every command; what it needs to work is loaded when it does.
if TYPE_CHECKING:
    from rich.table import Table

    from gpuload.disk.dataset import Dataset
    from gpuload.order.mixedness import Mixing


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the command line."""
    info = commands.add_parser(
        "info",
        help="tell what a packed folder holds",
        description="Tells what a packed folder holds, and how well a window of shards mixes it.",
        epilog="Exit codes: 0; 2 where the folder cannot be read.",
    )
    info.set_defaults(run=_info)
    info.add_argument("folder", metavar="DIR", help="a packed folder, such as shards/train, or its URL")
    info.add_argument("--window", type=int, default=8, metavar="N", help="shards mixed at a time (%(default)s)")
    info.add_argument("--lanes", type=int, default=1, metavar="N", help="lanes of the order (%(default)s)")
    info.add_argument("--batch-size", type=int, default=256, metavar="N", help="samples in a batch (%(default)s)")


def _info(args: argparse.Namespace) -> int:
    from gpuload.checks import COUNT, check_option, whole
    from gpuload.disk.dataset import Dataset
    from gpuload.order.mixedness import measure_mixing, smallest_good_window

    check_option("--window", args.window, COUNT)
    check_option("--batch-size", args.batch_size, COUNT)
    dataset = Dataset(args.folder)
    check_option("--lanes", args.lanes, whole(1, max(1, len(dataset.shard_paths))))
    mixing = measure_mixing(dataset, args.window, args.batch_size, lanes=args.lanes)
    console = open_console()
    console.print(_table(dataset, mixing, args.batch_size, args.lanes))
    if mixing.is_poor:
        window = smallest_good_window(dataset, args.batch_size)
        remedy = f"use DaliIterator(window={window}), or pack again" if window else "pack again"
        console.print(
            f"Warning: batches hold {mixing.classes:.1f} classes where a full shuffle gives "
            f"{mixing.expected_classes:.1f}: the shards are sorted. To mend it, {remedy} without --no-shuffle.",
            style="yellow",
        )
    return 0


def _table(dataset: "Dataset", mixing: "Mixing", batch_size: int, lanes: int) -> "Table":
    from rich.filesize import decimal
    from rich.table import Table

    from gpuload.counted import counted

    manifest, shards = dataset.manifest, len(dataset.shard_paths)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")  # else a long path is cut
    table.add_row("folder", str(dataset.folder))
    table.add_row("samples", f"{len(dataset):,} in {counted(shards, 'shard')}, {decimal(manifest.bytes)}")
    table.add_row("fields", ", ".join(f"{field.name} ({field.kind})" for field in manifest.fields))
    table.add_row("mode", f"{manifest.pixels.mode}: {manifest.pixels.in_words}")
    if dataset.classes is not None:
        names = ", ".join(dataset.classes[:6]) + (", …" if len(dataset.classes) > 6 else "")
        table.add_row("classes", f"{len(dataset.classes):,}: {names}")
    table.add_row("largest", f"{manifest.width} × {manifest.height} pixels, {decimal(manifest.image_bytes)}")
    if manifest.mean is not None and manifest.std is not None:
        mean, std = (", ".join(f"{value:.3f}" for value in values) for values in (manifest.mean, manifest.std))
        table.add_row("mean, std", f"({mean}), ({std}), from {counted(manifest.pixels_from, 'image')}")
    table.add_row("fingerprint", dataset.fingerprint)
    table.add_row("window", f"{min(mixing.window, shards)} of {counted(shards, 'shard')} mixed at a time")
    if lanes > 1:
        table.add_row("lanes", f"{lanes}, each with such a window of its own")
    batches, left_out = divmod(len(dataset), batch_size)
    if left_out:
        unless = "drop_last=False keeps them" if batches else "so an epoch has no batch"
        table.add_row(
            "epoch",
            f"shuffled: {counted(batches, 'batch', 'batches')} of {batch_size:,} on one rank, "
            f"{counted(left_out, 'sample')} left out of each epoch ({unless})",
        )
    table.add_row("distance", f"{mixing.distance:.3f} from a full shuffle (0: as mixed as can be, 1: not at all)")
    if mixing.classes is not None:
        table.add_row(
            "classes",
            f"{mixing.classes:.1f} in a batch of {mixing.batch_size}, {mixing.expected_classes:.1f} by a full shuffle",
        )
    return table
