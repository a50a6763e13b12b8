"""Loads many epochs and looks for what only shows after hours: growth, lost samples, pixels that change.

    python benchmarks/soak.py                                # 50 epochs, about a minute
    python benchmarks/soak.py --hours 1 --json benchmarks/results/soak-2-cores.json

Makes a small set of mixed sizes with labels, boxes, masks and captions in a temporary folder, and loads it in turn as
several loops would: one view, two, resized and cropped images, pixels alone, fields alone, each decoder. Every few
epochs a loader is closed in the middle of an epoch, and another one resumes from its state. After each epoch it notes
resident memory, file handles and threads. What is asked of the whole run:

- the keys of each epoch are those of the set, each once;
- where nothing is random, the checksum of all pixels is the same in each epoch;
- memory, handles and threads do not grow: their slope (Theil-Sen, over the epochs after the first two turns) times the
  length of the run stays below 2 % and 8 MiB, and below one. Memory may grow by what DALI keeps of each pipeline, too
  (docs/lab/decode.md).

Writes the figures as JSON.

Exit codes: 0 all is well; 1 something is not; 2 wrong arguments.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import platform
import sys
import tempfile
import time
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import gpuload
from gpuload import Augment
from gpuload.packing.packer import pack

_EACH = (
    3  # epochs of one loader; in the last of them it is closed and resumed by another
)
_MIB = 1 << 20
_DALI_KEEPS = 2100  # bytes of each pipeline, benchmarks/results/dali-leak.json
_MOST_RECORDS = 1000  # in the JSON; the faults and slopes are those of all


@dataclass(frozen=True)
class Loop:
    """One way to load the set. fixed: nothing of it is random, so that its pixels are the same in each epoch."""

    name: str
    options: dict[str, Any]
    fixed: bool = False


def loops(decoders: list[str]) -> list[Loop]:
    everything = ("key", "image", "label", "boxes", "mask", "caption")
    center = {
        "augment": Augment(64, crop="center", flip=0, dtype="uint8"),
        "fields": ("key", "image", "mask"),
    }
    drifts = []
    for decoder in decoders:
        use = {"decoder": decoder}
        # Of which the epoch decides who decodes which image, and they differ by rounding.
        fixed = decoder != "both"
        drifts += [
            Loop(
                f"{decoder}, center crops",
                {**use, **center, "batch_size": 32, "shuffle": False},
                fixed,
            ),
            Loop(
                f"{decoder}, all fields",
                {**use, "augment": Augment(64), "fields": everything, "batch_size": 24},
            ),
            Loop(f"{decoder}, whole images", {**use, **center, "batch_size": 7}, fixed),
            Loop(
                f"{decoder}, two views of growing size",
                {
                    **use,
                    "augment": {
                        0: [Augment(32), Augment(48)],
                        1: [Augment(64), Augment(80)],
                    },
                    "fields": ("key", "image"),
                    "batch_size": 48,
                },
            ),
        ]
    return [
        *drifts,
        Loop(
            "labels alone",
            {"augment": Augment(8), "fields": ("key", "label"), "batch_size": 64},
        ),
    ]


def samples(count: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for number in range(count):
        width, height = (int(side) for side in rng.integers(24, 200, 2))
        coarse = rng.integers(0, 256, (4, 5, 3), np.uint8)
        yield {
            "image": np.asarray(
                Image.fromarray(coarse).resize(
                    (width, height), Image.Resampling.BICUBIC
                )
            ),
            "name": f"{number:06d}",
            "label": f"class {number % 7}",
            "boxes": [[0, 0, width / 2, height]] * (number % 3),
            "boxes_class": ["thing"] * (number % 3),
            "mask": np.full((height, width), number % 5, np.uint8),
            "caption": f"the image of number {number}",
        }


def epoch(
    loader: gpuload.DaliIterator, loop: Loop, stop: int | None = None
) -> tuple[list[str], int]:
    """The keys of an epoch, or of its first batches, and a checksum of its pixels in whatever order they come."""
    names = loop.options["fields"]
    keys = []
    checksum = 0
    for number, batch in enumerate(loader):
        fields = dict(zip(names, batch, strict=True))
        keys += fields["key"]
        if loop.fixed:
            parts = [fields["image"].numpy(), fields["mask"].numpy()]
            for row, key in enumerate(fields["key"]):
                checksum += zlib.crc32(
                    b"".join([key.encode(), *(part[row].tobytes() for part in parts)])
                )
        if number + 1 == stop:
            break
    return keys, checksum


class Records:
    """What each epoch used, in arrays: 9,500 dicts of an hour would add 4 MB to the memory that is watched."""

    def __init__(self) -> None:
        self.ways = array("q")
        self.seconds = array("d")
        self.used = {name: array("q") for name in ("memory", "handles", "threads")}

    def __len__(self) -> int:
        return len(self.seconds)

    def append(self, way: int, seconds: float, used: dict[str, int]) -> None:
        self.ways.append(way)
        self.seconds.append(seconds)
        for name, values in self.used.items():
            values.append(used[name])


def run_loop(
    folder: Path, loop: Loop, turn: int
) -> Iterator[tuple[list[str], int | None]]:
    """Some epochs, the last interrupted and resumed: the keys of each, and its checksum where its pixels are fixed."""
    options = {
        "device": "cpu",
        "num_threads": 2,
        "drop_last": False,
        "shuffle": gpuload.Shuffle(window=2),
        "seed": turn,
        **loop.options,
    }
    dataset = gpuload.Dataset(folder, verify="sha256")
    loader = gpuload.DaliIterator(dataset, **options)
    for number in range(_EACH):
        keys, checksum = epoch(
            loader, loop, stop=None if number < _EACH - 1 else max(1, len(loader) // 2)
        )
        if number == _EACH - 1:
            state = json.loads(json.dumps(loader.state_dict()))
            loader.close()
            loader = gpuload.DaliIterator(
                dataset, **{**options, "batch_size": options["batch_size"] + 1}
            )
            loader.load_state_dict(state)
            rest, more = epoch(loader, loop)
            keys += rest
            checksum += more
        yield keys, checksum if loop.fixed else None
    loader.close()


def usage() -> dict[str, int]:
    """Resident memory that is this process's own (not pages of mapped files), file handles, threads."""
    gc.collect()
    return_free_memory()
    status = Path("/proc/self/status").read_text()
    resident = int(status.split("RssAnon:")[1].split()[0]) * 1024
    return {
        "memory": resident,
        "handles": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def return_free_memory() -> None:
    """Has glibc's allocator return what it holds but nobody uses.

    How much that is depends on how sizes and threads happened to follow one another. It wanders by 10 MiB within an
    hour, in which what is in use grows by less than 1 MiB.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def drift(values: Sequence[int]) -> float:
    """The median of the slopes between all pairs of values, times their number: what a run of this length adds."""
    if len(values) < 3:
        return 0.0
    y = np.array(values, float)
    if len(y) > 1500:  # pairs grow with the square
        y = y[np.linspace(0, len(y) - 1, 1500).astype(int)]
    first, second = np.triu_indices(len(y), 1)
    return float(np.median((y[second] - y[first]) / (second - first)) * len(y))


def soak(
    folder: Path, decoders: list[str], epochs: int, seconds: float, images: int
) -> dict[str, Any]:
    pack(
        samples(images),
        folder,
        workers=1,
        maxcount=max(1, images // 8),
        encode="jpeg",
        shuffle=False,
    )
    dataset = gpuload.Dataset(folder / "train")
    expected = sorted(dataset.keys(range(len(dataset))))
    ways = loops(decoders)
    records = Records()
    faults = []
    checksums: dict[str, int] = {}
    begun = time.monotonic()
    turn = 0
    while len(records) < epochs or time.monotonic() - begun < seconds:
        for loop in ways:
            for keys, checksum in run_loop(dataset.folder, loop, turn):
                if sorted(keys) != expected:
                    faults.append(
                        f"epoch {len(records)} ({loop.name}): its keys are not those of the set"
                    )
                if (
                    checksum is not None
                    and checksums.setdefault(loop.name, checksum) != checksum
                ):
                    faults.append(
                        f"epoch {len(records)} ({loop.name}): the checksum of its pixels is another one"
                    )
                records.append(
                    ways.index(loop), round(time.monotonic() - begun, 2), usage()
                )
        turn += 1
        print(
            f"\r{len(records):,} epochs, {time.monotonic() - begun:,.0f} s",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(file=sys.stderr)
    settled = 2 * _EACH * len(ways)
    drifts = {name: drift(values[settled:]) for name, values in records.used.items()}
    pipelines = (
        2 * turn * sum(loop.options.get("decoder") in ("dali", "both") for loop in ways)
    )
    allowed = max(8 * _MIB, 0.02 * records.used["memory"][-1])
    limits = {"memory": allowed + _DALI_KEEPS * pipelines, "handles": 1, "threads": 1}
    faults += [
        f"{name}: grew by {drift:,.1f} over the run, expected at most {limits[name]:,.0f}"
        for name, drift in drifts.items()
        if drift > limits[name]
    ]
    return {
        "epochs": len(records),
        "turns": turn,
        "seconds": round(time.monotonic() - begun, 1),
        "images": images,
        "loops": [loop.name for loop in ways],
        "resumed": turn * len(ways),
        "pipelines": pipelines,
        "checksums": checksums,
        "drift": {name: round(value, 3) for name, value in drifts.items()},
        "limits": limits,
        "faults": faults,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "records": [
            {
                "loop": ways[records.ways[number]].name,
                "seconds": records.seconds[number],
                **{name: values[number] for name, values in records.used.items()},
            }
            for number in range(0, len(records), 1 + len(records) // _MOST_RECORDS)
        ],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--epochs", type=int, default=50, help="at least so many (default 50)"
    )
    parser.add_argument("--hours", type=float, default=0, help="at least so long")
    parser.add_argument(
        "--images", type=int, default=300, help="in the set (default 300)"
    )
    parser.add_argument(
        "--decoder",
        choices=("native", "dali", "both", "all"),
        default="all",
        help="(%(default)s)",
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args(argv)
    if args.epochs < 1 or args.hours < 0 or args.images < 60:
        parser.error(
            "expected --epochs of at least 1, --hours of at least 0 and --images of at least 60"
        )
    decoders = ["native", "dali", "both"] if args.decoder == "all" else [args.decoder]
    with tempfile.TemporaryDirectory() as folder:
        result = soak(
            Path(folder), decoders, args.epochs, args.hours * 3600, args.images
        )
    for fault in result["faults"]:
        print(fault)
    drifts = ", ".join(
        f"{name} {value:+,.1f}" for name, value in result["drift"].items()
    )
    print(
        f"{result['epochs']:,} epochs in {result['seconds']:,.0f} s, {len(result['faults'])} faults; drift: {drifts}"
    )
    if args.json:
        args.json.write_text(json.dumps(result) + "\n")
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
