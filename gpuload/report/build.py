"""Makes a report: gathers the facts and the pictures of packed sets, in one dict that becomes JSON and HTML."""

import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from rich.filesize import decimal

from gpuload import __version__
from gpuload.augment import Augment
from gpuload.counted import counted
from gpuload.disk.dataset import Dataset, having_images
from gpuload.order.epoch import measure_mixing, smallest_good_window
from gpuload.pictures import STRETCH
from gpuload.report.facts import SplitFacts, aspect, find_extremes, look_at_all
from gpuload.report.groups import MOST_SHOWN, class_tables, find_duplicates
from gpuload.report.samples import (
    ReportSplit,
    Thumbnails,
    describe,
    read_rejected,
    training_batch,
    training_split,
)
from gpuload.types import Array

_FOLDER = Path(__file__).parent / "page"
_CLASS_BYTES = 900_000  # of the names and counts of classes, without their thumbnails
_THUMBNAIL_BYTES = 3_000_000  # of all thumbnails: what keeps a page below 5 MB
# Of which mixing is told; `info` tells of others.
_WINDOW = 8
_BATCH_SIZE = 64
_IMBALANCE = 20  # times as many samples in the largest class as in the smallest
# What each page and each file of facts begins with.
PAGE_MARK = b'<meta name="generator" content="gpuload '
FACTS_MARK = b'{\n "made_by": "gpuload report"'

Progress = Callable[[int, int, int], None]


def render(facts: dict[str, Any], thumbnails: Thumbnails, title: str) -> str:
    """The page, at most 5 MB. Every text of the facts is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": "{:,}".format,
        "short": _in_short,
        "filesize": decimal,
    }
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        facts=facts,
        title=title,
        uris=thumbnails.uris,
        most_groups=MOST_SHOWN,
        style=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        data=_data(facts, thumbnails),
    )


def _in_short(value: float) -> str:
    """A number with three digits, or as a whole one."""
    return (
        f"{value:,.0f}"
        if abs(value) >= 100 or value == round(value)
        else f"{value:.3g}"
    )


def facts_as_json(facts: dict[str, Any]) -> str:
    """The facts without their picture."""
    training = {
        name: value for name, value in facts["training"].items() if name != "picture"
    }
    plain = {"made_by": "gpuload report", **facts, "training": training}
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _data(facts: dict[str, Any], thumbnails: Thumbnails) -> dict[str, Any]:
    """What the page's script needs: the tables of classes, cut where they would make the page too large."""
    budget = _CLASS_BYTES
    tables = []
    for table in facts["classes"]:
        rows: list[Any] = []
        for row in table["rows"]:
            examples = []
            budget -= len(json.dumps([row["name"], row["counts"]]))
            for example in row["examples"]:
                uri = thumbnails.uris.get((example["split"], example["index"]))
                if uri:
                    examples.append((uri, example))
                    budget -= len(json.dumps(example))
            if budget < 0:
                break
            rows.append([row["name"], row["counts"], examples])
        table["left_out"] = table["classes"] - len(rows)
        tables.append({"rows": rows})
    splits = facts["splits"]
    return {
        "splits": [s["name"] for s in splits],
        "given": {s["name"]: s["given"] for s in splits},
        "tables": tables,
    }


def find_findings(facts: dict[str, Any]) -> list[dict[str, str]]:
    """Each with a level (bad, look or good), a text, and the name of the section that has more; the worst first."""
    order = ("bad", "look", "good")
    ordered = sorted(_findings(facts), key=lambda entry: order.index(entry[0]))
    return [
        {"level": level, "text": text, "section": section}
        for level, text, section in ordered
    ]


# A level, a text, and the name of a section.
_Statement = tuple[str, str, str]


def _findings(facts: dict[str, Any]) -> Iterator[_Statement]:
    yield from _of_duplicates(facts["duplicates"])
    yield from _of_faulty_images(facts["undecodable"], facts["rejected"])
    for table in facts["classes"]:
        yield from _of_classes(table)
    yield from _of_mixing(facts["training"]["mixing"])


def _of_faulty_images(
    undecodable: list[dict[str, Any]], rejected: list[dict[str, Any]]
) -> Iterator[_Statement]:
    for entry in undecodable:
        count = entry["count"]
        if count:
            text = f"{counted(count, 'image')} of {entry['split']} not decodable"
            yield "bad", text, "rejected"
    count = sum(entry["rejected"] for entry in rejected)
    if count:
        text = f"{counted(count, 'image')} rejected when the set was packed"
        yield "look", text, "rejected"


def _of_classes(table: dict[str, Any]) -> Iterator[_Statement]:
    """About the classes of one field."""
    of_field = "" if table["field"] == "label" else f" of {table['field']}"
    for entry in table["missing"]:
        lacking = entry["count"]
        level = "look" if lacking < table["classes"] else "bad"
        classes = counted(lacking, "class", "classes")
        yield level, f"{classes}{of_field} missing in {entry['split']}", "classes"
    smallest = table["smallest"]
    largest = table["largest"]
    if smallest and largest >= _IMBALANCE * smallest:
        times = f"{largest / smallest:,.0f} times the samples of the smallest"
        yield "look", f"The largest class{of_field} has {times}", "classes"


def _of_mixing(mixed: dict[str, Any]) -> Iterator[_Statement]:
    if mixed["classes"] is None:
        return
    text = f"Batches of {mixed['batch_size']} hold {mixed['classes']:.1f} classes on average; a full "
    text += f"shuffle gives {mixed['expected_classes']:.1f}"
    if mixed["is_poor"]:
        yield "bad", f"{text}: the shards are sorted", "mixing"
    else:
        yield "good", text, "mixing"


def _of_duplicates(found: dict[str, Any]) -> Iterator[_Statement]:
    leaked = [entry for entry in found["leaked"] if entry["images"]]
    section = "duplicates"
    for entry in leaked:
        images = counted(entry["images"], "image")
        yield "bad", f"{images} of {entry['split']} also in the training set", section
    if found["between_splits"] and not leaked:
        groups = counted(found["between_splits"], "group")
        yield "bad", f"{groups} of alike images in several splits", section
    if found["labels_differ"]:
        groups = counted(found["labels_differ"], "group")
        yield "bad", f"{groups} of alike images with different labels", section
    if found["images"]:
        duplicates = counted(found["images"], "duplicate")
        yield "look", f"{duplicates}, exact or nearly so", section
    else:
        text = "No image was found twice, within a split or between splits"
        yield "good", text, section


def build(
    splits: Sequence[ReportSplit],
    most_images: int,
    augment: Augment,
    progress: Progress,
) -> tuple[dict[str, Any], Thumbnails]:
    """Looks at packed sets, and returns the facts, with the picture of a batch as a data URI, and the thumbnails.

    Args:
        splits: What the report is about.
        most_images: How many images are decoded, over all splits.
        augment: How the training that is shown crops and changes images.
        progress: Called with the number of images that were looked at, of how many, and 0.

    Raises:
        ShardError, RemoteError: a shard cannot be read. MissingPackageError: what loading needs is not installed.
    """
    begun = time.monotonic()
    parts = look_at_all(splits, most_images, progress)
    trained = training_split(splits)
    facts: dict[str, Any] = {
        "gpuload": __version__,
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "splits": list(map(_split, parts)),
        "rejected": list(map(read_rejected, splits)),
        "undecodable": list(map(_broken, parts)),
        "sizes": _sizes(parts),
        "extremes": find_extremes(parts),
        "duplicates": find_duplicates(parts),
        "classes": class_tables(parts),
        "looked_at": {
            "images": sum(len(part.looks) for part in parts),
            "of": sum(len(split.dataset) for split in splits),
        },
        "training": {
            "split": trained.name,
            **training_batch(having_images(trained.dataset), augment),
            "mixing": _mixing(trained.dataset),
        },
    }
    facts["findings"] = find_findings(facts)
    thumbnails = Thumbnails(splits, _THUMBNAIL_BYTES)
    _want(facts, thumbnails)
    facts["took"] = {"seconds": time.monotonic() - begun}
    return facts, thumbnails


def _split(part: SplitFacts) -> dict[str, Any]:
    split = part.split
    dataset = part.split.dataset
    manifest = dataset.manifest
    return {
        "name": split.name,
        "given": split.given,
        "samples": len(dataset),
        "looked_at": len(part.looks),
        "bytes": manifest.bytes,
        "shards": len(dataset.shard_paths),
        "fields": [
            {"name": field.name, "kind": field.kind} for field in manifest.all_fields
        ],
        "classes": None if dataset.classes is None else len(dataset.classes),
        "fingerprint": dataset.fingerprint,
        "shown": STRETCH if manifest.pixels.dtype != "uint8" else None,
        "mean": manifest.mean,
        "std": manifest.std,
    }


# What is measured of all images of a split, with its unit.
_MEASURES: dict[tuple[str, str], Callable[[Array], Array]] = {
    ("width", "pixels"): lambda sizes: sizes["width"],
    ("height", "pixels"): lambda sizes: sizes["height"],
    ("aspect", "width : height"): aspect,
    ("stored size", "kB"): lambda sizes: sizes["image_bytes"] / 1000,
}
_PERCENTS = (0, 5, 50, 95, 100)


def _sizes(parts: Sequence[SplitFacts]) -> list[dict[str, Any]]:
    """How large the images of each split are. percentiles: the smallest, of 5, 50 and 95 %, and the largest."""
    return [
        {
            "what": measure,
            "unit": unit,
            "split": part.split.name,
            "percentiles": np.percentile(values(part.sizes), _PERCENTS).tolist(),
        }
        for (measure, unit), values in _MEASURES.items()
        for part in parts
        if len(part.sizes)
    ]


def _broken(part: SplitFacts) -> dict[str, Any]:
    entries = [
        {**describe(part.split, bad.index), "reason": bad.reason[:300]}
        for bad in part.undecodable.samples[:100]
    ]
    return {
        "split": part.split.name,
        "count": part.undecodable.corrupt,
        "samples": entries,
    }


def _mixing(dataset: Dataset) -> dict[str, Any]:
    """How well a window of shards mixes."""
    shards = len(dataset.shard_paths)
    mixing = measure_mixing(dataset, min(_WINDOW, shards), _BATCH_SIZE)
    good_window = smallest_good_window(dataset, _BATCH_SIZE) if mixing.is_poor else None
    return {
        **asdict(mixing),
        "shards": shards,
        "is_poor": mixing.is_poor,
        "good_window": good_window,
    }


def _want(facts: dict[str, Any], thumbnails: Thumbnails) -> None:
    """Asks for the thumbnails of everything that the page shows, the most telling first."""
    groups = [group["members"] for group in facts["duplicates"]["shown"][:MOST_SHOWN]]
    for samples in (*groups, *(ranking["samples"] for ranking in facts["extremes"])):
        for sample in samples:
            thumbnails.want(sample)
    for table in facts["classes"]:
        for examples in zip_longest(*(row["examples"] for row in table["rows"])):
            for sample in filter(
                None, examples
            ):  # first one of each class, so that each has some
                thumbnails.want(sample, 112, 72)
