"""`python -m gpuload pack SOURCE OUT`: packs images into shards."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from gpuload.commands import DONE, REJECTED
from gpuload.commands.options import given, group, option, place
from gpuload.commands.terminal import listed, save_picture, say, say_table
from gpuload.counted import counted
from gpuload.disk import Manifest
from gpuload.errors import ArgumentError
from gpuload.packing import packer
from gpuload.packing.image import KEPT, MISSING
from gpuload.packing.options import PackOptions
from gpuload.packing.own_files import REJECTED_NAME
from gpuload.packing.run import PackReport
from gpuload.sources import Source, open_source
from gpuload.sources.beside import PicturesBeside
from gpuload.sources.columns import ROLES, parse_columns
from gpuload.sources.matched import are_patterns
from gpuload.sources.matched_files import open_matched
from gpuload.sources.numbering import read_classes
from gpuload.sources.registry import parse_options, sources
from gpuload.store.url import URL, as_location, scheme_of

_MOST_CHANGES = 8  # of encodings that are named
_MOST_CLASSES = 100  # that a dry run prints

# The fields of `PackOptions` and `Encoding` that are options.
_SETTINGS = {
    "encode": option("how to store images: keep, jpeg or raw (%(default)s)", "HOW"),
    "mode": option(
        "RGB, L, RGBA, 'I;16', F, or such as uint16x4 (default: by the files)", "MODE"
    ),
    "keep": option(
        "encodings to keep, besides jpeg and png: webp,avif,tiff", "LIST", type=str
    ),
    "size": option("256, or 482x415", "PIXELS"),
    "fit": option(
        "shortest, longest, center-crop, stretch or pad (%(default)s)", "HOW"
    ),
    "enlarge": option("also enlarge images smaller than --size"),
    "quality": option(
        "quality of new JPEGs (default: 95 with keep, otherwise 92)", "N", type=int
    ),
    "lossless": option("store new images as PNG, not JPEG"),
    "check": option("full, or header: do not decode kept images (%(default)s)", "HOW"),
    "jpeg": option(
        "progressive JPEGs: keep, or convert losslessly to baseline (%(default)s)",
        "HOW",
    ),
    "png": option("PNGs: keep, or compress anew with seek points (%(default)s)", "HOW"),
    "page": option(
        "page or frame to pack of files with several, from 0 (default: the first)",
        "N",
        type=int,
    ),
    "depth": option(
        "bits in use of 16-bit values that become 8: 12 makes 4,095 white",
        "BITS",
        type=int,
    ),
    "alpha": option(
        "transparency without a channel: white, drop, or ask for TIFFs of more bands (%(default)s)",
        "HOW",
    ),
    "bands": option(
        "bands that become the channels, counted from 1, such as 4,3,2",
        "LIST",
        type=str,
    ),
    "scale": option(
        "values that become the smallest and the largest of the mode, such as 0:4095",
        "LOW:HIGH",
        type=str,
    ),
    "window": option(
        "the same as center and width, as DICOM has it; file: the one of each file",
        "CENTER:WIDTH",
        type=str,
    ),
    "icc": option("colour profiles: keep, or convert to srgb (%(default)s)", "HOW"),
    "damaged": option(
        "JPEGs that lack data: reject, or keep with gray rows (%(default)s)", "HOW"
    ),
    "masks": option(
        "masks with two readings: stored numbers, shown levels, or ask (%(default)s)",
        "HOW",
    ),
    "resize": option(
        "further pictures with --size: smooth, nearest, width, flow, own or keep",
        "NAME=HOW",
    ),
    "class_numbers": option(
        "further pictures and lists that hold class numbers or ids, as masks do",
        "NAME",
    ),
    "turn_masks": option(
        "turn masks as Exif turns their images: yes, no, or auto by size (%(default)s)",
        "HOW",
    ),
    "points": option(
        "seek points of large images, for cheap crops: auto or no (%(default)s)",
        "HOW",
    ),
    "max_pixels": option(
        "reject images with more pixels, without decoding them (%(default)s)", "N"
    ),
    "val": option(
        "share of each class for OUT/val, such as 0.1 or 10%% (%(default)s)",
        "SHARE",
        type=str,
    ),
    "splits": option("folders and shares, such as train=0.8,val=0.1,test=0.1", "LIST"),
    "shuffle": option("keep the order of the source"),
    "seed": option("seed of the shuffle and the splits (%(default)s)", "N"),
    "maxcount": option("maximum images in a shard (%(default)s)", "N"),
    "maxsize": option(
        "maximum size of a shard, such as 1GB (default: 1/16 of all, 16 MB to 1 GB)",
        "SIZE",
    ),
    "dedup": option("drop images with the same bytes as an earlier one"),
    "max_rejected": option(
        "fail if more are rejected, such as 1%% (default: 100%%)", "SHARE", type=str
    ),
    "workers": option("worker processes (default: one per core)", "N", type=int),
    "time_limit_s": option("seconds per image (%(default)s)", "S", "--time-limit"),
    "engine": option("local, or ray for a cluster (%(default)s)", "NAME"),
    "address": option(
        "address of the Ray cluster (default: one running here, otherwise a new one)"
    ),
    "resume": option("continue an interrupted run"),
    "append": option("add shards to the set in OUT"),
    "overwrite": option("replace the set in OUT when the new one is complete"),
}


@dataclass(frozen=True)
class Pack:
    """Packs images from folders, zips, HDF5, LMDB, arrays, Parquet or tars into WebDataset shards."""

    epilog = (
        "Exit codes: 0 all packed; 3 packed, but some images were rejected (see rejected.jsonl); "
        "2 nothing packed (reason on stderr); 130 stopped by Ctrl-C."
    )

    source: str = place(
        "folder or .zip of class folders, or another source of --from, local or at a URL; with --labels, the root of "
        "its paths",
        "SOURCE",
    )
    out: str = place(
        "empty or new folder, or a URL such as s3://bucket/set; gets train/ (and val/, test/)",
        "OUT",
    )
    labels: str | None = given(
        None, "CSV, TSV, JSONL or Parquet table of paths, labels and other fields; COCO's .json; an .npy of labels",
        "TABLE",
    )  # fmt: skip
    classes: str | None = given(
        None, "names of all classes in the order of their numbers, one a line", "FILE"
    )
    no_labels: bool = given(False, "pack all images, without labels or other fields")
    form: str | None = given(
        None, f"what SOURCE is, installed: {', '.join(sources())}", "NAME", "--from"
    )
    option: tuple[str, ...] = given(
        (), "another option of the source", "NAME=VALUE", action="append"
    )
    column: tuple[str, ...] = given(
        (),
        f"column, array or key for one of {', '.join(ROLES)}; target=x,y for several",
        "ROLE=NAME",
        action="append",
    )
    picture: tuple[str, ...] = given(
        (),
        "folder of further pictures, whose files are called as the images are; or, for all pictures, patterns of files "
        "in SOURCE",
        "NAME=FOLDER",
        action="append",
    )
    zip_encoding: str | None = given(
        None, "code page of names in a .zip that are not UTF-8, such as gbk", "NAME"
    )
    no_splits: bool = given(
        False, "ignore the splits of SOURCE (folders train, val, test)"
    )
    negatives: bool = given(
        False,
        "images without an XML (Pascal VOC) have no objects, instead of being an error",
    )
    dry_run: bool = given(
        False, "print what would be packed, and draw ten samples in OUT-preview.png"
    )
    settings: PackOptions = group(_SETTINGS)

    def run(self) -> int:
        where = as_location(self.out)
        inside = None if isinstance(where, URL) else Path(where)
        if inside is not None and scheme_of(self.source) is None:
            _check_places(Path(self.source), inside, self.settings.append)
        source = self._open_source(inside)
        if self.dry_run:
            return _show_preview(source, self.settings, self.out)
        report = packer.pack(source, where, **vars(self.settings))
        _summarise(report)
        return (
            REJECTED
            if any(not rejection.asked for rejection in report.rejected)
            else DONE
        )

    def _open_source(self, out: Path | None) -> Source:
        """The source.

        Args:
            out: The output folder, if it is local.
        """
        pictures = parse_pictures(self.picture)
        if are_patterns(pictures):
            others = {
                "--from": self.form,
                "--no-labels": self.no_labels,
                "--negatives": self.negatives,
                "--option": self.option,
            }
            classes = () if self.classes is None else read_classes(self.classes)
            return open_matched(
                self.source,
                pictures,
                others,
                out,
                self.zip_encoding,
                self.labels,
                parse_columns(self.column),
                own_splits=not self.no_splits,
                classes=classes,
            )
        source = open_source(
            self.source,
            self.labels,
            parse_columns(self.column),
            self.form,
            self.no_labels,
            self.no_splits,
            self.negatives,
            out,
            self.zip_encoding,
            parse_options(self.option),
            self.classes,
        )
        return PicturesBeside(source, pictures) if pictures else source


def _show_preview(source: Source, settings: PackOptions, out: str) -> int:
    """Prints what would be packed."""
    from gpuload.packing.preview import preview  # NumPy's and Pillow's drawing

    shown = preview(source, settings)
    listing = shown.listing
    say(f"source: {shown.source}")
    splits = (
        f"{name} {counted(count, 'image')}" for name, count in shown.splits.items()
    )
    say(f"splits: {', '.join(splits)}")
    fields = ["image", *(f"{field.name} ({field.kind})" for field in listing.fields)]
    say(f"fields: {', '.join(fields)}")
    for name, classes in shown.classes.items():
        _say_classes(name, classes)
    say(*(f"note: {note}" for note in listing.notes))
    reasons = Counter(rejection.reason for rejection in listing.rejected)
    if reasons:
        say(f"left out: {_counts(reasons)}")
    path = Path(f"{Path(out).name or 'pack'}-preview.png")
    if scheme_of(out) is None:
        path = Path(out).parent / path
    save_picture(shown.sheet, path, "gpuload pack")
    say("nothing was packed")
    return DONE


def _say_classes(field: str, classes: Sequence[tuple[int, str, int]]) -> None:
    """Prints the first classes of a field: numbers, names and counts."""
    rows = [[f"{number}", title, f"{count:,}"] for number, title, count in classes]
    say_table(rows[:_MOST_CLASSES], heads=[field, "class", "count"], left=2)
    if len(rows) > _MOST_CLASSES:
        say(f"and {len(rows) - _MOST_CLASSES:,} classes more")


def parse_pictures(entries: Sequence[str]) -> dict[str, str]:
    """The folders of further pictures by name, of `--picture NAME=FOLDER`.

    Raises:
        ArgumentError: an entry has another form, or a name comes twice.
    """
    folders: dict[str, str] = {}
    for entry in entries:
        name, _, folder = entry.partition("=")
        if not name or not folder or name in folders:
            raise ArgumentError(
                f"--picture {entry}: write NAME=FOLDER, each name once, such as depth=depths, or a pattern for each "
                "picture, such as left='image_2/*_10.png'"
            )
        folders[name] = folder
    return folders


def _check_places(source: Path, out: Path, append: bool) -> None:
    """Raises ArgumentError if a set would be packed into its own source, or added to itself."""
    places = [source]
    if append:
        places += source.resolve().parents
    if (
        source.exists()
        and out.exists()
        and any(place.samefile(out) for place in places)
    ):
        raise ArgumentError(
            f"SOURCE {str(source)!r} is OUT {str(out)!r}, or lies in it. Give another OUT"
        )


_SPLIT_ROWS = ("images", "shards", "size", "largest")


def _describe_split(manifest: Manifest) -> Sequence[str]:
    """The values of `_SPLIT_ROWS`."""
    return (
        f"{manifest.samples:,}",
        f"{len(manifest.shards):,}",
        decimal(manifest.bytes),
        f"{manifest.width:,} × {manifest.height:,}",
    )


def _say_rejected(report: PackReport) -> None:
    """Prints how many images were left out, for which reasons, and where they are listed."""
    for asked, word in ((False, "rejected"), (True, "dropped, as requested")):
        # Without the names of other images, so that similar reasons are counted together.
        reasons = Counter(
            re.sub(r"(['\"]).*\1", "another", rejection.reason)
            for rejection in report.rejected
            if rejection.asked == asked
        )
        if reasons:
            say(f"{word}: {_counts(reasons)}")
    if report.rejected:
        for name in report.manifests:
            say(f"  named in {report.folder / name / REJECTED_NAME}")


def _say_costs(report: PackReport) -> None:
    """Prints what images were re-encoded into, and at which cost, the most frequent first."""
    by_images = sorted(report.costs.items(), key=lambda entry: -entry[1].images)
    for change, cost in by_images[:_MOST_CHANGES]:
        before = decimal(int(cost.read_bytes))
        after = decimal(int(cost.stored_bytes))
        each_ms = 1e3 * cost.seconds / cost.images
        say(
            f"  {int(cost.images):,} × {change}: {before} became {after}, {each_ms:.2g} ms of a core each"
        )


def _summarise(report: PackReport) -> None:
    manifests = report.manifests.values()
    columns = [_describe_split(manifest) for manifest in manifests]
    rows = [list(row) for row in zip(_SPLIT_ROWS, *columns, strict=True)]
    say_table(rows, heads=["", *report.manifests], left=len(rows))
    manifest = next(iter(manifests))
    if manifest.classes is not None:
        say(f"classes: {listed(manifest.classes)}")
    fields = [
        f"{field.name} (.{field.member.replace(';', ', .')})"
        for field in manifest.fields
    ]
    say(f"fields: {', '.join(fields)}")
    stored_anew = Counter(dict(sorted(report.kinds.items())))
    kept = stored_anew.pop(KEPT, 0)
    missing = stored_anew.pop(MISSING, 0)
    if stored_anew:
        say(f"re-encoded: {_counts(stored_anew)}; {kept:,} kept unchanged")
    _say_costs(report)
    if missing:
        say(f"without a picture: {counted(missing, 'sample')}")
    say(*(f"note: {note}" for note in report.notes))
    _say_rejected(report)
    if report.packed:
        rate = report.packed / max(report.packing_s, 1e-9)
        say(
            f"{counted(report.packed, 'image')} in {report.elapsed_s:.1f} s; {rate:,.0f} images/s, without set-up"
        )


def _counts(counts: Counter[str]) -> str:
    frequent = counts.most_common(8)
    rest = counts.total() - sum(count for _, count in frequent)
    if rest:
        frequent.append(("other", rest))
    return ", ".join(f"{count:,} × {name}" for name, count in frequent)
