"""`python -m gpuload fetch URL DIR`: copies a packed set from a URL into a local folder."""

import argparse

from rich.filesize import decimal

from gpuload.commands.exit_codes import DONE
from gpuload.counted import counted
from gpuload.packing.progress import progress_bar


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    fetch = commands.add_parser(
        "fetch",
        help="copy a packed set from a URL into a local folder",
        description="Copies a packed set from a URL into a local folder and checks it by its SHA-256s. Run again after "
        "an interruption, it checks and keeps what is there.",
        epilog="Exit codes: 0 the copy is complete; 2 it is not, the reason is on stderr; 130 stopped by Ctrl-C.",
    )
    fetch.set_defaults(run=_fetch)
    fetch.add_argument("url", metavar="URL", help="of a packed folder, such as s3://bucket/set/train")
    fetch.add_argument("folder", metavar="DIR", help="empty or new folder, or one with an interrupted copy")


def _fetch(args: argparse.Namespace) -> int:
    from gpuload.disk.fetch import fetch  # asyncio

    with progress_bar("fetching", "shards") as bar:
        manifest = fetch(args.url, args.folder, bar)
    print(
        f"{args.folder}: {counted(manifest.samples, 'sample')} in {counted(len(manifest.shards), 'shard')}, "
        f"{decimal(manifest.bytes)}"
    )
    return DONE
