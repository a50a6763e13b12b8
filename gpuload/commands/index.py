"""`python -m gpuload index SHARDS`: indexes WebDataset shards that others packed, without repacking them."""

import argparse

from rich.filesize import decimal

from gpuload.commands.exit_codes import DONE
from gpuload.counted import counted
from gpuload.packing.foreign.index import index_shards
from gpuload.packing.progress import progress_bar
from gpuload.sources.splits import named_splits


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    index = commands.add_parser(
        "index",
        help="index WebDataset shards that others packed",
        description="Indexes WebDataset shards where they lie, here or at URLs such as "
        "hf://datasets/OWNER/NAME/*.tar, without repacking: members jpg/jpeg/png, cls, txt, json.",
        epilog="Exit codes: 0 indexed; 2 nothing done, the reason is on stderr; 130 stopped by Ctrl-C.",
    )
    index.set_defaults(run=_index)
    index.add_argument(
        "shards",
        metavar="SHARDS",
        nargs="+",
        help="tars, or their URLs; braces ({000..127}) and wildcards are expanded",
    )
    index.add_argument(
        "--out", metavar="DIR", help="folder for the index (default: beside the shards; needed for URLs)"
    )
    index.add_argument("--classes", metavar="FILE", help="text file with the name of a class in each line")
    index.add_argument("--overwrite", action="store_true", help="replace an index that is there")


def _index(args: argparse.Namespace) -> int:
    with progress_bar("indexing", "shards") as bar:
        folder, manifest = index_shards(
            args.shards, args.out, args.classes, args.overwrite, lambda n, of: bar(n, of, 0)
        )
    found = ", ".join(f"{field.name} (.{field.member})" for field in manifest.fields)
    print(
        f"{folder}: {counted(manifest.samples, 'sample')} in {counted(len(manifest.shards), 'shard')}, "
        f"{decimal(manifest.bytes)}; fields: {found}"
    )
    for member, count in manifest.packing["not_indexed"].items():
        print(f"note: only {counted(count, 'sample has', 'samples have')} .{member}, so it is not indexed")
    passed_over = manifest.packing.get("passed_over", {})
    if passed_over:
        counts = ", ".join(f"{count:,} × {name}" for name, count in passed_over.items())
        print(f"note: members that are not indexed: {counts}; `python -m gpuload pack --from tar` takes more kinds")
    splits = named_splits([shard.name for shard in manifest.shards])
    if len(splits) > 1:
        print(f"note: shards of {' and '.join(splits)}, by their names, are indexed as one set; index each with --out")
    return DONE
