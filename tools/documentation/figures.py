"""Writes the measured figures of README and of pages in docs, from the records in benchmarks/results.

    python tools/documentation/figures.py           # prints what would change
    python tools/documentation/figures.py --write

A table stands between `<!-- figures: NAME -->` and `<!-- end -->`. `tests/docs/test_figures.py` compares the files
with the records.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from accuracy.equivalence import table_of
from counting.report import HEADS, rows

ROOT = Path(__file__).parents[2]

RESULTS = ROOT / "benchmarks" / "results"
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "performance",
            "own-functions",
            "geometry",
            "buckets",
            "captions",
            "coming-from",
            "kill-and-count",
            "accuracy",
        )
    ),
)
_NOT_MEASURED = "Not measured on idle cores yet."
_TABLE = re.compile(r"<!-- figures: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)

NAMES = {
    "spdl": "SPDL, its FFmpeg",
    "mosaic": "MosaicML Streaming",
    "lance": "LanceDB",
    "datago": "datago, crops in one thread",
    "grain": "Grain, ArrayRecord + simplejpeg, OpenCV",
    "huggingface": "Hugging Face datasets, streaming",
    "turbo": "TurboLoader",
    "webdataset": "webdataset",
    "torch": "DataLoader + Pillow",
    "spdl-opencv": "SPDL + simplejpeg, OpenCV",
    "opencv": "DataLoader + simplejpeg, OpenCV",
    "litdata": "LitData",
    "ffcv": "FFCV",
    "gpuload-dali": 'gpuload, `decoder="dali"`',
    "dali": "DALI by hand",
    "dali-dynamic": "DALI, dynamic mode",
    "energon": "Megatron-Energon",
    "gpuload": "**gpuload**",
    "torch-raw": "DataLoader over `np.memmap`",
}
OTHER_IMAGES = {
    "256-px": "the same stored at 256 pixels",
    "12-megapixels": "12 megapixels, batches of 8",
    "128-px-jpeg": "JPEGs of 128×128, batches of 256",
    "64-px-jpeg": "JPEGs of 64×64, batches of 256",
    "128-px-raw": "pixels of 128×128, batches of 256",
    "64-px-raw": "pixels of 64×64, batches of 256",
}


def record(name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return results


def rate(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{row['images_per_s']:,.0f}"


def by_name(name: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in record(name)["loaders"]}


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines
    )


# Columns of the tables of loaders, from the row of a record.
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "images/s": rate,
    "min–max": lambda row: (
        f"{row['images_per_s_min']:,.0f}–{row['images_per_s_max']:,.0f}"
    ),
    "times the DataLoader": lambda row: f"{row['ratio']:.2f}",
    "CPU s per 1,000": lambda row: f"{row['cpu_s_per_1000']:.2f}",
    "memory": lambda row: f"{row['memory_bytes'] / 1e6:,.0f} MB",
    "first batch": lambda row: f"{row['first_batch_s']:.2f} s",
    "resume": lambda row: (
        f"{row['resume_s']:.2f} s" + (" †" if row["resumes"] == "reads again" else "")
    ),
}


def loaders(*columns: str) -> list[list[str]]:
    """The fastest first."""
    rows = sorted(by_name("cpu-2-cores").values(), key=lambda row: -row["images_per_s"])
    return [
        [NAMES[row["name"]], *(COLUMNS[column](row) for column in columns)]
        for row in rows
    ]


def short() -> str:
    """README's: rates and ratios."""
    columns = ("images/s", "times the DataLoader", "memory", "resume")
    rows = [
        [name, f"**{images}**" if "**" in name else images, *more]
        for name, images, *more in loaders(*columns)
    ]
    return table(["loader", *columns[:3], "resumes in mid-epoch after"], rows)


def long() -> str:
    """All columns."""
    return table(["loader", *COLUMNS], loaders(*COLUMNS))


def rates(name: str) -> str:
    """Rates, ratios and processor times of a record, the fastest first."""
    columns = ("images/s", "times the DataLoader", "CPU s per 1,000")
    rows = [
        [NAMES[row["name"]], *(COLUMNS[column](row) for column in columns)]
        for row in sorted(by_name(name).values(), key=lambda row: -row["images_per_s"])
    ]
    return table(["loader", *columns], rows)


def other_images() -> str:
    columns = ("gpuload", "ffcv", "dali", "opencv", "torch")
    rows = []
    for name, description in OTHER_IMAGES.items():
        rates = by_name(f"cpu-2-cores-{name}")
        cells = [rate(rates.get(column)) for column in columns]
        if "torch-raw" in rates:
            cells[-1] = f"{rate(rates['torch-raw'])} (`np.memmap`)"
        rows.append([description, f"**{cells[0]}**", *cells[1:]])
    return table(
        [
            "images",
            "gpuload",
            "FFCV",
            "DALI",
            "DataLoader, OpenCV",
            "DataLoader, Pillow",
        ],
        rows,
    )


def remote_peers() -> str:
    """From one S3 server, the fastest first."""
    rows = sorted(
        record("remote-2-cores")["peers"]["loaders"].values(),
        key=lambda row: -row["cold_images_per_s"],
    )
    return table(
        [
            "from one S3 server",
            "images/s, empty cache",
            "from the cache",
            "an epoch's download",
            "resumes, empty cache",
            "over 150 MB/s",
            "from the cache",
        ],
        [
            [
                f"**{row['what']}**" if row["what"] == "gpuload" else row["what"],
                f"{row['cold_images_per_s']:,.0f}",
                f"{row['warm_images_per_s']:,.0f}",
                f"{row['bytes'] / 1e6:,.0f} MB",
                *(
                    f"{row[name]:.2f} s"
                    for name in ("resume_cold_s", "resume_network_s", "resume_warm_s")
                ),
            ]
            for row in rows
        ],
    )


def packing() -> str:
    rates = record("pack-2-cores")["folders"][0]["rates"]
    descriptions = {
        "keep, header checks": "`--check header`",
        "GNU tar": "GNU tar of the same files",
        "keep, full checks": "decoding each image to check it (the default)",
        "libjpeg-turbo decode": "libjpeg-turbo decoding alone",
        "keep, 1 worker": "the default, with one worker",
    }
    rows = [
        [text, f"{sorted(rates[name])[len(rates[name]) // 2]:,.0f}"]
        for name, text in descriptions.items()
    ]
    return table(["packing 16,384 JPEGs of 112 kB", "images/s"], rows)


# The features of `benchmarks/bench.py --with` in each table, and the record that holds them.
_FUNCTIONS = ("function", "function-processes", "function-before")
_WARPS = ("rotation-nearest", "rotation", "affine", "perspective", "warps")
_TEXTS = ("captions", "tokens")
_OTHERS = ("gray", "16-bit", "balance", "stratified")
_PADDING = tuple(
    f"padding-{mode}" for mode in ("constant", "edge", "reflect", "symmetric")
)
FEATURES = "features-2-cores"
FUNCTIONS = "functions-2-cores"
WARPS = "warps-2-cores"
COLOURS = {
    "colours-2-cores": "",
    "colours-2-cores-64-px-jpeg": "; JPEGs of 64×64, batches of 256",
    "colours-2-cores-64-px-raw": "; pixels of 64×64, batches of 256",
}
PADDING = "features-2-cores-32-px-raw"
PAIRS = "pairs-2-cores"
PAIR_PEERS = {
    "torch": "DataLoader, Pillow",
    "opencv": "DataLoader, OpenCV",
    "dali": "DALI by hand",
}
PNGS = {
    "64-px": "64×64, batches of 256",
    "500-px": "500×375",
    "1920-px": "1920×1280, batches of 4",
}
LOSSLESS = {
    "lossless-2-cores-64-px": "; 64×64, batches of 100",
    "lossless-2-cores-256-px": "; 224×224 of 256×256, batches of 20",
    "lossless-2-cores-1920-px": "; 224×224 of 1920×1280",
    "lossless-2-cores": "; 500×375 to 224×224",
}
LOSSLESS_PEERS = {
    "torch": "DataLoader, Pillow",
    "opencv": "DataLoader, OpenCV",
    "imagecodecs": "DataLoader, imagecodecs",
    "rasterio": "DataLoader, rasterio",
}
GRAY_PNGS = "16-bit"  # its record is that of the pairs
PNG_LOADERS = {
    "gpuload": "gpuload",
    "dali": "DALI",
    "imagecodecs": "DataLoader, imagecodecs",
    "opencv": "DataLoader, OpenCV",
    "torch": "DataLoader, Pillow",
}


def features(names: Sequence[str], *wanted: str) -> str:
    """What each of these takes, beside the same loader without it: gpuload, then a DataLoader. names: of records, the
    newest last."""
    values = {
        (row["feature"], row["loader"]): row
        for name in names
        for row in record(name)["features"]
    }
    head = [
        "with",
        "gpuload: images/s",
        "CPU µs an image",
        "DataLoader: images/s",
        "CPU µs an image",
    ]
    rows = []
    for feature in wanted:
        cells = [values[feature, "gpuload"]["what"].replace("|", "\\|")]
        for loader in ("gpuload", "torch"):
            row = values.get((feature, loader))
            cells += (
                ["", ""]
                if row is None
                else [f"× {row['ratio']:.2f}", f"{row['more_cpu_us']:+,.0f}"]
            )
        rows.append(cells)
    return table(head, rows)


def colours() -> str:
    """Images/s of gpuload with each recipe, and how many times those of the others that is."""
    head = [
        "recipe",
        "images/s",
        "of the plain crop",
        "times torchvision",
        "times Albumentations",
        "times DALI by hand",
    ]
    rows = []
    for name, images in COLOURS.items():
        if not (RESULTS / f"{name}.json").exists():  # not measured yet
            continue
        measured = {
            (row["what"], row["loader"]): row for row in record(name)["features"]
        }
        for (feature, loader), figures in measured.items():
            if loader == "gpuload":
                others = (
                    measured.get((feature, peer))
                    for peer in ("torch", "albumentations", "dali")
                )
                times = [
                    ""
                    if row is None
                    else f"{figures['images_per_s'] / row['images_per_s']:.1f}"
                    for row in others
                ]
                rows.append(
                    [
                        feature + images,
                        f"{figures['images_per_s']:,.0f}",
                        f"{figures['ratio']:.2f}",
                        *times,
                    ]
                )
    return table(head, rows)


def pairs() -> str:
    """Two pictures in a sample: samples/s of gpuload, how many times those of others that is, and processor time."""
    measured = {
        (row["feature"], row["loader"]): row for row in record(PAIRS)["features"]
    }
    rows = []
    for (feature, loader), own in measured.items():
        if loader != "gpuload" or feature == GRAY_PNGS:
            continue
        peers = [measured.get((feature, peer)) for peer in PAIR_PEERS]
        times = [
            "" if row is None else f"{own['images_per_s'] / row['images_per_s']:.1f}"
            for row in peers
        ]
        cpu = [
            "" if row is None else f"{row['cpu_us'] / 1000:.2f}"
            for row in (own, *peers)
        ]
        rows.append([own["what"], f"{own['images_per_s']:,.0f}", *times, *cpu])
    titles = list(PAIR_PEERS.values())
    head = ["in a sample", "samples/s", *(f"times {title}" for title in titles)]
    return table([*head, "CPU ms: gpuload", *titles], rows)


def pngs() -> str:
    """Sets of PNGs: images/s, and processor time for each image."""
    rows = []
    for name, title in PNGS.items():
        if not (RESULTS / f"png-2-cores-{name}.json").exists():  # not measured yet
            continue
        loaders_by_name = by_name(f"png-2-cores-{name}")
        found = [loaders_by_name.get(loader) for loader in PNG_LOADERS]
        rates = [rate(row) for row in found]
        cpu = ["" if row is None else f"{row['cpu_s_per_1000']:.2f}" for row in found]
        rows.append([f"{title}: images/s", f"**{rates[0]}**", *rates[1:]])
        rows.append(["CPU ms an image", *cpu])
    gray = {
        row["loader"]: row
        for row in record(PAIRS)["features"]
        if row["feature"] == GRAY_PNGS
    }
    rates = [rate(gray[loader]) for loader in PNG_LOADERS]
    cpu = [f"{gray[loader]['cpu_us'] / 1000:.2f}" for loader in PNG_LOADERS]
    rows.append(["gray of 16 bits, 500×375: images/s", f"**{rates[0]}**", *rates[1:]])
    rows.append(["CPU ms an image", *cpu])
    return table(["PNGs", *PNG_LOADERS.values()], rows)


def lossless() -> str:
    """Bands, lossless WebP and crops with seek points: images/s, times each peer, and processor time for each image."""
    rows = []
    for name, setting in LOSSLESS.items():
        if not (RESULTS / f"{name}.json").exists():  # not measured yet
            continue
        measured = {row["loader"]: row for row in record(name)["features"]}
        own = measured["gpuload"]
        peers = [measured.get(peer) for peer in LOSSLESS_PEERS]
        times = [
            "" if row is None else f"{own['images_per_s'] / row['images_per_s']:.1f}"
            for row in peers
        ]
        cpu = [
            f"{row['cpu_us'] / 1000:.2f}" for row in (own, *peers) if row is not None
        ]
        rows.append(
            [
                own["what"] + setting,
                f"{own['images_per_s']:,.0f}",
                *times,
                ", ".join(cpu),
            ]
        )
    heads = [f"times {title}" for title in LOSSLESS_PEERS.values()]
    return table(["images", "images/s", *heads, "CPU ms: gpuload, others"], rows)


def clients() -> str:
    """Training programs of others with their own loaders and with gpuload."""
    rows = []
    for title, client in record("clients")["clients"].items():
        theirs, ours = (statistics.median(client[side]) for side in ("before", "after"))
        counts = [f"{client[name]:,}" for name in ("lines", "steps", "samples")]
        rows.append(
            [
                title,
                *counts,
                f"{theirs:,.0f}",
                f"**{ours:,.0f}**",
                f"{ours / theirs:.1f}",
            ]
        )
    columns = [
        "lines changed",
        "steps",
        "samples",
        "its loader: images/s",
        "gpuload",
        "ratio",
    ]
    rounds = min(
        len(client["before"]) for client in record("clients")["clients"].values()
    )
    cores, date = (record("clients")[name] for name in ("cores", "date"))
    ran = "once" if rounds == 1 else f"{rounds} times"
    caption = (
        f"Each side ran at least {ran}, in turns; medians, {cores} cores ({date})."
    )
    return f"{table(['program', *columns], rows)}\n\n{caption}"


def peers() -> str:
    """Loaders of 2026 beside gpuload, on a busy machine: processor time, and how the rates compare."""
    found = by_name("cpu-2-cores-peers")
    own = found["gpuload"]
    rows = [
        [
            NAMES[row["name"]],
            f"{row['cpu_s_per_1000']:.2f}",
            f"{row['cpu_s_per_1000'] / own['cpu_s_per_1000']:.1f}",
            f"{own['images_per_s'] / row['images_per_s']:.1f}",
        ]
        for row in sorted(found.values(), key=lambda row: row["cpu_s_per_1000"])
    ]
    head = [
        "loader",
        "CPU s per 1,000",
        "times gpuload's",
        "gpuload's rate, times this one's",
    ]
    return table(head, rows)


def less() -> str:
    """What decoding less than the whole image has of the lead: loaders that were measured with crops and without."""
    crops = by_name("cpu-2-cores-peers")
    whole = by_name("cpu-2-cores-whole")
    ffcv = by_name("cpu-2-cores-ffcv")
    left_out_s = _cpu(whole["gpuload"]) - _cpu(crops["gpuload"])
    rows = []
    for name, of_whole in whole.items():
        of_crops = ffcv if name == "ffcv" else crops
        if name == "gpuload" or name not in of_crops:
            continue
        saved_s = _cpu(of_crops[name]) - _cpu(of_crops["gpuload"])
        share = left_out_s / saved_s
        times = [
            records["gpuload"]["images_per_s"] / records[name]["images_per_s"]
            for records in (of_crops, whole)
        ]
        cells = [f"{times[0]:.1f}", f"{times[1]:.1f}", f"{saved_s:.2f}"]
        own_s = _cpu(of_whole) - _cpu(of_crops[name])
        rows.append((share, [NAMES[name], *cells, f"{share:.0%}", f"{own_s:+.2f}"]))
    head = [
        "compared with",
        "crops: times its rate",
        "whole images: times",
        "crops: CPU s saved per 1,000",
        "of it by decoding less",
        "its own CPU s more for whole images",
    ]
    return table(head, [cells for _, cells in sorted(rows)])


def _cpu(row: dict[str, Any]) -> float:
    seconds: float = row["cpu_s_per_1000"]
    return seconds


def cores() -> str:
    """The rate that the processor time of an image on one core predicts for one and two, and the measured ones."""
    names = ("own-1-core", "own-2-cores")
    if not all((RESULTS / f"{name}.json").exists() for name in names):
        return _NOT_MEASURED
    one, two = (by_name(name)["gpuload"] for name in names)
    rows = []
    for count, own in ((1, one), (2, two)):
        predicted = count * 1000 / _cpu(one)
        share = own["images_per_s"] / predicted
        rows.append(
            [
                str(count),
                f"{_cpu(own):.2f} ms",
                f"{predicted:,.0f}",
                f"{own['images_per_s']:,.0f}",
                f"{share:.2f}",
            ]
        )
    head = [
        "cores",
        "processor time an image",
        "images/s by the first row's",
        "measured",
        "measured / predicted",
    ]
    loads = [_load(record(name)) for name in names]
    return f"{table(head, rows)}\n\nThe machine's load was {' and '.join(loads)}."


def _load(measured: dict[str, Any]) -> str:
    """The machine's load when a record was begun; above its cores, others took a share of them."""
    found = re.search(r"load ([\d.]+)", " ".join(measured["machine"]))
    assert found is not None
    return found[1]


def starts() -> str:
    """First batches and first seconds, of a new process."""
    if not (RESULTS / "start-2-cores.json").exists():
        return _NOT_MEASURED
    started = record("start-2-cores")
    rows = []
    for loader in started["loaders"]:
        for state in ("warm", "cold"):
            found = loader[state]
            rows.append(
                [
                    NAMES[loader["name"]],
                    state,
                    f"{found['first_batch_s']:.2f} s",
                    f"{found['loader_s']:.2f} s",
                    f"{found['images_1_s']:,.0f}",
                    f"{found['images']:,.0f}",
                    f"{found['images_per_s_then']:,.0f}" if found["images"] else "–",
                ]
            )
    head = [
        "loader",
        "page cache",
        "first batch",
        "of the loader",
        "images in 1 s",
        f"in {started['seconds']:g} s",
        "images/s then",
    ]
    caption = (
        f"Medians of {started['rounds']} rounds in turns, {started['date']}; the machine's load was {_load(started)} "
        "when they began."
    )
    return f"{table(head, rows)}\n\n{caption}"


def accuracies() -> str:
    """Of models trained with each loader, of the runs in the record."""
    lines = (RESULTS / "accuracy.jsonl").read_text().splitlines()
    head, *rows = table_of([json.loads(line) for line in lines])
    return table(head, rows)


def kills() -> str:
    """What loaders lost and doubled after they were killed, gpuload first."""
    own = record("kill-and-count-gpuload")["loaders"]
    others = record("kill-and-count")["loaders"]
    return table(list(HEADS), rows([*own, *others]))


TABLES = {
    "clients": clients,
    "loaders": short,
    "all-loaders": long,
    "whole-images": partial(rates, "cpu-2-cores-whole"),
    "decoding-less": less,
    "cores": cores,
    "start": starts,
    "accuracy": accuracies,
    "peers": peers,
    "other-images": other_images,
    "packing": packing,
    "kills": kills,
    "remote-peers": remote_peers,
    "features": partial(
        features,
        (FEATURES, FUNCTIONS, WARPS),
        *_FUNCTIONS,
        *_WARPS,
        "buckets",
        *_TEXTS,
        *_OTHERS,
    ),
    "colours": colours,
    "pairs": pairs,
    "pngs": pngs,
    "lossless": lossless,
    "functions": partial(features, (FUNCTIONS,), *_FUNCTIONS),
    "warps": partial(features, (WARPS,), *_WARPS),
    "padding": partial(features, (PADDING,), *_PADDING),
    "buckets": partial(features, (FEATURES,), "buckets"),
    "captions": partial(features, (FEATURES,), *_TEXTS),
}


def rewritten(text: str) -> str:
    """The page with its tables as they are in the records."""
    return _TABLE.sub(
        lambda found: (
            f"<!-- figures: {found[1]} -->\n{TABLES[found[1]]()}\n<!-- end -->"
        ),
        text,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the files")
    options = parser.parse_args(arguments)
    for page in PAGES:
        before = page.read_text()
        after = rewritten(page.read_text())
        if before != after:
            print(f"{page.relative_to(ROOT)} changes")
            if options.write:
                page.write_text(after)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
