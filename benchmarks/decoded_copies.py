"""Measures decoded copies of a packed set: images/s and memory of several processes, against decoding and own arrays.

    python benchmarks/decoded_copies.py shards/train --folder /dev/shm/gpuload
    python benchmarks/decoded_copies.py shards/train --folder /dev/shm/gpuload --size 256 --json figures.json

Ways to load the same batches take turns, each with 1, 2 and 4 processes that are the ranks of one run:

    set     gpuload from the set, which decodes
    copy    gpuload from a decoded copy, which the processes share
    small   the same of a copy whose images were resized to --size
    arrays  each process holds its images as NumPy arrays, as `cache="ram"` of Ultralytics does, and Pillow makes the
            crops

A process reports how long its first batch took after the data was there, and its images/s then; the sum of all is
printed, and the sum of their proportional memory (PSS in /proc/PID/smaps_rollup, of which a page that N processes map
counts 1/N for each), apart from what the process had before it opened its data. Figures are medians of --runs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

import gpuload

BATCH = 64
CROP = 224
WAYS = ("set", "copy", "small", "arrays")


def pss_bytes() -> int:
    """The proportional share of memory of this process."""
    facts = Path("/proc/self/smaps_rollup").read_text().partition("\nPss:")[2]
    return int(facts.split()[0]) << 10


def batches_of_loader(dataset: gpuload.Dataset, rank: int, ranks: int) -> Iterator[Any]:
    augment = gpuload.Augment(CROP)
    with gpuload.DaliIterator(
        dataset,
        BATCH,
        augment=augment,
        device="cpu",
        num_threads=1,
        rank=rank,
        world_size=ranks,
    ) as loader:
        while True:
            yield from loader


def batches_of_arrays(arrays: list[Any], rank: int) -> Iterator[Any]:
    """What a data set of NumPy arrays gives: random resized crops by Pillow, flipped and normalised."""
    mean = np.array((0.485, 0.456, 0.406), np.float32) * 255
    std = np.array((0.229, 0.224, 0.225), np.float32) * 255
    random = np.random.default_rng(rank)
    while True:
        batch = np.empty((BATCH, 3, CROP, CROP), np.float32)
        for row, number in enumerate(random.integers(0, len(arrays), BATCH)):
            image = Image.fromarray(arrays[number])
            share = np.sqrt(random.uniform(0.08, 1))
            ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)) / 2)
            width = image.width * min(1, share * ratio)
            height = image.height * min(1, share / ratio)
            left = random.uniform(0, image.width - width)
            top = random.uniform(0, image.height - height)
            box = (left, top, left + width, top + height)
            crop = image.resize((CROP, CROP), Image.Resampling.BILINEAR, box)
            pixels = (np.asarray(crop) - mean) / std
            flipped = pixels[:, ::-1] if random.integers(2) else pixels
            batch[row] = flipped.transpose(2, 0, 1)
        yield batch


def decoded_arrays(dataset: gpuload.Dataset) -> list[Any]:
    """All images of a set: each rank of a run needs any of them in some epoch."""
    numbers = range(len(dataset))
    return [np.array(dataset[number]["image"]) for number in numbers]


def load(way: str, place: str, rank: int, ranks: int, seconds: float) -> None:
    """What each process does: prints its figures, and waits for a line before it ends."""
    import torch  # noqa: F401 -- in the memory of all ways

    before = pss_bytes()
    begin = time.monotonic()
    dataset = gpuload.Dataset(place)
    if way == "arrays":
        batches = batches_of_arrays(decoded_arrays(dataset), rank)
    else:
        batches = batches_of_loader(dataset, rank, ranks)
    next(batches)
    opened_s = time.monotonic() - begin
    print(json.dumps({"opened_s": opened_s}), flush=True)
    sys.stdin.readline()
    images = 0
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        next(batches)
        images += BATCH
    rate = images / (time.monotonic() - begin)
    figures = {"images_per_s": rate, "pss_bytes": pss_bytes() - before}
    print(json.dumps(figures), flush=True)
    sys.stdin.readline()
    os._exit(0)


def run_ranks(way: str, place: Path, ranks: int, seconds: float) -> dict[str, float]:
    """The sums over processes that begin together, and the longest time until a first batch."""
    command = [sys.executable, __file__, str(place), "--seconds", str(seconds)]
    processes = [
        subprocess.Popen(
            [*command, "--rank", str(rank), "--ranks", str(ranks), "--way", way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    opened = [read_figures(process) for process in processes]
    for process in processes:
        let_go(process)
    figures = [read_figures(process) for process in processes]
    for process in processes:
        process.communicate("\n")
    names = ("images_per_s", "pss_bytes")
    sums = {name: sum(of_rank[name] for of_rank in figures) for name in names}
    return {**sums, "opened_s": max(of_rank["opened_s"] for of_rank in opened)}


def read_figures(process: "subprocess.Popen[str]") -> dict[str, float]:
    assert process.stdout is not None
    figures: dict[str, float] = json.loads(process.stdout.readline())
    return figures


def let_go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def make_copies(place: Path, folder: Path, size: int) -> dict[str, dict[str, Any]]:
    """The copies, and how long making each took."""
    shutil.rmtree(folder, ignore_errors=True)
    made = {}
    for way, side in (("copy", None), ("small", size)):
        begin = time.monotonic()
        copy = gpuload.decoded(gpuload.Dataset(place), side, folder=folder)
        made[way] = {
            "seconds": time.monotonic() - begin,
            "bytes": copy.manifest.bytes,
            "folder": str(copy.folder),
        }
    return made


def measure(args: argparse.Namespace) -> dict[str, Any]:
    made = make_copies(args.set, args.folder, args.size)
    places = {"set": args.set, "arrays": args.set}
    places |= {way: Path(copy["folder"]) for way, copy in made.items()}
    turns: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(args.runs):
        for ranks in args.counts:
            for way in WAYS:
                figures = run_ranks(way, places[way], ranks, args.seconds)
                turns.setdefault((way, ranks), []).append(figures)
    dataset = gpuload.Dataset(args.set)
    return {
        "samples": len(dataset),
        "set_bytes": dataset.manifest.bytes,
        "size": args.size,
        "cores": os.cpu_count(),
        "runs": args.runs,
        "copies": made,
        "loading": [
            {
                "way": way,
                "ranks": ranks,
                **{name: median(turn[name] for turn in of_way) for name in of_way[0]},
            }
            for (way, ranks), of_way in turns.items()
        ],
    }


def show(figures: dict[str, Any]) -> None:
    print(f"{figures['samples']:,} samples, {figures['set_bytes'] / 1e6:,.0f} MB")
    for way, copy in figures["copies"].items():
        rate = figures["samples"] / copy["seconds"]
        text = f"{copy['bytes'] / 1e6:,.0f} MB, made in {copy['seconds']:.1f} s"
        print(f"{way}: {text}, {rate:,.0f} images/s")
    print(f"{'way':8}{'ranks':>6}{'images/s':>10}{'PSS, MB':>9}{'first batch, s':>16}")
    for row in figures["loading"]:
        print(
            f"{row['way']:8}{row['ranks']:6}{row['images_per_s']:10,.0f}"
            f"{row['pss_bytes'] / 1e6:9,.0f}{row['opened_s']:16.1f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", type=Path, help="a packed folder of JPEGs")
    parser.add_argument("--folder", type=Path, help="of the copies; it is emptied")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way is not None:
        load(args.way, str(args.set), args.rank, args.ranks, args.seconds)
    if args.folder is None:
        parser.error("give --folder, for the copies")
    figures = measure(args)
    show(figures)
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
