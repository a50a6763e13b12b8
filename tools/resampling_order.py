"""Measures whether a crop's resize should be part of a warp, which would interpolate the pixels once.

    python tools/resampling_order.py shards/train

Random crops of the set's images, and whole ones, rotated, are made in two ways: resized with antialiasing, then warped
(which is what gpuload does); or by one warp straight from the decoded image. Both are compared with the rotation at
full resolution, resized afterwards. What padding and warps cost, `tools/bench.py --with` measures.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpuload
from gpuload.augment.augment import Augment
from gpuload.decode.native.resample import resample
from gpuload.decode.native.warp import warp
from gpuload.types import F64, U8

_ZEROS, _ONES = np.zeros(3, np.float32), np.ones(3, np.float32)


def resampling(folder: Path, size: int, images: int) -> dict[str, dict[str, float]]:
    """By kind of crop and way: processor time in µs, and the mean difference in levels from the best way."""
    found: dict[str, dict[str, float]] = {}
    for kind, low, high in (("random crops, scale 0.08 to 1", 0.08, 1.0), ("whole images", 1.0, 1.0)):
        options: dict[str, Any] = {"scale": (low, high)} if low < 1 else {"crop": "none", "flip": 0}
        augment = Augment(size, dtype="uint8", **{"flip": 0, **options})
        whole = Augment(size, crop="none", dtype="uint8")
        ways: dict[str, list[tuple[float, float]]] = {"resize, then warp": [], "one warp": []}
        with gpuload.DaliIterator(folder, 1, augment=whole, fields=("image",), device="cpu", shuffle=False) as loader:
            dataset = loader.dataset
        for number in range(min(images, len(dataset))):
            pixels = _decoded(dataset, number)
            height, width = pixels.shape[:2]
            sample = np.array([number])
            crops = augment.draw(0, 0, sample, np.array([width], np.int32), np.array([height], np.int32)).crops
            top, left = crops.start[0].tolist()
            part = np.ascontiguousarray(pixels[top : top + crops.shape[0, 0], left : left + crops.shape[0, 1]])
            for name, row in _compare(part, size, np.radians(np.random.default_rng(number).uniform(5, 15))).items():
                ways[name].append(row)
        for name, rows in ways.items():
            took, differences = zip(*rows, strict=True)
            found[f"{kind}: {name}"] = {
                "us": round(statistics.median(took) * 1e6),
                "levels": round(statistics.mean(differences), 2),
            }
    return found


def _decoded(dataset: Any, number: int) -> U8:
    import io

    from PIL import Image

    shard = int(np.searchsorted(dataset.first_samples, number, side="right")) - 1
    row = dataset.rows(shard).slice(number - int(dataset.first_samples[shard]), 1)
    begin, size = (row.column(f"image_{what}")[0].as_py() for what in ("offset", "bytes"))
    with dataset.shard_paths[shard].open("rb") as file:
        file.seek(begin)
        return np.asarray(Image.open(io.BytesIO(file.read(size))).convert("RGB"))


def _compare(part: U8, size: int, turn: float) -> dict[str, tuple[float, float]]:
    """By way: processor time and mean difference."""
    height, width = part.shape[:2]
    cos, sin = np.cos(turn), np.sin(turn)
    rotation = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    scale = np.diag([width / size, height / size, 1.0])  # from output to crop, both from their centres
    levels, once = np.empty((1, size, size, 3), np.uint8), np.empty((1, 3, size, size), np.uint8)
    twice, full = np.empty((1, 3, size, size), np.uint8), np.empty((1, height, width, 3), np.uint8)

    def resized(image: U8, out: Any) -> None:
        _resize(image, size, out)

    def two_steps() -> None:
        resized(part, levels.transpose(0, 3, 1, 2))
        _rotate(levels[0], rotation, twice)

    def one_step() -> None:
        _rotate(part, scale @ rotation, once)

    took = {"resize, then warp": _time(two_steps), "one warp": _time(one_step)}
    _rotate(part, scale @ rotation @ np.linalg.inv(scale), full.transpose(0, 3, 1, 2))
    best = np.empty((1, 3, size, size), np.uint8)
    resized(full[0], best)
    inside = slice(size // 6, -size // 6)  # away from the fill
    made = {"resize, then warp": twice, "one warp": once}
    apart = {
        name: float(np.abs(one[..., inside, inside].astype(int) - best[..., inside, inside]).mean())
        for name, one in made.items()
    }
    return {name: (took[name], apart[name]) for name in made}


def _picture(image: U8) -> Any:
    height, width = image.shape[:2]
    return np.array([[image.ctypes.data, height, width, 3 * width, 0, 0, 1]])


def _resize(image: U8, size: int, out: Any) -> None:
    sides = np.array([[0, 0, *image.shape[:2]]])
    resample(_picture(image), sides, sides.astype(np.float64), np.zeros((1, 2), bool), False, _ZEROS, _ONES, out)


def _rotate(image: U8, back: F64, out: Any) -> None:
    """back: from the output's pixels to the image's, both from their centres."""
    (height, width), (tall, wide) = out.shape[2:], image.shape[:2]
    to_centre = np.array([[1, 0, (1 - width) / 2], [0, 1, (1 - height) / 2], [0, 0, 1]])
    from_centre = np.array([[1, 0, (wide - 1) / 2], [0, 1, (tall - 1) / 2], [0, 0, 1]])
    maps = (from_centre @ back @ to_centre)[None]
    warp(_picture(image), maps, np.ones(1, np.bool_), np.zeros((1, 3), np.uint8), _ZEROS, _ONES, out)


def _time(work: Callable[[], None]) -> float:
    """The least processor time of some runs, which the other load of a machine affects least."""
    work()
    times = []
    for _ in range(5):
        begun = time.thread_time()
        work()
        times.append(time.thread_time() - begun)
    return min(times)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a packed split, such as shards/train")
    parser.add_argument("--size", type=int, default=224, help="side of the output in pixels (%(default)s)")
    parser.add_argument("--images", type=int, default=200, help="of the set (%(default)s)")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args(argv)
    try:
        found = resampling(args.folder, args.size, args.images)
    except gpuload.GpuloadError as error:
        print(error, file=sys.stderr)
        return 2
    for name, row in found.items():
        print(f"{name:45}", *(f"{key} {value:,}" for key, value in row.items()), sep="  ")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        record = {"size": args.size, "images": args.images, "figures": found}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
