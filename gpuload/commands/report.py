"""`python -m gpuload report SHARDS…`: a page that shows what packed sets hold, and the same facts as JSON."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuload.commands.exit_codes import DONE
from gpuload.counted import counted
from gpuload.errors import OutputError

if TYPE_CHECKING:
    from gpuload.report.build import Options


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the command line."""
    report = commands.add_parser(
        "report",
        help="show what packed sets hold, as one page",
        description="Writes one page that shows what packed sets hold: classes, sizes, odd images, duplicates within "
        "and between splits, what was rejected, batches as training sees them, how they are mixed and how fast they "
        "come. It opens from disk, without a server or a network. The same facts are written as JSON.",
        epilog="Exit codes: 0 written; 2 nothing done, the reason is on stderr; 130 stopped by Ctrl-C.",
    )
    report.set_defaults(run=_report)
    report.add_argument(
        "folders", metavar="SHARDS", nargs="+", help="packed folders, their URLs, or folders that hold several"
    )
    report.add_argument("-o", "--output", default="report.html", metavar="FILE", help="the page (%(default)s)")
    report.add_argument("--json", metavar="FILE", help="the facts (default: beside the page, as .json)")
    report.add_argument("--title", metavar="TEXT", help="of the page (default: the sets, as they are given)")
    report.add_argument("--source", metavar="DIR", help="what was packed: shows pictures of files that were rejected")
    report.add_argument(
        "--images", type=int, default=100_000, metavar="N", help="most images whose pixels are looked at (%(default)s)"
    )
    report.add_argument("--size", type=int, default=224, metavar="PX", help="side of the training crops (%(default)s)")
    report.add_argument("--batch-size", type=int, default=64, metavar="N", help="samples in a batch (%(default)s)")
    report.add_argument("--window", type=int, default=8, metavar="N", help="shards mixed at a time (%(default)s)")
    report.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="how long to measure the speed; 0: not (%(default)s)"
    )


def _report(args: argparse.Namespace) -> int:
    from gpuload.installed import require

    require("report", "jinja2")
    options = _checked(args)
    from gpuload.packing.progress import progress_bar
    from gpuload.report.build import build
    from gpuload.report.page import facts_as_json, render
    from gpuload.report.splits import open_splits

    page = Path(args.output)
    _check_writable(page)
    facts_file = Path(args.json) if args.json else page.with_suffix(".json")
    _check_writable(facts_file)
    if facts_file.absolute() == page.absolute():
        raise OutputError(f"{page}: is named for the page and for the facts. Give two names")
    splits = open_splits(args.folders)
    with progress_bar("looking at images", "images") as bar:
        facts, thumbnails = build(splits, options, bar)
    text = render(facts, thumbnails, args.title or ", ".join(args.folders))
    _write(facts_file, facts_as_json(facts))
    _write(page, text)
    for finding in facts["findings"]:
        if finding["level"] != "good":
            print(f"{'problem' if finding['level'] == 'bad' else 'look'}: {finding['text']}")
    looked_at = counted(facts["looked_at"]["images"], "image")
    print(f"{page}: {len(text.encode()) / 1e6:.1f} MB, looked at {looked_at}; the facts are in {facts_file}")
    return DONE


def _checked(args: argparse.Namespace) -> "Options":
    """Raises ArgumentError for an option that cannot be."""
    from gpuload.augment import Augment
    from gpuload.checks import COUNT, check_option, number, whole
    from gpuload.errors import ArgumentError
    from gpuload.report.build import Options

    check_option("--images", args.images, COUNT)
    check_option("--size", args.size, whole(1, 4096))
    check_option("--batch-size", args.batch_size, whole(1, 65_536))
    check_option("--window", args.window, COUNT)
    check_option("--seconds", args.seconds, number(0, 3600, "seconds, 0 to 3,600"))
    source = None if args.source is None else Path(args.source)
    if source is not None and not source.is_dir():
        raise ArgumentError(f"--source {args.source}: no such folder. Give the one that was packed, or leave it out")
    return Options(args.images, Augment(args.size), args.batch_size, args.window, args.seconds, source)


def _check_writable(file: Path) -> None:
    """Says before the work, and not after it, that a file cannot be written.

    Raises:
        OutputError: its folder is missing, or it is one.
    """
    if file.is_dir():
        raise OutputError(f"{file}: is a folder. Give the name of a file, such as {file / 'report.html'}")
    if not file.absolute().parent.is_dir():
        raise OutputError(f"{file}: its folder does not exist. Make it, or give another -o")
    if not os.access(file.absolute().parent, os.W_OK):
        raise OutputError(f"{file}: its folder cannot be written. Give another -o")


def _write(path: Path, text: str) -> None:
    """A whole file or none."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="surrogateescape")
        part.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}). Free space, or give another -o") from None
    finally:
        part.unlink(missing_ok=True)
