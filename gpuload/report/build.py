"""Makes a report: gathers the facts and the pictures of packed sets, in one dict that becomes JSON and a page."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from gpuload import __version__
from gpuload.augment import Augment
from gpuload.corrupt import CorruptSample
from gpuload.report.classes import class_tables
from gpuload.report.columns import MOST_ROWS, Columns, class_fields, read_columns
from gpuload.report.duplicates import find_groups
from gpuload.report.extremes import find_extremes
from gpuload.report.files import FileFacts, read_files
from gpuload.report.findings import find_findings
from gpuload.report.groups import MOST_SHOWN, tell_groups
from gpuload.report.histograms import histogram
from gpuload.report.pixels import Looks, choose, look_at, shares, side_for
from gpuload.report.rejected import read_rejected
from gpuload.report.samples import Thumbnails, describe
from gpuload.report.splits import Split, training_split
from gpuload.report.training import mixing, speed, training_batch

_THUMBNAIL_BYTES = 3_000_000  # of all thumbnails: what keeps a page below 5 MB
# What is told of a manifest's record of its packing; what else it holds may name folders.
_PACKING = (
    "shuffle",
    "seed",
    "maxcount",
    "maxsize",
    "encode",
    "size",
    "fit",
    "quality",
    "lossless",
    "resizer",
    "dedup",
)

Progress = Callable[[int, int, int], None]


@dataclass(frozen=True)
class Options:
    """What a report looks at.

    most_images: whose pixels are looked at, over all splits. augment, batch_size, window: of the training that is
    shown. seconds: for how long speed is measured; 0: not. source: the folder that the sets were packed from.
    """

    most_images: int
    augment: Augment
    batch_size: int
    window: int
    seconds: float
    source: Path | None


def build(splits: Sequence[Split], options: Options, progress: Progress) -> tuple[dict[str, Any], Thumbnails]:
    """The facts, which hold the pictures that are no thumbnails as data URIs under keys "picture", and the thumbnails.

    progress: is called with the number of images that were looked at, of how many, and 0.

    Raises:
        ShardError, RemoteError: a shard cannot be read. MissingPackageError: what loading needs is not installed.
    """
    begun, cpu = time.monotonic(), time.process_time()
    columns = [read_columns(split.dataset) for split in splits]
    looks, files, broken = _look(splits, columns, options, progress)
    trained = training_split(splits)
    thumbnails = Thumbnails(splits, _THUMBNAIL_BYTES)
    facts: dict[str, Any] = {
        "gpuload": __version__,
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "splits": [_split(split, found, look) for split, found, look in zip(splits, columns, looks, strict=True)],
        "rejected": [read_rejected(split, options.source) for split in splits],
        "undecodable": [_broken(split, found) for split, found in zip(splits, broken, strict=True)],
        "histograms": _histograms(splits, columns, files),
        "files": _files(splits, files),
        "extremes": find_extremes(splits, columns, looks, files),
        "duplicates": tell_groups(splits, find_groups(splits, columns, looks)),
        "classes": class_tables(splits, columns),
        "gray": [_gray(split, look) for split, look in zip(splits, looks, strict=True)],
    }
    images = sum(len(look.numbers) for look in looks)
    facts["looked_at"] = {"images": images, "of": sum(len(split.dataset) for split in splits)}
    facts["training"] = {"split": trained.name, **_training(trained, options)}
    facts["findings"] = find_findings(facts)
    _want(facts, thumbnails)
    facts["took"] = {"seconds": time.monotonic() - begun, "cpu_seconds": time.process_time() - cpu}
    return facts, thumbnails


def _look(
    splits: Sequence[Split], columns: Sequence[Columns], options: Options, progress: Progress
) -> tuple[list[Looks], list[FileFacts], list[tuple[tuple[CorruptSample, ...], int]]]:
    """Looks at the pixels and headers of the images of all splits."""
    counts = list(shares([len(split.dataset) for split in splits], options.most_images))
    side = side_for(np.concatenate([np.minimum(found.widths, found.heights) for found in columns]))
    looks, files, broken = [], [], []
    done = 0

    def more(images: int) -> None:
        nonlocal done
        done += images
        progress(done, sum(counts), 0)

    for split, count in zip(splits, counts, strict=True):
        numbers = choose(split.dataset, count)
        look, bad, many = look_at(split.dataset, numbers, side, more)
        looks.append(look)
        broken.append((bad, many))
        files.append(read_files(split.dataset, split.dataset.stored_samples(numbers)))
    return looks, files, broken


def _split(split: Split, columns: Columns, look: Looks) -> dict[str, Any]:
    dataset = split.dataset
    manifest = dataset.manifest
    packing = [(name, str(manifest.packing[name])[:80]) for name in _PACKING if manifest.packing.get(name) is not None]
    return {
        "name": split.name,
        "given": split.given,
        "samples": len(dataset),
        "bytes": manifest.bytes,
        "image_bytes": int(columns.bytes.sum()),
        "shards": len(dataset.shard_paths),
        "fields": [{"name": field.name, "kind": field.kind} for field in manifest.fields],
        "classes": None if dataset.classes is None else len(dataset.classes),
        "class_fields": [field.name for field in class_fields(dataset)],
        "fingerprint": dataset.fingerprint,
        "packing": [("indexed in place", "yes")] if "indexed" in manifest.packing else packing,
        "mean": manifest.mean,
        "std": manifest.std,
        "largest": [manifest.width, manifest.height],
        "looked_at": len(look.numbers),
        "sizes_of": len(columns.numbers) if len(dataset) > MOST_ROWS else len(dataset),
    }


def _histograms(splits: Sequence[Split], columns: Sequence[Columns], files: Sequence[FileFacts]) -> list[Any]:
    names = [split.name for split in splits]
    qualities = [found.qualities[found.qualities > 0] for found in files]
    found = [
        histogram("Width", "pixels", [table.widths for table in columns], names),
        histogram("Height", "pixels", [table.heights for table in columns], names),
        histogram("Aspect", "width : height", [t.widths / np.maximum(t.heights, 1) for t in columns], names),
        histogram("Stored size", "kB", [table.bytes / 1000 for table in columns], names),
        histogram("Bits per pixel", "stored", [_density(table) for table in columns], names),
        histogram("JPEG quality", "as libjpeg counts", qualities, names),
    ]
    return [entry for entry in found if entry["bins"]]


def _density(table: Columns) -> Any:
    return 8 * table.bytes / np.maximum(table.widths.astype(np.int64) * table.heights, 1)


def _files(splits: Sequence[Split], files: Sequence[FileFacts]) -> list[dict[str, Any]]:
    """Counts of formats and so on: for each a list of (what, count of each split), the most frequent first."""
    tables = []
    for title, name in (
        ("Format", "formats"),
        ("JPEG mode", "modes"),
        ("JPEG colours", "colors"),
        ("Chroma subsampling", "samplings"),
    ):
        counters = [getattr(found, name) for found in files]
        whole = sum(counters[1:], counters[0].copy())
        rows = [{"what": what, "counts": [counter[what] for counter in counters]} for what, _ in whole.most_common()]
        if rows:
            tables.append({"title": title, "rows": rows, "total": sum(whole.values())})
    return tables


def _gray(split: Split, look: Looks) -> dict[str, Any]:
    """Images without colour, however they are stored."""
    return {"split": split.name, "gray": int((look.color < 2).sum()), "of": len(look.numbers)}


def _broken(split: Split, found: tuple[tuple[CorruptSample, ...], int]) -> dict[str, Any]:
    samples, count = found
    entries = [{**describe(split, bad.index), "reason": bad.reason[:300]} for bad in samples[:100]]
    return {"split": split.name, "count": count, "samples": entries}


def _training(split: Split, options: Options) -> dict[str, Any]:
    dataset = split.dataset
    found: dict[str, Any] = {
        "batch": training_batch(dataset, options.augment),
        "mixing": mixing(dataset, options.window, options.batch_size),
        "speed": None,
    }
    if options.seconds > 0:
        found["speed"] = speed(dataset, options.augment, options.batch_size, options.seconds)
    return found


def _want(facts: dict[str, Any], thumbnails: Thumbnails) -> None:
    """Asks for the thumbnails of everything that the page shows, the most telling first."""
    for group in facts["duplicates"]["shown"][:MOST_SHOWN]:
        for sample in group["members"]:
            thumbnails.want(sample)
    for ranking in facts["extremes"]:
        for sample in ranking["samples"]:
            thumbnails.want(sample)
    for table in facts["classes"]:
        for place in range(max((len(row["examples"]) for row in table["rows"]), default=0)):
            for row in table["rows"]:  # first one of each class, so that each has some
                if place < len(row["examples"]):
                    thumbnails.want(row["examples"][place], 112, 72)
