"""`python -m gpuload pack SOURCE OUT`: packs images into shards."""

import argparse
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path

from rich.filesize import decimal

from gpuload.checks import parse_size
from gpuload.commands.exit_codes import DONE, REJECTED
from gpuload.counted import counted
from gpuload.disk import Manifest
from gpuload.errors import ArgumentError
from gpuload.packing.image.check import KEPT
from gpuload.packing.options import Encoding, PackOptions, parse_pixels, parse_share, parse_splits
from gpuload.packing.progress import progress_bar
from gpuload.packing.run import packer
from gpuload.sources import open_source
from gpuload.sources.columns import ROLES, parse_columns
from gpuload.sources.registry import format_names
from gpuload.store.url import URL, as_location, scheme_of


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    pack = commands.add_parser(
        "pack",
        help="pack images into shards",
        description="Packs images from folders, zips, HDF5, LMDB, arrays, Parquet or tars into WebDataset shards.",
        epilog="Exit codes: 0 all packed; 3 packed, but some images were rejected (see rejected.jsonl); "
        "2 nothing packed, the reason is on stderr; 130 stopped by Ctrl-C.",
    )
    pack.set_defaults(run=_pack)
    pack.add_argument(
        "source",
        metavar="SOURCE",
        help="folder or .zip of class folders, or what else --from names, here or at a URL; with --labels, where its "
        "paths start",
    )
    pack.add_argument(
        "out",
        metavar="OUT",
        help="empty or new folder, or a URL such as s3://bucket/set; gets train/ (and val/, test/)",
    )
    _add_source_options(pack)
    _add_image_options(pack)
    usual = {field.name: field.default for field in fields(PackOptions) if field.default is not MISSING}
    pack.add_argument(
        "--val", metavar="SHARE", help="share of each class for OUT/val, such as 0.1 or 10%% (%(default)s)"
    )
    pack.add_argument("--splits", metavar="LIST", help="folders and shares, such as train=0.8,val=0.1,test=0.1")
    pack.add_argument(
        "--no-splits", action="store_true", help="ignore the splits that SOURCE itself has (folders train, val, test)"
    )
    pack.add_argument("--no-shuffle", dest="shuffle", action="store_false", help="keep the order of the source")
    pack.add_argument("--seed", type=int, metavar="N", help="of the shuffle and the splits (%(default)s)")
    pack.add_argument("--maxcount", type=int, metavar="N", help="most images in a shard (%(default)s)")
    pack.add_argument(
        "--maxsize", metavar="SIZE", help="largest shard, such as 1GB (default: 1/16 of all, between 16 MB and 1 GB)"
    )
    pack.add_argument(
        "--dedup", metavar="HOW", help="images with the same bytes: report them, or drop all but the first"
    )
    pack.add_argument("--max-rejected", metavar="SHARE", help="fail if more are rejected, such as 1%% (default: 100%%)")
    pack.add_argument("--workers", type=int, metavar="N", help="processes (default: one for each core)")
    pack.add_argument(
        "--time-limit", dest="time_limit_s", type=float, metavar="S", help="seconds for one image (%(default)s)"
    )
    pack.add_argument("--engine", metavar="NAME", help="local, or ray for a cluster (%(default)s)")
    pack.add_argument("--address", help="of the Ray cluster (default: one that runs here, else a new one)")
    pack.add_argument("--resume", action="store_true", help="continue an interrupted run")
    pack.add_argument("--append", action="store_true", help="add shards to the set in OUT")
    pack.add_argument("--overwrite", action="store_true", help="replace the set in OUT, once the new one is whole")
    pack.set_defaults(**{name: value for name, value in usual.items() if name not in ("measure", "max_rejected")})


def _add_source_options(pack: argparse.ArgumentParser) -> None:
    pack.add_argument(
        "--labels",
        metavar="TABLE",
        help="CSV, TSV, JSONL or Parquet table of paths and what belongs to them; COCO's .json; an .npy of labels",
    )
    pack.add_argument("--no-labels", action="store_true", help="pack all images, without labels or other fields")
    pack.add_argument("--from", dest="form", metavar="KIND", help=f"what SOURCE is: {', '.join(format_names())}")
    pack.add_argument("--path-column", metavar="NAME", help="default: path, file, filename, ... whichever it has")
    pack.add_argument("--label-column", metavar="NAME", help="default: label, class or target")
    pack.add_argument(
        "--column",
        metavar="ROLE=NAME",
        action="append",
        default=[],
        help=f"column, array or key for one of {', '.join(ROLES)}; several for target=x,y",
    )


def _add_image_options(pack: argparse.ArgumentParser) -> None:
    pack.add_argument("--encode", metavar="HOW", help="keep, jpeg or raw: how images are stored (%(default)s)")
    pack.add_argument(
        "--mode", metavar="MODE", help="L, RGB, RGBA, I;16, F, such as uint16x4, or keep: as the first (%(default)s)"
    )
    pack.add_argument("--keep", metavar="LIST", help="encodings kept as they are, besides jpeg and png: webp,avif,tiff")
    pack.add_argument("--size", metavar="PIXELS", help="256, or 482x415")
    pack.add_argument("--fit", metavar="HOW", help="shortest, longest, center-crop, stretch or pad (%(default)s)")
    pack.add_argument("--enlarge", action="store_true", help="also enlarge images that are smaller than --size")
    pack.add_argument("--quality", type=int, metavar="N", help="of new JPEGs (default: 95 with keep, else 92)")
    pack.add_argument("--lossless", action="store_true", help="new images as PNG, not JPEG")
    pack.add_argument(
        "--resizer", metavar="NAME", help="of JPEGs made smaller: pillow, torch, or auto: torch if there (%(default)s)"
    )
    pack.add_argument("--check", metavar="HOW", help="full, or header: do not decode what is kept (%(default)s)")
    pack.add_argument("--drop-gray", action="store_true", help="leave out images without colour")
    pack.add_argument("--min-size", type=int, metavar="PIXELS", help="leave out images with a shorter side")
    pack.add_argument("--max-pixels", type=int, metavar="N", help="reject images with more, undecoded (%(default)s)")
    pack.set_defaults(**{field.name: field.default for field in fields(Encoding)})


def _pack(args: argparse.Namespace) -> int:
    settings = {field.name: getattr(args, field.name) for field in fields(PackOptions) if hasattr(args, field.name)}
    settings["maxsize"] = parse_size(args.maxsize) if args.maxsize else None
    settings["splits"] = parse_splits(args.splits) if args.splits else None
    try:
        settings["val"] = parse_share(str(args.val))
    except ArgumentError as error:
        raise ArgumentError(f"--val: {error}") from None
    settings.pop("max_rejected", None)
    if args.max_rejected is not None:
        settings["max_rejected"] = parse_share(args.max_rejected)
    images = {field.name: getattr(args, field.name) for field in fields(Encoding)}
    images["size"] = parse_pixels(args.size) if args.size else None
    options = PackOptions(**settings, encoding=Encoding(**images))
    columns = parse_columns(args.column)
    for role, name in (("path", args.path_column), ("label", args.label_column)):
        if name is not None:
            if columns.get(role, (name,)) != (name,):
                raise ArgumentError(
                    f"--{role}-column {name} and --column {role}={','.join(columns[role])} name two columns for one "
                    "thing. Give one of them"
                )
            columns[role] = (name,)
    out = as_location(args.out)
    out = out if isinstance(out, URL) else Path(out)
    if isinstance(out, Path) and scheme_of(args.source) is None:
        _check_places(Path(args.source), out, args.append)
    inside = out if isinstance(out, Path) else None
    source = open_source(args.source, args.labels, columns, args.form, args.no_labels, args.no_splits, inside)
    with progress_bar("packing", "images") as bar:
        report = packer.pack(source, out, options, lambda p: bar(p.images, p.total_images, p.bytes))
    _summarise(report, out)
    return REJECTED if any(not rejection.asked for rejection in report.rejected) else DONE


def _check_places(source: Path, out: Path, append: bool) -> None:
    """Raises ArgumentError where a set would be packed into its own source, or added to itself."""
    if not source.exists() or not out.exists():
        return
    if source.samefile(out):
        raise ArgumentError(f"SOURCE and OUT are the same folder, {str(source)!r}. Give a new folder as OUT")
    if append and any(folder.samefile(out) for folder in source.resolve().parents):
        raise ArgumentError(
            f"--append: SOURCE {source} lies in OUT {out}, so that the set would be added to itself. Give other images"
        )


def _summarise(report: packer.PackReport, out: Path | URL) -> None:
    rows: dict[str, Callable[[Manifest], str]] = {
        "images": lambda m: f"{m.samples:,}",
        "shards": lambda m: f"{len(m.shards):,}",
        "size": lambda m: decimal(m.bytes),
        "largest": lambda m: f"{m.width:,} × {m.height:,}",
    }
    table = [["", *report.manifests]]
    table += [[name, *(value(manifest) for manifest in report.manifests.values())] for name, value in rows.items()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    classes = next(iter(report.manifests.values())).classes
    if classes is not None:
        print(f"classes: {len(classes):,}")
    anew = Counter({kind: count for kind, count in report.kinds.items() if kind != KEPT})
    if anew:
        print(f"re-encoded: {_counts(anew)}; {report.kinds[KEPT]:,} kept as they are")
    for note in report.notes:
        print(f"note: {note}")
    if report.rejected:
        for asked, word in ((False, "rejected"), (True, "left out, as asked")):
            reasons = Counter(_without_names(r.reason) for r in report.rejected if r.asked == asked)
            if reasons:
                print(f"{word}: {_counts(reasons)}")
        for name in report.manifests:
            print(f"  named in {out / name / packer.REJECTED_NAME}")
    if report.packed:
        rate = report.packed / max(report.elapsed_s, 1e-9)
        print(f"{counted(report.packed, 'image')} in {report.elapsed_s:.1f} s, {rate:,.0f} images/s")


def _without_names(reason: str) -> str:
    """A reason without the names of other images in it, so that it is counted with its like."""
    return re.sub(r"(['\"]).*\1", "another", reason)


def _counts(counts: Counter[str], most: int = 8) -> str:
    listed = [f"{count:,} × {name}" for name, count in counts.most_common(most)]
    rest = counts.total() - sum(count for _, count in counts.most_common(most))
    return ", ".join(listed) + (f", {rest:,} × other" if rest else "")
