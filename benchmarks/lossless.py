"""Measures the rows of lossless images on docs/performance.md, and writes their records and the page.

    python benchmarks/lossless.py photos/train large/train --cache /tmp/lossless --rounds 5

The first set has photos of about 500×375 pixels, the second ones of 1920×1280, both RGB. Sets of PNGs of 64×64 and
of both sizes are made of them in --cache, then `bench.py` measures each: PNGs, masks, depths, 16 bits, GeoTIFFs of 13
bands against rasterio, lossless WebP, and crops with seek points. On two idle cores it takes some ten minutes.
"""

import io
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import bench
from PIL import Image
from timing.command_line import make_parser
from timing.stored import stored_images

import gpuload

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_LOADERS = ["torch", "opencv", "imagecodecs", "dali", "gpuload"]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("photos", type=Path, help="a split of photos of 500×375")
    parser.add_argument("large", type=Path, help="a split of photos of 1920×1280")
    parser.add_argument("--cache", type=Path, required=True, help="for the sets")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    small = _pngs(args.photos, args.cache / "64", 3_072, 64)
    medium = _pngs(args.photos, args.cache / "500", 512, None)
    large = _pngs(args.large, args.cache / "1920", 64, None)
    loaders = ["--loaders", *_LOADERS, "--cold", "0"]
    pairs = ["--with", "two-jpegs", "depth", "mask", "16-bit"]
    runs: dict[str, tuple[Path, list[str]]] = {
        "png-2-cores-64-px": (small, [*loaders, *_work(64, 256, 8_192)]),
        "png-2-cores-500-px": (medium, [*loaders, *_work(224, 16, 256)]),
        "png-2-cores-1920-px": (large, [*loaders, *_work(224, 4, 64)]),
        "pairs-2-cores": (args.photos, [*pairs, *_work(224, 16, 512)]),
        "lossless-2-cores": (args.photos, ["--with", "webp", *_work(224, 16, 256)]),
        "lossless-2-cores-256-px": (args.photos, ["--with", "bands", *_work(224, 20, 320)]),
        "lossless-2-cores-64-px": (args.photos, ["--with", "bands", *_work(64, 100, 1_600)]),
        "lossless-2-cores-1920-px": (large, ["--with", "png-points", *_work(224, 4, 64)]),
    }  # fmt: skip
    for name, (folder, options) in runs.items():
        record = ["--json", str(args.results / f"{name}.json")]
        cache = ["--cache", str(args.cache / f"{name}.peers")]
        rounds = ["--rounds", str(args.rounds)]
        code = bench.main([str(folder), *options, *record, *cache, *rounds])
        if code != 0:
            return code
    figures = ROOT / "tools" / "documentation" / "figures.py"
    return subprocess.run([sys.executable, str(figures), "--write"]).returncode


def _work(size: int, batch_size: int, images: int) -> list[str]:
    sizes = ["--size", str(size), "--batch-size", str(batch_size)]
    return [*sizes, "--images", str(images)]


def _pngs(photos: Path, folder: Path, count: int, side: int | None) -> Path:
    """The split of a set of PNGs as Pillow writes them, which is made unless it is there."""
    if not folder.exists():
        gpuload.pack(_samples(photos, count, side), folder, workers=1)
    return folder / "train"


def _samples(photos: Path, count: int, side: int | None) -> Iterator[dict[str, Any]]:
    images = list(islice(stored_images(photos), count))
    for number in range(count):
        photo = Image.open(io.BytesIO(images[number % len(images)])).convert("RGB")
        if side is not None:
            photo = photo.resize((side, side))
        file = io.BytesIO()
        photo.save(file, "PNG")
        yield {"image": file.getvalue(), "label": number % 10}


if __name__ == "__main__":
    sys.exit(main())
