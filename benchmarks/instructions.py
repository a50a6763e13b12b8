"""Instructions of the kernels for an image, and misses of a first-level cache, counted by valgrind.

    python benchmarks/instructions.py shards/train
    python benchmarks/instructions.py shards/train --libraries x86_64_v2 x86_64_v3 --images 16 --json instructions.json

A random crop of each image is decoded and resized to 224×224 by the library named, in one thread. Two runs of
callgrind with and without the images give the difference for an image, so that Python's start does not count, but for
its own variation: two pairs of runs with 4 images were 5 % apart, and more images divide that. They tell how
libraries and changes compare, and not how long anything takes: valgrind's cache is a model. Misses of the last level
are left out, since those of Python's start vary more than an image has. valgrind knows no AVX-512, so that the
library for x86-64-v4 cannot be counted.

Needs valgrind (Debian: valgrind). Exit codes: 0; 2 if it is not there, or a library cannot run in it.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
from timing.command_line import add_record, make_parser
from timing.crops import random_window
from timing.stored import stored_samples

from gpuload.decode.native.cuts import resample
from gpuload.decode.native.steps import DecodeStep, ThreadMemory
from gpuload.decode.native.values import PixelTarget
from gpuload.headers.jpeg import read_header
from gpuload.kernels.images import EncodedImages, new_scratch
from gpuload.kernels.loading import CHOICE
from gpuload.kernels.structs import PICTURE

_SIZE = 224
_COUNTS = ("Ir", "D1mr", "D1mw")


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.child:
        crop_images(args.folder, args.images)
        return 0
    if shutil.which("valgrind") is None:
        print("valgrind is not installed", file=sys.stderr)
        return 2
    rows = {}
    for library in args.libraries:
        with_images = counts(library, args.folder, args.images)
        without_images = counts(library, args.folder, 0)
        if with_images is None or without_images is None:
            return 2
        rows[library] = per_image(with_images, without_images, args.images)
        print(library, rows[library], flush=True)
    if args.json:
        record = {"images": args.images, "size": _SIZE, "libraries": rows}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, help="a packed set of JPEGs")
    parser.add_argument(
        "--libraries", nargs="+", default=["x86_64_v2", "x86_64_v3"], metavar="NAME"
    )
    parser.add_argument("--images", type=int, default=8)
    add_record(parser, "the figures")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


def crop_images(folder: Path, images: int) -> None:
    """Decodes and resizes a random crop of each of the first images, the same at each call."""
    random.seed(0)
    pixels = np.zeros((1, 3, _SIZE, _SIZE), np.float32)
    target = PixelTarget(pixels, np.zeros(3, np.float32), np.ones(3, np.float32), None)
    for encoded, _ in islice(stored_samples(folder), images):
        header = read_header(encoded)
        shape = (header.height, header.width)
        _crop(encoded, shape, random_window(*shape), target)


def _crop(
    encoded: bytes,
    shape: tuple[int, int],
    window: tuple[int, int, int, int],
    target: PixelTarget,
) -> None:
    file = np.frombuffer(encoded, np.uint8)
    height, width = shape
    pictures = np.array([(0, height, width, 3 * width, 0, 0, 1)], PICTURE)
    windows = np.array([window], np.int64)
    spans = np.array([[file.ctypes.data, len(file)]], np.int64)
    no_points = np.array([[file.ctypes.data, 0]], np.int64)
    factors = np.ones(1, np.int64)
    images = EncodedImages(spans, no_points, windows, factors, pictures, upright=True)
    memory = np.zeros(int(images.room.sum()) + images.spare_bytes, np.uint8)
    DecodeStep(images)(0, 1, ThreadMemory(memory, new_scratch()))
    flips = np.zeros((1, 2), np.bool_)
    resample(pictures, windows, windows.astype(np.float64), flips, False, target)(0, 1)


def counts(library: str, folder: Path, images: int) -> dict[str, int] | None:
    """callgrind's counts of a process that crops so many images; None, with a message, if it fails."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "callgrind.out"
        command = ["valgrind", "--tool=callgrind", "--cache-sim=yes"]
        command += [f"--callgrind-out-file={out}", sys.executable, __file__]
        command += [str(folder), "--child", "--images", str(images)]
        paths = os.pathsep.join(sys.path)
        environment = {**os.environ, CHOICE: library, "PYTHONPATH": paths}
        environment["PYTHONHASHSEED"] = "0"
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        if run.returncode != 0:
            last = run.stderr.strip().splitlines()[-1:]
            print(f"{library}: {' '.join(last)}", file=sys.stderr)
            return None
        lines = dict(
            line.split(": ", 1) for line in out.read_text().splitlines() if ": " in line
        )
    names = lines["events"].split()
    values = map(int, lines["totals"].split())
    return dict(zip(names, values, strict=True))


def per_image(
    with_images: dict[str, int], without_images: dict[str, int], images: int
) -> dict[str, int]:
    """Instructions, and reads and writes that miss the first level, for an image."""
    difference = {
        name: (with_images[name] - without_images[name]) / images for name in _COUNTS
    }
    return {
        "instructions": round(difference["Ir"]),
        "first_level_misses": round(difference["D1mr"] + difference["D1mw"]),
    }


if __name__ == "__main__":
    sys.exit(main())
