"""Conditional inpainting: images with a hole, the hole's content as target, and captions. Times the batches.

    python examples/inpainting.py                            # a small generated set
    python examples/inpainting.py coco64 --shards packed     # your own: coco64/1.jpg beside coco64/1.txt, …

Packs 64×64 images as raw pixels, 15,000 per shard. A batch is (images, middles, captions):
float32 (N, 3, 64, 64) in -1..1 with a hole of zeros, float32 (N, 3, 32, 32), and N str. For N of 1, 128 and 10,000 it
prints how long a batch takes:

    files   without gpuload: list the folder, draw files, read them with Pillow, the same arithmetic
    cold    gpuload with an empty page cache: from the construction of the loader to its first batch
    warm    gpuload from batch to batch, in a loop that does nothing else

`files` and `warm` run with everything in the page cache.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table

import gpuload

SIDE_PX = 64
HOLE_PX = 32
SHARD_IMAGES = 15_000

# Timed batches of each size: from files, from a cold start, warm; and warm ones before those, which fill the queues.
ROUNDS = {1: (20, 3, 2000, 50), 128: (10, 3, 200, 20), 10_000: (2, 2, 10, 6)}


def pack(images: Path, shards: Path) -> None:
    """Packs the folder into shards of raw pixels, unless they exist."""
    form = [
        "--from",
        "sidecar",
        "--encode",
        "raw",
        "--size",
        str(SIDE_PX),
        "--fit",
        "center-crop",
    ]
    measure.pack(
        images, shards, *form, "--maxcount", str(SHARD_IMAGES), "--maxsize", "1GB"
    )


def open_loader(
    shards: Path, batch_size: int, batches: int, decoder: str
) -> gpuload.DaliIterator:
    """A loader with epochs of so many batches, which may span several passes over the set."""
    return gpuload.DaliIterator(
        shards / "train",
        batch_size,
        augment=gpuload.Augment(
            SIDE_PX,
            crop="none",
            normalize=gpuload.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ),
        fields=("image", "middle", "caption"),
        batch_transforms=[gpuload.batchwise.CenterHole(HOLE_PX)],
        decoder=decoder,
        steps_per_epoch=batches,
    )


def load_files(
    folder: Path, batch_size: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """A batch without gpuload: read from the folder."""
    files = sorted(folder.glob("*.jpg"))
    random.Random(seed).shuffle(files)
    images = np.empty((batch_size, 3, SIDE_PX, SIDE_PX), np.float32)
    captions: list[str] = []
    for path in files:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        images[len(captions)] = pixels.transpose(2, 0, 1) / np.float32(127.5) - 1
        captions.append(path.with_suffix(".txt").read_text())
        if len(captions) == batch_size:
            break
    edge = (SIDE_PX - HOLE_PX) // 2
    hole = images[..., edge : edge + HOLE_PX, edge : edge + HOLE_PX]
    middles = hole.copy()
    hole[...] = 0
    return torch.from_numpy(images), torch.from_numpy(middles), captions


def clock(action: Callable[[int], object], rounds: int) -> list[float]:
    """The seconds of each round."""
    times = []
    for number in range(rounds):
        begun = time.perf_counter()
        action(number)
        times.append(time.perf_counter() - begun)
    return times


def first_batches(
    shards: Path, batch_size: int, rounds: int, decoder: str
) -> list[float]:
    """Seconds from constructing a loader to its first batch, with none of the shards in the page cache."""

    def first_batch(number: int) -> None:
        with open_loader(shards, batch_size, 1, decoder) as loader:
            next(iter(loader))

    times = []
    for _ in range(rounds):
        measure.evict(shards)
        times += clock(first_batch, 1)
    return times


def warm_batches(
    shards: Path, batch_size: int, rounds: int, before: int, decoder: str
) -> tuple[list[float], float]:
    """Seconds from batch to batch, and processor seconds per batch."""
    measure.read_through(shards)
    with open_loader(shards, batch_size, before + rounds, decoder) as loader:
        batches = iter(loader)
        for _ in range(before):
            next(batches)
        cpu_begun = measure.cpu_seconds()
        times = clock(lambda number: next(batches), rounds)
        return times, (measure.cpu_seconds() - cpu_begun) / rounds


def compare(
    folder: Path, shards: Path, batch_size: int, decoder: str
) -> dict[str, Any]:
    """The seconds for a batch of this size, each way."""
    of_files, of_cold, of_warm, before = ROUNDS[batch_size]
    files = clock(lambda number: load_files(folder, batch_size, number), of_files)
    cold = first_batches(shards, batch_size, of_cold, decoder)
    warm, cpu_s = warm_batches(shards, batch_size, of_warm, before, decoder)
    return {
        "batch_size": batch_size,
        "files_s": measure.spread(files),
        "cold_s": measure.spread(cold),
        "warm_s": measure.spread(warm),
        "warm_mean_s": sum(warm) / len(warm),
        "warm_cpu_s": cpu_s,
    }


def run(args: argparse.Namespace, folder: Path) -> None:
    shards = args.shards or folder.with_name(folder.name + "-packed")
    pack(folder, shards)
    samples = len(gpuload.Dataset(shards / "train"))
    # imports, which happen once per process, are not timed.
    with open_loader(shards, 1, 1, args.decoder) as loader:
        print(next(iter(loader))[2], loader)
    rows = [
        compare(folder, shards, size, args.decoder)
        for size in ROUNDS
        if size <= samples
    ]
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"Seconds a batch, medians; {samples:,} images",
        title_justify="left",
    )
    for head in (
        "batch",
        "files",
        "cold",
        "warm",
        "warm min–max",
        "warm, CPU s",
        "files / warm",
    ):
        table.add_column(head, justify="right")
    for row in rows:
        files = row["files_s"]
        cold = row["cold_s"]
        warm = row["warm_s"]
        seconds = [measure.in_seconds(times["median"]) for times in (files, cold, warm)]
        extremes = (
            f"{measure.in_seconds(warm['min'])} – {measure.in_seconds(warm['max'])}"
        )
        ratio = f"{files['median'] / warm['median']:,.0f}"
        table.add_row(
            f"{row['batch_size']:,}",
            *seconds,
            extremes,
            measure.in_seconds(row["warm_cpu_s"]),
            ratio,
        )
    Console(width=100).print(table)
    for size in ROUNDS:
        if size > samples:
            print(f"A batch of {size:,} was not timed: the set has {samples:,} images")
    measure.save_record(args.json, samples=samples, batches=rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "images",
        type=Path,
        nargs="?",
        help="folder of images, each with a .txt (default: a generated set)",
    )
    parser.add_argument(
        "--shards",
        type=Path,
        help="folder to pack into, or a packed one (IMAGES-packed)",
    )
    parser.add_argument("--decoder", choices=["auto", "dali", "native"], default="auto")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args(argv)
    return measure.run_on(run, args, args.images, "captions", "captioned")


if __name__ == "__main__":
    sys.exit(main())
