"""Measures how far the pixels of the two CPU decoders are apart, and each from Pillow's and torch's.

    python tools/pixel_differences.py photos-500 photos-64 --json tools/results/pixel-differences.json

Packs the JPEGs of each folder as they are, loads them by `decoder="native"` and by `decoder="dali"` as uint8, and makes
the same crops by Pillow (what torchvision does with PIL images) and by torch (what it does with tensors: slice, then
interpolate with antialias=True), both out of the image that Pillow decodes. Prints a table in Markdown: mean, 99.9th
percentile and maximum of the absolute difference of each pair, in levels of 255, over all channels of all pixels. The
column `inside` leaves out the outermost pixels: there DALI's filter repeats the edge of a crop, while Pillow's, torch's
and the native decoder's give the weight of what lies outside to the pixels inside.

`reduced` are images that the native decoder decodes at 1/2, 1/4 or 1/8 of their size, which it does where the sides of
the crop are at least six times as long as those of the output.
"""

import argparse
import io
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

import gpuload
from gpuload.decode.native.cuts import Cuts

U8 = npt.NDArray[np.uint8]

SIZES = (64, 128, 224)
CROPS = ("random", "none")
PAIRS = (("native", "dali"), ("native", "pillow"), ("dali", "pillow"), ("native", "torch"))
COLUMNS = ("native-dali", "native-dali-inside", *("-".join(pair) for pair in PAIRS[1:]))
_HEADS = ("native, DALI", "the same, inside", "native, Pillow", "DALI, Pillow", "native, torch")
_WORDS = {"random": "random crop", "none": "whole"}


class Group(NamedTuple):
    """Images whose differences are counted together. pixels: of the median image, such as 500×375."""

    pixels: str
    size: int
    crop: str
    reduced: bool


# For each of COLUMNS, how many values are 0, 1, ... 255 levels apart: int64 (256,).
Counts = dict[str, npt.NDArray[np.int64]]


def measure(folder: Path, sizes: Sequence[int], images: int, pixels: str = "") -> dict[Group, tuple[int, Counts]]:
    """Number of images and differences of each group of a packed folder.

    images: about how many of each size and crop; random crops are drawn in as many epochs as that takes.
    """
    data = gpuload.Dataset(folder)
    pictures = list(_decode(data))
    widths, heights = np.array([picture.shape[1::-1] for picture in pictures], np.int32).T
    numbers = np.arange(len(pictures))
    found: dict[Group, tuple[int, Counts]] = {}
    for size, crop in ((size, crop) for size in sizes for crop in CROPS):
        augment = gpuload.Augment(size, crop=crop, dtype="uint8", layout="channels_last")  # type: ignore[arg-type]
        epochs = max(1, images // len(pictures)) if crop == "random" else 1
        loaded = [_load(data, augment, decoder, epochs) for decoder in ("native", "dali")]
        for epoch, (native, dali) in enumerate(zip(*loaded, strict=True)):
            view = augment.draw(0, epoch, numbers, widths, heights)
            reduced = Cuts(augment.form, view, heights, widths).factors > 1
            pillow, tensors = (
                np.stack([make(picture, view.crops, row, size) for row, picture in enumerate(pictures)])
                for make in (_by_pillow, _by_torch)
            )
            made = {"native": native, "dali": dali, "pillow": pillow, "torch": tensors}
            for is_reduced in np.unique(reduced).tolist():
                rows = reduced == is_reduced
                group = Group(pixels, size, crop, is_reduced)
                number, counts = found.get(group, (0, defaultdict(lambda: np.zeros(256, np.int64))))
                for one, other in PAIRS:
                    apart = np.abs(made[one][rows].astype(np.int16) - made[other][rows])
                    counts[f"{one}-{other}"] += np.bincount(apart.ravel(), minlength=256)
                    counts[f"{one}-{other}-inside"] += np.bincount(apart[:, 1:-1, 1:-1].ravel(), minlength=256)
                found[group] = number + int(rows.sum()), counts
    return found


def _load(data: gpuload.Dataset, augment: gpuload.Augment, decoder: str, epochs: int) -> Iterator[U8]:
    """All images of each epoch, uint8 (N, size, size, 3)."""
    with gpuload.DaliIterator(
        data, 32, augment=augment, decoder=decoder, device="cpu", fields=["image"], output="numpy", shuffle=False
    ) as loader:  # type: ignore[arg-type]
        for _ in range(epochs):
            yield np.concatenate([images.transpose(0, 2, 3, 1) for (images,) in loader])


def _decode(data: gpuload.Dataset) -> Iterator[U8]:
    """Each image as Pillow decodes it, in stored order."""
    for number, path in enumerate(data.shard_paths):
        shard = path.read_bytes()
        rows = data.rows(number)
        for offset, size in zip(*(rows.column(f"image_{n}").to_pylist() for n in ("offset", "bytes")), strict=True):
            with Image.open(io.BytesIO(shard[offset : offset + size])) as image:
                yield np.asarray(image.convert("RGB"))


def _by_pillow(picture: U8, crops: Any, row: int, size: int) -> U8:
    (top, left), (height, width) = crops.start[row].tolist(), crops.shape[row].tolist()
    cut = Image.fromarray(picture[top : top + height, left : left + width])
    made = np.asarray(cut.resize((size, size), Image.Resampling.BILINEAR))
    return made[:, ::-1] if crops.mirror[row] else made


def _by_torch(picture: U8, crops: Any, row: int, size: int) -> U8:
    (top, left), (height, width) = crops.start[row].tolist(), crops.shape[row].tolist()
    cut = torch.from_numpy(picture[top : top + height, left : left + width].transpose(2, 0, 1).copy())[None]
    made = torch.nn.functional.interpolate(cut, (size, size), mode="bilinear", antialias=True, align_corners=False)
    found: U8 = made[0].permute(1, 2, 0).numpy()
    return found[:, ::-1] if crops.mirror[row] else found


def summary(counts: npt.NDArray[np.int64]) -> dict[str, float]:
    """Mean, 99.9th percentile and maximum of differences, of which there are so many of each."""
    levels = np.arange(256)
    total = counts.sum()
    return {
        "mean": round(float(counts @ levels / total), 3),
        "p99.9": int(np.searchsorted(np.cumsum(counts), 0.999 * total)),
        "max": int(levels[counts > 0][-1]),
    }


def rows_of(found: dict[Group, tuple[int, Counts]]) -> list[dict[str, Any]]:
    """What is written as JSON: a row for each group."""
    return [
        {**group._asdict(), "images": number, **{name: summary(counts[name]) for name in COLUMNS}}
        for group, (number, counts) in sorted(found.items(), key=lambda item: _place(item[0]))
    ]


def _place(group: Group) -> tuple[int, int, bool]:
    """Rows are in the order of sizes, crops, and whole images before reduced ones."""
    return group.size, CROPS.index(group.crop), group.reduced


def table(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The lines of a table in Markdown; figures are mean / 99.9th percentile / maximum."""
    lines = [f"| images | to | crop | {' | '.join(_HEADS)} |", "|---" * (3 + len(COLUMNS)) + "|"]
    for row in rows:
        crop = _WORDS[row["crop"]] + (", reduced" if row["reduced"] else "")
        figures = [f"{row[name]['mean']:.2f} / {row[name]['p99.9']} / {row[name]['max']}" for name in COLUMNS]
        lines.append(f"| {row['pixels']} | {row['size']} | {crop} | {' | '.join(figures)} |")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of JPEGs, each of images of about one size")
    parser.add_argument("--images", type=int, default=256, help="of each folder, size and crop (%(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of the output, where images are as large")
    parser.add_argument("--json", type=Path, help="also write the figures to it")
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for folder in args.folders:
        with tempfile.TemporaryDirectory() as scratch:
            paths = sorted(folder.rglob("*.jpg"))[: args.images]
            if not paths:
                parser.error(f"{folder}: holds no .jpg")
            samples = [{"image": path, "name": path.relative_to(folder).as_posix()} for path in paths]
            gpuload.pack(samples, Path(scratch) / "packed", shuffle=False, workers=1)
            sides = [Image.open(path).size for path in paths]
            width, height = (int(median(side)) for side in zip(*sides, strict=True))
            fitting = [size for size in args.sizes if size <= min(width, height)]
            found = measure(Path(scratch) / "packed" / "train", fitting, args.images, f"{width}×{height}")
        rows += rows_of(found)
        print("\n".join(table(rows_of(found))), flush=True)
    if args.json:
        from benchmark.report import describe_machine

        record = {"machine": describe_machine(), "rows": rows}
        args.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
